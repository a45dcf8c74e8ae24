"""What the store keeps and what it is asked for: records, commands and the protocol of every store."""
