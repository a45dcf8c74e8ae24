"""Sentences about what was computed on changed snapshots: explanations of a wait, and dry runs of a job."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.amounts import gpu_text
from ..core.explain.projection import DryRun
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
from ..core.reason_figures import is_too_wide
from ..core.reasons import BackfillReserved, Reason, ReasonCode
from .reasons import sentence, time_text

_STATES: dict[str, str] = {
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
"""What is said of a workload that does not wait."""

_AMOUNTS = {
    AmountKind.TRAINING_QUOTA: "{owner}'s training quota in pool {pool}",
    AmountKind.NOTEBOOK_QUOTA: "{owner}'s notebook quota in pool {pool}",
    AmountKind.LIMIT: "{owner}'s limit in pool {pool}",
    AmountKind.USER_CEILING: "the ceiling for each user of {owner} in pool {pool}",
}
_OTHERS = "a higher quota, limit or ceiling nor a larger pool nor leave to be preempted"


def explanation_sentence(explanation: Explanation) -> str:
    """Why a workload waits and what would start it; of any other one its state, and what the owner should know."""
    reason = explanation.reason
    if explanation.outlook is Outlook.NOTHING:
        words = _STATES[explanation.state]
        return words if reason is None else f"{words} {sentence(reason)}"
    assert reason is not None, "a workload that waits or starts has a reason"
    if explanation.outlook is Outlook.STARTS:
        return sentence(reason)
    windows = _windows(explanation.set_by_windows)
    return sentence(reason) + _backfill(explanation.backfill_within_s) + _changes(explanation, reason) + windows


def _backfill(within_s: int | None) -> str:
    if within_s is None:
        return ""
    return f" A place is kept for it; by the time limits of what runs there it starts within {time_text(within_s)}."


def _changes(explanation: Explanation, reason: Reason) -> str:
    """What would start it; where a quota or limit stands against it, also why nothing would, or why not a quota."""
    changes = explanation.would_start
    words = f" It would start if {', or if '.join(map(change_sentence, changes))}." if changes else ""
    if reason.code not in FIXED_BOUNDS or any(change.kind is ChangeKind.QUOTA for change in changes):
        return words
    too_high = _too_high(explanation.quota_too_high) if explanation.quota_too_high else None
    if changes:
        return words + (f" No quota alone would do: {too_high}." if too_high else "")
    if reason.code is not ReasonCode.NEVER_FITS and not is_too_wide(reason):  # its sentence names what has to be freed
        return f" Nothing else alone would start it: {too_high or f'neither {_OTHERS}'}."
    return f" No single change would start it: {too_high or f'neither GPU that is freed nor {_OTHERS}'}."


def change_sentence(change: Change) -> str:
    """One change as a condition: what follows "It would start if"."""
    if change.amount is not None:
        return _raised(change, "is raised")
    match change.kind:
        case ChangeKind.FREED:
            return f"{gpu_text(change.by_milli)} GPU is freed in pool {change.pool}"
        case ChangeKind.POOL:
            return f"pool {change.pool} grows by {gpu_text(change.by_milli)} GPU"
        case _:
            return "it is submitted as one that may be preempted (without --non-preemptible)"


def _raised(change: Change, verb: str) -> str:
    assert change.amount is not None and change.to_milli is not None, "an amount is raised to another one"
    where = f" in the calendar's window {change.amount.window}" if change.amount.window else ""
    to = f"by {gpu_text(change.by_milli)} to {gpu_text(change.to_milli)}"
    return f"{_amount(change.amount)} {verb} {to}{where}"


def _too_high(quota: QuotaTooHigh) -> str:
    needed, available = gpu_text(quota.needed_milli), gpu_text(quota.available_milli)
    return f"{_raised(quota.change, 'raised')} would need {needed} GPU where {available} can be promised"


def _amount(amount: OwnerAmount) -> str:
    owner = f"department {amount.owner}" if amount.is_department else amount.owner
    return _AMOUNTS[amount.kind].format(owner=owner, pool=amount.pool)


def _windows(amounts: Iterable[OwnerAmount]) -> str:
    by_window: dict[str | None, list[str]] = {}
    for amount in amounts:
        by_window.setdefault(amount.window, []).append(_amount(amount))
    return "".join(f" Now the calendar's window {name} sets {' and '.join(row)}." for name, row in by_window.items())


def dry_run_sentence(dry_run: DryRun) -> str:
    """Why a job would start or wait. A dry run reserves nothing, so the sentence does not say that anything is."""
    reason, grace_s = dry_run.reason, dry_run.grace_s
    if reason.code is ReasonCode.WAITS_FOR_DRAIN:
        when = "as soon as" if grace_s is None else f"within the grace of {grace_s} s, after"
        whom = "the work that is leaving there now has left" if grace_s is None else "the work there has saved and left"
        return f"It would start {when} {whom}. Nothing is reserved for it until it is submitted."
    if isinstance(reason, BackfillReserved):
        limits = "by the time limits of what runs there it would start"
        return f"No such place is free; one would be kept for it, and {limits} within {reason.within_s} s."
    return sentence(reason)
