"""Record facts: they change ranks and jobs and, when the last process of an attempt has ended, release its devices."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from operator import add, sub

from ...core import transitions
from ...core.facts import DeviceFact, Fact, NotebookFact, RankFact
from ...core.frozen import with_changes
from ...core.job_ends import CommandNotStarted, EndCause, JobEnd, job_end
from ...core.lifecycle import CHECKPOINTED, FINAL, HOLDS_GPU, OBEYS_PAUSE, RUNS, JobEvent, exit_event
from ...core.model import Job, JobState, JobTarget
from ...core.reason_codes import ReasonCode
from ...core.reasons import Reason
from ..database.tables import ALLOCATIONS, DEVICES, JOBS, RANKS, Key
from ..database.unit_of_work import UnitOfWork
from ..records.rows import JobRecord, RankRecord
from .allocations import observe_notebook, put_job, release_devices
from .inventory import observe_device

CONTROLLER = "system:controller"
CANNOT_EXECUTE = 126
"""The exit status of a rank that was not started, as a shell reports a command that cannot be run."""


def observe_facts(work: UnitOfWork, facts: Sequence[Fact]) -> list[RankFact]:
    """Apply facts in order; facts without news write nothing.

    Returns the rank facts of attempts that hold their devices afterwards.
    """
    ranks = [fact for fact in facts if isinstance(fact, RankFact)]
    work.fetch(JOBS, [(fact.job,) for fact in ranks])
    work.fetch(RANKS, [(fact.job, fact.attempt, fact.rank) for fact in ranks])
    work.fetch(DEVICES, [(fact.device,) for fact in facts if isinstance(fact, DeviceFact)])
    work.find_ahead(ALLOCATIONS, "workload", [fact.job for fact in ranks if fact.tree_gone])
    last = {(fact.job, fact.attempt): fact for fact in ranks}
    counts, seen = dict[str, _RankCounts](), []
    for fact in facts:
        if isinstance(fact, DeviceFact):
            observe_device(work, fact)
        elif isinstance(fact, NotebookFact):
            observe_notebook(work, fact)
        elif _observe_rank(work, fact, counts, is_last=last[fact.job, fact.attempt] is fact):
            seen.append(fact)
    return seen


def _observe_rank(work: UnitOfWork, fact: RankFact, known: dict[str, _RankCounts], *, is_last: bool) -> bool:
    """Apply a fact of a job's present attempt; whether the attempt holds its devices afterwards.

    The attempt is evaluated when a rank ends, and after its last fact, by counts of its ranks in each condition:
    reading all ranks for each one that ends would take quadratic time.
    """
    record = work.get(JOBS, (fact.job,))
    if record is None or record.job.state not in HOLDS_GPU or record.job.attempt != fact.attempt:
        return False
    row = work.get(RANKS, (fact.job, fact.attempt, fact.rank))
    if row is None:
        return False
    merged, counts = _merged(row, fact), known.get(fact.job)
    if counts is None:
        counts = known[fact.job] = _RankCounts(record, _ranks_of(work, record.job))
    if merged != row:
        work.stamp()
        work.put(RANKS, merged)
        counts.count(record, merged)
    progressed = _progressed(work, record, fact, counts)
    if _end_of(merged) != _end_of(row):
        progressed = _with_failure(work, progressed, merged, fact.cause)
    if progressed != record or merged.trouble != row.trouble:
        put_job(work, progressed)
    if is_last or _end_of(merged) != _end_of(row):
        _evaluate_attempt(work, progressed, counts)
    present = work.get(JOBS, (fact.job,))
    return present is not None and present.job.state in HOLDS_GPU


def _end_of(row: RankRecord) -> tuple[object, ...]:
    return row.ended_at, row.tree_gone, row.pause_requested, row.completed, row.refused


# --- changes by a fact ----------------------------------------------------------------------------------------------
def _merged(row: RankRecord, fact: RankFact) -> RankRecord:
    """The rank with the news of a fact. A recorded end never changes, and no known value becomes unknown."""
    is_running = row.ended_at is None
    texts = fact.refused, fact.why_lost, fact.trouble
    refused, why_lost, trouble = (None if text is None else _text(text) for text in texts)
    return with_changes(
        row,
        handle=fact.handle if row.handle is None else row.handle,
        started_at=fact.started_at if row.started_at is None else row.started_at,
        ended_at=fact.ended_at if is_running else row.ended_at,
        exit_status=fact.exit_status if is_running else row.exit_status,
        tree_gone=row.tree_gone or fact.tree_gone,
        pause_requested=row.pause_requested or (is_running and fact.pause_requested),
        completed=row.completed or fact.completed,
        refused=refused if is_running else row.refused,
        why_lost=why_lost if is_running else row.why_lost,
        trouble=trouble if is_running else row.trouble,
    )


def _progressed(work: UnitOfWork, record: JobRecord, fact: RankFact, counts: _RankCounts) -> JobRecord:
    """The job with its first process seen, its newest checkpoint, and the progress that rank 0 reports."""
    job = record.job
    if fact.handle is not None and (job.started_at is None or job.state is JobState.STARTING):
        job = _seen_running(work, job, fact, counts)
    saved_at = None if fact.saved_at is None else min(fact.saved_at, work.now)  # a job sets any time on its files
    if saved_at is not None and saved_at > (job.checkpoint_at or 0):
        job = with_changes(job, checkpoint_at=saved_at)
    first_at = record.first_started_at or job.started_at
    if fact.rank != 0 or (fact.done is None and fact.total is None and not fact.metrics):
        return record if job is record.job else with_changes(record, job=job, first_started_at=first_at)
    return with_changes(
        record,
        job=job,
        first_started_at=first_at,
        done=record.done if whole_number(fact.done) is None else fact.done,
        total=record.total if whole_number(fact.total) is None else fact.total,
        metrics=finite(fact.metrics) or record.metrics,
    )


def _seen_running(work: UnitOfWork, job: Job, fact: RankFact, counts: _RankCounts) -> Job:
    """The job started with its first process; it runs when every rank has begun. Missing ranks are ordered again."""
    started_at = job.started_at or fact.started_at or work.now
    if job.state is not JobState.STARTING or counts.begun < len(counts):
        return with_changes(job, started_at=started_at)
    payload = {"attempt": fact.attempt, "rank": fact.rank, "handle": fact.handle, "started_at": started_at}
    work.audit(CONTROLLER, "job.running", job.id, payload, job.project)
    return transitions.seen_running(job, started_at)


def whole_number(value: int | None) -> int | None:
    """A number of a job's progress file; None for one that no database can hold."""
    return value if value is not None and abs(value) < 2**63 else None


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite metrics: infinity and NaN have no JSON form, and NaN would differ from itself at every tick."""
    return {_text(name): float(value) for name, value in metrics.items() if -MAX_FLOAT <= value <= MAX_FLOAT}


MAX_FLOAT = sys.float_info.max


def _text(value: str) -> str:
    """The text for the database: a lone surrogate from a job's file becomes a question mark."""
    return value.encode(errors="replace").decode()


