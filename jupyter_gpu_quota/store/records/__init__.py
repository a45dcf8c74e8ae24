"""The types of the store: records, requests, and the arguments, results and errors of its calls."""
