"""The way to the API server: requests, lists and watches, and the fencing number."""
