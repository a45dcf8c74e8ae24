"""The quota revision in force: the newest one whose file can be read.

A database that another release wrote may hold such a file. Plans and edits continue under the last file that
can be read, with the newest revision number, so that they still match the revision in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from ...core.model import Policy
from ...quotafile import QuotaFile
from ...quotafile.document import DAY_S, HORIZON_DAYS
from ..records.calls import Page
from ..records.rows import Changes, QuotaRevision
from ..transactions import Store

log = logging.getLogger(__name__)

AT_ONCE = 20
MAX_FAULT = 400
"""Characters of an error message in a quota file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """A revision and its file, None where none can be read; ``fault`` describes the error in the newest, else empty.

    With a fault, ``revision`` has the newest one's number and the content of an earlier one.
    """

    revision: QuotaRevision | None
    file: QuotaFile | None
    fault: str


def in_force(store: Store, newest: QuotaRevision) -> InForce:
    """The newest revision, or the one that replaces it. May raise StoreUnavailable."""
    try:
        return InForce(revision=newest, file=QuotaFile.from_document(newest.document), fault="")
    except ValueError as error:
        why = str(error)[:MAX_FAULT]
    for older in _before(store, newest.revision):
        try:
            file = QuotaFile.from_document(older.document)
        except ValueError:
            continue
        fault = (
            f"revision {newest.revision} of the quota file cannot be read ({why}), so revision {older.revision} "
            f"stays in force; an admin goes back to revision {older.revision}, or applies another file"
        )
        policy = replace(older.policy, revision=newest.revision)
        kept = replace(older, revision=newest.revision, policy=policy, comment=fault)
        return InForce(revision=kept, file=file, fault=fault)
    fault = (
        f"revision {newest.revision} of the quota file cannot be read ({why}), nor any before it, so nothing is "
        f"started; an admin applies another file on revision {newest.revision}"
    )
    return InForce(revision=None, file=None, fault=fault)


def _before(store: Store, newest: int) -> Iterator[QuotaRevision]:
    """The earlier revisions, newest first."""
    offset, total = 0, 1
    while offset < total:
        found, total = store.quota_revisions(Page(offset=offset, limit=AT_ONCE))
        yield from (revision for revision in found if revision.revision < newest)
        offset += AT_ONCE


def with_readable_quota(store: Store) -> Store:
    """The same store; its changes have the revision in force where the newest quota file cannot be read."""
    return cast(Store, _WithReadableQuota(store))


class _WithReadableQuota:
    """A store in all but its changes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def changes(self, since: int, *, ended: bool = True) -> Changes:
        changes = self._store.changes(since, ended=ended)
        if changes.quota is None:
            return changes
        found = in_force(self._store, changes.quota)
        if found.fault:
            log.error("%s", found.fault)
        return replace(changes, quota=found.revision)


EXPAND_AGAIN_MS = HORIZON_DAYS // 2 * DAY_S * 1000
"""The calendar is expanded again after this time, when half of its horizon is left."""


class PolicyAhead:
    """The policy of one revision at any instant, with the windows of its calendar up to the horizon.

    Raises ValueError for a revision whose document is no quota file, which nothing records.
    """

    def __init__(self, revision: QuotaRevision) -> None:
        self._revision, self._policy = revision, revision.policy
        self._file = QuotaFile.from_document(revision.document) if revision.document.get("calendar") else None
        self._expanded_at: int | None = None

    def at(self, now: int) -> Policy:
        """The policy; the same object until its calendar is expanded again, also when the clock was set back."""
        known_at = self._expanded_at
        if self._file is not None and (known_at is None or not known_at <= now < known_at + EXPAND_AGAIN_MS):
            self._policy, self._expanded_at = self._file.policy(self._revision.revision, now), now
        return self._policy
