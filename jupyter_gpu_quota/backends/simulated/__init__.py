"""The simulated backend: jobs on a virtual clock, and devices that exist in name only."""
