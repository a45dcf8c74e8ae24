"""Sentences about decisions on changed snapshots: explanations of a wait, and dry runs of a job."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.amounts import gpu_text
from ..core.explain.projection import DryRun
from ..core.explain.rank_check import UncheckedRank
from ..core.explain.why_waiting import (
    FIXED_BOUNDS,
    AmountKind,
    Change,
    ChangeKind,
    Explanation,
    Outlook,
    OwnerAmount,
    QuotaTooHigh,
)
from ..core.model import JobState, NotebookState
from ..core.reason_codes import ReasonCode
from ..core.reason_figures import exceeds_bound_alone, figures_of
from ..core.reasons import BackfillReserved, Reason
from .planned_start import planned_sentence
from .reasons import sentence

_STATES: dict[str, str] = {
    JobState.QUEUED: "A hold or cancel was requested, so it is not in the queue.",
    JobState.PAUSED: "A hold or cancel was requested, so it is not in the queue.",
    JobState.STARTING: "It has its GPUs and is starting.",
    JobState.RUNNING: "It is running.",
    JobState.PAUSING: "It is being stopped and is saving its work.",
    JobState.HELD: "It is held by a user and waits until it is released.",
    JobState.SUCCEEDED: "It succeeded.",
    JobState.FAILED: "It failed.",
    JobState.CANCELLED: "It was cancelled.",
    NotebookState.BOOKED: "Its slice is booked.",
    NotebookState.LENT: "Its slice is booked, and lent to preemptible jobs while the notebook is idle.",
    NotebookState.RETURNED: "Its slice was returned.",
}
"""The sentences for a workload that does not wait."""

_AMOUNTS = {
    AmountKind.TRAINING_QUOTA: "{owner}'s training quota in pool {pool}",
    AmountKind.NOTEBOOK_QUOTA: "{owner}'s notebook quota in pool {pool}",
    AmountKind.LIMIT: "{owner}'s limit in pool {pool}",
    AmountKind.USER_CEILING: "the ceiling for each user of {owner} in pool {pool}",
}
_OTHERS = "a higher quota, limit or ceiling nor a larger pool nor permission to be preempted"


def explanation_sentence(explanation: Explanation) -> str:
    """Why a workload waits and which changes would start it; for other workloads their state and reason."""
    reason = explanation.reason
    if explanation.outlook is Outlook.NOTHING:
        words = _STATES[explanation.state]
        return words if reason is None else f"{words} {sentence(reason)}"
    assert reason is not None, "a workload that waits or starts has a reason"
    if explanation.outlook is Outlook.STARTS:
        return sentence(reason)
    return "".join(
        (
            sentence(reason),
            _backfill_text(reason),
            _unchecked_text(explanation.unchecked),
            _changes_text(explanation, reason),
            _windows_text(explanation.set_by_windows),
        )
    )


def _backfill_text(reason: Reason) -> str:
    """The backfill reservation of a job whose reason is another one."""
    if "within_s" not in figures_of(reason) or isinstance(reason, BackfillReserved):
        return ""
    return f" Devices are reserved for it. {planned_sentence(reason)}"


def _unchecked_text(rank: UncheckedRank | None) -> str:
    if rank is None:
        return ""
    return (
        f" A rank of {gpu_text(rank.rank_milli)} GPU on one node is more than the {gpu_text(rank.checked_milli)} that "
        f"{rank.project} can always have there beside the other quotas, so it relies on moves of other work."
    )


def _changes_text(explanation: Explanation, reason: Reason) -> str:
    """The changes that would start it; if a quota or limit binds, also why no other change would."""
    changes = explanation.would_start
    words = f" It would start if {', or if '.join(map(change_sentence, changes))}." if changes else ""
    if reason.code not in FIXED_BOUNDS or any(change.kind is ChangeKind.QUOTA for change in changes):
        return words
    too_high = _too_high_text(explanation.quota_too_high) if explanation.quota_too_high else None
    if changes:
        return words + (f" No quota alone would start it: {too_high}." if too_high else "")
    if reason.code is not ReasonCode.NEVER_FITS and not exceeds_bound_alone(
        reason
    ):  # its sentence names what has to be freed
        return f" Nothing else alone would start it: {too_high or f'neither {_OTHERS}'}."
    return f" No single change would start it: {too_high or f'neither freed GPU nor {_OTHERS}'}."


def change_sentence(change: Change) -> str:
    """One change as a condition, to be used after "It would start if"."""
    if change.amount is not None:
        return _raise_text(change, "were raised")
    match change.kind:
        case ChangeKind.FREED:
            return f"{gpu_text(change.by_milli)} GPU were freed in pool {change.pool}"
        case ChangeKind.POOL:
            return f"pool {change.pool} had {gpu_text(change.by_milli)} more GPU"
        case _:
            return "it were submitted as a preemptible job (without --non-preemptible)"


def _raise_text(change: Change, verb: str) -> str:
    assert change.amount is not None and change.to_milli is not None, "an amount is raised to another one"
    where = f" in the calendar's window {change.amount.window}" if change.amount.window else ""
    to = f"by {gpu_text(change.by_milli)} to {gpu_text(change.to_milli)}"
    return f"{_amount_text(change.amount)} {verb} {to}{where}"


def _too_high_text(quota: QuotaTooHigh) -> str:
    needed, available = gpu_text(quota.needed_milli), gpu_text(quota.available_milli)
    return f"{_raise_text(quota.change, 'raised')} would need {needed} GPU, and {available} is available for quotas"


def _amount_text(amount: OwnerAmount) -> str:
    owner = f"department {amount.owner}" if amount.is_department else amount.owner
    return _AMOUNTS[amount.kind].format(owner=owner, pool=amount.pool)


def _windows_text(amounts: Iterable[OwnerAmount]) -> str:
    by_window: dict[str | None, list[str]] = {}
    for amount in amounts:
        by_window.setdefault(amount.window, []).append(_amount_text(amount))
    return "".join(f" Now the calendar's window {name} sets {' and '.join(row)}." for name, row in by_window.items())


def dry_run_sentence(dry_run: DryRun) -> str:
    """Why a job would start or wait. A dry run reserves nothing, so the sentence mentions no reservation."""
    reason, grace_s = dry_run.reason, dry_run.grace_s
    if reason.code is ReasonCode.WAITS_FOR_DRAIN:
        when = "as soon as" if grace_s is None else f"within the grace of {grace_s} s, after"
        work = "the work that is ending there has ended" if grace_s is None else "the work there has saved and ended"
        return f"It would start {when} {work}. Nothing is reserved for it until it is submitted."
    if isinstance(reason, BackfillReserved):
        planned = planned_sentence(reason).replace("it starts", "it would start")
        return f"No devices that fit are free; some would be reserved for it. {planned}"
    return sentence(reason)
