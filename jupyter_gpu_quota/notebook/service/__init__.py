"""Requests of this server to the service with the server's token: its own, and those of the front end."""

from .connection import Service, monotonic_ms

__all__ = ["Service", "monotonic_ms"]
