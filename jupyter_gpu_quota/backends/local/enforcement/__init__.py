"""Enforcement of shares on this machine: mechanisms, cgroups, the driver's limits, reading back, labels."""
