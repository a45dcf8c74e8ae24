"""The single changes that would start a workload: of each kind the smallest, found by trials.

Source: docs/scheduling.md, section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from ..model import MS_PER_S, WHOLE_DEVICE, Amounts, Department, Job, Notebook, Project
from ..quota.in_force import in_force
from .counterfactual import WhatIf, resubmitted, with_devices, with_job, with_notebook
from .explanation import AmountKind, Change, ChangeKind, OwnerAmount, QuotaTooHigh
from .first_amount import all_sums, common_steps, doubled, first_amount
from .freed import in_every_way, smallest_ends, started_first, total, tries_every_set
from .next_windows import bringing_window
from .smaller_request import SmallerRequest, with_request
from .trials import Trials
from .what_if_policy import LIMIT, ceiling_name, quota_name, window_of, with_amount

WORK_ENDS = 50_000
"""The work of a search for work to end; see :mod:`.trials`."""
WORK_EACH = 16_000
WORK_FIRST = 4_000
"""The work of every other search."""
MINUTE_S = 60
MAX_MODELS = 4
"""Subsets of at most this many other GPU models are tried, then all of them."""
MAX_SHARING = 8
"""The most ranks of one job on one device for which a smaller request is looked for."""


class Found(NamedTuple):
    """The changes, and the kinds whose search the bound on the work ended."""

    changes: tuple[Change | QuotaTooHigh, ...]
    ended_early: tuple[ChangeKind, ...]


def find_changes(trials: Trials) -> Found:
    """The smallest change of each kind that starts the workload."""
    found, ended = list[Change | QuotaTooHigh](), dict[ChangeKind, None]()
    for kind, search in _searches():
        trials.allow(WORK_EACH)
        change = search(trials)
        if trials.ended_early:
            ended[kind] = None
        if change is not None:
            found.append(_rated(change, trials) if isinstance(change, Change) else change)
    return Found(tuple(found), tuple(ended))


def _rated(change: Change, trials: Trials) -> Change:
    """The change, with how far it is known to be the smallest."""
    tries_all = trials.is_small and (change.kind is not ChangeKind.FREED or tries_every_set(trials))
    is_smallest = change.is_smallest and not trials.ended_early and (tries_all or change.kind in _WITHOUT_SIZE)
    return replace(change, is_smallest=is_smallest, is_minimal=not trials.ended_early)


_WITHOUT_SIZE = frozenset({ChangeKind.PREEMPTIBLE, ChangeKind.GPU_MODEL, ChangeKind.TIME_LIMIT, ChangeKind.CALENDAR})
"""Changes of which there is one, or a few that are all tried, or whose boundary bisection finds."""


Search = Callable[[Trials], "Change | QuotaTooHigh | None"]


def _searches() -> Iterator[tuple[ChangeKind, Search]]:
    yield ChangeKind.FREED, _freed
    for department in (False, True):
        yield ChangeKind.QUOTA, lambda trials, of=department: _quota(trials, department=of)  # type: ignore[misc]
    for department in (False, True):
        yield ChangeKind.LIMIT, lambda trials, of=department: _limit(trials, department=of)  # type: ignore[misc]
    for department in (False, True):
        yield ChangeKind.USER_CEILING, lambda trials, of=department: _user_ceiling(trials, department=of)  # type: ignore[misc]
    yield ChangeKind.POOL, _pool
    yield ChangeKind.PREEMPTIBLE, _preemptible
    yield ChangeKind.GPU_MODEL, _gpu_model
    yield ChangeKind.SIZE, _size
    yield ChangeKind.TIME_LIMIT, _time_limit
    yield ChangeKind.CALENDAR, _calendar


# --- work that ends -------------------------------------------------------------------------------------------------
def _freed(trials: Trials) -> Change | None:
    ended = smallest_ends(trials, WORK_ENDS)
    if ended is None:
        return None
    was_ended_early = trials.ended_early
    any_ends = in_every_way(trials, ended, WORK_EACH)
    first = started_first(trials, ended, any_ends=any_ends, work=WORK_FIRST)
    trials.ended_early = was_ended_early
    return Change(
        kind=ChangeKind.FREED,
        pool=trials.what_if.pool,
        by_milli=total(ended),
        to_milli=None,
        ends=tuple(sorted(one.id for one in ended)),
        any_ends=any_ends,
        started_first=first,
    )


# --- amounts --------------------------------------------------------------------------------------------------------
def _quota(trials: Trials, *, department: bool) -> Change | QuotaTooHigh | None:
    """The first higher quota that starts it; as too high where it does not fit beside the other quotas."""
    what_if = trials.what_if
    if department and what_if.department is None:
        return None
    inside = what_if.is_inside(department=department)

    def is_fixed(work: Job | Notebook) -> bool:
        return inside(work) and not (isinstance(work, Job) and work.preemptible)

    now, name = what_if.quota(department=department), quota_name(what_if)
    most = min(what_if.max_quota(department=department) - now, 2 * what_if.capacity_milli)
    thresholds = [*what_if.thresholds(now, is_fixed), *what_if.thresholds(now, inside)]
    change = _raised(trials, ChangeKind.QUOTA, name, now, most, thresholds, department=department)
    if change is None:
        return None
    objection = what_if.objection_to(with_amount(what_if, name, now + change.by_milli, department=department))
    if objection is None:
        return change
    return QuotaTooHigh(
        change=change,
        needed_milli=objection.needed_milli,
        available_milli=objection.available_milli,
        windows=objection.windows,
        begins_at=objection.begins_at,
    )


def _limit(trials: Trials, *, department: bool) -> Change | None:
    what_if = trials.what_if
    now = what_if.limit(department=department)
    if now is None:
        return None
    for_jobs = now - what_if.amounts_of(department=department).notebook_milli
    thresholds = what_if.thresholds(for_jobs, what_if.is_inside(department=department))
    most = min(what_if.demand_milli, 2 * what_if.capacity_milli)
    return _raised(trials, ChangeKind.LIMIT, LIMIT, now, most, thresholds, department=department)


def _user_ceiling(trials: Trials, *, department: bool) -> Change | None:
    what_if = trials.what_if
    now, name = what_if.user_ceiling(department=department), ceiling_name(what_if)
    if now is None:
        return None
    thresholds = what_if.thresholds(now, what_if.is_counted_with(department=department))
    most = min(what_if.demand_milli, 2 * what_if.capacity_milli)
    return _raised(trials, ChangeKind.USER_CEILING, name, now, most, thresholds, department=department)


def _raised(
    trials: Trials, kind: ChangeKind, name: str, now: int, most: int, thresholds: Iterable[int], *, department: bool
) -> Change | None:
    """The first raise of an amount, by ``most`` at most, that starts it."""
    what_if = trials.what_if

    def starts(by: int) -> bool:
        return trials.starts(policy=with_amount(what_if, name, now + by, department=department))

    steps = common_steps(most, _all_sizes(what_if)) if trials.is_small else None
    amounts = _amounts(trials, now, thresholds, most) if steps is None else [*steps, *thresholds]
    if trials.is_small:  # at an amount other work may start instead that does not start below it
        amounts = [*amounts, *(amount - 1 for amount in amounts)]
    milli = first_amount(starts, amounts, most)
    trials.ended_early |= trials.is_small and steps is None and milli is None
    if milli is None:
        return None
    return Change(
        kind=kind,
        pool=what_if.pool,
        by_milli=milli,
        to_milli=now + milli,
        amount=owner_amount(what_if, name, department=department),
        is_smallest=steps is not None,
    )


def _amounts(trials: Trials, now: int, thresholds: Iterable[int], most: int) -> Collection[int]:
    """Raises at which a plan may change, where there are too many steps to try them all."""
    what_if = trials.what_if
    if not trials.is_small:
        return doubled(thresholds, most)
    for_notebooks = {0} | {row.notebook_milli for row in _rows(what_if)}
    return [*thresholds, *(total - now + part for total in all_sums(what_if.sizes()) for part in for_notebooks)]


def _rows(what_if: WhatIf) -> Iterator[Amounts]:
    """The amounts of all projects and departments in the pool at this instant."""
    policy = in_force(what_if.policy, what_if.snapshot.now)
    owners: tuple[Project | Department, ...] = (*policy.projects, *policy.departments)
    for owner in owners:
        if (row := owner.amounts.get(what_if.pool)) is not None:
            yield row


def _all_sizes(what_if: WhatIf) -> Iterator[int]:
    """Every amount of GPU in the pool."""
    yield WHOLE_DEVICE
    yield from (job.gpu_milli for job in what_if.snapshot.jobs)
    yield from (one.gpu_milli for one in what_if.snapshot.notebooks)
    yield from (device.foreign_milli for device in what_if.snapshot.devices)
    for row in _rows(what_if):
        yield from (row.notebook_milli, row.training_milli, row.limit_milli or 0)
        yield from (row.user_notebook_milli or 0, row.user_jobs_milli or 0)


def owner_amount(what_if: WhatIf, name: str, *, department: bool) -> OwnerAmount:
    """An amount of the project, or of its department, with the window that sets it."""
    window = window_of(what_if, name, department=department)
    return OwnerAmount(
        kind=_AMOUNT_KINDS[name],
        owner=(what_if.department or "") if department else what_if.project,
        is_department=department,
        pool=what_if.pool,
        window=window.name if window else None,
    )


_AMOUNT_KINDS = {
    "training_milli": AmountKind.TRAINING_QUOTA,
    "notebook_milli": AmountKind.NOTEBOOK_QUOTA,
    "limit_milli": AmountKind.LIMIT,
    "user_jobs_milli": AmountKind.USER_CEILING,
    "user_notebook_milli": AmountKind.USER_CEILING,
}


# --- the pool -------------------------------------------------------------------------------------------------------
def _pool(trials: Trials) -> Change | None:
    """The smallest further node that starts it, of one model."""
    what_if, models = trials.what_if, _models(trials.what_if)
    found = ((count, at) for at, model in enumerate(models) if (count := _devices_of(trials, model)) is not None)
    best = min(found, default=None) if trials.is_small else next(found, None)
    if best is None:
        return None
    count, at = best
    milli = count * WHOLE_DEVICE
    return Change(
        kind=ChangeKind.POOL,
        pool=what_if.pool,
        by_milli=milli,
        to_milli=what_if.capacity_milli + milli,
        model=models[at] if len({device.model for device in what_if.snapshot.devices} | {models[at]}) > 1 else None,
    )


def _models(what_if: WhatIf) -> list[str]:
    """The models that the workload accepts: those that it names, else those of the pool."""
    accepted = what_if.job.gpu_models if what_if.job else ()
    return list(accepted) or sorted({device.model for device in what_if.snapshot.devices}) or ["any"]


def _devices_of(trials: Trials, model: str) -> int | None:
    """The fewest devices of a model on one more node that start it."""
    what_if = trials.what_if
    counts = -(-what_if.demand_milli // WHOLE_DEVICE)
    if trials.is_small:
        tried: Iterable[int] = range(1, counts + 1)
    else:
        needed = -(-what_if.size // WHOLE_DEVICE)
        counts = min(counts, -(-2 * what_if.capacity_milli // WHOLE_DEVICE) + needed)
        tried = doubled((1, needed), counts)
    return first_amount(lambda many: trials.starts(snapshot=with_devices(what_if, many, model)), tried, counts)


# --- the request ----------------------------------------------------------------------------------------------------
def _starts_as(trials: Trials, job: Job) -> bool:
    return trials.starts(snapshot=with_job(trials.what_if, job))


def _starts_anew(trials: Trials, job: Job) -> bool:
    """Whether a changed job would start, too, if it were submitted now."""
    return _starts_as(trials, resubmitted(job, trials.what_if.snapshot.now))


def _preemptible(trials: Trials) -> Change | None:
    """The change of a non-preemptible job to a preemptible one, if it would start then."""
    job = trials.what_if.job
    if job is None or job.preemptible or not _starts_as(trials, other := replace(job, preemptible=True)):
        return None
    return Change(
        kind=ChangeKind.PREEMPTIBLE,
        pool=trials.what_if.pool,
        by_milli=0,
        to_milli=None,
        by_resubmission=_starts_anew(trials, other),
    )


def _gpu_model(trials: Trials) -> Change | None:
    """The fewest further GPU models, first by name, that start it if it accepts them as well."""
    what_if, job = trials.what_if, trials.what_if.job
    if job is None or not job.gpu_models:
        return None
    others = sorted({device.model for device in what_if.snapshot.devices} - {*job.gpu_models})
    few = others if len(others) <= MAX_MODELS else []
    subsets = (added for count in range(1, len(few) + 1) for added in combinations(few, count))
    for added in (*subsets, ()):
        models = (*job.gpu_models, *added) if added else ()
        if _starts_as(trials, other := replace(job, gpu_models=models)):
            anew = _starts_anew(trials, other)
            return Change(
                kind=ChangeKind.GPU_MODEL,
                pool=what_if.pool,
                by_milli=0,
                to_milli=None,
                model=", ".join(added),
                by_resubmission=anew,
            )
    return None


def _size(trials: Trials) -> Change | None:
    """The largest smaller request that starts it: fewer ranks, or less GPU for each."""
    what_if = trials.what_if
    found = [one for one in (_fewer_ranks(trials), _less_gpu(trials)) if one is not None]
    if not found:
        return None
    best = min(found)
    anew = what_if.job is None or _starts_anew(trials, with_request(what_if, what_if.job, best))
    return Change(
        kind=ChangeKind.SIZE,
        pool=what_if.pool,
        by_milli=best.by_milli,
        to_milli=best.gpu_milli * best.ranks,
        gpu_milli=best.gpu_milli,
        ranks=best.ranks,
        by_resubmission=anew,
    )


def _fewer_ranks(trials: Trials) -> SmallerRequest | None:
    job = trials.what_if.job
    if job is None or job.gpu_milli < trials.what_if.least_milli:
        return None
    least = job.least_ranks
    requests = (
        SmallerRequest((least - ranks) * job.gpu_milli, job.gpu_milli, ranks) for ranks in range(least - 1, 0, -1)
    )
    return next((one for one in requests if _starts_as(trials, with_request(trials.what_if, job, one))), None)


def _less_gpu(trials: Trials) -> SmallerRequest | None:
    """Less GPU for each rank: whole devices less, then parts of one."""
    work = trials.what_if.work
    ranks = work.least_ranks if isinstance(work, Job) else 1
    for gpu_milli in range(work.gpu_milli - WHOLE_DEVICE, 0, -WHOLE_DEVICE) if work.gpu_milli > WHOLE_DEVICE else ():
        request = SmallerRequest((work.gpu_milli - gpu_milli) * ranks, gpu_milli, ranks)
        if _starts_with(trials, request):
            return request
    most = min(work.gpu_milli, WHOLE_DEVICE)

    def starts(by: int) -> bool:
        return _starts_with(trials, SmallerRequest(0, most - by, ranks))

    by = first_amount(starts, _smaller_parts(trials, most, ranks), most - trials.what_if.least_milli)
    return None if by is None else SmallerRequest((work.gpu_milli - most + by) * ranks, most - by, ranks)


def _smaller_parts(trials: Trials, most: int, ranks: int) -> Iterable[int]:
    """By how much a part of a device may have to shrink: to what is free, or the common steps of all sizes.

    Several ranks may share what is left of a device, so parts of each step are tried, too.
    """
    what_if, used = trials.what_if, dict[str, int]()
    for one in what_if.snapshot.allocations:
        used[one.device] = used.get(one.device, 0) + one.gpu_milli
    free = {WHOLE_DEVICE - one.foreign_milli - used.get(one.id, 0) for one in what_if.available_devices()}
    fits = {most - milli for milli in free if milli > 0}
    if trials.is_small:
        steps = common_steps(WHOLE_DEVICE, _all_sizes(what_if))
        if steps is None:
            return [*fits, *range(1, most)]
        shared = {room // count for room in steps for count in range(1, min(ranks, MAX_SHARING) + 1)}
        return fits | {most - milli for milli in shared if 0 < milli < most}
    return [*sorted(fits)[:8], most // 2, most - 1]


def _starts_with(trials: Trials, request: SmallerRequest) -> bool:
    what_if = trials.what_if
    if what_if.job is not None:
        return _starts_as(trials, with_request(what_if, what_if.job, request))
    assert what_if.notebook is not None
    return trials.starts(snapshot=with_notebook(what_if, replace(what_if.notebook, gpu_milli=request.gpu_milli)))


def _time_limit(trials: Trials) -> Change | None:
    """The longest shorter time limit, in whole minutes, with which the job ends before a planned start (R24, R30).

    It does so for a minute more, in which the job can be submitted again.
    """
    what_if, job = trials.what_if, trials.what_if.job
    if job is None:
        return None

    def starts_within(minutes: int) -> bool:
        return _starts_as(trials, replace(job, time_limit_s=minutes * MINUTE_S))

    starts, fails = 2, -(-job.time_limit_s // MINUTE_S)
    if fails <= starts or not starts_within(starts):
        return None
    planned = [one.starts_at for one in what_if.snapshot.reservations if one.starts_at is not None]
    seconds = [(at - what_if.snapshot.now) // MS_PER_S - what_if.policy.preemption.grace_s for at in planned]
    near = [limit_s // MINUTE_S + more for limit_s in seconds for more in (0, 1)]
    while fails - starts > 1:
        middle = next((minutes for minutes in near if starts < minutes < fails), (starts + fails) // 2)
        starts, fails = (middle, fails) if starts_within(middle) else (starts, middle)
    limit_s = (starts - 1) * MINUTE_S
    return Change(
        kind=ChangeKind.TIME_LIMIT,
        pool=what_if.pool,
        by_milli=0,
        to_milli=None,
        time_limit_s=limit_s,
        by_resubmission=_starts_anew(trials, replace(job, time_limit_s=limit_s)),
    )


# --- the calendar ---------------------------------------------------------------------------------------------------
def _calendar(trials: Trials) -> Change | None:
    """The first instant at which a change of the calendar starts it, if nothing else changes."""
    found = bringing_window(trials)
    if found is None:
        return None
    at, windows = found
    return Change(kind=ChangeKind.CALENDAR, pool=trials.what_if.pool, by_milli=0, to_milli=None, at=at, windows=windows)