# --- the ranks of an attempt ---------------------------------------------------------------------------------------
class _RankCounts:
    """How many ranks of an attempt have begun, ended, failed and gone, as this transaction would leave them.

    A rank fails only while its attempt should run, and no fact changes the other evidence for that in the meantime.
    """

    def __init__(self, record: JobRecord, rows: Sequence[RankRecord]) -> None:
        self._flags: dict[int, tuple[bool, ...]] = {}
        self.begun = self.ended = self.failed = self.gone = 0
        for row in rows:
            self.count(record, row)

    def __len__(self) -> int:
        return len(self._flags)

    def count(self, record: JobRecord, row: RankRecord) -> None:
        """Count a rank by its present row instead of an earlier one."""
        before, ended = self._flags.get(row.rank, (False,) * 4), _has_ended(row)
        flags = _was_begun(row), ended, ended and _failed(record, row), _is_gone(row)
        self._flags[row.rank] = flags
        counts = self.begun, self.ended, self.failed, self.gone
        self.begun, self.ended, self.failed, self.gone = map(add, counts, map(sub, flags, before))


# --- the end of an attempt --------------------------------------------------------------------------------------------
def _evaluate_attempt(work: UnitOfWork, record: JobRecord, counts: _RankCounts) -> None:
    """End the attempt when the processes of all ranks are gone; stop the other ranks when one failed.

    Rule R56.
    """
    job = record.job
    if counts and counts.gone == len(counts):
        _end_attempt(work, record, _ranks_of(work, job))
    elif job.target is JobTarget.RUNNING and counts.failed and counts.ended < len(counts):
        put_job(work, record, job=with_changes(job, target=JobTarget.FAILED))  # the others would wait for it forever
        payload = {"attempt": job.attempt, "reason": record.reason}
        work.audit(CONTROLLER, "job.rank_failed", job.id, payload, job.project)


