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

UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError)


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
        for attempt in self._attempts_of(job):
            if (record := self._record(job, attempt)) is not None:
                return record
        return None

    def _attempts_of(self, job: str) -> list[int]:
        """The attempts of a job, the newest first; where its folder cannot be read, those with a marker.

        Raises OSError where it has none: an attempt that the database does not have may be in that folder.
        """
        try:
            return attempts_of(self._state_dir, job)
        except OSError:
            if not (marked := [attempt for each, attempt in self.unsettled() if each == job]):
                raise
            return sorted(marked, reverse=True)

    def _record(self, job: str, attempt: int) -> AttemptRecord | None:
        """One attempt; None where no rank of it was claimed. A rank, or all of them, may be unreadable."""
        facts, whole = list[RankFact](), dict[str, Any]()
        try:
            ranks = recorded_ranks(self._state_dir, job, attempt)
        except OSError:
            return AttemptRecord(job=job, attempt=attempt, facts=(_running(job, attempt, 0),))
        for rank in ranks:
            paths = rank_paths(self._state_dir, job, attempt, rank)
            status = _status_of(paths)
            if status is None or "claimed_at" in status:
                facts.append(_fact_of(paths, status, unreadable=_running(job, attempt, rank)))
            whole |= status or {}
        if not facts:
            return None
        of_order, placements = _order_of(whole)
        reason = whole.get("pause_reason")
        return AttemptRecord(
            job=job, attempt=attempt, facts=tuple(facts), ranks=of_order, placements=placements,
            stop_reason=reason if isinstance(reason, str) else None,
        )  # fmt: skip


def _status_of(paths: RankPaths) -> dict[str, Any] | None:
    """The record of a rank, empty where there is none; None: it cannot be read."""
    try:
        os.stat(paths.status)
        return read_record(paths.status)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError:
        return None


def _running(job: str, attempt: int, rank: int) -> RankFact:
    """The fact of a rank of which nothing is known, so that it may run."""
    return RankFact(job=job, attempt=attempt, rank=rank, handle=None, started_at=None)


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
