"""The store: queries and writing transactions over the rows of a database or of memory."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from ..core.facts import Fact, RankFact
from ..core.model import Policy
from ..core.plan import Plan
from ..core.recovery.differences import AttemptRecord
from ..core.samples import DeviceSample
from .database.tables import (
    BATCHES,
    LATEST,
    SAMPLES,
    SECRETS,
    SERVICE_KEYS,
    USERS,
    BatchRow,
    Head,
    Rows,
    ServiceKeyRow,
    UserRow,
)
from .database.unit_of_work import UnitOfWork
from .job_series import SERIES_AT_A_TIME, Points, write_points
from .queries import StoreQueries
from .records.activity import KeepNotes, RecordReport
from .records.calls import Committed, Lease, LeaseLost, Stale
from .records.commands import Recorded, Refusal, Request
from .records.ids import new_ulid
from .records.plan_chunks import PlanChunk, whole
from .writes import lease as leases
from .writes.commit import commit_chunk
from .writes.observe import observe_facts
from .writes.recovery import recover
from .writes.requests import record_all
from .writes.retention import forget_allocations, forget_jobs, forget_samples
from .writes.usage import Tally, add_use

MAX_FACTS = MAX_SAMPLES = 500
"""Facts or samples in one transaction: less than a tenth of the time that other writers wait for the lock."""

MAX_TRANSACTIONS = 5
"""Transactions of retention in one call for jobs, and as many for samples: scheduling waits about a second for it."""


class OwnTerm(Protocol):
    """The term of leadership of this process, for its own long transactions."""

    def held_in(self, head: Head) -> Lease | None:
        """The lease, where it is in force at the beginning of a transaction with this head."""

    def extension(self, lease: Lease, head: Head) -> Lease | None:
        """The lease as it continues after the transaction; None where it need not be written, or is another one."""

    def extended(self, lease: Lease) -> None:
        """The transaction with this lease was committed."""


class Store(StoreQueries):
    """All calls of the store. Each is one transaction, and each may raise StoreUnavailable.

    ``new_id`` makes ids from an instant. Several threads may use a store; one of them writes at a time.
    """

    def __init__(self, rows: Rows, *, new_id: Callable[[int], str] = new_ulid) -> None:
        super().__init__(rows)
        self._new_id = new_id
        self._writer = threading.Lock()
        self._unsettled = False
        self.own_term: OwnTerm | None = None
        """Nobody can take the lease while a transaction of the leader has the lock, so it continues with the commit."""
        self._tally, self._points = Tally(), Points()
        self._observed: dict[tuple[str, int, int], RankFact] = {}
        self._observed_fencing = 0

    @contextmanager
    def _writing(self, now: int, *, repeatable: bool = False) -> Iterator[UnitOfWork]:
        """A writing transaction: its writes are applied when the block ends, and dropped when it raises."""
        term, extension = self.own_term, None
        with self._writer, self._rows.writing(repeatable=repeatable) as scope:
            work = UnitOfWork(scope, now=now, new_id=self._new_id)
            lease = None if term is None else term.held_in(work.head)
            yield work
            if term is not None and lease is not None and (extension := term.extension(lease, work.head)) is not None:
                work.head = replace(work.head, expires_at=extension.expires_at)
            writes = work.writes()
            if writes:
                scope.apply(writes)
        if term is not None and extension is not None:
            term.extended(extension)
        self._unsettled |= any(change.table is SECRETS and change.deletes for change in writes)
        if self._unsettled:  # while another connection reads, the next transaction tries again
            self._unsettled = not self._rows.settle()

    @contextmanager
    def _reading(self, now: int) -> Iterator[UnitOfWork]:
        """A transaction that writes nothing, and so waits for no writer."""
        with self._rows.reading() as scope:
            yield UnitOfWork(scope, now=now, new_id=self._new_id)

    # --- requests and decisions -------------------------------------------------------------------------------------
    def record(self, requests: Sequence[Request], *, now: int, lease: Lease | None = None) -> list[Recorded | Refusal]:
        """Record requests in order, in one transaction; a refused one does not affect the others.

        ``lease`` is that of the controller that makes them. Raises LeaseLost where it is not in force: nothing is
        written.
        """
        repeated = all(isinstance(request, RecordReport | KeepNotes) for request in requests)
        with self._writing(now, repeatable=repeated) as work:
            if lease is not None and (why := leases.why_lost(work, lease)):
                raise LeaseLost(why)
            return record_all(work, requests)

    def commit(
        self, plan: Plan | PlanChunk, *, policy: Policy, snapshot_digest: str, lease: Lease, now: int
    ) -> Committed | Stale:
        """Write a whole plan, or one whole chunk of it, or nothing.

        Stale if the lease is lost, a row that the plan names changed after ``plan.seen_version``, the quota revision
        is not ``policy.revision``, or a device has no room (allocations of work that is being stopped count).
        """
        chunk = plan if isinstance(plan, PlanChunk) else whole(plan)
        with self._writing(now) as work:
            stale = commit_chunk(work, chunk, policy=policy, snapshot_digest=snapshot_digest, lease=lease)
            return stale or Committed(version=work.version())

    def observe(self, facts: Sequence[Fact], *, lease: Lease, now: int) -> int | Stale:
        """Record facts: they update jobs and ranks and release the devices of ended attempts. Returns the version.

        In SQLite, the facts are on disk with the next plan or lease. A loss of power before that undoes the last ones,
        and the backend reports them again. So nothing that shows them may be removed before. Many facts are several
        transactions, between which the lease is renewed and others write.
        """
        known = self._observed if self._observed_fencing == lease.fencing else {}
        news = [fact for fact in facts if not isinstance(fact, RankFact) or known.get(_rank_of(fact)) != fact]
        seen = list[RankFact]()
        for first in range(0, len(news) or 1, MAX_FACTS):
            with self._writing(now, repeatable=True) if news else self._reading(now) as work:
                if why := leases.why_lost(work, lease):
                    return Stale(seen=work.version(), current=work.version(), why=why)
                seen += observe_facts(work, news[first : first + MAX_FACTS])
                version = work.version()
        self._points.take_facts([fact for fact in news if isinstance(fact, RankFact)], now)
        present = {_rank_of(fact) for fact in facts if isinstance(fact, RankFact)}
        # thousands of running jobs report the same facts each second, so those are not read again
        self._observed = {key: fact for key, fact in known.items() if key in present}
        self._observed |= {_rank_of(fact): fact for fact in seen}
        self._observed_fencing = lease.fencing
        return version

    # --- the lease --------------------------------------------------------------------------------------------------
    def acquire_lease(self, holder: str, *, clock: Callable[[], int], ttl_ms: int, above: int = 0) -> Lease | None:
        """Take or renew the lease; None while another holder's has not expired. A new holder gets a higher fencing.

        ``clock`` is read once this call has the write lock: while it waited, another holder may have renewed the lease.
        ``above``: the fencing number is above this one, also where the holder is the same.
        """
        with self._writing(0) as work:
            work.now = clock()
            return leases.acquire(work, holder, ttl_ms=ttl_ms, above=above)

    def renew_lease(self, lease: Lease, *, clock: Callable[[], int], ttl_ms: int) -> Lease | None:
        """Continue a term; None where it is over. It never begins one, and so the fencing number stays the same."""
        with self._writing(0) as work:
            work.now = clock()
            return leases.renew(work, lease, ttl_ms=ttl_ms)

    def release_lease(self, lease: Lease) -> None:
        with self._writing(0) as work:
            leases.release(work, lease)

    # --- recovery ---------------------------------------------------------------------------------------------------
    def recover(self, attempts: Sequence[AttemptRecord], *, lease: Lease, now: int) -> bool:
        """End an accepted hold: bring every job that differs to what its backend recorded. One transaction.

        ``attempts`` are the newest of each job that has not ended, and those without a job. False where the lease is
        lost, no hold is accepted, or a job runs on devices that are not known: nothing is written.
        """
        with self._writing(now) as work:
            return not leases.why_lost(work, lease) and recover(work, attempts, lease)

    # --- people -----------------------------------------------------------------------------------------------------
    def user_id(self, name: str, *, now: int) -> str:
        """The ULID of a person, made on their first request."""
        with self._rows.reading() as scope:
            known = scope.find(USERS, "name", [name])
        if known:
            return known[0].id
        with self._writing(now) as work:
            for row in work.find(USERS, "name", [name]):
                return row.id
            row = UserRow(id=work.new_id(), name=name, seen_at=now)
            work.put(USERS, row)
            return row.id

    def erase_name(self, user: str, *, actor: str, now: int) -> bool:
        """Erase a person's name; their id stays in records and audit. False if there is no name to erase."""
        with self._writing(now) as work:
            row = work.get(USERS, (user,))
            if row is None or row.name is None:
                return False
            work.put(USERS, replace(row, name=None))
            work.audit(actor, "user.erase_name", user, {}, None)
            return True

    # --- keys -------------------------------------------------------------------------------------------------------
    def service_key(self, name: str, *, now: int) -> bytes:
        """A random key of 32 bytes, made on the first call: the same for every process, also after a restart."""
        row = self._get(SERVICE_KEYS, name)
        if row is None:
            with self._writing(now) as work:
                row = work.get(SERVICE_KEYS, (name,))
                if row is None:
                    row = ServiceKeyRow(name=name, value=secrets.token_hex(32), made_at=now)
                    work.put(SERVICE_KEYS, row)
        return bytes.fromhex(row.value)

    # --- samples and retention --------------------------------------------------------------------------------------
    def add_samples(self, node: str, sequence: int, rows: Sequence[DeviceSample], *, now: int) -> bool:
        """Store one batch of samples; False if this node's sequence number is known already.

        A large one is several transactions. What a crash leaves out of it is missing.
        """
        self._add_use(now)
        needed, before = list[DeviceSample](), dict[str, DeviceSample | None]()
        for first in range(0, len(rows) or 1, MAX_SAMPLES):
            with self._writing(now) as work:
                if first == 0:
                    if work.get(BATCHES, (node, sequence)) is not None:
                        return False
                    work.put(BATCHES, BatchRow(node=node, sequence=sequence, at=now))
                part = rows[first : first + MAX_SAMPLES]
                known = _put_samples(work, part)
            needed += [row for row in part if row.is_needed_after(known[row.device])]
            before |= known
        rows = needed
        self._tally.take(rows, {device: row.at for device, row in before.items() if row is not None})
        self._points.take_samples(rows)
        self.add_series(now=now)
        return True

    def _add_use(self, now: int) -> None:
        """Write the use by the readings of the last minute or longer."""
        due = self._tally.take_due(now)
        try:
            while due:
                with self._writing(now) as work:
                    add_use(work, due[0])
                del due[0]
        except BaseException:
            self._tally.put_back(due, now)
            raise

    def add_series(self, *, now: int) -> None:
        """Store the points of jobs and their devices that were collected in the last ten seconds or longer.

        The write is not synchronised with the disk: after a power loss, or while the database is not available, these
        points are missing.
        """
        due = list(self._points.take_due(now).items())
        for first in range(0, len(due), SERIES_AT_A_TIME):
            with self._writing(now, repeatable=True) as work:
                write_points(work, dict(due[first : first + SERIES_AT_A_TIME]))

    def forget(
        self, *, now: int, jobs_ended_before: int, samples_before: int, usage_before: int = 0,
        jobs: Sequence[str] | None = None,
    ) -> list[str]:  # fmt: skip
        """Remove old jobs with their rows, samples and hours of use; returns the ids of the jobs. Audit rows stay.

        ``jobs``: those to remove, at most 1,000; None: the first 1,000 that ended. Removes at most 10,000 ranks and
        some 100,000 samples, and no job while allocations that ended before the instant are left: call again.
        """
        found = [record.job.id for record in self.ended_jobs(jobs_ended_before)] if jobs is None else jobs
        removed = list[str]()
        for _ in range(MAX_TRANSACTIONS):
            with self._writing(now) as work:
                if forget_allocations(work, jobs_ended_before):
                    continue
                some, are_left = forget_jobs(work, found, jobs_ended_before)
            removed += some
            if not are_left:
                break
        for _ in range(MAX_TRANSACTIONS):
            if not forget_samples(self._rows, self._writer, samples_before, usage_before):
                break
        self._unsettled |= not self._rows.settle()  # also for rows that a process deleted just before it was killed
        return removed

    def close(self) -> None:
        self._rows.close()


def _put_samples(work: UnitOfWork, rows: Sequence[DeviceSample]) -> dict[str, DeviceSample | None]:
    """Store samples that have news. Returns the newest one of each device before."""
    work.fetch(SAMPLES, [SAMPLES.key(row) for row in rows])
    work.fetch(LATEST, [LATEST.key(row) for row in rows])
    before = {row.device: work.get(LATEST, LATEST.key(row)) for row in rows}
    for row in rows:
        if row.is_needed_after(before[row.device]):
            work.put(SAMPLES, replace(row, why={}, processes={}))  # only the newest sample needs these
            newest = work.get(LATEST, LATEST.key(row))
            if newest is None or newest.at <= row.at or newest.at > work.now:  # the clock was set back
                work.put(LATEST, row)
    return before


def _rank_of(fact: RankFact) -> tuple[str, int, int]:
    return fact.job, fact.attempt, fact.rank
