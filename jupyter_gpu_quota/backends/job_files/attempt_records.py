"""Attempts by their records in the state directory, also those that a database does not have."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...core.facts import RankFact
from ...core.model import Placement
from ...core.recovery.differences import AttemptRecord
from .paths import (
    RankPaths,
    active_directory,
    attempt_named,
    fence_file,
    job_directory,
    marker_named,
    rank_named,
    rank_paths,
)
from .rank_facts import rank_fact
from .record_files import read_fence, read_record

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)


class JobAttempts:
    """The records of one state directory."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self._state_dir = str(Path(state_dir).absolute())

    def newest_fence(self) -> int:
        """The newest leader that any supervisor or executor has seen."""
        return read_fence(fence_file(self._state_dir))

    def left_out(self) -> Mapping[str, bool]:
        """None: there is one state directory."""
        return {}

    def unsettled(self) -> Collection[tuple[str, int]]:
        """The attempts with a marker."""
        return frozenset(unsettled_attempts(self._state_dir))

    def newest(self, jobs: Collection[str]) -> list[AttemptRecord]:
        """The newest attempt of each job with a claimed rank."""
        every = sorted({*jobs, *(job for job, _ in self.unsettled())})
        return [found for job in every if (found := self._newest(job)) is not None]

    def _newest(self, job: str) -> AttemptRecord | None:
        for attempt in attempts_of(self._state_dir, job):
            if (record := self._record(job, attempt)) is not None:
                return record
        return None

    def _record(self, job: str, attempt: int) -> AttemptRecord | None:
        """One attempt; None where no rank of it was claimed."""
        facts, whole = list[RankFact](), dict[str, Any]()
        for rank in recorded_ranks(self._state_dir, job, attempt):
            paths = rank_paths(self._state_dir, job, attempt, rank)
            if not os.path.exists(paths.status):
                continue
            status = read_record(paths.status)
            if status is None or "claimed_at" in status:
                runs = RankFact(job=job, attempt=attempt, rank=rank, handle=None, started_at=None)
                facts.append(_fact_of(paths, status, unreadable=runs))
            whole |= status or {}
        if not facts:
            return None
        ranks, placements = _order_of(whole)
        reason = whole.get("pause_reason")
        return AttemptRecord(
            job=job, attempt=attempt, facts=tuple(facts), ranks=ranks, placements=placements,
            stop_reason=reason if isinstance(reason, str) else None,
        )  # fmt: skip


def _fact_of(paths: RankPaths, status: Mapping[str, Any] | None, *, unreadable: RankFact) -> RankFact:
    """The fact of a rank; that of a running one where its record cannot be read."""
    if status is None:
        return unreadable
    try:
        return rank_fact(paths, status)
    except UNREADABLE:
        return unreadable


def _order_of(status: Mapping[str, Any]) -> tuple[int | None, tuple[Placement, ...] | None]:
    """The ranks and the placements of the start order; None where they are not recorded, or not readable."""
    try:
        parts = [
            Placement(rank=int(rank), device=str(device), gpu_milli=int(gpu_milli), memory_mib=int(memory_mib))
            for rank, device, gpu_milli, memory_mib in status["placements"]
        ]
        return int(status["ranks"]), tuple(parts)
    except UNREADABLE:
        return None, None


def unsettled_attempts(state_dir: str) -> Iterator[tuple[str, int]]:
    """The attempts that any leader started or stopped, and that are not settled, from their markers on the disk."""
    for name in sorted(os.listdir(active_directory(state_dir))):
        if (marked := marker_named(name)) is not None:
            yield marked


def attempts_of(state_dir: str, job: str) -> list[int]:
    """The attempts of a job that have a folder, the newest first."""
    try:
        names = os.listdir(os.path.join(job_directory(state_dir, job), "attempts"))
    except FileNotFoundError:
        return []
    return sorted((found for name in names if (found := attempt_named(name)) is not None), reverse=True)


def recorded_ranks(state_dir: str, job: str, attempt: int) -> list[int]:
    """The ranks of an attempt that have a control folder."""
    try:
        names = os.listdir(os.path.join(job_directory(state_dir, job), "attempts", str(attempt)))
    except FileNotFoundError:
        return []
    return sorted(found for name in names if (found := rank_named(name)) is not None)


def paths_of_ranks(state_dir: str, job: str, attempt: int) -> list[RankPaths]:
    """The paths of these ranks."""
    return [rank_paths(state_dir, job, attempt, rank) for rank in recorded_ranks(state_dir, job, attempt)]
