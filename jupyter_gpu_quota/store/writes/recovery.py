"""Recovery of a database that is older than the running work: the hold, its acceptance, the changes of the jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from ...core.facts import DeviceFact, RankFact
from ...core.lifecycle import FINAL
from ...core.model import WHOLE_DEVICE
from ...core.recovery.differences import AttemptRecord, Difference, DifferenceKind, differences, with_attempt
from ...core.recovery.evidence import document_of
from ..database.tables import DEVICES, JOBS, NOTES, RANKS
from ..database.unit_of_work import UnitOfWork
from ..records.activity import Note
from ..records.calls import Lease
from ..records.commands import Recorded, Refused
from ..records.recovery import (
    HOLD,
    UNKNOWN,
    Accepted,
    AcceptRecovery,
    ForgetUnknownWork,
    Hold,
    HoldDecisions,
    UnknownWork,
    unknown_from,
    unknown_note,
)
from ..records.rows import JobRecord, RankRecord
from .allocations import allocate_devices, drop_reservation, put_job, release_devices
from .observe import observe_facts

CONTROLLER = "system:controller"


# --- the hold ---------------------------------------------------------------------------------------------------------
def hold_of(work: UnitOfWork) -> Hold | None:
    note = work.get(NOTES, ("recovery", HOLD, 0))
    return None if note is None else Hold.from_note(note)


def hold_decisions(work: UnitOfWork, request: HoldDecisions) -> Recorded:
    """Begin a hold, or update its differences and add its new reasons. A repeated request changes nothing."""
    before = hold_of(work)
    hold = before or Hold(since=work.now, why=())
    known = {each.code for each in hold.why}
    why = (*hold.why, *(each for each in request.why if each.code not in known))
    hold = replace(hold, why=why, differences=request.differences, without_code=request.without_code)
    if before is None:
        work.audit(CONTROLLER, "recovery.hold", HOLD, {"why": [document_of(each) for each in why]}, None)
    if hold != before:
        _put(work, hold.note(work.now))
    return work.recorded(HOLD, existed=before is not None)


def accept_recovery(work: UnitOfWork, request: AcceptRecovery) -> Recorded:
    """Record that an admin accepted the hold; the leader then changes the jobs. It may also stop unknown work."""
    hold, unknown = hold_of(work), unknown_work(work)
    if hold is None and not (request.stop_unknown and unknown):
        raise Refused("not_held", "No decision is held, so there is nothing to recover; nothing was changed.")
    if request.stop_unknown:
        _put(work, unknown_note([replace(each, stops=True) for each in unknown], work.now))
    if hold is not None:
        stops = request.stop_unknown or (hold.accepted is not None and hold.accepted.stop_unknown)
        _put(
            work, replace(hold, accepted=Accepted(actor=request.actor, at=work.now, stop_unknown=stops)).note(work.now)
        )
    work.audit(request.actor, "recovery.accept", HOLD, {"stop_unknown": request.stop_unknown}, None)
    work.stamp()
    return work.recorded(HOLD)


# --- unknown work -----------------------------------------------------------------------------------------------------
def unknown_work(work: UnitOfWork) -> list[UnknownWork]:
    """The attempts without a job that were accepted."""
    return unknown_from(work.get(NOTES, ("unknown_work", UNKNOWN, 0)))


def forget_unknown_work(work: UnitOfWork, request: ForgetUnknownWork) -> Recorded:
    """Remove attempts without a job whose processes are gone, with their foreign use."""
    unknown = {each.job: each for each in unknown_work(work)}
    gone = [unknown.pop(job) for job in request.jobs if job in unknown]
    _put(work, unknown_note(unknown.values(), work.now))
    for each in gone:
        work.audit(CONTROLLER, "recovery.unknown_ended", each.job, {"attempt": each.attempt}, None)
    rest = foreign_milli(unknown.values())
    for device in sorted({part.device for each in gone for part in each.placements}):
        observe_device_use(work, device, rest.get(device, 0))
    return work.recorded(HOLD)


def foreign_milli(unknown: Iterable[UnknownWork]) -> Mapping[str, int]:
    """The milli-GPU of unknown work on each device, by the device's id; at most a whole device."""
    found: dict[str, int] = {}
    for part in (part for each in unknown for part in each.placements):
        found[part.device] = min(WHOLE_DEVICE, found.get(part.device, 0) + part.gpu_milli)
    return found


def observe_device_use(work: UnitOfWork, device: str, foreign: int) -> None:
    observe_facts(work, [DeviceFact(device=device, foreign_milli=foreign)])


