"""The store's calls, each one transaction over the rows: the same for the database and for memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..core.facts import Fact, RankFact
from ..core.model import NotebookState, Policy
from ..core.plan import Plan
from ..core.samples import DeviceSample
from .database.tables import (
    ALLOCATIONS,
    AUDIT,
    BATCHES,
    BUNDLES,
    DEVICES,
    HEAD,
    HEAD_KEY,
    JOBS,
    LABELS,
    LATEST,
    NODES,
    NOTEBOOKS,
    NOTES,
    NOTIFICATIONS,
    QUOTA,
    RANKS,
    REPORTS,
    RESERVATIONS,
    SAMPLES,
    SECRETS,
    USERS,
    BatchRow,
    Head,
    Rows,
    Scope,
    Table,
    UserRow,
    Where,
)
from .database.unit_of_work import UnitOfWork
from .records.activity import KeepNotes, Note, NotebookReport, NoteKind, RecordReport
from .records.commands import AllocationLabel, Recorded, Refusal, Request
from .records.ids import new_ulid
from .records.notifications import NotificationRecord
from .records.plan_chunks import PlanChunk, whole
from .records.protocol import FIRST_PAGE, Committed, JobFilter, Lease, LeaseLost, Page, Stale
from .records.rows import (
    AuditRow,
    Changes,
    Holding,
    JobRecord,
    NotebookRecord,
    QuotaRevision,
    RankRecord,
    UsageHour,
)
from .writes import lease as leases
from .writes.audit_chain import verify
from .writes.commit import commit_chunk
from .writes.observe import observe_facts
from .writes.requests import record_all
from .writes.retention import forget_jobs, forget_samples
from .writes.usage import Tally, put_use, usage_between

ALL = Page(limit=2**31 - 1)


class TransactionalStore:
    """A :class:`.protocol.Store` over any rows. ``new_id`` makes ids from an instant.

    Safe for several threads; writers take turns.
    """

    def __init__(self, rows: Rows, *, new_id: Callable[[int], str] = new_ulid) -> None:
        self._rows = rows
        self._new_id = new_id
        self._writer = threading.Lock()
        self._unsettled = False
        self._tally = Tally()
        self._observed: dict[tuple[str, int, int], RankFact] = {}
        self._observed_fencing = 0

    @contextmanager
    def _work(self, now: int, *, seen_again: bool = False) -> Iterator[UnitOfWork]:
        """A writing transaction; what it wrote is applied when the block ends, and dropped when it raises."""
        with self._writer, self._rows.writing(seen_again=seen_again) as scope:
            work = UnitOfWork(scope, now=now, new_id=self._new_id)
            yield work
            writes = work.writes()
            if writes:
                scope.apply(writes)
        self._unsettled |= any(change.table is SECRETS and change.deletes for change in writes)
        if self._unsettled:  # somebody may read just now: then the next transaction tries again
            self._unsettled = not self._rows.settle()

    @contextmanager
    def _look(self, now: int) -> Iterator[UnitOfWork]:
        """A transaction that writes nothing, and so waits for no writer."""
        with self._rows.reading() as scope:
            yield UnitOfWork(scope, now=now, new_id=self._new_id)

    # --- version and changes ----------------------------------------------------------------------------------------
    def version(self) -> int:
        with self._rows.reading() as scope:
            return _head(scope).version

    def changes(self, since: int, *, ended: bool = True) -> Changes:
        with self._rows.reading() as scope:
            head = _head(scope)
            if head.version == since:
                return _no_changes(since)
            return _changes(scope, head, since, ended=ended)

    # --- writing ----------------------------------------------------------------------------------------------------
    def record(self, requests: Sequence[Request], *, now: int, lease: Lease | None = None) -> list[Recorded | Refusal]:
        repeated = all(isinstance(request, RecordReport | KeepNotes) for request in requests)
        with self._work(now, seen_again=repeated) as work:
            if lease is not None and (why := leases.why_lost(work, lease)):
                raise LeaseLost(why)
            return record_all(work, requests)

    def commit(
        self, plan: Plan | PlanChunk, *, policy: Policy, snapshot_digest: str, lease: Lease, now: int
    ) -> Committed | Stale:
        chunk = plan if isinstance(plan, PlanChunk) else whole(plan)
        with self._work(now) as work:
            stale = commit_chunk(work, chunk, policy=policy, snapshot_digest=snapshot_digest, lease=lease)
            return stale or Committed(version=work.version())

    def observe(self, facts: Sequence[Fact], *, lease: Lease, now: int) -> int | Stale:
        news = [fact for fact in facts if not self._is_observed(fact, lease)]
        with self._work(now, seen_again=True) if news else self._look(now) as work:
            if why := leases.why_lost(work, lease):
                return Stale(seen=work.version(), current=work.version(), why=why)
            seen = observe_facts(work, news)
            version = work.version()
        self._remember(facts, seen, lease)
        return version

    def _is_observed(self, fact: Fact, lease: Lease) -> bool:
        """Whether this very fact was recorded under this lease: 4,000 running jobs tell the same each second."""
        if self._observed_fencing != lease.fencing or not isinstance(fact, RankFact):
            return False
        return self._observed.get((fact.job, fact.attempt, fact.rank)) == fact

    def _remember(self, facts: Sequence[Fact], seen: Sequence[RankFact], lease: Lease) -> None:
        present = {(fact.job, fact.attempt, fact.rank) for fact in facts if isinstance(fact, RankFact)}
        kept = self._observed if self._observed_fencing == lease.fencing else {}
        self._observed = {key: fact for key, fact in kept.items() if key in present}
        self._observed |= {(fact.job, fact.attempt, fact.rank): fact for fact in seen}
        self._observed_fencing = lease.fencing

    def acquire_lease(self, holder: str, *, now: int, ttl_ms: int) -> Lease | None:
        with self._work(now) as work:
            return leases.acquire(work, holder, ttl_ms=ttl_ms)

    def release_lease(self, lease: Lease) -> None:
        with self._work(0) as work:
            leases.release(work, lease)

    def lease(self) -> Lease | None:
        with self._rows.reading() as scope:
            head = _head(scope)
        if head.holder is None:
            return None
        return Lease(holder=head.holder, fencing=head.fencing, expires_at=head.expires_at)

    def forget(self, *, jobs_ended_before: int, samples_before: int, usage_before: int = 0) -> list[str]:
        """See the protocol. At most 1,000 jobs at a time: call again while it returns that many."""
        with self._work(jobs_ended_before) as work:
            jobs = forget_jobs(work)
        while forget_samples(self._rows, self._writer, samples_before, usage_before):
            pass
        self._unsettled |= not self._rows.settle()  # what a process deleted that was killed right afterwards
        return jobs

    # --- people -----------------------------------------------------------------------------------------------------
    def user_id(self, name: str, *, now: int) -> str:
        with self._rows.reading() as scope:
            known = scope.find(USERS, "name", [name])
        if known:
            return known[0].id
        with self._work(now) as work:
            for row in work.find(USERS, "name", [name]):
                return row.id
            row = UserRow(id=work.new_id(), name=name, seen_at=now)
            work.put(USERS, row)
            return row.id

    def user_names(self, ids: Sequence[str]) -> dict[str, str]:
        with self._rows.reading() as scope:
            rows = scope.get_many(USERS, [(id,) for id in ids])
        return {row.id: row.name for row in rows.values() if row.name is not None}

    def erase_name(self, user: str, *, actor: str, now: int) -> bool:
        """Forget a person's name; their id stays in records and audit. False if there is no name to erase."""
        with self._work(now) as work:
            row = work.get(USERS, (user,))
            if row is None or row.name is None:
                return False
            work.put(USERS, replace(row, name=None))
            work.audit(actor, "user.erase_name", user, {}, None)
            return True

    # --- jobs and notebooks -----------------------------------------------------------------------------------------
    def job(self, job: str) -> JobRecord | None:
        with self._rows.reading() as scope:
            return scope.get_many(JOBS, [(job,)]).get((job,))

    def jobs(self, which: JobFilter, page: Page) -> tuple[list[JobRecord], int]:
        with self._rows.reading() as scope:
            return scope.listing(JOBS, _where_jobs(which), page)

    def ranks(self, job: str) -> list[RankRecord]:
        with self._rows.reading() as scope:
            records = [row.record for row in scope.find(RANKS, "job", [job])]
        return sorted(records, key=lambda record: (record.attempt, record.rank))

    def holdings(self, since: int, *, ended_after: int) -> tuple[int, list[Holding]]:
        with self._rows.reading() as scope:
            version = _head(scope).version
            if since <= 0:
                return version, _every_holding(scope, ended_after)
            return version, _holdings_since(scope, since) if version != since else []

    def secrets(self, job: str) -> dict[str, str]:
        with self._rows.reading() as scope:
            row = scope.get_many(SECRETS, [(job,)]).get((job,))
        return dict(row.values) if row is not None else {}

    def notebook(self, notebook: str) -> NotebookRecord | None:
        with self._rows.reading() as scope:
            return scope.get_many(NOTEBOOKS, [(notebook,)]).get((notebook,))

    def notebooks(
        self, *, states: Sequence[NotebookState] = (), ended_since: int | None = None, page: Page = FIRST_PAGE
    ) -> tuple[list[NotebookRecord], int]:
        among = {"state": [state.value for state in states]} if states else {}
        at_least = {} if ended_since is None else {"ended_at": ended_since}
        with self._rows.reading() as scope:
            return scope.listing(NOTEBOOKS, Where(among=among, at_least=at_least), page)

    def notifications(
        self, channel: str, *, pending: bool = False, page: Page = FIRST_PAGE
    ) -> tuple[list[NotificationRecord], int]:
        with self._rows.reading() as scope:
            return scope.listing(NOTIFICATIONS, Where(among={"channel": [channel]}, live=pending), page)

    def bundle_owned(self, digest: str, user: str) -> bool:
        with self._rows.reading() as scope:
            return bool(scope.get_many(BUNDLES, [(digest, user)]))

    def bundles_of(self, user: str) -> dict[str, int]:
        with self._rows.reading() as scope:
            return {row.digest: row.size_bytes for row in scope.find(BUNDLES, "user", [user])}

    def bundles_in_use(self) -> set[str]:
        with self._rows.reading() as scope:
            return {str(digest) for digest in scope.distinct(JOBS, "bundle") if digest is not None}

    # --- quota and audit --------------------------------------------------------------------------------------------
    def quota(self) -> QuotaRevision | None:
        with self._rows.reading() as scope:
            return _quota(scope, _head(scope).quota_revision)

    def quota_revisions(self, page: Page) -> tuple[list[QuotaRevision], int]:
        with self._rows.reading() as scope:
            return scope.listing(QUOTA, Where(), page)

    def audit(
        self, *, since: int | None = None, projects: Sequence[str] | None = None, page: Page = FIRST_PAGE
    ) -> tuple[list[AuditRow], int]:
        at_least = {} if since is None else {"at": since}
        among = {} if projects is None else {"project": list(projects)}
        with self._rows.reading() as scope:
            return scope.listing(AUDIT, Where(at_least=at_least, among=among), page)

    def audit_verify(self) -> int | str:
        with self._rows.reading() as scope:
            return verify(_head(scope), scope.scan(AUDIT))

    # --- samples ----------------------------------------------------------------------------------------------------
    def add_samples(self, node: str, sequence: int, rows: Sequence[DeviceSample], *, now: int) -> bool:
        due = self._tally.due(now)
        with self._work(now) as work:
            if work.get(BATCHES, (node, sequence)) is not None:
                return False
            work.put(BATCHES, BatchRow(node=node, sequence=sequence, at=now))
            work.fetch(SAMPLES, [SAMPLES.key(row) for row in rows])
            work.fetch(LATEST, [LATEST.key(row) for row in rows])
            for row in rows:
                work.put(SAMPLES, replace(row, why={}, processes={}))  # long, and wanted of the newest reading
                newest = work.get(LATEST, LATEST.key(row))
                if newest is None or newest.at <= row.at or newest.at > now:  # the clock went back
                    work.put(LATEST, row)
            put_use(work, due)
        self._tally.forget(due, now)
        self._tally.take(rows)
        return True

    def latest_samples(self) -> dict[str, DeviceSample]:
        with self._rows.reading() as scope:
            return {row.device: row for row in scope.scan(LATEST)}

    def reports(self, since: int) -> list[NotebookReport]:
        with self._rows.reading() as scope:
            found, _ = scope.listing(REPORTS, Where(at_least={"at": since}), ALL)
        return found[::-1]

    def report(self, notebook: str) -> NotebookReport | None:
        with self._rows.reading() as scope:
            return scope.get_many(REPORTS, [(notebook,)]).get((notebook,))

    def notes(self, kind: NoteKind, *, since: int = 0) -> list[Note]:
        with self._rows.reading() as scope:
            found, _ = scope.listing(NOTES, Where(among={"kind": [kind]}, at_least={"at": since}), ALL)
        return found[::-1]

    def labels(self, allocations: Sequence[str]) -> dict[str, AllocationLabel]:
        with self._rows.reading() as scope:
            found = scope.get_many(LABELS, [(name,) for name in allocations])
        return {row.allocation: row for row in found.values()}

    def usage(self, begin: int, end: int, *, now: int) -> list[UsageHour]:
        with self._rows.reading() as scope:
            return usage_between(scope, begin, end, now=now)

    def close(self) -> None:
        self._rows.close()


