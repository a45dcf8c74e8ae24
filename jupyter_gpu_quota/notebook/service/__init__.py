"""The service as this server reaches it: its own requests, and those of the front end, with the server's token."""

from .connection import Service, monotonic_ms

__all__ = ["Service", "monotonic_ms"]
