"""Which devices take a request, and how well they are used by it."""
