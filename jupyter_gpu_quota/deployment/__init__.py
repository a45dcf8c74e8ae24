"""Starts and restarts the service's processes on a single-machine hub."""
