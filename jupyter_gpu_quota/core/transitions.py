"""The change of a record by an action of a plan or by an observed fact.

The store, projections and tests call these functions on the core's frozen records. Each returns the changed record and
raises IllegalTransition where the state tables of :mod:`.lifecycle` have no such transition. Instants are in ms.
"""

from __future__ import annotations

from .frozen import with_changes
from .lifecycle import FINAL, JobEvent, next_job_state, next_notebook_state
from .model import Allocation, Job, JobState, JobTarget, Notebook, NotebookState, Placement, Reservation
from .plan import RESIZED, Pause, Reserve, Resume, Start, Stop


# --- jobs -------------------------------------------------------------------------------------------------------------
def started(job: Job, action: Start | Resume) -> Job:
    """The job owns devices from now on; its processes were not observed yet."""
    ranks = len({placement.rank for placement in action.placements})
    return with_changes(
        job,
        state=next_job_state(job.state, JobEvent.START),
        target=JobTarget.RUNNING,
        attempt=action.attempt,
        started_at=None,
        pausing_since_at=None,
        paused_for=None,
        borrower=action.borrower,
        held_ranks=None if job.min_ranks is None else ranks,
    )


def seen_running(job: Job, started_at: int) -> Job:
    """All processes of the job exist; the first one began at ``started_at``."""
    return with_changes(job, state=next_job_state(job.state, JobEvent.SEEN_RUNNING), started_at=started_at)


def paused(job: Job, action: Pause, *, per_s: int, now: int) -> Job:
    """The job stops after a checkpoint. A pause counts for ``per_s`` seconds; one that resizes it does not."""
    counted = tuple(at for at in job.paused_at if at > now - per_s * 1000)
    return with_changes(
        job,
        state=next_job_state(job.state, JobEvent.PAUSE),
        target=JobTarget.PAUSED,
        pausing_since_at=now,
        paused_for=action.preemptor,
        paused_at=counted if action.reason.code in RESIZED else (*counted, now),
    )


def stopped(job: Job, action: Stop, *, now: int) -> Job:
    """The job stops for good, or until it is queued again, and no claim takes its devices."""
    return with_changes(
        job,
        state=next_job_state(job.state, JobEvent.PAUSE),
        target=action.target,
        pausing_since_at=now,
        paused_for=None,
    )


def attempt_ended(job: Job, event: JobEvent) -> Job:
    """The processes of the job are gone: it is queued again, held, or has ended."""
    state = next_job_state(job.state, event)
    if state in FINAL:
        return with_changes(job, state=state, held_ranks=None)
    return with_changes(
        job,
        state=state,
        target=JobTarget.HELD if state is JobState.HELD else JobTarget.RUNNING,
        started_at=None,
        pausing_since_at=None,
        paused_for=job.paused_for if state is JobState.PAUSED else None,
        borrower=False,
        held_ranks=None,
    )


# --- notebooks --------------------------------------------------------------------------------------------------------
def notebook_changed(notebook: Notebook, event: str) -> Notebook:
    """The slice after an event of the state table: ``book``, ``refuse``, ``return`` or ``ask_again``."""
    return with_changes(notebook, state=next_notebook_state(notebook.state, event), device=None, lent_at=None)


def lent(notebook: Notebook, *, device: str | None, now: int) -> Notebook:
    """The slice stays booked without its device, to which it returns later."""
    state = next_notebook_state(notebook.state, "lend")
    assert state is NotebookState.LENT, "the state table lends"
    return with_changes(notebook, state=state, device=device, lent_at=now)


# --- devices ----------------------------------------------------------------------------------------------------------
def allocation(id: str, workload: str, placement: Placement) -> Allocation:
    return Allocation(
        id=id,
        workload=workload,
        rank=placement.rank,
        device=placement.device,
        gpu_milli=placement.gpu_milli,
        memory_mib=placement.memory_mib,
    )


def reserved(action: Reserve, *, now: int) -> Reservation:
    """The reservation that an action makes; it replaces an earlier one of the workload."""
    return Reservation(
        workload=action.workload, placements=action.placements, reserved_at=now, starts_at=action.starts_at
    )
