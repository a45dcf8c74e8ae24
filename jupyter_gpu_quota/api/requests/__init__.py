"""One request: its person, its body, the operation, and what the operations share."""
