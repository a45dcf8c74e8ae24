"""The hold of a leader whose database is older than the running work."""
