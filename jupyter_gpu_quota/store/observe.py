"""What was seen changes what is: ranks, jobs and, when the last process is gone, who owns the devices."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from ..core.altered import altered
from ..core.facts import DeviceFact, Fact, NotebookFact, RankFact
from ..core.lifecycle import FINAL, HOLDS_GPU, LEFT_AS_ASKED, JobEvent, after, judge_exit
from ..core.model import Job, JobState, JobTarget
from ..core.plan import ReasonCode
from .holdings import observe_notebook, put_job, release_devices
from .inventory import observe_device
from .records import JobRecord
from .rows import ALLOCATIONS, DEVICES, JOBS, RANKS, Key, RankRow
from .work import Work

CONTROLLER = "system:controller"
CANNOT_EXECUTE = 126
"""The exit status that a refused order is judged by, as a shell reports a command that cannot be run."""


def observe_facts(work: Work, facts: Sequence[Fact]) -> list[RankFact]:
    """Apply facts in order; those that say nothing new write nothing.

    Returns the rank facts that were about an attempt which still holds its devices afterwards.
    """
    ranks = [fact for fact in facts if isinstance(fact, RankFact)]
    work.fetch(JOBS, [(fact.job,) for fact in ranks])
    work.fetch(RANKS, [(fact.job, fact.attempt, fact.rank) for fact in ranks])
    work.fetch(DEVICES, [(fact.device,) for fact in facts if isinstance(fact, DeviceFact)])
    work.find_ahead(ALLOCATIONS, "workload", [fact.job for fact in ranks if fact.tree_gone])
    last = {(fact.job, fact.attempt): fact for fact in ranks}
    seen = []
    for fact in facts:
        if isinstance(fact, DeviceFact):
            observe_device(work, fact)
        elif isinstance(fact, NotebookFact):
            observe_notebook(work, fact)
        elif _observe_rank(work, fact, is_last=last[fact.job, fact.attempt] is fact):
            seen.append(fact)
    return seen


def _observe_rank(work: Work, fact: RankFact, *, is_last: bool) -> bool:
    """Whether the fact was about the job's present attempt and that attempt goes on.

    The attempt is judged where a rank ends, and after its last fact: to look at all ranks for each that runs on would
    take as long as their number squared.
    """
    record = work.get(JOBS, (fact.job,))
    if record is None or record.job.state not in HOLDS_GPU or record.job.attempt != fact.attempt:
        return False
    row = work.get(RANKS, (fact.job, fact.attempt, fact.rank))
    if row is None:
        return False
    told = _merged(row, fact)
    if told != row:
        work.stamp()
        work.put(RANKS, told)
    progressed = _progressed(work, record, fact)
    if progressed != record:
        put_job(work, progressed)
    if is_last or _how_it_ends(told) != _how_it_ends(row):
        _judge_attempt(work, progressed)
    present = work.get(JOBS, (fact.job,))
    return present is not None and present.job.state in HOLDS_GPU


def _how_it_ends(row: RankRow) -> tuple[object, ...]:
    return row.record.ended_at, row.tree_gone, row.pause_requested, row.completed, row.refused


# --- what a fact adds -----------------------------------------------------------------------------------------------
def _merged(row: RankRow, fact: RankFact) -> RankRow:
    """The rank with what the fact adds. An end that was recorded is never rewritten, and nothing becomes unknown."""
    record, goes_on = row.record, row.record.ended_at is None
    refused = None if fact.refused is None else _text(fact.refused)
    record = altered(
        record,
        pid=fact.pid if record.pid is None else record.pid,
        pid_started=fact.pid_started if record.pid_started is None else record.pid_started,
        started_at=fact.started_at if record.started_at is None else record.started_at,
        ended_at=fact.ended_at if goes_on else record.ended_at,
        exit_status=fact.exit_status if goes_on else record.exit_status,
    )
    return RankRow(
        record=record,
        tree_gone=row.tree_gone or fact.tree_gone,
        pause_requested=row.pause_requested or (goes_on and fact.pause_requested),
        completed=row.completed or fact.completed,
        refused=refused if goes_on else row.refused,
    )


def _progressed(work: Work, record: JobRecord, fact: RankFact) -> JobRecord:
    """The job with its first process seen, its newest checkpoint, and the progress that rank 0 reports."""
    job = record.job
    if fact.pid is not None and (job.started_at is None or job.state is JobState.STARTING):
        job = _seen_running(work, job, fact)
    saved_at = None if fact.saved_at is None else min(fact.saved_at, work.now)  # a job sets any time on its files
    if saved_at is not None and saved_at > (job.checkpoint_at or 0):
        job = altered(job, checkpoint_at=saved_at)
    if fact.rank != 0 or (fact.done is None and fact.total is None and not fact.metrics):
        return record if job is record.job else altered(record, job=job)
    return altered(
        record,
        job=job,
        done=record.done if _number(fact.done) is None else fact.done,
        total=record.total if _number(fact.total) is None else fact.total,
        metrics=_metrics(fact.metrics) or record.metrics,
    )


def _seen_running(work: Work, job: Job, fact: RankFact) -> Job:
    """It started with its first process, and runs once each rank was begun: one that is missing is ordered again."""
    started_at = job.started_at or fact.started_at or work.now
    if job.state is not JobState.STARTING or not _all_were_begun(work, job):
        return altered(job, started_at=started_at)
    payload = {"attempt": fact.attempt, "rank": fact.rank, "pid": fact.pid, "started_at": started_at}
    work.audit(CONTROLLER, "job.running", job.id, payload, job.project)
    return altered(job, state=after(job.state, JobEvent.SEEN_RUNNING), started_at=started_at)


def _all_were_begun(work: Work, job: Job) -> bool:
    """Whether each rank was; looked at from the last one, which is begun last."""
    rows = (work.get(RANKS, (job.id, job.attempt, rank)) for rank in reversed(range(job.held_ranks or job.ranks)))
    return all(row is None or _was_begun(row) for row in rows)


def _number(value: int | None) -> int | None:
    """A job may write any number into its progress file; one that no database holds is unknown."""
    return value if value is not None and abs(value) < 2**63 else None


def _metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics that can be kept: infinity and NaN have no JSON, and NaN would differ from itself at every tick."""
    return {_text(name): float(value) for name, value in metrics.items() if -LARGEST <= value <= LARGEST}


