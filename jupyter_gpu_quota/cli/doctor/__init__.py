"""``jupyter gpu-quota doctor``: probes of this machine, the hub and the settings."""
