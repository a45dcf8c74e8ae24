"""The process that decides and acts: it holds the lease and runs every loop that changes anything."""
