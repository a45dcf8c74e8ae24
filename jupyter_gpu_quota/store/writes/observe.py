"""What was seen changes what is: ranks, jobs and, when the last process is gone, who owns the devices."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from ...core import transitions
from ...core.facts import DeviceFact, Fact, NotebookFact, RankFact
from ...core.frozen import with_changes
from ...core.lifecycle import FINAL, HOLDS_GPU, LEFT_AS_ASKED, JobEvent, judge_exit
from ...core.model import Job, JobState, JobTarget
from ...core.reasons import ReasonCode
from ..database.tables import ALLOCATIONS, DEVICES, JOBS, RANKS, Key, RankRow
from ..database.unit_of_work import UnitOfWork
from ..records.rows import JobRecord
from .allocations import observe_notebook, put_job, release_devices
from .inventory import observe_device

CONTROLLER = "system:controller"
CANNOT_EXECUTE = 126
"""The exit status that a refused order is judged by, as a shell reports a command that cannot be run."""


def observe_facts(work: UnitOfWork, facts: Sequence[Fact]) -> list[RankFact]:
    """Apply facts in order; those that say nothing new write nothing.

    Returns the rank facts that were about an attempt which still holds its devices afterwards.
    """
    ranks = [fact for fact in facts if isinstance(fact, RankFact)]
    work.fetch(JOBS, [(fact.job,) for fact in ranks])
    work.fetch(RANKS, [(fact.job, fact.attempt, fact.rank) for fact in ranks])
    work.fetch(DEVICES, [(fact.device,) for fact in facts if isinstance(fact, DeviceFact)])
    work.find_ahead(ALLOCATIONS, "workload", [fact.job for fact in ranks if fact.tree_gone])
    last = {(fact.job, fact.attempt): fact for fact in ranks}
    tallies, seen = _Tallies(work), []
    for fact in facts:
        if isinstance(fact, DeviceFact):
            observe_device(work, fact)
        elif isinstance(fact, NotebookFact):
            observe_notebook(work, fact)
        elif _observe_rank(work, fact, tallies, is_last=last[fact.job, fact.attempt] is fact):
            seen.append(fact)
    return seen


def _observe_rank(work: UnitOfWork, fact: RankFact, tallies: _Tallies, *, is_last: bool) -> bool:
    """Whether the fact was about the job's present attempt and that attempt goes on.

    The attempt is judged where a rank ends, and after its last fact, by what its ranks were counted to be: to look at
    all of them for each that ends would take as long as their number squared.
    """
    record = work.get(JOBS, (fact.job,))
    if record is None or record.job.state not in HOLDS_GPU or record.job.attempt != fact.attempt:
        return False
    row = work.get(RANKS, (fact.job, fact.attempt, fact.rank))
    if row is None:
        return False
    told, tally = _merged(row, fact), tallies.of(record)
    if told != row:
        work.stamp()
        work.put(RANKS, told)
        tally.take(record, told)
    progressed = _progressed(work, record, fact, tally)
    if progressed != record:
        put_job(work, progressed)
    if is_last or _how_it_ends(told) != _how_it_ends(row):
        _judge_attempt(work, progressed, tally)
    present = work.get(JOBS, (fact.job,))
    return present is not None and present.job.state in HOLDS_GPU


def _how_it_ends(row: RankRow) -> tuple[object, ...]:
    return row.record.ended_at, row.tree_gone, row.pause_requested, row.completed, row.refused


# --- what a fact adds -----------------------------------------------------------------------------------------------
def _merged(row: RankRow, fact: RankFact) -> RankRow:
    """The rank with what the fact adds. An end that was recorded is never rewritten, and nothing becomes unknown."""
    record, goes_on = row.record, row.record.ended_at is None
    refused = None if fact.refused is None else _text(fact.refused)
    record = with_changes(
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


def _progressed(work: UnitOfWork, record: JobRecord, fact: RankFact, tally: _Tally) -> JobRecord:
    """The job with its first process seen, its newest checkpoint, and the progress that rank 0 reports."""
    job = record.job
    if fact.pid is not None and (job.started_at is None or job.state is JobState.STARTING):
        job = _seen_running(work, job, fact, tally)
    saved_at = None if fact.saved_at is None else min(fact.saved_at, work.now)  # a job sets any time on its files
    if saved_at is not None and saved_at > (job.checkpoint_at or 0):
        job = with_changes(job, checkpoint_at=saved_at)
    if fact.rank != 0 or (fact.done is None and fact.total is None and not fact.metrics):
        return record if job is record.job else with_changes(record, job=job)
    return with_changes(
        record,
        job=job,
        done=record.done if _number(fact.done) is None else fact.done,
        total=record.total if _number(fact.total) is None else fact.total,
        metrics=_metrics(fact.metrics) or record.metrics,
    )


def _seen_running(work: UnitOfWork, job: Job, fact: RankFact, tally: _Tally) -> Job:
    """It started with its first process, and runs once each rank was begun: one that is missing is ordered again."""
    started_at = job.started_at or fact.started_at or work.now
    if job.state is not JobState.STARTING or tally.begun < len(tally.ranks):
        return with_changes(job, started_at=started_at)
    payload = {"attempt": fact.attempt, "rank": fact.rank, "pid": fact.pid, "started_at": started_at}
    work.audit(CONTROLLER, "job.running", job.id, payload, job.project)
    return transitions.seen_running(job, started_at)


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


# --- how far an attempt is ------------------------------------------------------------------------------------------
_Standing = tuple[bool, bool, bool, bool]
"""How far one rank is: whether it was begun, has ended, failed of its own accord, is gone."""


class _Tally:
    """How many ranks of an attempt are how far, as this observation would leave them.

    Whether a rank failed is only asked of an attempt that should run, and what that rests on beside the rank's row no
    fact changes while it should.
    """

    def __init__(self, record: JobRecord, rows: Sequence[RankRow]) -> None:
        self.ranks: dict[int, _Standing] = {}
        self.begun = self.ended = self.failed = self.gone = 0
        for row in rows:
            self.take(record, row)

    def take(self, record: JobRecord, row: RankRow) -> None:
        """Count a rank as it is now, instead of as it was."""
        was = self.ranks.get(row.record.rank, (False, False, False, False))
        ended = _has_ended(row)
        becomes = self.ranks[row.record.rank] = _was_begun(row), ended, ended and _failed(record, row), _is_gone(row)
        self.begun += becomes[0] - was[0]
        self.ended += becomes[1] - was[1]
        self.failed += becomes[2] - was[2]
        self.gone += becomes[3] - was[3]


class _Tallies:
    """The tally of each attempt that an observation tells of, made from its rows when the first fact comes."""

    def __init__(self, work: UnitOfWork) -> None:
        self._work = work
        self._known: dict[tuple[str, int], _Tally] = {}

    def of(self, record: JobRecord) -> _Tally:
        key = record.job.id, record.job.attempt
        if key not in self._known:
            self._known[key] = _Tally(record, _ranks_of(self._work, record.job))
        return self._known[key]


# --- what an end means ----------------------------------------------------------------------------------------------
def _judge_attempt(work: UnitOfWork, record: JobRecord, tally: _Tally) -> None:
    """End the attempt when every rank's processes are gone; ask the others to leave when one rank failed.

    Rule R45.
    """
    job = record.job
    if tally.ranks and tally.gone == len(tally.ranks):
        _end_attempt(work, record, _ranks_of(work, job))
    elif job.target is JobTarget.RUNNING and tally.failed and tally.ended < len(tally.ranks):
        put_job(work, record, job=with_changes(job, target=JobTarget.FAILED))  # the others would wait for it for ever
        work.audit(CONTROLLER, "job.rank_failed", job.id, {"attempt": job.attempt}, job.project)


def _ranks_of(work: UnitOfWork, job: Job) -> list[RankRow]:
    """The ranks of its present attempt."""
    keys: list[Key] = [(job.id, job.attempt, rank) for rank in range(job.held_ranks or job.ranks)]
    work.fetch(RANKS, keys)
    return [row for key in keys if (row := work.get(RANKS, key)) is not None]


def _was_begun(row: RankRow) -> bool:
    return row.record.pid is not None or _has_ended(row)


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


def _end_attempt(work: UnitOfWork, record: JobRecord, rows: Sequence[RankRow]) -> None:
    job, row = record.job, _deciding(record, rows)
    event = _as_asked(_verdict(record, row), job.target)
    ended = transitions.attempt_ended(job, event)
    state = ended.state
    release_devices(work, job.id)
    known = row.record.exit_status is not None or row.refused is not None
    uses_retry = event is JobEvent.RETRY and known and not _left_a_sick_device(record)
    put_job(
        work,
        record,
        job=ended,
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


def _audit_end(work: UnitOfWork, job: Job, row: RankRow, *, event: JobEvent, state: JobState) -> None:
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