LARGEST = sys.float_info.max


def _text(value: str) -> str:
    """Text as a database can hold it: a lone surrogate from a job's file becomes a question mark."""
    return value.encode(errors="replace").decode()


# --- what an end means ----------------------------------------------------------------------------------------------
def _judge_attempt(work: Work, record: JobRecord) -> None:
    """End the attempt when every rank's processes are gone; ask the others to leave when one rank failed."""
    job, rows = record.job, _ranks_of(work, record.job)
    if rows and all(_is_gone(row) for row in rows):
        _end_attempt(work, record, rows)
    elif job.target is JobTarget.RUNNING and _one_failed_alone(record, rows):
        put_job(work, record, job=altered(job, target=JobTarget.FAILED))
        work.audit(CONTROLLER, "job.rank_failed", job.id, {"attempt": job.attempt}, job.project)


def _ranks_of(work: Work, job: Job) -> list[RankRow]:
    """The ranks of its present attempt."""
    keys: list[Key] = [(job.id, job.attempt, rank) for rank in range(job.held_ranks or job.ranks)]
    work.fetch(RANKS, keys)
    return [row for key in keys if (row := work.get(RANKS, key)) is not None]


def _was_begun(row: RankRow) -> bool:
    return row.record.pid is not None or _has_ended(row)


def _one_failed_alone(record: JobRecord, rows: Sequence[RankRow]) -> bool:
    """Whether a rank failed while others run on: they would wait for it for ever, so they are asked to leave."""
    ended = [row for row in rows if _has_ended(row)]
    return len(ended) < len(rows) and any(_failed(record, row) for row in ended)


def _was_never_started(row: RankRow) -> bool:
    return row.refused is not None and row.record.pid is None


def _has_ended(row: RankRow) -> bool:
    return row.record.ended_at is not None or _was_never_started(row)


def _is_gone(row: RankRow) -> bool:
    return _was_never_started(row) or (row.record.ended_at is not None and row.tree_gone)


def _verdict(record: JobRecord, row: RankRow) -> JobEvent:
    job = record.job
    never = _was_never_started(row)
    asked = row.pause_requested or (never and job.state is JobState.PAUSING)
    status = row.record.exit_status
    if never:
        status = None if asked else CANNOT_EXECUTE
    elif status and _left_a_sick_device(record):
        status = None
    return judge_exit(
        exit_status=status,
        pause_requested=asked,
        completed=row.completed,
        target=job.target,
        retries_left=record.retries_left,
    )


