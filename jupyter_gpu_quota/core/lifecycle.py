"""The state machines of jobs and notebooks: states, events and transition tables.

A job waits (queued, paused), has GPUs (starting, running, pausing), is held by a user or has ended.
``target``: the state of a pausing job when its processes are gone.
"""

from __future__ import annotations

from enum import StrEnum

from .model import JobState as S
from .model import JobTarget, NotebookState

FINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
RUNS = frozenset({S.STARTING, S.RUNNING})
HOLDS_GPU = RUNS | {S.PAUSING}
WAITING = frozenset({S.QUEUED, S.PAUSED})
HOLDS_SLICE = frozenset({NotebookState.BOOKED, NotebookState.LENT})
NOTEBOOK_FINAL = frozenset({NotebookState.REFUSED, NotebookState.RETURNED})

CHECKPOINTED = 75
"""The exit status of a job that saved and is to be queued again (sysexits EX_TEMPFAIL)."""


class IllegalTransition(ValueError):
    """The state table has no row for this event; nothing was changed."""


class JobEvent(StrEnum):
    """The events of a job."""

    START = "start"  # decided: it owns devices from now on
    SEEN_RUNNING = "seen_running"  # its processes were observed
    PAUSE = "pause"  # decided: it stops; the target says for what
    LEFT = "left"  # processes gone; queued again
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"  # failed with retries left, or lost with its node
    HOLD = "hold"  # of a job without processes
    HOLD_DONE = "hold_done"  # processes gone; held
    RELEASE = "release"
    CANCEL = "cancel"  # of a job without processes
    CANCEL_DONE = "cancel_done"  # processes gone; cancelled


E = JobEvent
TRANSITIONS: dict[tuple[S, JobEvent], S] = {
    (S.QUEUED, E.START): S.STARTING,
    (S.QUEUED, E.HOLD): S.HELD,
    (S.QUEUED, E.CANCEL): S.CANCELLED,
    (S.PAUSED, E.START): S.STARTING,
    (S.PAUSED, E.HOLD): S.HELD,
    (S.PAUSED, E.CANCEL): S.CANCELLED,
    (S.HELD, E.RELEASE): S.QUEUED,
    (S.HELD, E.CANCEL): S.CANCELLED,
    (S.STARTING, E.SEEN_RUNNING): S.RUNNING,
    **{
        (state, event): following
        for state in HOLDS_GPU
        for event, following in {
            E.LEFT: S.PAUSED,
            E.SUCCEED: S.SUCCEEDED,
            E.FAIL: S.FAILED,
            E.RETRY: S.QUEUED,
            E.HOLD_DONE: S.HELD,
            E.CANCEL_DONE: S.CANCELLED,
        }.items()
    },
    (S.STARTING, E.PAUSE): S.PAUSING,
    (S.RUNNING, E.PAUSE): S.PAUSING,
}


def next_job_state(state: S, event: JobEvent) -> S:
    """The state after an event; raises IllegalTransition where the table has no row."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a job that is {state} has no transition for {event}") from None


def exit_event(
    *, exit_status: int | None, pause_requested: bool, completed: bool, target: JobTarget, retries_left: int
) -> JobEvent:
    """The event of an ended attempt; ``exit_status`` is negative for a signal, None for a lost one.

    ``pause_requested``: the pause file existed before the exit was recorded. ``completed``: the job reported
    done = total, or called ``complete()``. Source: docs/scheduling.md, section 5.
    Rule R55.
    """
    if exit_status == 0 and (completed or not pause_requested):
        return JobEvent.SUCCEED
    if pause_requested:
        if exit_status == 0 or exit_status in OBEYS_PAUSE or target is not JobTarget.PAUSED:
            return _stopped_for(target)
    elif exit_status is None:
        return JobEvent.RETRY
    elif exit_status == CHECKPOINTED:
        return _stopped_for(target)
    return JobEvent.RETRY if retries_left > 0 else JobEvent.FAIL


OBEYS_PAUSE = frozenset({CHECKPOINTED, -15, -9, 128 + 15, 128 + 9, None})
"""Exit statuses that mean a pause after a request: checkpointed, SIGTERM, SIGKILL (also in a shell's form), lost."""


def _stopped_for(target: JobTarget) -> JobEvent:
    match target:
        case JobTarget.HELD:
            return JobEvent.HOLD_DONE
        case JobTarget.CANCELLED:
            return JobEvent.CANCEL_DONE
        case JobTarget.FAILED:
            return JobEvent.FAIL
        case JobTarget.RUNNING | JobTarget.PAUSED:
            return JobEvent.LEFT


NOTEBOOK_TRANSITIONS: dict[tuple[NotebookState, str], NotebookState] = {
    (NotebookState.REQUESTED, "book"): NotebookState.BOOKED,
    (NotebookState.REQUESTED, "refuse"): NotebookState.REFUSED,
    (NotebookState.REQUESTED, "return"): NotebookState.RETURNED,
    (NotebookState.BOOKED, "return"): NotebookState.RETURNED,
    (NotebookState.BOOKED, "lend"): NotebookState.LENT,
    (NotebookState.LENT, "book"): NotebookState.BOOKED,
    (NotebookState.LENT, "return"): NotebookState.RETURNED,
    (NotebookState.RETURNED, "ask_again"): NotebookState.REQUESTED,
    (NotebookState.REFUSED, "ask_again"): NotebookState.REQUESTED,
}


def next_notebook_state(state: NotebookState, event: str) -> NotebookState:
    """The state after an event; raises IllegalTransition where the table has no row."""
    try:
        return NOTEBOOK_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a notebook slice that is {state} has no transition for {event}") from None
