"""The reports of notebook servers and of the agents of nodes."""
