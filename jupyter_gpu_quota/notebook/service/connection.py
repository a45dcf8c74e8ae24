"""The service's REST API for this notebook server, with the server's own token."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from ...backends.rendering.variables import SECRET_HEADER, SECRET_VARIABLE, SHARE_VARIABLE

CONNECT_TIMEOUT_S = 5.0
URL_VARIABLE = "JUPYTER_GPU_QUOTA_URL"
"""The variable with the service's address, in a server that a hub with the service started."""


class Service:
    """The slice of this server and the service's address, from the server's ``variables``.

    ``notebook`` is the id of the slice, None for a server without one; ``project`` the default project, if any.
    ``root`` is the service's address; empty in a server of another hub, or of none.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.notebook: str | None = None
        try:
            self.notebook = str(json.loads(variables.get(SHARE_VARIABLE, ""))["notebook"])
        except (ValueError, KeyError, TypeError):
            self.notebook = None
        self.root = variables.get(URL_VARIABLE, "").rstrip("/")
        self.project = variables.get("JUPYTER_GPU_QUOTA_PROJECT") or None
        self.token = variables.get("JUPYTERHUB_API_TOKEN", "")
        self._secret = variables.get(SECRET_VARIABLE, "")

    @property
    def is_configured(self) -> bool:
        """Whether this server has the address of a service and a token."""
        return bool(self.root and self.token)

    @property
    def has_slice(self) -> bool:
        """Whether this server has a slice and a token."""
        return bool(self.notebook and self.token)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request.

        With the secret the service need not verify the token at the hub each time; an older service ignores it.
        """
        secret = {SECRET_HEADER: self._secret} if self._secret else {}
        return {"Authorization": f"token {self.token}", "Content-Type": "application/json", **secret}

    def url(self, path: str) -> str:
        """The address of a path below ``api/v1``."""
        return f"{self.root}/api/v1/{path}"

    def path(self, action: str) -> str:
        """The path of an action on the slice."""
        return f"notebooks/{quote(str(self.notebook), safe='')}/{action}"

    async def post(self, path: str, body: str, within_s: float) -> bytes:
        """The answer to a POST of JSON; raises HTTPClientError or OSError.

        Each has a client of its own: that of the loop sends ten requests at a time, and a wait for the GPU takes long.
        """
        request = HTTPRequest(
            self.url(path),
            method="POST",
            headers=self.headers,
            body=body,
            connect_timeout=CONNECT_TIMEOUT_S,
            request_timeout=within_s,
            follow_redirects=False,
        )
        client = AsyncHTTPClient(force_instance=True)
        try:
            return (await client.fetch(request)).body
        finally:
            client.close()


def monotonic_ms() -> int:
    """Milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000
