"""Readings of devices: real ones through NVML, in a process of its own, or simulated ones.

A figure that cannot be read is None with its reason, never 0. A simulated sample is marked as such.
"""
