"""Why work waits, and what a new job would meet: the core's own answers, as views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ...core.eviction.unavailable_devices import what_it_stays_on
from ...core.explain import projection
from ...core.model import JobState, NotebookState
from ...messages.explanations import change_sentence, dry_run_sentence, explanation_sentence
from ...store.records.commands import JobSpec
from ...store.records.rows import JobRecord, NotebookRecord
from ...wire import AffectedView, DryRunView, ExplainView, ReasonView, WouldStart
from ..access.permissions import Person, sees_work
from ..requests.services import Door
from ..state.store_view import World
from .records import job_reason, maybe_instant, notebook_reason, reason_view


# --- one job before it is submitted -----------------------------------------------------------------------------------
async def dry_run(door: Door, person: Person, spec: JobSpec) -> DryRunView:
    """What a job would meet if it were submitted now."""
    quota = door.world.quota
    assert quota is not None, "a spec is only made under a quota file"
    job = spec.queued(door.new_id(now := door.clock()), person.id, now)
    await door.world.learn_names((person.id,))
    met = await door.world.ponder(projection.dry_run, door.foresight.snapshot(), quota.policy, job)
    return DryRunView(
        starts_now=met.starts_now,
        pauses=[
            *_affected(door, person, met.pauses, "paused", "would be paused for it and queued again at its position."),
            *_affected(
                door, person, met.restarts, "restarts", "would save and go on at once, elsewhere or with fewer ranks."
            ),
        ],
        reason=_met(met, door.world, person.id),
        charged_milli=spec.gpu_milli * spec.ranks,
        charged_least_milli=None if spec.min_ranks is None else spec.gpu_milli * spec.min_ranks,
    )


def _met(met: projection.DryRun, world: World, user: str) -> ReasonView:
    said = reason_view(met.reason, world)
    message = _by_name(dry_run_sentence(met), user, world)
    return said.model_copy(update={"message": message}) if met.reason.code in projection.NOT_YET else said


def _by_name(told: str, user: str, world: World) -> str:
    """What the core says of a person's work, with the person's name; it knows people by their ids alone."""
    return told.replace(user, world.name_of(user))


def _affected(
    door: Door, person: Person, jobs: Iterable[str], effect: Literal["paused", "restarts"], what: str
) -> list[AffectedView]:
    """Jobs that something would happen to; of those one may not see, only that there is one."""
    views = []
    for name in jobs:
        record = door.world.mirror.jobs.get(name)
        if record is None:
            continue
        job = record.job
        if sees_work(person, project=job.project, owner=job.user, private=record.spec.private):
            user = door.world.name_of(job.user)
            told = f'{user}\'s job "{record.spec.name}" {what}'
            views.append(AffectedView(job=name, project=job.project, user=user, effect=effect, message=told))
        else:
            told = f"A job that you may not see {what}"
            views.append(AffectedView(job=None, project=None, user=None, effect=effect, message=told))
    return views


# --- why --------------------------------------------------------------------------------------------------------------
async def explanation(door: Door, record: JobRecord | NotebookRecord) -> ExplainView:
    """The binding reason of a job or notebook, and the smallest changes that would start it."""
    work = record.job if isinstance(record, JobRecord) else record.notebook
    quota = door.world.quota
    waits = work.state in (JobState.QUEUED, JobState.PAUSED, NotebookState.REQUESTED, NotebookState.LENT)
    if quota is None or not waits:
        said = _stays(door, work.id) or _settled(door, record)
        return ExplainView(id=work.id, state=work.state, reason=said, would_start=[], estimate_at=None)
    try:
        told = await door.foresight.explain(work.id, quota.policy)
    except KeyError:  # it ended between the two looks
        return ExplainView(
            id=work.id, state=work.state, reason=_settled(door, record), would_start=[], estimate_at=None
        )
    reason = told.reason or record.reason
    said = reason_view(reason, door.world) if reason else _settled(door, record)
    return ExplainView(
        id=work.id,
        state=work.state,
        reason=said.model_copy(update={"message": _by_name(explanation_sentence(told), work.user, door.world)}),
        would_start=[
            WouldStart(kind=change.kind, message=_by_name(change_sentence(change), work.user, door.world))
            for change in told.would_start
        ],
        estimate_at=maybe_instant(told.estimate_at),
    )


def _stays(door: Door, workload: str) -> ReasonView | None:
    """What to say of work that stays on a device that is unhealthy, or on a node that is drained."""
    reason = what_it_stays_on(door.foresight.snapshot(), workload)
    return None if reason is None else reason_view(reason, door.world)


def _settled(door: Door, record: JobRecord | NotebookRecord) -> ReasonView:
    """The reason of what does not wait; where none was recorded, its state says it."""
    if isinstance(record, JobRecord):
        known = job_reason(record, door.world)
        return known or ReasonView(code=record.job.state, figures={}, message=_state_in_words(record))
    state = record.notebook.state
    known = notebook_reason(record, door.world)
    return known or ReasonView(code=state, figures={}, message=f"The notebook's slice is {state}.")


def _state_in_words(record: JobRecord) -> str:
    match record.job.state:
        case JobState.PAUSING:
            return "The job is pausing: it saves what it has, then it is queued again at its old position."
        case JobState.FAILED if record.exit_status is not None:
            return f"The job has failed with exit status {record.exit_status}; its log may say why."
        case JobState.FAILED | JobState.SUCCEEDED as state:
            return f"The job has {state}."
        case state:
            return f"The job is {state}."
