"""Explanations and dry runs: the core's answers as views."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Any, Literal

from ...core.eviction.unavailable_devices import stay_reason
from ...core.explain import projection
from ...core.explain.explanation import Change, Explanation, Outlook
from ...core.explain.rank_check import UncheckedRank
from ...core.explain.why_waiting import explain
from ...core.model import Job, JobState, Notebook, NotebookState
from ...core.reason_codes import ReasonCode
from ...messages.changes import changes_sentence
from ...messages.explanations import dry_run_sentence, explanation_sentence
from ...messages.planned_start import start_sentence
from ...messages.recovery import held_text
from ...store.records.commands import JobSpec
from ...store.records.rows import JobRecord, NotebookRecord
from ...wire import AffectedView, DryRunView, ExplainView, QuotaInForceView, ReasonView, UncheckedRankView, WouldStart
from ..access.permissions import Person, may_see
from ..access.work_in_progress import SLOW_WORK
from ..requests.call import Call
from ..requests.services import Services
from ..state.store_view import StoreView
from .records import MAY_HAVE_TROUBLE, instant_or_none, job_reason, notebook_reason, reason_view, with_trouble
from .work_names import seen_by, with_work_names


async def dry_run(call: Call, spec: JobSpec) -> DryRunView:
    """The effects of a job, on itself and on others, if it were submitted now. Raises LimitReached."""
    services, person, store_view = call.services, call.person, call.store_view
    quota = store_view.quota
    assert quota is not None, "a spec is only made under a quota file"
    job = spec.queued(services.new_id(now := services.clock()), person.id, now)
    await store_view.learn_names((person.id,))
    snapshot = services.decisions.snapshot()
    with call.slow_work():
        found = await call.compute_slow(projection.dry_run, snapshot, quota.policy, job)
        waiting = None
        if not found.starts_now and not found.pauses and not found.restarts:
            with_job = replace(snapshot, jobs=(*snapshot.jobs, job))
            waiting = await call.compute_slow(explain, with_job, quota.policy, job.id)
    reason = reason_view(found.reason, store_view, project=spec.project)
    if found.reason.code in projection.NOT_YET:  # the core knows people by their ids
        message = dry_run_sentence(found).replace(person.id, store_view.name_of(person.id))
        reason = reason.model_copy(update={"message": message})
    if store_view.is_held:
        reason = reason.model_copy(update={"message": held_text()})
    paused = "would be paused for it and queued again at its position."
    restarted = "would save and continue at once, elsewhere or with fewer ranks."
    return DryRunView(
        starts_now=found.starts_now and not store_view.is_held,
        pauses=[
            *_affected(store_view, person, found.pauses, "paused", paused),
            *_affected(store_view, person, found.restarts, "restarts", restarted),
        ],
        reason=reason,
        charged_milli=spec.gpu_milli * spec.ranks,
        charged_least_milli=None if spec.min_ranks is None else spec.gpu_milli * spec.min_ranks,
        **_estimate(None if store_view.is_held else waiting),
    )


def _estimate(found: Explanation | None) -> dict[str, Any]:
    """The start of a workload: its instant, whether it is a bound, and both as a sentence while it waits."""
    if found is None or found.estimate_at is None or found.reason is None:
        return {"estimate_at": None}
    waits = found.outlook is Outlook.WAITS or found.reason.code is ReasonCode.WAITS_FOR_DRAIN
    return {
        "estimate_at": instant_or_none(found.estimate_at),
        "estimate_is_bound": found.is_bound,
        "estimate_text": start_sentence(found.estimate_at, found.reason) if waits else None,
    }


def _affected(
    store_view: StoreView, person: Person, jobs: Iterable[str], effect: Literal["paused", "restarts"], what: str
) -> list[AffectedView]:
    """Affected jobs. A job that this person may not see is only counted."""
    views = []
    for record in (store_view.mirror.jobs[name] for name in jobs if name in store_view.mirror.jobs):
        if may_see(person, record):
            job, user = record.job, store_view.name_of(record.job.user)
            message = f'{user}\'s job "{record.spec.name}" {what}'
            views.append(AffectedView(job=job.id, project=job.project, user=user, effect=effect, message=message))
        else:
            message = f"A job that you may not see {what}"
            views.append(AffectedView(job=None, project=None, user=None, effect=effect, message=message))
    return views


IN_FORCE = tuple(QuotaInForceView.model_fields)


async def explanation(services: Services, person: Person, record: JobRecord | NotebookRecord) -> ExplainView:
    """The binding reason of a job or notebook, and the smallest changes that would start it, for this person.

    The trouble of a job that starts or is queued again is added to its reason.
    """
    found = await _explanation(services, person, record)
    if not isinstance(record, JobRecord) or record.job.state not in MAY_HAVE_TROUBLE:
        return found
    ranks = await services.store_view.read(services.store_view.store.ranks, record.job.id)
    return found.model_copy(update={"reason": with_trouble(found.reason, record, ranks)})


async def _explanation(services: Services, person: Person, record: JobRecord | NotebookRecord) -> ExplainView:
    work = record.job if isinstance(record, JobRecord) else record.notebook
    store_view = services.store_view
    found, reason = None, None
    if store_view.quota is None or work.state not in WAITING_STATES:
        reason = stay_reason(services.decisions.snapshot(), work.id)
    else:
        try:
            with services.in_progress.one(person, SLOW_WORK):
                policy, least_milli = store_view.quota.policy, await _least_rank(services, work)
                found = await services.decisions.explain(work.id, policy, least_milli)
        except KeyError:  # it ended after it was read
            pass
        else:
            reason = found.reason or record.reason
    view = reason_view(reason, store_view, project=work.project) if reason else _state_reason(record, store_view)
    if found is not None and store_view.is_held:
        found, view = None, view.model_copy(update={"message": held_text()})
    if found is None:
        return ExplainView(id=work.id, state=work.state, reason=view, would_start=[], estimate_at=None)

    def by_name(sentence: str) -> str:
        """The core knows people and work by their ids."""
        named = sentence.replace(work.user, store_view.name_of(work.user))
        return with_work_names(named, store_view, seen_by(person))

    def shown(names: Iterable[str]) -> set[str]:
        return _shown(store_view, person, names)

    return ExplainView(
        id=work.id,
        state=work.state,
        reason=view.model_copy(update={"message": by_name(explanation_sentence(found, shown))}),
        would_start=[
            _would_start(
                change, by_name(changes_sentence([change], shown)), shown((*change.ends, *change.started_first))
            )
            for change in found.would_start
        ],
        **_estimate(found),
        unchecked_rank=_unchecked_rank(found.unchecked),
        in_force=[QuotaInForceView(**{name: getattr(one, name) for name in IN_FORCE}) for one in found.in_force],
        ended_early=[str(kind) for kind in found.ended_early],
    )


async def _least_rank(services: Services, work: Job | Notebook) -> int:
    """The least GPU of each rank, in milli-GPU, that a changed request of this work could name."""
    file = services.store_view.quota_file
    if file is None:
        return 1
    models, project = (work.gpu_models, work.project) if isinstance(work, Job) else ((), None)
    devices = [one for one in services.store_view.devices_in(work.pool) if not models or one.model in models]
    return await services.offers.least_rank(devices, file.least, project)


def _shown(store_view: StoreView, person: Person, names: Iterable[str]) -> set[str]:
    """Those of some jobs and notebooks that this person may see."""
    mirror = store_view.mirror
    records = {name: mirror.jobs.get(name) or mirror.notebooks.get(name) for name in names}
    return {name for name, record in records.items() if record is not None and may_see(person, record)}


def _would_start(change: Change, message: str, shown: Set[str]) -> WouldStart:
    return WouldStart(
        kind=change.kind,
        message=message,
        by_milli=change.by_milli or None,
        to_milli=change.to_milli,
        ends=[name for name in change.ends if name in shown],
        started_first=[name for name in change.started_first if name in shown],
        any_ends=change.any_ends,
        time_limit_s=change.time_limit_s,
        at=instant_or_none(change.at),
        is_smallest=change.is_smallest,
        is_minimal=change.is_minimal,
    )


def _unchecked_rank(rank: UncheckedRank | None) -> UncheckedRankView | None:
    if rank is None:
        return None
    return UncheckedRankView(rank_milli=rank.rank_milli, checked_milli=rank.checked_milli)


WAITING_STATES = (JobState.QUEUED, JobState.PAUSED, NotebookState.REQUESTED, NotebookState.LENT)


def _state_reason(record: JobRecord | NotebookRecord, store_view: StoreView) -> ReasonView:
    """The recorded reason, else the state in words."""
    if isinstance(record, JobRecord):
        known, state, message = job_reason(record, store_view), str(record.job.state), _state_sentence(record)
    else:
        known, state = notebook_reason(record, store_view), str(record.notebook.state)
        message = f"The notebook's slice is {state}."
    return known or ReasonView(code=state, figures={}, message=message)


def _state_sentence(record: JobRecord) -> str:
    match record.job.state:
        case JobState.PAUSING:
            return "The job is pausing: it saves what it has, then it is queued again at its old position."
        case JobState.FAILED | JobState.SUCCEEDED as state:
            return f"The job has {state}."
        case state:
            return f"The job is {state}."
