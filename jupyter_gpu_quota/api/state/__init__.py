"""What the process knows of the store, read without a query: rows, use, quota states and the latest decision."""
