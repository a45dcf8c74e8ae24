"""What touches processes, pods, devices and log files, behind one protocol."""
