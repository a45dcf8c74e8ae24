"""The secrets of slices: a notebook's server reports with one, so that its reports cost the hub no look-up."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable

from ...core.lifecycle import NOTEBOOK_FINAL
from ...store.records.rows import NotebookRecord
from .permissions import Person

KEY = "slice_secrets"
"""The name of the service's key in the store."""

FRESH_S = 60.0
"""The key is read again after so long: a restored backup may have another one."""


class SliceSecrets:
    """The secret of each slice: the HMAC-SHA256 of its id. ``key`` reads the service's key."""

    def __init__(self, key: Callable[[str], Awaitable[bytes]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = key, clock
        self._key, self._read_at = b"", float("-inf")

    async def secret_of(self, notebook: str) -> str:
        """The secret of a slice, as 64 hexadecimal digits. Raises StoreUnavailable."""
        if self._clock() - self._read_at >= FRESH_S:
            self._key, self._read_at = await self._read(KEY), self._clock()
        return hmac.new(self._key, notebook.encode(), hashlib.sha256).hexdigest()

    async def is_valid(self, record: NotebookRecord, secret: str) -> bool:
        """Whether this is the secret of a slice that has not ended. Raises StoreUnavailable."""
        if record.notebook.state in NOTEBOOK_FINAL:
            return False
        expected = await self.secret_of(record.notebook.id)
        return hmac.compare_digest(expected.encode(), secret.encode())


def owner_of(record: NotebookRecord, name: str) -> Person:
    """The owner of a slice, as its server reports for them: with no more than the project that the slice is of."""
    notebook = record.notebook
    return Person(name=name, id=notebook.user, scopes=frozenset({"submit"}), roles={notebook.project: "member"})
