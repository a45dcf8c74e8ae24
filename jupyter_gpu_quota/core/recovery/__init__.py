"""A database that is older than the running work, such as a restored backup. It decides nothing about the queue."""