# --- the changes ------------------------------------------------------------------------------------------------------
def recover(work: UnitOfWork, attempts: Sequence[AttemptRecord], lease: Lease) -> bool:
    """Set every job that differs to the state that its backend recorded, and end the hold; False without acceptance."""
    hold = hold_of(work)
    if hold is None or hold.accepted is None:
        return False
    records = {row.job.id: row for row in work.scope.changed(JOBS, -1, live=True) if row.job.state not in FINAL}
    found = differences({id: row.job for id, row in records.items()}, attempts)
    if any(each.stops_recovery for each in found):
        return False
    by_job = {attempt.job: attempt for attempt in attempts}
    for each in found:
        if each.kind is DifferenceKind.LOST:
            _end_lost_attempt(work, records[each.job])
        elif each.kind is not DifferenceKind.UNKNOWN:
            _adopt(work, records[each.job], by_job[each.job], lease)
    unknown = [by_job[each.job] for each in found if each.kind is DifferenceKind.UNKNOWN]
    _keep_unknown(work, unknown, stops=hold.accepted.stop_unknown)
    work.delete(NOTES, ("recovery", HOLD, 0))
    _audit(work, hold, found)
    return True


def _adopt(work: UnitOfWork, record: JobRecord, attempt: AttemptRecord, lease: Lease) -> None:
    """Set a job to the newest attempt that the backend recorded, with its devices and the facts of its ranks."""
    job = with_attempt(record.job, attempt)
    if attempt.attempt > record.job.attempt:
        release_devices(work, job.id)
        drop_reservation(work, job.id)
        put_job(work, record, job=job, reason=None, exit_status=None)
        _allocate(work, attempt)
        _put_ranks(work, attempt, job.held_ranks or job.ranks, lease)
        if record.spec.data:  # as the start did; the quota file of that time is not known
            payload = {"attempt": job.attempt, "data": list(record.spec.data), "revision": None}
            work.audit(job.user, "data.use", job.id, payload, job.project)
    elif job != record.job:
        put_job(work, record, job=job, reason=None)
    observe_facts(work, attempt.facts)


def _allocate(work: UnitOfWork, attempt: AttemptRecord) -> None:
    """Write the allocations of an attempt that runs. A device that no longer exists cannot be allocated again."""
    parts = attempt.placements or ()
    known = [part for part in parts if work.get(DEVICES, (part.device,)) is not None]
    if attempt.runs:
        allocate_devices(work, attempt.job, attempt.attempt, known)


def _put_ranks(work: UnitOfWork, attempt: AttemptRecord, ranks: int, lease: Lease) -> None:
    """Write the rows of all ranks, as the start of the attempt did."""
    devices = {part.rank: part.device for part in attempt.placements or ()}
    for rank in range(ranks):
        row = work.get(DEVICES, (devices.get(rank, ""),))
        node = row.device.node if row else ""
        new = RankRecord(job=attempt.job, attempt=attempt.attempt, rank=rank, node=node, fencing=lease.fencing)
        work.fetch(RANKS, [RANKS.key(new)])
        work.put(RANKS, new)


def _end_lost_attempt(work: UnitOfWork, record: JobRecord) -> None:
    """End an attempt of which no backend has a record: its exit status is unknown, and the job is queued again."""
    job = record.job
    ranks = range(job.held_ranks or job.ranks)
    facts = [
        RankFact(
            job=job.id, attempt=job.attempt, rank=rank, handle=None, started_at=None, ended_at=work.now, tree_gone=True
        )
        for rank in ranks
    ]  # fmt: skip
    observe_facts(work, facts)


def _keep_unknown(work: UnitOfWork, attempts: Sequence[AttemptRecord], *, stops: bool) -> None:
    """Note the attempts without a job, and count their devices as foreign use."""
    kept = {each.job: each for each in unknown_work(work)}
    for one in attempts:
        kept[one.job] = UnknownWork(job=one.job, attempt=one.attempt, placements=one.placements or (), stops=stops)
    _put(work, unknown_note(kept.values(), work.now))
    for device, foreign in foreign_milli(kept.values()).items():
        row = work.get(DEVICES, (device,))
        observe_device_use(work, device, max(foreign, row.device.foreign_milli if row else 0))


def _audit(work: UnitOfWork, hold: Hold, found: Sequence[Difference]) -> None:
    payload = {
        "why": [document_of(each) for each in hold.why],
        "differences": [asdict(each) for each in found],
        "held_ms": work.now - hold.since,
    }
    work.audit(CONTROLLER, "recovery.done", HOLD, payload, None)
    work.stamp()


def _put(work: UnitOfWork, note: Note) -> None:
    """Write a note that may be there already."""
    work.fetch(NOTES, [NOTES.key(note)])
    work.put(NOTES, note)
