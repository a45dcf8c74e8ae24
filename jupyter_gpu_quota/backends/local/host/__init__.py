"""The machine: its processes, small records on disk, recorded servers, and threads for background work."""
