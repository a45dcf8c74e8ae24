"""Why a workload waits, what would start it, and when it starts at the latest by the time limits of what runs.

Every answer is found by running ``decide`` on a changed snapshot: the next plan starts the workload or pauses
others for it, and with one milli less it does not. Source: docs/scheduling.md, section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ...messages.reasons import gpus, is_too_wide, sentence, time_text
from ..eviction.unavailable_devices import what_it_stays_on
from ..model import Job, JobState, Notebook, NotebookState, Policy, Snapshot, Window
from ..plan import Reason, ReasonCode
from ..queue.quota_state import SECOND
from ..scheduling.decide import Decision, decide_and_explain
from .counterfactual import Case, as_preemptible, freed, latest_ends, with_devices
from .what_if_policy import LIMIT, ceiling_name, quota_name, window_of, with_limit, with_quota, with_user_ceiling


class ChangeKind(StrEnum):
    """What could be different."""

    FREED = "freed"
    QUOTA = "quota"
    LIMIT = "limit"
    USER_CEILING = "user_ceiling"
    POOL = "pool"
    PREEMPTIBLE = "preemptible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The smallest true change of its kind. ``to_milli``: the new amount, None where nothing is set to one.

    ``by_milli`` is 0 where the change has no amount.
    """

    kind: ChangeKind
    by_milli: int
    to_milli: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a workload is where it is. ``estimate_at``: the latest start that time limits promise, None if none does."""

    workload: str
    state: str
    reason: Reason | None
    sentence: str
    would_start: tuple[Change, ...] = ()
    estimate_at: int | None = None


def explain(snapshot: Snapshot, policy: Policy, workload_id: str) -> Explanation:
    """Explain one workload. Raises KeyError for an id that the snapshot does not have.

    A workload that runs or rests has no counterfactuals; one that the next plan starts has that plan's reason.
    """
    case = Case.of(snapshot, policy, workload_id)
    if not case.waits:
        return _resting(case)
    decision = decide_and_explain(case.snapshot, case.policy)
    case = case.before(decision.plan)
    reason, starts = _next(case, decision)
    if starts:
        return Explanation(
            workload=workload_id,
            state=case.state,
            reason=reason,
            sentence=sentence(reason),
            estimate_at=_drain_ends(case) if reason.code is ReasonCode.WAITS_FOR_DRAIN else snapshot.now,
        )
    changes = () if reason.code in _BEYOND_CHANGE else _changes(case)
    starts_at = _planned_start(case, decision)
    hint = _kept_words(reason, starts_at, snapshot.now)
    hint += _changes_words(case, reason, changes)
    hint += _windows_words(case, reason, hint)
    return Explanation(
        workload=workload_id,
        state=case.state,
        reason=reason,
        sentence=sentence(reason) + hint,
        would_start=changes,
        estimate_at=_estimate(case, reason) if starts_at is None else starts_at,
    )


def _changes_words(case: Case, reason: Reason, changes: tuple[Change, ...]) -> str:
    """What would start it; where a quota or limit stands against it, also why nothing would, or why not a quota."""
    told = f" It would start if {', or if '.join(change.sentence for change in changes)}." if changes else ""
    if reason.code not in _FIXED_BOUNDS or any(change.kind is ChangeKind.QUOTA for change in changes):
        return told
    too_high = _too_high(case)
    if changes:
        return told + (f" No quota alone would do: {too_high}." if too_high else "")
    if _names_what_frees_it(reason):
        return f" Nothing else alone would start it: {too_high or f'neither {_OTHERS}'}."
    return f" No single change would start it: {too_high or f'neither GPU that is freed nor {_OTHERS}'}."


def _windows_words(case: Case, reason: Reason, told: str) -> str:
    """Which windows of the calendar set the amounts it is measured by now, those that were told of left out."""
    if reason.code not in _AMOUNTS:
        return ""
    of_windows: dict[str, list[str]] = {}
    for name, department in ((quota_name(case), False), *_bounds(case)):
        window = window_of(case, name, department=department)
        if window is not None and _where(window) not in told:
            of_windows.setdefault(window.name, []).append(_amount_words(case, name, department=department))
    return "".join(f" Now the calendar's window {name} sets {' and '.join(of_windows[name])}." for name in of_windows)


def _bounds(case: Case) -> Iterator[tuple[str, bool]]:
    """The limits and ceilings that hold for a kind of work: the amount's name, and whether it is the department's."""
    for department in (False, True):
        if not case.is_notebook:
            yield LIMIT, department
        yield ceiling_name(case), department


def _amount_words(case: Case, name: str, *, department: bool) -> str:
    owner = f"department {case.department}" if department else case.project
    if name == ceiling_name(case):
        return f"the ceiling for each user of {owner} in pool {case.pool}"
    amount = {LIMIT: "limit", "notebook_milli": "notebook quota", "training_milli": "training quota"}[name]
    return f"{owner}'s {amount} in pool {case.pool}"


_AMOUNTS = frozenset(
    {
        ReasonCode.ABOVE_TRAINING_QUOTA,
        ReasonCode.ABOVE_NOTEBOOK_QUOTA,
        ReasonCode.ABOVE_LIMIT,
        ReasonCode.ABOVE_USER_CEILING,
    }
)
_OTHERS = "a higher quota, limit or ceiling nor a larger pool nor leave to be preempted"
_FIXED_BOUNDS = _AMOUNTS | {ReasonCode.NEVER_FITS}


def _names_what_frees_it(reason: Reason) -> bool:
    """Whether its sentence says already that it starts once something in use is freed."""
    return reason.code is not ReasonCode.NEVER_FITS and not is_too_wide(reason)


def _planned_start(case: Case, decision: Decision) -> int | None:
    """When the place that is kept for it is free by the time limits of what runs there; None where none is kept."""
    return next((max(kept.starts_at, case.snapshot.now) for kept in decision.kept if kept.workload == case.id), None)


def _kept_words(reason: Reason, starts_at: int | None, now: int) -> str:
    """That a place is kept, where the reason itself is another and does not say it."""
    if starts_at is None or reason.code is ReasonCode.PLACE_KEPT:
        return ""
    within_s = -(-(starts_at - now) // SECOND)
    return f" A place is kept for it; by the time limits of what runs there it starts within {time_text(within_s)}."


_BEYOND_CHANGE = frozenset({ReasonCode.NO_SUCH_POOL, ReasonCode.NO_SUCH_PROJECT})
_RESTING: dict[str, str] = {
    JobState.QUEUED: "It was asked to rest or end and takes no part in the queue.",
    JobState.PAUSED: "It was asked to rest or end and takes no part in the queue.",
    JobState.STARTING: "It has its GPUs and is starting.",
    JobState.RUNNING: "It is running.",
    JobState.PAUSING: "It was asked to leave and is saving its work.",
    JobState.HELD: "It is held by a person and waits until it is released.",
    JobState.SUCCEEDED: "It has succeeded.",
    JobState.FAILED: "It has failed.",
    JobState.CANCELLED: "It was cancelled.",
    NotebookState.BOOKED: "Its slice is booked.",
    NotebookState.LENT: "Its slice is booked, and lent to preemptible jobs while the notebook is idle.",
    NotebookState.RETURNED: "Its slice was given back.",
}


def _resting(case: Case) -> Explanation:
    """What rests, runs or has ended; of what stays where others leave, or outlives its quota, that too."""
    words = _RESTING[case.state]
    reason = what_it_stays_on(case.snapshot, case.id) or case.outlived
    if reason is not None:
        words = f"{words} {sentence(reason)}"
    return Explanation(workload=case.id, state=case.state, reason=reason, sentence=words)


def _next(case: Case, decision: Decision) -> tuple[Reason, bool]:
    """The reason that the next plan gives, and whether it starts the workload or has a place for it."""
    placed = case.placed_by(decision.plan)
    if placed is not None:
        return placed, True
    reason = decision.waits[case.id] if case.id in decision.waits else case.refusal(decision.plan)
    return reason, reason.code is ReasonCode.WAITS_FOR_DRAIN


def _changes(case: Case) -> tuple[Change, ...]:
    limits = (_limit(case, department=False), _limit(case, department=True))
    ceilings = (_user_ceiling(case, department=False), _user_ceiling(case, department=True))
    found = (_freed(case), _quota(case), *limits, *ceilings, _pool(case), _preemptible(case))
    return tuple(change for change in found if change is not None)


def _smallest(starts: Callable[[int], bool], most: int, thresholds: Iterable[int] = ()) -> int | None:
    """An amount above 0 that starts it where the next smaller one does not; None where none of those tried does.

    More need not do as well: then others may come first. So ``thresholds`` are tried from the smallest on, then twice
    as much again and again, ``most`` at last; between one that fails and the next that works it is found by halving.
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
            return _first_that_works(starts, fails, works)
        fails = works
    return None