def _left_a_sick_device(record: JobRecord) -> bool:
    """Whether it was leaving an unhealthy device: a bad end is then the device's, and counted against nobody."""
    reason = record.reason
    return record.job.target is JobTarget.PAUSED and reason is not None and reason.code is ReasonCode.DEVICE_UNHEALTHY


def _failed(record: JobRecord, row: RankRow) -> bool:
    """Whether the rank ended badly of its own accord, not because it was asked to leave."""
    return not row.pause_requested and _verdict(record, row) in (JobEvent.FAIL, JobEvent.RETRY)


WEIGHTIEST_FIRST = (
    JobEvent.FAIL,
    JobEvent.RETRY,
    JobEvent.CANCEL_DONE,
    JobEvent.HOLD_DONE,
    JobEvent.LEFT,
    JobEvent.SUCCEED,
)
"""Which rank's end is the attempt's, when none failed of its own accord: an attempt succeeds only as a whole."""


def _deciding(record: JobRecord, rows: Sequence[RankRow]) -> RankRow:
    rows = _without_bereft(record, rows)
    failed = [row for row in rows if _failed(record, row)]
    if failed:
        return min(failed, key=lambda row: (row.record.ended_at or 0, row.record.rank))
    return min(rows, key=lambda row: (WEIGHTIEST_FIRST.index(_verdict(record, row)), row.record.rank))


OBEYED = (LEFT_AS_ASKED | {0}) - {None}


def _without_bereft(record: JobRecord, rows: Sequence[RankRow]) -> Sequence[RankRow]:
    """The ranks but those that ended badly on the way out of a gang of which another left as asked.

    All are asked together, but the first may be gone before the last has heard, and what that one waits for with it.
    Which end came first cannot be told: each is noted when its supervisor sees it. Source: scheduling.md, section 5.
    """
    job = record.job
    obeyed = any(row.pause_requested and row.record.exit_status in OBEYED for row in rows)
    if not obeyed or job.pausing_since_at is None or job.target is JobTarget.FAILED:
        return rows
    since = job.pausing_since_at
    return [row for row in rows if (row.record.ended_at or 0) < since or row.record.exit_status in OBEYED]


def _end_attempt(work: Work, record: JobRecord, rows: Sequence[RankRow]) -> None:
    job, row = record.job, _deciding(record, rows)
    event = _as_asked(_verdict(record, row), job.target)
    state = after(job.state, event)
    release_devices(work, job.id)
    known = row.record.exit_status is not None or row.refused is not None
    uses_retry = event is JobEvent.RETRY and known and not _left_a_sick_device(record)
    put_job(
        work,
        record,
        job=_rested(job, state) if state not in FINAL else altered(job, state=state, held_ranks=None),
        reason=None if state is JobState.QUEUED else record.reason,
        retries_left=record.retries_left - (1 if uses_retry else 0),
        ended_at=work.now if state in FINAL else None,
        exit_status=row.record.exit_status,
    )
    _audit_end(work, job, row, event=event, state=state)


def _as_asked(event: JobEvent, target: JobTarget) -> JobEvent:
    """A job that a person holds or cancels is not tried again by itself."""
    if event is JobEvent.RETRY and target is JobTarget.CANCELLED:
        return JobEvent.CANCEL_DONE
    if event is JobEvent.RETRY and target is JobTarget.HELD:
        return JobEvent.HOLD_DONE
    return event


def _rested(job: Job, state: JobState) -> Job:
    """The job without processes: it waits for the queue, or for a person."""
    return altered(
        job,
        state=state,
        target=JobTarget.HELD if state is JobState.HELD else JobTarget.RUNNING,
        started_at=None,
        pausing_since_at=None,
        paused_for=job.paused_for if state is JobState.PAUSED else None,
        borrower=False,
        held_ranks=None,
    )


def _audit_end(work: Work, job: Job, row: RankRow, *, event: JobEvent, state: JobState) -> None:
    payload = {
        "attempt": job.attempt,
        "rank": row.record.rank,
        "exit_status": row.record.exit_status,
        "event": event,
        "state": state,
        "pause_requested": row.pause_requested,
        "completed": row.completed,
        "refused": row.refused,
    }
    kind = "job.end" if state in FINAL else "attempt.end"  # one that is paused, held or tried again has not ended
    work.audit(CONTROLLER, kind, job.id, payload, job.project)
