"""The machine: its processes, recorded servers, and threads for background work."""
