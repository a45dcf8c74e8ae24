"""Why a workload waits, what would start it, and when it starts by the time limits of what runs.

Every answer is found by running ``decide`` on a changed snapshot: the next plan starts the workload or preempts
others for it, and with one milli less it does not. :mod:`..messages.explanations` renders the sentences.
Source: docs/scheduling.md, section 8.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..eviction.unavailable_devices import stay_reason
from ..model import JobState, Policy, Snapshot
from ..plan import Pause, Plan, Stop
from ..reason_codes import ReasonCode
from ..reasons import Reason, Waiting
from ..scheduling.decide import Decision
from .binding_reasons import decide_with_reasons
from .changes import Found, find_changes, owner_amount
from .counterfactual import WhatIf, latest_ends
from .explanation import Change, Explanation, Outlook, QuotaTooHigh
from .first_amount import doubled, first_amount
from .partly_in_force import quotas_in_force
from .rank_check import unchecked_rank
from .trials import Trials
from .what_if_policy import LIMIT, ceiling_name, quota_name

WORK_ESTIMATE = 16_000
"""The work of the search for the end that starts a workload; see :mod:`.trials`."""
MAX_ENDS_EACH = 12
"""With this many running jobs at most, the end of each is tried."""


def explain(snapshot: Snapshot, policy: Policy, workload_id: str, least_milli: int = 1) -> Explanation:
    """Explain one workload. Raises KeyError for an id that the snapshot does not have.

    A workload that runs or is held has no counterfactuals; one that the next plan starts has that plan's reason.
    ``least_milli``: no smaller request with less GPU for each rank is named. Rule R78.
    """
    what_if = WhatIf.of(snapshot, policy, workload_id, least_milli)
    if not what_if.waits:
        reason = stay_reason(what_if.snapshot, what_if.id) or what_if.removal_reason
        return Explanation(workload=workload_id, state=what_if.state, outlook=Outlook.NOT_WAITING, reason=reason)
    decision = decide_with_reasons(what_if.snapshot, what_if.policy)
    what_if = what_if.before(decision.plan)
    reason, starts = _reason_of(what_if, decision)
    if not starts:
        return _waiting(what_if, reason, decision)
    return Explanation(
        workload=workload_id,
        state=what_if.state,
        outlook=Outlook.STARTS,
        reason=reason,
        estimate_at=_drain_ends(what_if, decision.plan) if reason.code is ReasonCode.WAITS_FOR_DRAIN else snapshot.now,
    )


def _waiting(what_if: WhatIf, reason: Reason, decision: Decision) -> Explanation:
    trials = Trials(what_if)
    found = Found((), ()) if reason.code in _BEYOND_CHANGE else find_changes(trials)
    too_high = next((one for one in found.changes if isinstance(one, QuotaTooHigh)), None)
    too_high = too_high if reason.code in FIXED_BOUNDS else None
    changes, now = tuple(one for one in found.changes if isinstance(one, Change)), what_if.snapshot.now
    starts_at = next((max(one.starts_at, now) for one in decision.backfill if one.workload == what_if.id), None)
    named = {one.amount.window for one in (*changes, *([too_high.change] if too_high else [])) if one.amount}
    amounts = (owner_amount(what_if, name, department=department) for name, department in _measured_by(what_if))
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
        estimate_at=_estimate(trials, reason) if starts_at is None else starts_at,
        is_bound=isinstance(reason, Waiting) and reason.delaying == 0,
        in_force=quotas_in_force(what_if) if reason.code not in _BEYOND_CHANGE else (),
        ended_early=found.ended_early,
    )


def _measured_by(what_if: WhatIf) -> Iterator[tuple[str, bool]]:
    """The amounts that limit a workload: the amount's name, and whether it is the department's."""
    yield quota_name(what_if), False
    for department in (False, True):
        if not what_if.is_notebook:
            yield LIMIT, department
        yield ceiling_name(what_if), department


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


def _estimate(trials: Trials, reason: Reason) -> int | None:
    what_if = trials.what_if
    if reason.code is ReasonCode.PAUSES_USED_UP and what_if.job is not None:
        rules = what_if.policy.preemption
        return sorted(what_if.job.paused_at)[-max(1, rules.max_pauses)] + rules.per_s * 1000
    ends = latest_ends(what_if)
    trials.allow(WORK_ESTIMATE)
    most = len(ends.at)
    tried = range(1, most + 1) if most <= MAX_ENDS_EACH else doubled((1,), most)
    count = first_amount(lambda ended: trials.starts(snapshot=ends.after(ended)), tried, most)
    return None if count is None else ends.at[count - 1]


def _drain_ends(what_if: WhatIf, plan: Plan) -> int:
    """The instant by which all work of the pool that stops, by now or by the next plan, has ended or is killed."""
    rules, now = what_if.policy.preemption, what_if.snapshot.now
    ends = [
        (job.pausing_since_at or now) + (rules.lent_grace_s if job.borrower else rules.grace_s) * 1000
        for job in what_if.snapshot.jobs
        if job.state is JobState.PAUSING
    ]
    ends += [now + action.grace_s * 1000 for action in plan.actions if isinstance(action, Pause | Stop)]
    return max(ends, default=now + rules.grace_s * 1000)