def _first_that_works(starts: Callable[[int], bool], fails: int, works: int) -> int:
    while works - fails > 1:
        middle = (fails + works) // 2
        fails, works = (fails, middle) if starts(middle) else (middle, works)
    return works


def _freed(case: Case) -> Change | None:
    steps = freed(case)
    milli = _smallest(steps.starts, steps.most)
    if milli is None:
        return None
    words = f"{gpus(milli)} GPU is freed in pool {case.pool}"
    return Change(kind=ChangeKind.FREED, by_milli=milli, to_milli=None, sentence=words)


def _quota(case: Case) -> Change | None:
    milli = _raise(case)
    if milli is None or case.objection_to(with_quota(case, case.quota + milli)) is not None:
        return None
    words = _raised(case, milli, "is raised")
    return Change(kind=ChangeKind.QUOTA, by_milli=milli, to_milli=case.quota + milli, sentence=words)


def _raise(case: Case) -> int | None:
    """By how much a higher quota starts it, whether or not the quotas then fit."""
    return _smallest(
        lambda by: case.starts(policy=with_quota(case, case.quota + by)),
        case.most_quota - case.quota,
        case.thresholds(case.quota, lambda one: one.project == case.project and not _is_preemptible(one)),
    )


def _is_preemptible(work: Job | Notebook) -> bool:
    return isinstance(work, Job) and work.preemptible


