"""The secrets of slices. A notebook's server authenticates its reports with one, without a request to the hub."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping

from tornado.httputil import HTTPServerRequest

from ...backends.rendering.variables import SECRET_HEADER
from ...core.lifecycle import NOTEBOOK_FINAL
from ...store.records.rows import NotebookRecord
from .permissions import Person

KEY_NAME = "slice_secrets"
"""The name of the signing key among the service's keys in the store."""

FRESH_S = 60.0
"""The key is read again after this time, because a restored backup may have another one."""


class SliceSecrets:
    """The secret of each slice: its id, the SHA-256 of its server's token, and their HMAC-SHA256.

    ``key`` reads a key of the service by its name. ``notebooks``: the present slices, by id.
    """

    def __init__(
        self,
        key: Callable[[str], Awaitable[bytes]],
        notebooks: Callable[[], Mapping[str, NotebookRecord]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._notebooks, self._clock = key, notebooks, clock
        self._key, self._read_at = b"", float("-inf")

    async def secret_of(self, notebook: str, token_digest: str) -> str:
        """The secret of a slice; the digest is empty for a server whose token is not known. Raises StoreUnavailable."""
        if self._clock() - self._read_at >= FRESH_S:
            self._key, self._read_at = await self._read(KEY_NAME), self._clock()
        signed = f"{notebook}.{token_digest}"
        return f"{signed}.{hmac.new(self._key, signed.encode(), hashlib.sha256).hexdigest()}"

    async def slice_of(self, request: HTTPServerRequest) -> NotebookRecord | None:
        """The live slice whose secret a request has; None without one. Raises StoreUnavailable."""
        secret = request.headers.get(SECRET_HEADER, "")
        notebook, _, digest = secret.rpartition(".")[0].partition(".")
        record = self._notebooks().get(notebook)
        if record is None or record.notebook.state in NOTEBOOK_FINAL:
            return None
        expected = await self.secret_of(record.notebook.id, digest)
        return record if hmac.compare_digest(expected.encode(), secret.encode()) else None

    async def slice_of_server(self, request: HTTPServerRequest, token: str) -> NotebookRecord | None:
        """The live slice whose secret a request has, if ``token`` is its server's. Raises StoreUnavailable."""
        digest = request.headers.get(SECRET_HEADER, "").rpartition(".")[0].partition(".")[2]
        if not hmac.compare_digest(digest.encode(), hashlib.sha256(token.encode()).hexdigest().encode()):
            return None
        return await self.slice_of(request)


def owner_of(record: NotebookRecord, name: str) -> Person:
    """The owner of a slice with the rights that its server needs: to report, as a member of the slice's project."""
    notebook = record.notebook
    return Person(name=name, id=notebook.user, scopes=frozenset({"submit"}), roles={notebook.project: "member"})
