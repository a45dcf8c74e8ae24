"""Snapshots, past use and quota revisions, read from the records."""
