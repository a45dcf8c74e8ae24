"""The process's view of the store, read without a query: rows, use, quota states and the latest decision."""
