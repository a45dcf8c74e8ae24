"""The address of a front end's request below the service's ``api/v1``. Pure."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, unquote, urlencode

OWN_PARAMETERS = frozenset({"token", "_xsrf", "no_track_activity"})
"""Parameters for this server, which are not passed. The service would read ``token`` as a token of the hub."""

MAX_LENGTH = 8_192


class BadPath(ValueError):
    """The path is not one of the service's API; the message is a sentence."""


def api_path(raw: str, query: str = "") -> str:
    """A request's path and query for the service, quoted again part by part.

    Takes the part after ``gpu-quota/api/`` as it was sent, and the query without its question mark.
    Raises BadPath for a path with ``..``, a scheme, a host, an empty part or control characters.
    """
    if len(raw) + len(query) > MAX_LENGTH:
        raise BadPath(f"The address is longer than {MAX_LENGTH} characters.")
    try:
        path = "/".join(quote(_part(part), safe="") for part in raw.split("/"))
        asked = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:  # of BadPath and of text that is not UTF-8
        raise error if isinstance(error, BadPath) else BadPath("The address is not UTF-8 text.") from None
    wanted = [(name, value) for name, value in asked if not _is_for_this_server(name, value)]
    return f"{path}?{urlencode(wanted)}" if wanted else path


def _part(quoted: str) -> str:
    part = unquote(quoted, errors="strict")
    if part in ("", ".", "..") or not part.isprintable() or "/" in part or "\\" in part:
        raise BadPath(f"{part[:80]!r} is not a part of a path of the service's API.")
    return part


def _is_for_this_server(name: str, value: str) -> bool:
    """Whether a parameter is not passed to the service; JupyterLab adds a bare number to avoid caches."""
    return name in OWN_PARAMETERS or (name.isdigit() and not value)
