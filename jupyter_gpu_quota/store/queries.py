"""The store's queries: each is one transaction that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from ..core.model import NotebookState
from ..core.reason_codes import ReasonCode
from ..core.samples import DeviceSample
from .database import tables
from .database.position import has_position, position_of
from .database.tables import AllocationRow, Head, IdempotencyRow, Rows, Scope, Table, Where
from .job_listing import jobs_where, ordered_jobs
from .records.activity import Note, NotebookReport, NoteKind
from .records.calls import FIRST_PAGE, NEWEST_FIRST, AuditFilter, JobFilter, JobOrder, Lease, Page, UsageReader
from .records.commands import AllocationLabel
from .records.notifications import NotificationRecord
from .records.recovery import Hold, UnknownWork, unknown_from
from .records.rows import (
    AuditRow,
    Changes,
    Holding,
    JobRecord,
    JobSeries,
    JobStart,
    NotebookRecord,
    Position,
    QuotaRevision,
    RankRecord,
    UsageHour,
)
from .writes.audit_chain import verify
from .writes.jobs import waiting_of
from .writes.retention import JOBS_AT_A_TIME
from .writes.usage import job_starts, usage_between

R = TypeVar("R")
ALL = Page(limit=2**31 - 1)
ANY = Where()
MAY_REQUEST_AGAIN = (
    Where(text={"reason": (ReasonCode.SLICE_RELEASED.value, False)}),
    Where(among={"state": [NotebookState.REFUSED.value]}, at_least={"booked_at": 0}),
)
"""Conditions of which one holds for each ended slice that its server may request again."""


class StoreQueries:
    """Reads of the rows. Every query may raise StoreUnavailable. Listings are newest first, with their total."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def _get(self, table: Table[R], *key: str | int) -> R | None:
        with self._rows.reading() as scope:
            return scope.get_many(table, [key]).get(key)

    def _list(self, table: Table[R], page: Page, where: Where = ANY) -> tuple[list[R], int]:
        with self._rows.reading() as scope:
            return scope.listing(table, where, page)

    def _head(self) -> Head:
        with self._rows.reading() as scope:
            return head_of(scope)

    # --- the whole store --------------------------------------------------------------------------------------------
    def version(self) -> int:
        return self._head().version

    def changes(self, since: int, *, ended: bool = True) -> Changes:
        """The changes after a version; from 0, all rows (``ended`` False: only those of live work).

        From 0 it leaves out allocations and reservations that ended before.
        """
        with self._rows.reading() as scope:
            head = head_of(scope)
            if head.version == since:
                return Changes(version=since, fencing=head.fencing, position=position_of(head))
            return _changes(scope, head, since, ended=ended)

    def changed_work(self, since: int) -> int:
        """How many jobs and notebooks changed after a version."""
        where, first = Where(at_least={"changed": since + 1}), Page(limit=1)
        with self._rows.reading() as scope:
            return scope.listing(tables.JOBS, where, first)[1] + scope.listing(tables.NOTEBOOKS, where, first)[1]

    def position(self) -> Position:
        """The newest row of the audit chain."""
        return position_of(self._head())

    def has_position(self, position: Position) -> bool:
        """Whether the audit chain contains this row: a restored backup may lack it."""
        with self._rows.reading() as scope:
            return has_position(scope, position)

    def hold(self) -> Hold | None:
        """Why no decision is made, since the database is older than the running work; None: decisions are made."""
        found = self.notes("recovery")
        return Hold.from_note(found[0]) if found else None

    def unknown_work(self) -> list[UnknownWork]:
        """The attempts that run without a job here, as an admin accepted them."""
        found = self.notes("unknown_work")
        return unknown_from(found[0]) if found else []

    def lease(self) -> Lease | None:
        """The lease as it was last taken, expired or not; None where no process holds it."""
        head = self._head()
        if head.holder is None:
            return None
        return Lease(holder=head.holder, fencing=head.fencing, expires_at=head.expires_at)

    def quota(self) -> QuotaRevision | None:
        with self._rows.reading() as scope:
            return _quota(scope, head_of(scope).quota_revision)

    def quota_revisions(self, page: Page) -> tuple[list[QuotaRevision], int]:
        return self._list(tables.QUOTA, page)

    def audit(self, which: AuditFilter | None = None, *, page: Page = FIRST_PAGE) -> tuple[list[AuditRow], int]:
        wanted = which or AuditFilter()
        among = {"project": wanted.projects, "actor": wanted.actors, "kind": wanted.kinds}
        where = Where(
            at_least={} if wanted.since is None else {"at": wanted.since},
            below={} if wanted.until is None else {"at": wanted.until},
            among={column: list(values) for column, values in among.items() if values is not None},
        )
        return self._list(tables.AUDIT, page, where)

    def audit_verify(self) -> int | str:
        """The number of rows if the chain is intact, else a sentence that names the first row that breaks it."""
        with self._rows.reading() as scope:
            return verify(head_of(scope), scope.scan(tables.AUDIT))

    def user_named(self, name: str) -> str | None:
        """The id of a person who was seen before."""
        with self._rows.reading() as scope:
            found = scope.find(tables.USERS, "name", [name])
        return found[0].id if found else None

    def user_names(self, ids: Sequence[str]) -> dict[str, str]:
        with self._rows.reading() as scope:
            rows = scope.get_many(tables.USERS, [(id,) for id in ids])
        return {row.id: row.name for row in rows.values() if row.name is not None}

    # --- jobs -------------------------------------------------------------------------------------------------------
    def job(self, job: str) -> JobRecord | None:
        return self._get(tables.JOBS, job)

    def jobs(self, which: JobFilter, page: Page, order: JobOrder = NEWEST_FIRST) -> tuple[list[JobRecord], int]:
        if order == NEWEST_FIRST:
            return self._list(tables.JOBS, page, jobs_where(which))
        with self._rows.reading() as scope:
            ids = ordered_jobs(scope, jobs_where(which), order)
            some = [(id,) for id in ids[page.offset : page.offset + page.limit]]
            records = scope.get_many(tables.JOBS, some)
            return [records[key] for key in some], len(ids)

    def job_of_key(self, user: str, key: str) -> IdempotencyRow | None:
        """The job that a user's idempotency key was first sent with."""
        return self._get(tables.IDEMPOTENCY, user, key)

    def waiting_jobs(self, user: str) -> int:
        """How many jobs of a user are queued, paused or held."""
        return self._list(tables.JOBS, Page(limit=0), waiting_of(user))[1]

    def ended_jobs(self, before: int, after: tuple[int, str] | None = None) -> list[JobRecord]:
        """At most 1,000 jobs that ended before an instant, and after a position: an end and an id."""
        with self._rows.reading() as scope:
            return scope.ended(tables.JOBS, before, JOBS_AT_A_TIME, after)

    def ended_of(self, projects: Sequence[str], after: tuple[int, str], limit: int) -> list[JobRecord]:
        """At most ``limit`` jobs of these projects whose end and id are above ``after``, those that ended first."""
        with self._rows.reading() as scope:
            return scope.ended_after(tables.JOBS, after, "project", projects, limit)

    def ranks(self, job: str) -> list[RankRecord]:
        with self._rows.reading() as scope:
            return sorted(scope.find(tables.RANKS, "job", [job]), key=lambda record: (record.attempt, record.rank))

    def series(self, job: str) -> JobSeries | None:
        """The series of a job; None before its first point."""
        return self._get(tables.SERIES, job)

    def secrets(self, job: str) -> dict[str, str]:
        row = self._get(tables.SECRETS, job)
        return {} if row is None else dict(row.values)

    def holdings(self, since: int, *, ended_after: int) -> tuple[int, list[Holding]]:
        """The version, and the holdings of jobs, in any order: from 0 those that are live or ended after an instant.

        From another version, those that began or ended since. Holdings that retention removed are left out.
        """
        with self._rows.reading() as scope:
            version = head_of(scope).version
            if since <= 0:
                return version, _every_holding(scope, ended_after)
            return version, _holdings_since(scope, since) if version != since else []

    # --- notebooks --------------------------------------------------------------------------------------------------
    def notebook(self, notebook: str) -> NotebookRecord | None:
        return self._get(tables.NOTEBOOKS, notebook)

    def notebooks(
        self, *, states: Sequence[NotebookState] = (), ended_since: int | None = None, page: Page = FIRST_PAGE
    ) -> tuple[list[NotebookRecord], int]:
        """Slices in every state, or in some; ``ended_since``: those that ended at that instant or later."""
        among = {"state": [state.value for state in states]} if states else {}
        at_least = {} if ended_since is None else {"ended_at": ended_since}
        return self._list(tables.NOTEBOOKS, page, Where(among=among, at_least=at_least))

    def requestable_notebooks(self) -> list[NotebookRecord]:
        """The ended slices that their servers may request again, in any order; it looks at every notebook."""
        with self._rows.reading() as scope:
            keys = [key for where in MAY_REQUEST_AGAIN for key in scope.pick(tables.NOTEBOOKS, ("id",), where)]
            found = scope.get_many(tables.NOTEBOOKS, keys)
        return [record for record in found.values() if record.ended_at is not None and record.may_request_again]

    def notifications(
        self, channel: str, *, pending: bool = False, page: Page = FIRST_PAGE
    ) -> tuple[list[NotificationRecord], int]:
        """The notifications of one channel; ``pending``: those that have not ended."""
        return self._list(tables.NOTIFICATIONS, page, Where(among={"channel": [channel]}, live=pending))

    def reports(self, since: int) -> list[NotebookReport]:
        """The newest report of each notebook's server that arrived at an instant or later, oldest first."""
        return self._list(tables.REPORTS, ALL, Where(at_least={"at": since}))[0][::-1]

    def report(self, notebook: str) -> NotebookReport | None:
        return self._get(tables.REPORTS, notebook)

    def note(self, kind: NoteKind, subject: str) -> Note | None:
        """The only note of one kind on a subject."""
        return self._get(tables.NOTES, kind, subject, 0)

    def notes(self, kind: NoteKind, *, since: int = 0) -> list[Note]:
        """The notes of one kind, written at an instant or later, oldest first."""
        return self._list(tables.NOTES, ALL, Where(among={"kind": [kind]}, at_least={"at": since}))[0][::-1]

    # --- bundles, devices and use -----------------------------------------------------------------------------------
    def bundle_owned(self, digest: str, user: str) -> bool:
        return self._get(tables.BUNDLES, digest, user) is not None

    def bundles_of(self, user: str) -> dict[str, int]:
        """Every bundle that this user ever stored, and its size in bytes; some may have been deleted since."""
        with self._rows.reading() as scope:
            return {row.digest: row.size_bytes for row in scope.find(tables.BUNDLES, "user", [user])}

    def bundle_owners(self) -> list[tuple[str, str]]:
        """(digest, user) of every bundle that a user stored, also of those that were deleted since."""
        with self._rows.reading() as scope:
            return [(row.digest, row.user) for row in scope.scan(tables.BUNDLES)]

    def bundles_in_use(self) -> set[str]:
        """Digests that a stored job names; other bundles may be deleted."""
        with self._rows.reading() as scope:
            return {str(digest) for digest in scope.distinct(tables.JOBS, "bundle") if digest is not None}

    def latest_samples(self) -> dict[str, DeviceSample]:
        with self._rows.reading() as scope:
            return {row.device: row for row in scope.scan(tables.LATEST)}

    def samples(self, device: str, begin: int, end: int, page: Page = FIRST_PAGE) -> tuple[list[DeviceSample], int]:
        """The stored readings of one device in [begin, end), newest first, and how many there are in all."""
        where = Where(among={"device": [device]}, at_least={"at": begin}, below={"at": end})
        return self._list(tables.SAMPLES, page, where)

    def allocations_of_device(self, device: str, begin: int, end: int) -> list[AllocationRow]:
        """The allocations of a device in [begin, end), in any order."""
        released = Where(among={"device": [device]}, at_least={tables.ALLOCATIONS.ended or "": begin})
        with self._rows.reading() as scope:
            found = [*scope.find(tables.ALLOCATIONS, "device", [device])]
            found += scope.listing(tables.ALLOCATIONS, released, ALL)[0]
        return [row for row in found if row.allocated_at < end]

    def usage(self, begin: int, end: int, *, now: int, reader: UsageReader | None = None) -> list[UsageHour]:
        """Every hour that begins in [begin, end), by workload and device, in any order; both are whole hours.

        The hour of ``now`` is counted up to ``now``. With a ``reader``, only the hours that they see.
        """
        with self._rows.reading() as scope:
            return usage_between(scope, begin, end, now=now, reader=reader)

    def job_starts(self, workloads: Sequence[str]) -> dict[str, JobStart]:
        """The first start of each of these workloads that is a job, without those that retention removed."""
        with self._rows.reading() as scope:
            return job_starts(scope, workloads)

    def job_names(self, jobs: Sequence[str]) -> dict[str, str]:
        """The name of each of these that is a job, without those that retention removed."""
        with self._rows.reading() as scope:
            return {row.job.id: row.spec.name for row in scope.get_many(tables.JOBS, [(id,) for id in jobs]).values()}

    def labels(self, allocations: Sequence[str]) -> dict[str, AllocationLabel]:
        """How each allocation is enforced; those that were never read back are left out."""
        with self._rows.reading() as scope:
            found = scope.get_many(tables.LABELS, [(name,) for name in allocations])
        return {row.allocation: row for row in found.values()}