def evaluate_released(work: UnitOfWork, record: JobRecord) -> None:
    """Evaluate a running attempt that is not to be held any more: a rank may have failed meanwhile.

    That stopped no other rank, and no later fact of it has news.
    """
    if record.job.state not in RUNS:
        return
    rows = _ranks_of(work, record.job)
    for row in rows:
        record = _with_failure(work, record, row, None)
    _evaluate_attempt(work, record, _RankCounts(record, rows))


def _ranks_of(work: UnitOfWork, job: Job) -> list[RankRecord]:
    """The ranks of its present attempt."""
    keys: list[Key] = [(job.id, job.attempt, rank) for rank in range(job.held_ranks or job.ranks)]
    work.fetch(RANKS, keys)
    return [row for key in keys if (row := work.get(RANKS, key)) is not None]


def _was_begun(row: RankRecord) -> bool:
    return row.handle is not None or _has_ended(row)


def _was_refused(row: RankRecord) -> bool:
    """Whether its backend never started it."""
    return row.refused is not None and row.handle is None


def _has_ended(row: RankRecord) -> bool:
    return row.ended_at is not None or _was_refused(row)


def _is_gone(row: RankRecord) -> bool:
    return _was_refused(row) or (row.ended_at is not None and row.tree_gone)


def _end_event(record: JobRecord, row: RankRecord) -> JobEvent:
    job = record.job
    refused = _was_refused(row)
    pause_requested = row.pause_requested or (refused and job.state is JobState.PAUSING)
    status = row.exit_status
    if refused:
        status = None if pause_requested else CANNOT_EXECUTE
    elif status and _left_unhealthy_device(record):
        status = None
    return exit_event(
        exit_status=status,
        pause_requested=pause_requested,
        completed=row.completed,
        target=job.target,
        retries_left=record.retries_left,
    )


def _left_unhealthy_device(record: JobRecord) -> bool:
    """Whether the job was leaving an unhealthy device: its failure then uses no retry."""
    reason = record.reason
    return record.job.target is JobTarget.PAUSED and reason is not None and reason.code is ReasonCode.DEVICE_UNHEALTHY


def _failed(record: JobRecord, row: RankRecord) -> bool:
    """Whether the rank failed by itself, not after a pause request."""
    return not row.pause_requested and _end_event(record, row) in (JobEvent.FAIL, JobEvent.RETRY)


DECIDING_FIRST = (
    JobEvent.FAIL,
    JobEvent.RETRY,
    JobEvent.CANCEL_DONE,
    JobEvent.HOLD_DONE,
    JobEvent.LEFT,
    JobEvent.SUCCEED,
)
"""The rank whose end comes first here decides for the attempt, if none failed: it succeeds only if all do."""


def _deciding_rank(record: JobRecord, rows: Sequence[RankRecord]) -> RankRecord:
    """The rank whose end is the attempt's."""
    rows = _without_dependent_failures(record, rows)
    failed = [row for row in rows if _failed(record, row)]
    if failed:
        return min(failed, key=lambda row: (row.ended_at or 0, row.rank))
    return min(rows, key=lambda row: (DECIDING_FIRST.index(_end_event(record, row)), row.rank))


OBEYED = (OBEYS_PAUSE | {0}) - {None}
"""Exit statuses of a rank that obeyed a pause request."""


def _without_dependent_failures(record: JobRecord, rows: Sequence[RankRecord]) -> Sequence[RankRecord]:
    """The ranks without those that failed while the gang was being paused, if another rank obeyed the pause.

    All ranks get the request together. The first may be gone before the last one reads it, and the last one then fails
    because it waits for the first. The order of their ends is unknown, since each supervisor records its own rank.
    Source: scheduling.md, section 5.
    """
    job = record.job
    obeyed = any(row.pause_requested and row.exit_status in OBEYED for row in rows)
    if not obeyed or job.pausing_since_at is None or job.target is JobTarget.FAILED:
        return rows
    since = job.pausing_since_at
    return [row for row in rows if (row.ended_at or 0) < since or row.exit_status in OBEYED]


