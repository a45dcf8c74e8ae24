"""Compares the database with the records of the backend, and holds all decisions while the database is older."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import replace

from ...backends.protocol import AttemptRecords, JobBackend, StopOrder
from ...core.facts import DeviceFact
from ...core.lifecycle import FINAL
from ...core.model import Job
from ...core.recovery.differences import AttemptRecord, Difference, DifferenceKind, differences
from ...core.recovery.evidence import AuditRowMissing, Evidence, FencingWentBack, WorkDiffers
from ...messages.recovery import difference_texts, evidence_text, held_text
from ...store.history_mark import HistoryMark, Mark
from ...store.records.calls import Lease, LeaseLost
from ...store.records.commands import Refusal
from ...store.records.recovery import ForgetUnknownWork, Hold, HoldDecisions, UnknownWork
from ...store.records.rows import Changes
from ...store.transactions import Store
from ...store.writes.recovery import foreign_milli

log = logging.getLogger(__name__)

STOP_GRACE_S = 60
"""The grace of unknown work, because the database does not have the policy that was in force when it started."""


class RecoveryGuard:
    """Looks for evidence of an older database at the start of each term of leadership, and follows the hold.

    ``mark`` is the newest position that a leader has seen. A leader that is killed between any two steps leaves the
    hold in the database, or the evidence for it, so its successor continues.
    """

    def __init__(self, store: Store, attempts: AttemptRecords, mark: HistoryMark) -> None:
        self._store, self._attempts, self._mark = store, attempts, mark
        self.hold: Hold | None = None
        self.unknown: Mapping[tuple[str, int], UnknownWork] = {}
        self._logged: set[str] = set()
        self._is_unwritten = False

    # --- evidence -------------------------------------------------------------------------------------------------
    def begin(self, lease: Lease, now: int, *, fenced: int | None = None) -> int:
        """Look for evidence in a new term; with any, decisions are held. Returns the newest fencing number in use.

        The hold is stored before the fencing number is raised, which would hide a part of the evidence. ``fenced``: the
        number that this process gave the backend last; that of a take-over that failed is no evidence.
        """
        self._read()
        used, mark = self._attempts.newest_fence(), self._mark.read()
        if mark is not None and (mark.fencing > lease.fencing or mark.holder != lease.holder):
            used = max(used, mark.fencing)
        _, found = self._compare()
        evidence = [*self._evidence_of_numbers(lease, mark, used, fenced), *_evidence_of_work(found)]
        if evidence:
            self._keep(tuple(evidence), found, lease, now)
        return used

    def _evidence_of_numbers(
        self, lease: Lease, mark: Mark | None, used: int, fenced: int | None
    ) -> Iterator[Evidence]:
        """The audit row or the fencing number of the database is older than one that was used."""
        if mark is not None and not self._store.has_position(mark.position):
            yield AuditRowMissing(row=mark.position.audit_seq, newest=self._store.position().audit_seq)
        own = {fenced, mark.fencing} if mark is not None and mark.holder == lease.holder else {fenced}
        if used > lease.fencing or (used == lease.fencing and mark is not None and used not in own):
            yield FencingWentBack(fencing=lease.fencing, used=used)

    def _compare(self) -> tuple[list[AttemptRecord], tuple[Difference, ...]]:
        """The newest attempts, and the jobs that differ; accepted unknown work is left out."""
        jobs = self._jobs()
        attempts = [
            each for each in self._attempts.newest(jobs.keys()) if (each.job, each.attempt) not in self.unknown
        ]  # fmt: skip
        return attempts, differences(jobs, attempts)

    def _jobs(self) -> dict[str, Job]:
        """The jobs that have not ended, without those that hold a device of a cluster that is left out."""
        changes = self._store.changes(0, ended=False)
        unknown = holders_in(changes, self._attempts.left_out().keys())
        jobs = (record.job for record in changes.jobs)
        return {job.id: job for job in jobs if job.state not in FINAL and job.id not in unknown}

    def _read(self) -> None:
        self.hold = self._store.hold()
        self.unknown = {(each.job, each.attempt): each for each in self._store.unknown_work()}

    def check_clusters(self) -> None:
        """Raise LeaseLost where a cluster that is left out can be read again: a new term has it."""
        back = sorted(name for name, is_back in self._attempts.left_out().items() if is_back)
        if back:
            raise LeaseLost(f"Cluster {', '.join(back)} can be read again; this leader begins a new term with it.")

    # --- the mark -------------------------------------------------------------------------------------------------
    def note(self, lease: Lease) -> None:
        """Note the position of the database, after a durable write and before the orders that follow from it.

        Raises LeaseLost where the database does not have the noted position: a backup was put in its place.
        """
        if self.hold is not None:
            return
        known = self._mark.newest
        if known is not None and not self._store.has_position(known.position):
            raise LeaseLost("The database was replaced by an older one; this leader ends its term.")
        try:
            self._write_mark(lease)
        except OSError as error:  # an older mark is safe, and retention must run to empty a full volume
            if not self._is_unwritten:
                log.warning("the position of the database cannot be noted; decisions go on without it: %s", error)
            self._is_unwritten = True

    def _write_mark(self, lease: Lease) -> None:
        self._mark.write(Mark(position=self._store.position(), holder=lease.holder, fencing=lease.fencing))
        self._is_unwritten = False

    # --- while decisions are held ---------------------------------------------------------------------------------
    def follow(self, executor: JobBackend, lease: Lease, now: int, *, without_code: int = 0) -> bool:
        """Update the hold, and end it when an admin has accepted it. Returns whether decisions are still held.

        ``without_code``: how many jobs lack their code bundles.
        """
        executor.observe()  # it ends the processes of ranks without a supervisor; the facts are read again later
        self._read()
        if self.hold is None:
            return False
        attempts, found = self._compare()
        self._keep((), found, lease, now, without_code)
        self._log(self.hold)
        accepted = self.hold.accepted
        if accepted is None:
            return True
        if accepted.stop_unknown:
            self._stop(executor, (each for each in found if _is_without_job(each)), lease)
        if self._attempts.left_out() or any(each.stops_recovery for each in found):
            return True
        self._write_mark(lease)
        if self._store.recover(attempts, lease=lease, now=now):
            log.warning("decisions are made again: %d jobs were set to the state that the backend recorded", len(found))
            self._logged.clear()
        self._read()
        return self.hold is not None

    def _keep(
        self, evidence: tuple[Evidence, ...], found: tuple[Difference, ...], lease: Lease, now: int,
        without_code: int = 0,
    ) -> None:  # fmt: skip
        """Store the hold with its reasons and differences, where any of them is new."""
        known = {each.code for each in self.hold.why} if self.hold else set()
        before = None if self.hold is None else (self.hold.differences, self.hold.without_code)
        if before != (found, without_code) or {each.code for each in evidence} - known:
            request = HoldDecisions(why=evidence, differences=found, without_code=without_code)
            self._store.record([request], now=now, lease=lease)
            self._read()

    def _log(self, hold: Hold) -> None:
        texts = [*map(evidence_text, hold.why), *difference_texts(hold.differences, hold.without_code)]
        if not self._logged:
            log.error("%s", held_text())
        for text in texts:
            if text not in self._logged:
                log.error("%s", text)
        self._logged |= {held_text(), *texts}

    # --- work without a job ---------------------------------------------------------------------------------------
    def follow_unknown(self, executor: JobBackend, running: Set[tuple[str, int]], lease: Lease, now: int) -> bool:
        """Forget unknown work that has ended, and stop the work that an admin ordered to be stopped.

        ``running``: the attempts with processes that the database does not have. Returns whether all were accepted.
        """
        if not self.unknown and not running:
            return True
        self._read()
        left = running | set(self._attempts.unsettled())
        gone = tuple(sorted(job for job, attempt in self.unknown.keys() - left))
        if gone:
            for outcome in self._store.record([ForgetUnknownWork(jobs=gone)], now=now, lease=lease):
                assert not isinstance(outcome, Refusal), outcome
            self._read()
        self._stop(executor, (each for each in self.unknown.values() if each.stops), lease)
        return running <= self.unknown.keys()

    @staticmethod
    def _stop(executor: JobBackend, work: Iterator[Difference | UnknownWork], lease: Lease) -> None:
        for each in work:
            order = StopOrder(
                job=each.job, attempt=each.attempt, fencing=lease.fencing, grace_s=STOP_GRACE_S, reason="unknown_work"
            )
            executor.stop(order)

    def with_unknown_use(self, facts: Collection[DeviceFact]) -> list[DeviceFact]:
        """The facts; the foreign use of a device is never less than that of the unknown work on it."""
        least = foreign_milli(self.unknown.values())
        return [
            fact
            if fact.foreign_milli is None
            else replace(fact, foreign_milli=max(fact.foreign_milli, least.get(fact.device, 0)))
            for fact in facts
        ]


def _evidence_of_work(found: tuple[Difference, ...]) -> Iterator[Evidence]:
    """Differences that a restart of a controller does not cause, as it does for a job that ended meanwhile."""
    jobs = [each for each in found if each.kind is not DifferenceKind.ENDED or each.attempt != each.known_attempt]
    if jobs:
        yield WorkDiffers(jobs=len(jobs))


def holders_in(changes: Changes, clusters: Collection[str]) -> set[str]:
    """The work that holds a device of these clusters."""
    nodes = {node.id for node in changes.nodes if node.cluster in clusters}
    devices = {device.id for device in changes.devices if device.node in nodes}
    return {held.workload for held in changes.allocations if held.device in devices}


def _is_without_job(each: Difference) -> bool:
    return each.kind is DifferenceKind.UNKNOWN or each.stops_recovery
