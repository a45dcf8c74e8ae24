"""Readings of devices: real ones through NVML, in a process of its own, or simulated ones.

What cannot be read is None with its reason, never 0, and stops nobody. A simulated reading says that it is one.
"""
