"""The exception of a refused start: the hub shows its sentence and does not count a failure.

JupyterHub 6 has an exception for it; JupyterHub 5 gets an HTTP error.
"""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError, RequestHandler

try:
    from jupyterhub.spawner import SpawnException
except ImportError:  # JupyterHub 5
    SpawnException = None


def spawn_error(message: str, *, reason: str, status: int = 409) -> HTTPError:
    """The exception to raise from ``Spawner.start``.

    Takes a sentence for the user, a short code for metrics, and a status below 500: the hub counts statuses from 500
    on as failed starts.
    """
    status = status if 400 <= status < 500 else 424
    if SpawnException is not None:
        found: Any = SpawnException(message, reason=reason, status_code=status)
        found.jupyterhub_message = message  # without it the spawn page shows str(found), with the name of its class
        refusal: HTTPError = found
        return refusal
    return _JupyterHub5Refusal(status, message)


def start_failure(message: str) -> HTTPError:
    """The exception of a server that failed to start: the hub shows its sentence and counts a failure."""
    failure: Any = HTTPError(500, message)
    failure.jupyterhub_message = message
    found: HTTPError = failure
    return found


class _JupyterHub5Refusal(HTTPError):
    """An HTTP error whose sentence JupyterHub 5 shows unchanged."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.jupyterhub_message = message


def exclude_from_failures(error: BaseException, handler: RequestHandler | None) -> None:
    """Keep a refusal out of JupyterHub 5's count of failed starts, whose limit stops the hub; 6 does so itself.

    Takes the exception of the start, and its request handler: the hub adds one to the count in its settings.
    """
    if isinstance(error, _JupyterHub5Refusal) and handler is not None:
        handler.settings["failure_count"] = handler.settings.get("failure_count", 0) - 1
