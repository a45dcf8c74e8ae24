"""The machine itself: its processes, small records on disk, recorded servers, and threads for what may wait."""
