"""Why a workload waits, what would start it, and when it starts by the time limits of what runs.

Every answer is found by running ``decide`` on a changed snapshot: the next plan starts the workload or preempts
others for it, and with one milli less it does not. :mod:`..messages.explanations` renders the sentences.
Source: docs/scheduling.md, section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ..eviction.unavailable_devices import stay_reason
from ..model import Job, JobState, Notebook, Policy, Snapshot
from ..reason_codes import ReasonCode
from ..reasons import Reason, Waiting
from ..scheduling.decide import Decision, decide_and_explain
from .counterfactual import WhatIf, as_preemptible, freed, latest_ends, with_devices
from .rank_check import UncheckedRank, unchecked_rank
from .what_if_policy import LIMIT, ceiling_name, quota_name, window_of, with_amount


class ChangeKind(StrEnum):
    """The kinds of changes that could start a workload."""

    FREED = "freed"
    QUOTA = "quota"
    LIMIT = "limit"
    USER_CEILING = "user_ceiling"
    POOL = "pool"
    PREEMPTIBLE = "preemptible"


class AmountKind(StrEnum):
    """The amounts of a project or department that can keep a workload waiting."""

    TRAINING_QUOTA = "training_quota"
    NOTEBOOK_QUOTA = "notebook_quota"
    LIMIT = "limit"
    USER_CEILING = "user_ceiling"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerAmount:
    """One amount of a project or department in a pool. ``window``: the open calendar window that sets it, if any."""

    kind: AmountKind
    owner: str
    is_department: bool
    pool: str
    window: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The smallest sufficient change of its kind. ``to_milli``: the new amount, None where no amount is set.

    ``by_milli`` is 0 where the change has no amount. ``amount``: which one is raised, None for the other kinds.
    """

    kind: ChangeKind
    pool: str
    by_milli: int
    to_milli: int | None
    amount: OwnerAmount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTooHigh:
    """A quota that would start the workload, but that does not fit beside the other quotas of the pool."""

    change: Change
    needed_milli: int
    available_milli: int


