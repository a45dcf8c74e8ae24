"""Differences of a database that is older than the running work, such as a restored backup. Makes no decisions."""
