"""Who may take GPUs back from whom, and the fewest victims that are enough."""