def head_of(scope: Scope) -> Head:
    return scope.get_many(tables.HEAD, [tables.HEAD_KEY])[tables.HEAD_KEY]


def _quota(scope: Scope, revision: int) -> QuotaRevision | None:
    return scope.get_many(tables.QUOTA, [(revision,)]).get((revision,))


def _changes(scope: Scope, head: Head, since: int, *, ended: bool) -> Changes:
    is_first = since <= 0
    allocations = scope.changed(tables.ALLOCATIONS, since, live=is_first)
    reservations = scope.changed(tables.RESERVATIONS, since, live=is_first)
    live = is_first and not ended
    nodes = {row.node.id: row for row in scope.changed(tables.NODES, since, live=False)}
    devices = {row.device.id: row for row in scope.changed(tables.DEVICES, since, live=False)}
    return Changes(
        version=head.version,
        fencing=head.fencing,
        position=position_of(head),
        jobs=tuple(scope.changed(tables.JOBS, since, live=live)),
        notebooks=tuple(scope.changed(tables.NOTEBOOKS, since, live=live)),
        nodes=tuple(row.node for row in nodes.values() if row.removed_at is None),
        devices=tuple(row.device for row in devices.values() if row.removed_at is None),
        gone_nodes={id: row.gone_at for id, row in nodes.items() if row.gone_at is not None},
        gone_devices={id: row.gone_at for id, row in devices.items() if row.gone_at is not None},
        removed_nodes=tuple(id for id, row in nodes.items() if row.removed_at is not None),
        removed_devices=tuple(id for id, row in devices.items() if row.removed_at is not None),
        allocations=tuple(row.allocation for row in allocations if row.released_at is None),
        released=tuple(row.allocation.id for row in allocations if row.released_at is not None),
        reservations=tuple(row.reservation for row in reservations if row.dropped_at is None),
        unreserved=tuple(row.reservation.workload for row in reservations if row.dropped_at is not None),
        quota=_quota(scope, head.quota_revision) if head.quota_changed > since else None,
    )


