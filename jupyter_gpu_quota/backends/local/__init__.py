"""The backend of one machine: processes, control groups, NVML, log files, accounts."""