# --- reading --------------------------------------------------------------------------------------------------------
def _head(scope: Scope) -> Head:
    return scope.get_many(HEAD, [HEAD_KEY])[HEAD_KEY]


def _quota(scope: Scope, revision: int) -> QuotaRevision | None:
    return scope.get_many(QUOTA, [(revision,)]).get((revision,))


def _holdings_since(scope: Scope, since: int) -> list[Holding]:
    """What jobs began or ceased to hold after a version; of notebooks' slices nothing."""
    rows = scope.changed(ALLOCATIONS, since, live=False)
    jobs = scope.get_many(JOBS, list({(row.allocation.workload,): None for row in rows}))
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
    """What jobs hold, and what ended after an instant; with few columns, since a week of them is a lot."""
    columns = ("id", "workload", "gpu_milli", "allocated_at", "released_at")
    picked = _open_or_ended_after(scope, ALLOCATIONS, columns, ended_after)
    places = {job: (project, pool) for job, project, pool in _open_or_ended_after(scope, JOBS, PLACES, ended_after)}
    return [
        Holding(id=id, project=place[0], pool=place[1], gpu_milli=milli, began_at=began_at, ended_at=ended_at)
        for id, workload, milli, began_at, ended_at in picked
        if (place := places.get(workload)) is not None
    ]


