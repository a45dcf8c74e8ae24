"""The differences between the jobs of a database and the attempts that a backend has records of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..facts import RankFact
from ..frozen import with_changes
from ..lifecycle import HOLDS_GPU
from ..model import Job, JobState, JobTarget, Placement
from ..reason_codes import ReasonCode
from ..reason_figures import present_code


class DifferenceKind(StrEnum):
    """How a job differs; the values are public."""

    UNKNOWN = "unknown"  # it runs, and the database does not have it
    MOVED = "moved"  # it runs, in a later attempt than the database has
    ENDED = "ended"  # its newest attempt ended, and the database has it as running, or does not have that attempt
    LOST = "lost"  # the database has it as running, and the backend has no record of it


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """An attempt as a backend recorded it: ``facts`` has one fact for each rank that was claimed, at least one.

    ``ranks`` and ``placements`` are those of the start order; None where an older release did not record them.
    ``stop_reason`` is that of the newest stop order, None without one.
    """

    job: str
    attempt: int
    facts: tuple[RankFact, ...]
    ranks: int | None = None
    placements: tuple[Placement, ...] | None = None
    stop_reason: str | None = None

    @property
    def has_processes(self) -> bool:
        return not all(fact.tree_gone for fact in self.facts)

    @property
    def runs(self) -> bool:
        """Whether it has processes, or a rank that a new order may still start."""
        return self.has_processes or len(self.facts) < (self.ranks or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One job that differs. ``attempt`` is the backend's, ``known_attempt`` the database's, None without the job.

    ``devices``: those that it runs on; None where they are not known. ``exit_status``: of the first rank that ended.
    """

    job: str
    kind: DifferenceKind
    attempt: int
    known_attempt: int | None = None
    devices: tuple[str, ...] | None = ()
    exit_status: int | None = None

    @property
    def stops_recovery(self) -> bool:
        """Whether it must end first: it runs on devices that are not known."""
        return self.devices is None


def differences(jobs: Mapping[str, Job], attempts: Sequence[AttemptRecord]) -> tuple[Difference, ...]:
    """Every job that differs, by its id. ``jobs`` are those that have not ended, ``attempts`` the newest of each job.

    An ended attempt of a job that is not among them is not a difference.
    """
    newest = {attempt.job: attempt for attempt in attempts}
    found = [*_of_attempts(jobs, newest.values()), *_lost(jobs.values(), newest)]
    return tuple(sorted(found, key=lambda each: each.job))


def _of_attempts(jobs: Mapping[str, Job], attempts: Iterable[AttemptRecord]) -> Iterator[Difference]:
    for attempt in attempts:
        job = jobs.get(attempt.job)
        if job is None and attempt.has_processes:
            yield _runs(attempt, DifferenceKind.UNKNOWN, None)
        elif job is not None and attempt.attempt > job.attempt:
            kind = DifferenceKind.MOVED if attempt.runs else DifferenceKind.ENDED
            yield _runs(attempt, kind, job) if attempt.runs else _ended(attempt, job)
        elif job is not None and attempt.attempt == job.attempt and job.state in HOLDS_GPU and not attempt.runs:
            yield _ended(attempt, job)


def _runs(attempt: AttemptRecord, kind: DifferenceKind, job: Job | None) -> Difference:
    placements = attempt.placements
    devices = None if placements is None else tuple(sorted({part.device for part in placements}))
    known = None if job is None else job.attempt
    return Difference(job=attempt.job, kind=kind, attempt=attempt.attempt, known_attempt=known, devices=devices)


def _ended(attempt: AttemptRecord, job: Job) -> Difference:
    status = next((fact.exit_status for fact in attempt.facts), None)
    return Difference(
        job=job.id, kind=DifferenceKind.ENDED, attempt=attempt.attempt, known_attempt=job.attempt, exit_status=status
    )


def _lost(jobs: Iterable[Job], newest: Mapping[str, AttemptRecord]) -> Iterator[Difference]:
    """Jobs that were observed running, without any record. A job that was not observed may not have started yet."""
    for job in jobs:
        if has_run(job) and (job.id not in newest or newest[job.id].attempt < job.attempt):
            yield Difference(job=job.id, kind=DifferenceKind.LOST, attempt=job.attempt, known_attempt=job.attempt)


def has_run(job: Job) -> bool:
    """Whether the present attempt of a job was observed, and holds its devices."""
    return job.state in HOLDS_GPU and job.started_at is not None


# --- changes ----------------------------------------------------------------------------------------------------------
STOPPED_FOR: Mapping[str, JobTarget] = {
    ReasonCode.CANCELLED_BY_USER: JobTarget.CANCELLED,
    JobTarget.CANCELLED: JobTarget.CANCELLED,
    ReasonCode.HELD_BY_USER: JobTarget.HELD,
    JobTarget.HELD: JobTarget.HELD,
}
"""The target of a job by the reason of its stop order; any other reason is a pause, or a failure of another rank."""


def with_attempt(job: Job, attempt: AttemptRecord) -> Job:
    """The job with the attempt that the backend has: it was started, and its facts were not observed yet."""
    newer = attempt.attempt > job.attempt
    if newer:
        placements = attempt.placements or ()
        ranks = attempt.ranks or len({part.rank for part in placements}) or len(attempt.facts)
        job = with_changes(
            job,
            state=JobState.STARTING,
            target=JobTarget.RUNNING,
            attempt=attempt.attempt,
            started_at=None,
            pausing_since_at=None,
            paused_for=None,
            borrower=False,
            held_ranks=None if job.min_ranks is None else ranks,
        )
    target = STOPPED_FOR.get(present_code(attempt.stop_reason or ""), job.target)
    return job if attempt.runs or target is job.target else with_changes(job, target=target)
