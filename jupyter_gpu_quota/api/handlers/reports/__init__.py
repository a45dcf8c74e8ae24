"""What the servers of notebooks and the agents of nodes report."""