class Outlook(StrEnum):
    """The decision of the next plan about the workload."""

    NOTHING = "nothing"  # it runs, is held or has ended
    STARTS = "starts"  # it starts, or has devices reserved
    WAITS = "waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a workload waits or runs. ``estimate_at``: the start by the time limits, None if they give none.

    ``is_bound``: this is a planned start that no other project can delay.
    ``unchecked``: its rank, where that fits the quota and relies on moves because no checked shape covers it.
    ``set_by_windows``: the amounts it is measured by that open calendar windows set, without those in the changes.
    """

    workload: str
    state: str
    outlook: Outlook
    reason: Reason | None
    would_start: tuple[Change, ...] = ()
    quota_too_high: QuotaTooHigh | None = None
    unchecked: UncheckedRank | None = None
    set_by_windows: tuple[OwnerAmount, ...] = ()
    estimate_at: int | None = None
    is_bound: bool = False


def explain(snapshot: Snapshot, policy: Policy, workload_id: str) -> Explanation:
    """Explain one workload. Raises KeyError for an id that the snapshot does not have.

    A workload that runs or is held has no counterfactuals; one that the next plan starts has that plan's reason.
    Rule R78.
    """
    what_if = WhatIf.of(snapshot, policy, workload_id)
    if not what_if.waits:
        reason = stay_reason(what_if.snapshot, what_if.id) or what_if.removal_reason
        return Explanation(workload=workload_id, state=what_if.state, outlook=Outlook.NOTHING, reason=reason)
    decision = decide_and_explain(what_if.snapshot, what_if.policy)
    what_if = what_if.before(decision.plan)
    reason, starts = _reason_of(what_if, decision)
    if not starts:
        return _waiting(what_if, reason, decision)
    return Explanation(
        workload=workload_id,
        state=what_if.state,
        outlook=Outlook.STARTS,
        reason=reason,
        estimate_at=_drain_ends(what_if) if reason.code is ReasonCode.WAITS_FOR_DRAIN else snapshot.now,
    )


def _waiting(what_if: WhatIf, reason: Reason, decision: Decision) -> Explanation:
    found = () if reason.code in _BEYOND_CHANGE else _changes(what_if)
    too_high = next((one for one in found if isinstance(one, QuotaTooHigh)), None)
    too_high = too_high if reason.code in FIXED_BOUNDS else None
    changes, now = tuple(one for one in found if isinstance(one, Change)), what_if.snapshot.now
    starts_at = next((max(one.starts_at, now) for one in decision.backfill if one.workload == what_if.id), None)
    named = {one.amount.window for one in (*changes, *([too_high.change] if too_high else [])) if one.amount}
    amounts = (_amount(what_if, name, department=department) for name, department in _measured_by(what_if))
    by_windows = tuple(amount for amount in amounts if amount.window not in {*named, None})
    return Explanation(
        workload=what_if.id,
        state=what_if.state,
        outlook=Outlook.WAITS,
        reason=reason,
        would_start=changes,
        quota_too_high=too_high,
        unchecked=None if reason.code in _NEVER else unchecked_rank(what_if),
        set_by_windows=by_windows if reason.code in _AMOUNTS else (),
        estimate_at=_estimate(what_if, reason) if starts_at is None else starts_at,
        is_bound=isinstance(reason, Waiting) and reason.delaying == 0,
    )


def _measured_by(what_if: WhatIf) -> Iterator[tuple[str, bool]]:
    """The amounts that limit a workload: the amount's name, and whether it is the department's."""
    yield quota_name(what_if), False
    for department in (False, True):
        if not what_if.is_notebook:
            yield LIMIT, department
        yield ceiling_name(what_if), department


def _amount(what_if: WhatIf, name: str, *, department: bool) -> OwnerAmount:
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
_AMOUNTS = frozenset(
    {
        ReasonCode.ABOVE_TRAINING_QUOTA,
        ReasonCode.ABOVE_NOTEBOOK_QUOTA,
        ReasonCode.ABOVE_LIMIT,
        ReasonCode.ABOVE_USER_CEILING,
    }
)
FIXED_BOUNDS = _AMOUNTS | {ReasonCode.NEVER_FITS}
"""Reasons that name an amount: where no change removes it, the explanation says so."""


_BEYOND_CHANGE = frozenset({ReasonCode.NO_SUCH_POOL, ReasonCode.NO_SUCH_PROJECT})
_NEVER = _BEYOND_CHANGE | {ReasonCode.NEVER_FITS}
"""Reasons for which no other work of the pool matters."""


def _reason_of(what_if: WhatIf, decision: Decision) -> tuple[Reason, bool]:
    """The reason that the next plan gives, and whether it starts the workload or reserves devices for it."""
    placed = what_if.placed_by(decision.plan)
    if placed is not None:
        return placed, True
    reason = decision.waits[what_if.id] if what_if.id in decision.waits else what_if.refusal(decision.plan)
    return reason, reason.code is ReasonCode.WAITS_FOR_DRAIN


def _changes(what_if: WhatIf) -> tuple[Change | QuotaTooHigh, ...]:
    limits = (_limit(what_if, department=False), _limit(what_if, department=True))
    ceilings = (_user_ceiling(what_if, department=False), _user_ceiling(what_if, department=True))
    found = (_freed(what_if), _quota(what_if), *limits, *ceilings, _pool(what_if), _preemptible(what_if))
    return tuple(change for change in found if change is not None)


def _smallest(starts: Callable[[int], bool], most: int, thresholds: Iterable[int] = ()) -> int | None:
    """An amount above 0 that starts it where the next smaller one does not; None where none of those tried does.

    A larger amount may fail where a smaller one works, because other work comes first. So ``thresholds`` are tried from
    the smallest on, then doubled amounts, ``most`` last; between one that fails and the next that works it bisects.
    """
    if most <= 0:
        return None
    fails, tried = 0, {amount for amount in thresholds if 0 < amount < most}
    double = 2 * max(tried, default=most)
    while double < most:
        tried.add(double)
        double *= 2
    for works in sorted({*tried, most}):
        if starts(works):
            while works - fails > 1:
                middle = (fails + works) // 2
                fails, works = (fails, middle) if starts(middle) else (middle, works)
            return works
        fails = works
    return None


def _freed(what_if: WhatIf) -> Change | None:
    steps = freed(what_if)
    milli = _smallest(steps.starts, steps.max_milli)
    return None if milli is None else Change(kind=ChangeKind.FREED, pool=what_if.pool, by_milli=milli, to_milli=None)


def _quota(what_if: WhatIf) -> Change | QuotaTooHigh | None:
    """The higher quota that starts it; as too high where it does not fit beside the other quotas."""

    def counts(work: Job | Notebook) -> bool:
        return work.project == what_if.project and not (isinstance(work, Job) and work.preemptible)

    now, name = what_if.quota, quota_name(what_if)
    change = _raised(
        what_if,
        ChangeKind.QUOTA,
        name,
        now,
        what_if.max_quota - now,
        what_if.thresholds(now, counts),
        department=False,
    )
    if change is None:
        return None
    objection = what_if.objection_to(with_amount(what_if, name, now + change.by_milli))
    if objection is None:
        return change
    return QuotaTooHigh(change=change, needed_milli=objection.needed_milli, available_milli=objection.available_milli)


def _limit(what_if: WhatIf, *, department: bool) -> Change | None:
    now = what_if.limit(department=department)
    if now is None:
        return None
    for_jobs = now - what_if.amounts_of(department=department).notebook_milli
    thresholds = what_if.thresholds(for_jobs, what_if.is_inside(department=department))
    return _raised(what_if, ChangeKind.LIMIT, LIMIT, now, what_if.demand_milli, thresholds, department=department)


def _user_ceiling(what_if: WhatIf, *, department: bool) -> Change | None:
    now, name = what_if.user_ceiling(department=department), ceiling_name(what_if)
    if now is None:
        return None
    thresholds = what_if.thresholds(now, what_if.is_counted_with(department=department))
    return _raised(what_if, ChangeKind.USER_CEILING, name, now, what_if.demand_milli, thresholds, department=department)


def _raised(
    what_if: WhatIf, kind: ChangeKind, name: str, now: int, most: int, thresholds: Iterable[int], *, department: bool
) -> Change | None:
    """The smallest raise of an amount, by ``most`` at most, that starts it."""

    def starts(by: int) -> bool:
        return what_if.starts(policy=with_amount(what_if, name, now + by, department=department))

    milli = _smallest(starts, most, thresholds)
    if milli is None:
        return None
    amount = _amount(what_if, name, department=department)
    return Change(kind=kind, pool=what_if.pool, by_milli=milli, to_milli=now + milli, amount=amount)


def _pool(what_if: WhatIf) -> Change | None:
    milli = _smallest(
        lambda by: what_if.starts(snapshot=with_devices(what_if, by)),
        what_if.demand_milli,
        what_if.thresholds(what_if.capacity_milli, lambda _one: True),
    )
    if milli is None:
        return None
    return Change(kind=ChangeKind.POOL, pool=what_if.pool, by_milli=milli, to_milli=what_if.capacity_milli + milli)


def _preemptible(what_if: WhatIf) -> Change | None:
    """The change of a non-preemptible job to a preemptible one, if it would start then."""
    job = what_if.job
    if job is None or job.preemptible or not what_if.starts(snapshot=as_preemptible(what_if, job)):
        return None
    return Change(kind=ChangeKind.PREEMPTIBLE, pool=what_if.pool, by_milli=0, to_milli=None)


def _estimate(what_if: WhatIf, reason: Reason) -> int | None:
    if reason.code is ReasonCode.PAUSES_USED_UP and what_if.job is not None:
        rules = what_if.policy.preemption
        return sorted(what_if.job.paused_at)[-rules.max_pauses] + rules.per_s * 1000
    ends = latest_ends(what_if)
    count = _smallest(lambda ended: what_if.starts(snapshot=ends.after(ended)), len(ends.at))
    return None if count is None else ends.at[count - 1]


def _drain_ends(what_if: WhatIf) -> int:
    """The instant by which all stopping work of the pool has ended or is killed."""
    rules = what_if.policy.preemption
    ends = [
        (job.pausing_since_at or what_if.snapshot.now) + (rules.lent_grace_s if job.borrower else rules.grace_s) * 1000
        for job in what_if.snapshot.jobs
        if job.state is JobState.PAUSING
    ]
    return max(ends, default=what_if.snapshot.now + rules.grace_s * 1000)
