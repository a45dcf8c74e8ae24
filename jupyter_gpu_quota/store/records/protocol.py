"""What every store can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...core.facts import Fact
from ...core.model import JobState, NotebookState, Policy
from ...core.plan import Plan
from ...core.samples import DeviceSample
from .activity import Note, NotebookReport, NoteKind
from .commands import AllocationLabel, Recorded, Refusal, Request
from .notifications import NotificationRecord
from .plan_chunks import PlanChunk
from .rows import AuditRow, Changes, Holding, JobRecord, NotebookRecord, QuotaRevision, RankRecord, UsageHour


# --- the lease and the commit -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to decide until ``expires_at``; ``fencing`` grows with every holder and goes with every order."""

    holder: str
    fencing: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Nothing was written: something the plan rests on changed after the snapshot, or the lease was lost."""

    seen: int
    current: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A window on a listing, newest first."""

    offset: int = 0
    limit: int = 100


FIRST_PAGE = Page()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list. ``projects`` None means all; ``user`` narrows to one owner; ``live`` to unfinished ones.

    ``reader`` sees every job of their own, those of the projects in ``member_of`` (None: of all) that are not private,
    and private ones of the projects in ``led``.
    """

    projects: tuple[str, ...] | None = None
    user: str | None = None
    live: bool = False
    states: tuple[JobState, ...] = ()
    reader: str | None = None
    member_of: tuple[str, ...] | None = None
    led: tuple[str, ...] = ()


class StoreUnavailable(Exception):
    """The database cannot be used now (full, locked, read-only, gone). Nothing of this call was written."""


class LeaseLost(Exception):
    """Another controller holds the lease, or it ended: nothing of this call was written."""


class NotOpenYet(StoreUnavailable):
    """The process has just begun and opens the database: that is waited for, and nobody needs to be told."""


class Store(Protocol):
    """One door to the database. Every call is one transaction; every call may raise StoreUnavailable."""

    def version(self) -> int: ...

    def record(self, requests: Sequence[Request], *, now: int, lease: Lease | None = None) -> list[Recorded | Refusal]:
        """Record requests in order, in one transaction; each stands or falls by itself.

        ``lease``: of the controller that decided them; where it is not in force, nothing is written: raises LeaseLost.
        """

    def changes(self, since: int, *, ended: bool = True) -> Changes:
        """What changed after a version; from 0, everything (``ended`` False: only what has not ended).

        From 0 nothing is told of allocations released and reservations dropped before.
        """

    def acquire_lease(self, holder: str, *, now: int, ttl_ms: int) -> Lease | None:
        """Take or renew the lease; None while another holder's has not expired. A new holder gets a higher fencing."""

    def release_lease(self, lease: Lease) -> None: ...

    def lease(self) -> Lease | None:
        """The lease as it was last taken, over or not; None where nobody holds one."""

    def commit(
        self, plan: Plan | PlanChunk, *, policy: Policy, snapshot_digest: str, lease: Lease, now: int
    ) -> Committed | Stale:
        """Write a whole plan, or one whole chunk of it, or nothing.

        Stale if the lease is lost, a row the plan names changed after ``plan.seen_version``, the quota revision
        is not ``policy.revision``, or a device would carry more than it has (allocations of draining work count).
        """

    def observe(self, facts: Sequence[Fact], *, lease: Lease, now: int) -> int | Stale:
        """Record what was seen; applies the lifecycle, frees allocations of ended attempts. Returns the version.

        It is on disk with the next plan or lease that is written: a loss of power before that takes it back as a whole,
        and what is still so is seen again. So nothing that shows it may be removed before.
        """

    def user_id(self, name: str, *, now: int) -> str:
        """The ULID of a person, made at first sight."""

    def user_names(self, ids: Sequence[str]) -> dict[str, str]: ...

    def erase_name(self, user: str, *, actor: str, now: int) -> bool:
        """Forget a person's name; their id stays in records and audit. False if there is no name to erase."""

    def job(self, job: str) -> JobRecord | None: ...

    def jobs(self, which: JobFilter, page: Page) -> tuple[list[JobRecord], int]: ...

    def ranks(self, job: str) -> list[RankRecord]: ...

    def holdings(self, since: int, *, ended_after: int) -> tuple[int, list[Holding]]:
        """The version, and what jobs hold and held, in any order: from 0 that which ended after an instant, or not yet.

        From another version on, whatever began or ended since. What retention removed is not told.
        """

    def secrets(self, job: str) -> dict[str, str]: ...

    def notebook(self, notebook: str) -> NotebookRecord | None: ...

    def notebooks(
        self, *, states: Sequence[NotebookState] = (), ended_since: int | None = None, page: Page = FIRST_PAGE
    ) -> tuple[list[NotebookRecord], int]:
        """Slices in every state, newest first, and how many there are; ``ended_since``: that ended then or later."""

    def notifications(
        self, channel: str, *, pending: bool = False, page: Page = FIRST_PAGE
    ) -> tuple[list[NotificationRecord], int]:
        """The messages of one channel, newest first, and how many there are; ``pending``: those not ended."""

    def bundle_owned(self, digest: str, user: str) -> bool: ...

    def bundles_of(self, user: str) -> dict[str, int]:
        """Every bundle that this user ever put here, and its size in bytes; some may have been swept since."""

    def bundles_in_use(self) -> set[str]:
        """Digests that a kept job still names; others may be swept."""

    def quota(self) -> QuotaRevision | None: ...

    def quota_revisions(self, page: Page) -> tuple[list[QuotaRevision], int]: ...

    def audit(
        self, *, since: int | None = None, projects: Sequence[str] | None = None, page: Page = FIRST_PAGE
    ) -> tuple[list[AuditRow], int]: ...

    def audit_verify(self) -> int | str:
        """The number of rows when the chain holds, else a sentence naming the first row that does not."""

    def add_samples(self, node: str, sequence: int, rows: Sequence[DeviceSample], *, now: int) -> bool:
        """Ingest one batch; False if this node's sequence number was seen already. Own tables, own transaction."""

    def latest_samples(self) -> dict[str, DeviceSample]: ...

    def usage(self, begin: int, end: int, *, now: int) -> list[UsageHour]:
        """Every hour that begins in [begin, end), by workload and device, in any order; both are whole hours.

        The hour of ``now`` is told as far as it went.
        """

    def reports(self, since: int) -> list[NotebookReport]:
        """The newest report of each notebook's server that arrived at an instant or later, oldest first."""

    def report(self, notebook: str) -> NotebookReport | None: ...

    def notes(self, kind: NoteKind, *, since: int = 0) -> list[Note]:
        """What controllers noted of one kind, written at an instant or later, oldest first."""

    def labels(self, allocations: Sequence[str]) -> dict[str, AllocationLabel]:
        """How shares were found to be held, by allocation; those that nobody looked at yet are left out."""

    def forget(self, *, jobs_ended_before: int, samples_before: int, usage_before: int = 0) -> list[str]:
        """Retention: drops old jobs' rows, samples and hours of use; returns the ids of the jobs. Audit rows stay.

        At most 1,000 jobs at a time: call again while it returns that many.
        """

    def close(self) -> None: ...
