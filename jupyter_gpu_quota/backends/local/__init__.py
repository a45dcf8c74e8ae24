"""The backend of one machine: processes, cgroups, NVML, log files, accounts."""