PLACES = ("id", "project", "pool")


def _open_or_ended_after(scope: Scope, table: Table[Any], columns: Sequence[str], instant: int) -> Iterator[Any]:
    yield from scope.pick(table, columns, Where(live=True))
    yield from scope.pick(table, columns, Where(at_least={table.ended or "": instant + 1}))


def _where_jobs(which: JobFilter) -> Where:
    among: dict[str, Sequence[str]] = {}
    if which.projects is not None:
        among["project"] = which.projects
    if which.user is not None:
        among["user"] = [which.user]
    if which.states:
        among["state"] = [state.value for state in which.states]
    return Where(among=among, either=_seen_by(which), live=which.live)


def _seen_by(which: JobFilter) -> list[Mapping[str, Sequence[str]]]:
    """What the reader sees: their own jobs whatever the project, those of their projects, private ones as a lead."""
    if which.reader is None:
        return []
    seen: list[Mapping[str, Sequence[str]]] = [{"private_to": ["", which.reader], "project": which.led}]
    if which.member_of is not None:
        seen.append({"user": [which.reader], "project": which.member_of})
    return seen


def _no_changes(version: int) -> Changes:
    return Changes(
        version=version,
        jobs=(),
        notebooks=(),
        nodes=(),
        devices=(),
        allocations=(),
        released=(),
        reservations=(),
        unreserved=(),
        quota=None,
    )


def _changes(scope: Scope, head: Head, since: int, *, ended: bool) -> Changes:
    """A reader that has nothing yet is not told of what was released or dropped before it came."""
    cold = since <= 0
    allocations = scope.changed(ALLOCATIONS, since, live=cold)
    reservations = scope.changed(RESERVATIONS, since, live=cold)
    live = cold and not ended
    return Changes(
        version=head.version,
        jobs=tuple(scope.changed(JOBS, since, live=live)),
        notebooks=tuple(scope.changed(NOTEBOOKS, since, live=live)),
        nodes=tuple(row.node for row in scope.changed(NODES, since, live=False)),
        devices=tuple(row.device for row in scope.changed(DEVICES, since, live=False)),
        allocations=tuple(row.allocation for row in allocations if row.released_at is None),
        released=tuple(row.allocation.id for row in allocations if row.released_at is not None),
        reservations=tuple(row.reservation for row in reservations if row.dropped_at is None),
        unreserved=tuple(row.reservation.workload for row in reservations if row.dropped_at is not None),
        quota=_quota(scope, head.quota_revision) if head.quota_changed > since else None,
    )