def _raised(case: Case, milli: int, verb: str) -> str:
    to = _to(case.quota, milli, window_of(case, quota_name(case)))
    return f"{_amount_words(case, quota_name(case), department=False)} {verb} {to}"


def _to(now: int, by: int, window: Window | None) -> str:
    """By how much, to what, and where: an open window of the calendar sets its own amounts."""
    return f"by {gpus(by)} to {gpus(now + by)}{_where(window)}"


def _where(window: Window | None) -> str:
    return f" in the calendar's window {window.name}" if window else ""


def _too_high(case: Case) -> str | None:
    """That the quota that would start it does not fit, without what others have; None where it fits or none does."""
    milli = _raise(case)
    objection = None if milli is None else case.objection_to(with_quota(case, case.quota + milli))
    if milli is None or objection is None:
        return None
    needed, available = gpus(objection.needed_milli), gpus(objection.available_milli)
    return f"{_raised(case, milli, 'raised')} would need {needed} GPU where {available} can be promised"


def _limit(case: Case, *, department: bool) -> Change | None:
    now = case.limit(department=department)
    if now is None:
        return None
    milli = _smallest(
        lambda by: case.starts(policy=with_limit(case, now + by, department=department)),
        case.demand_milli,
        case.thresholds(
            now - case.amounts_of(department=department).notebook_milli, case.is_inside(department=department)
        ),
    )
    if milli is None:
        return None
    to = _to(now, milli, window_of(case, LIMIT, department=department))
    words = f"{_amount_words(case, LIMIT, department=department)} is raised {to}"
    return Change(kind=ChangeKind.LIMIT, by_milli=milli, to_milli=now + milli, sentence=words)


def _user_ceiling(case: Case, *, department: bool) -> Change | None:
    now = case.user_ceiling(department=department)
    if now is None:
        return None
    milli = _smallest(
        lambda by: case.starts(policy=with_user_ceiling(case, now + by, department=department)),
        case.demand_milli,
        case.thresholds(now, case.is_counted_with(department=department)),
    )
    if milli is None:
        return None
    to = _to(now, milli, window_of(case, ceiling_name(case), department=department))
    words = f"{_amount_words(case, ceiling_name(case), department=department)} is raised {to}"
    return Change(kind=ChangeKind.USER_CEILING, by_milli=milli, to_milli=now + milli, sentence=words)


def _pool(case: Case) -> Change | None:
    milli = _smallest(
        lambda by: case.starts(snapshot=with_devices(case, by)),
        case.demand_milli,
        case.thresholds(case.capacity_milli, lambda _one: True),
    )
    if milli is None:
        return None
    words = f"pool {case.pool} grows by {gpus(milli)} GPU"
    return Change(kind=ChangeKind.POOL, by_milli=milli, to_milli=case.capacity_milli + milli, sentence=words)


def _preemptible(case: Case) -> Change | None:
    """A job that may not be preempted starts, too, if it may be and the smaller right is enough."""
    if case.job is None or case.job.preemptible or not case.starts(snapshot=as_preemptible(case, case.job)):
        return None
    words = "it is submitted as one that may be preempted (without --non-preemptible)"
    return Change(kind=ChangeKind.PREEMPTIBLE, by_milli=0, to_milli=None, sentence=words)


def _estimate(case: Case, reason: Reason) -> int | None:
    if reason.code is ReasonCode.PAUSES_USED_UP and case.job is not None:
        rules = case.policy.preemption
        return sorted(case.job.paused_at)[-rules.max_pauses] + rules.per_s * 1000
    ends = latest_ends(case)
    count = _smallest(lambda ended: case.starts(snapshot=ends.after(ended)), len(ends.at))
    return None if count is None else ends.at[count - 1]


def _drain_ends(case: Case) -> int | None:
    """When everything that leaves the pool has left or is killed."""
    rules = case.policy.preemption
    ends = [
        (job.pausing_since_at or case.snapshot.now) + (rules.lent_grace_s if job.borrower else rules.grace_s) * 1000
        for job in case.snapshot.jobs
        if job.state is JobState.PAUSING
    ]
    return max(ends, default=case.snapshot.now + rules.grace_s * 1000)


__all__ = ["Change", "ChangeKind", "Explanation", "explain", "sentence"]
