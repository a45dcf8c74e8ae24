"""What is in force where the newest stored quota file cannot be read: the last one that can.

A database that another release wrote may hold such a file. Plans and edits continue under the last file that
can be read, with the newest revision number, so that they still match the revision in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from ...quotafile import QuotaFile
from ..records.protocol import Page, Store
from ..records.rows import Changes, QuotaRevision

log = logging.getLogger(__name__)

AT_ONCE = 20
MOST_TOLD = 400
"""Characters of what is wrong with a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """A revision and its file, None where none can be read; ``fault`` says what is wrong with the newest, or nothing.

    With a fault, ``revision`` has the newest one's number and the content of an earlier one.
    """

    revision: QuotaRevision | None
    file: QuotaFile | None
    fault: str


def in_force(store: Store, newest: QuotaRevision) -> InForce:
    """The newest revision, or what stands in for it. May raise StoreUnavailable."""
    try:
        return InForce(revision=newest, file=QuotaFile.from_document(newest.document), fault="")
    except ValueError as error:
        why = str(error)[:MOST_TOLD]
    for older in _before(store, newest.revision):
        try:
            file = QuotaFile.from_document(older.document)
        except ValueError:
            continue
        fault = (
            f"revision {newest.revision} of the quota file cannot be read ({why}), so what revision {older.revision} "
            f"says stays in force; an admin goes back to revision {older.revision}, or applies another file"
        )
        policy = replace(older.policy, revision=newest.revision)
        stands_in = replace(older, revision=newest.revision, policy=policy, comment=fault)
        return InForce(revision=stands_in, file=file, fault=fault)
    fault = (
        f"revision {newest.revision} of the quota file cannot be read ({why}), nor any before it, so nothing is given "
        f"out; an admin applies another file on revision {newest.revision}"
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
    """The same store, whose changes bring what is in force where the newest quota file cannot be read."""
    return cast(Store, _Readable(store))


class _Readable:
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