# --- holdings -------------------------------------------------------------------------------------------------------
def _holdings_since(scope: Scope, since: int) -> list[Holding]:
    """The holdings of jobs that began or ended after a version."""
    rows = scope.changed(tables.ALLOCATIONS, since, live=False)
    jobs = scope.get_many(tables.JOBS, list({(row.allocation.workload,): None for row in rows}))
    return [
        Holding(
            id=row.allocation.id,
            project=record.job.project,
            pool=record.job.pool,
            gpu_milli=row.allocation.gpu_milli,
            began_at=row.allocated_at,
            ended_at=row.released_at,
        )
        for row in rows
        if (record := jobs.get((row.allocation.workload,))) is not None
    ]


def _every_holding(scope: Scope, ended_after: int) -> list[Holding]:
    """The live holdings of jobs and those that ended after an instant; from few columns, since a week has many."""
    columns = ("id", "workload", "gpu_milli", "allocated_at", "released_at")
    pick_from = _pick_live_or_ended_after
    places = {job: place for job, *place in pick_from(scope, tables.JOBS, ("id", "project", "pool"), ended_after)}
    return [
        Holding(id=id, project=place[0], pool=place[1], gpu_milli=milli, began_at=began_at, ended_at=ended_at)
        for id, workload, milli, began_at, ended_at in pick_from(scope, tables.ALLOCATIONS, columns, ended_after)
        if (place := places.get(workload)) is not None
    ]


def _pick_live_or_ended_after(scope: Scope, table: Table[Any], columns: Sequence[str], instant: int) -> Iterator[Any]:
    yield from scope.pick(table, columns, Where(live=True))
    yield from scope.pick(table, columns, Where(at_least={table.ended or "": instant + 1}))