def _with_failure(work: UnitOfWork, record: JobRecord, row: RankRecord, cause: EndCause | None) -> JobRecord:
    """The job with the end of its first failed rank as its reason: only the fact of that end has the cause."""
    job, known = record.job, record.reason
    by_itself = _has_ended(row) and row.exit_status != CHECKPOINTED and _failed(record, row)
    if not by_itself or job.target not in (JobTarget.RUNNING, JobTarget.FAILED):
        return record
    if isinstance(known, JobEnd):
        earlier = work.get(RANKS, (job.id, job.attempt, known.rank or 0))
        if earlier is not None and _order_of_end(earlier) <= _order_of_end(row):
            return record
    return with_changes(record, reason=_rank_end(record, row, cause))


def _order_of_end(row: RankRecord) -> tuple[int, int]:
    return row.ended_at or 0, row.rank


def _rank_end(record: JobRecord, row: RankRecord, cause: EndCause | None = None) -> JobEnd:
    """The end of a failed rank as the reason of its job."""
    ranks = record.job.held_ranks or record.job.ranks
    rank, of_ranks = (row.rank, ranks) if ranks > 1 else (None, None)
    if _was_refused(row):
        return CommandNotStarted(trouble=row.refused or "", rank=rank, ranks=of_ranks, node=row.node)
    was = "pausing" if row.pause_requested else None
    return job_end(row.exit_status, cause, rank=rank, ranks=of_ranks, node=row.node, was=was)


def _reason_after(record: JobRecord, row: RankRecord, state: JobState) -> Reason | None:
    """The reason of a job after an attempt; of a failed one how it failed, and not why it was paused earlier."""
    reason = record.reason
    if state in (JobState.QUEUED, JobState.SUCCEEDED):
        return None
    if state is not JobState.FAILED or isinstance(reason, JobEnd):
        return reason
    was_stopped = row.pause_requested or row.exit_status == CHECKPOINTED
    if reason is not None and reason.code is ReasonCode.TIME_LIMIT and was_stopped:
        return reason
    return _rank_end(record, row)


def _end_attempt(work: UnitOfWork, record: JobRecord, rows: Sequence[RankRecord]) -> None:
    job, row = record.job, _deciding_rank(record, rows)
    event = _without_retry(_end_event(record, row), job.target)
    ended = transitions.attempt_ended(job, event)
    state = ended.state
    release_devices(work, job.id)
    reason = _reason_after(record, row, state)
    known = row.exit_status is not None or row.refused is not None
    uses_retry = event is JobEvent.RETRY and known and not _left_unhealthy_device(record)
    put_job(
        work,
        record,
        job=ended,
        reason=reason,
        retries_left=record.retries_left - (1 if uses_retry else 0),
        ended_at=work.now if state in FINAL else None,
        exit_status=row.exit_status,
    )
    _audit_end(work, job, row, event=event, state=state, reason=reason)
    if record.spec.data:
        work.audit(job.user, "data.end", job.id, {"attempt": job.attempt, "data": list(record.spec.data)}, job.project)


def _without_retry(event: JobEvent, target: JobTarget) -> JobEvent:
    """The event; no retry of a job that a person holds or cancels."""
    if event is JobEvent.RETRY and target is JobTarget.CANCELLED:
        return JobEvent.CANCEL_DONE
    if event is JobEvent.RETRY and target is JobTarget.HELD:
        return JobEvent.HOLD_DONE
    return event


ENDED_RANK = ("rank", "exit_status", "pause_requested", "completed", "refused")
"""Fields of the deciding rank that the audit shows."""


def _audit_end(
    work: UnitOfWork, job: Job, row: RankRecord, *, event: JobEvent, state: JobState, reason: Reason | None
) -> None:
    payload: dict[str, object] = {"attempt": job.attempt, "event": event, "state": state}
    payload |= {name: getattr(row, name) for name in ENDED_RANK}
    if state is JobState.FAILED:
        payload["reason"] = reason
    if row.why_lost is not None:
        payload["why_lost"] = row.why_lost
    kind = "job.end" if state in FINAL else "attempt.end"  # a job that is paused, held or tried again has not ended
    work.audit(CONTROLLER, kind, job.id, payload, job.project)
