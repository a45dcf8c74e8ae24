"""Sentences about decisions on changed snapshots: explanations of a wait, and dry runs of a job."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.amounts import gpu_text
from ..core.explain.explanation import ChangeKind, Explanation, Outlook, OwnerAmount, QuotaInForce
from ..core.explain.projection import DryRun
from ..core.explain.rank_check import UncheckedRank
from ..core.explain.why_waiting import FIXED_BOUNDS
from ..core.model import JobState, NotebookState
from ..core.reason_codes import ReasonCode
from ..core.reason_figures import figures_of
from ..core.reasons import BackfillReserved, Reason
from .changes import Shown, amount_text, changes_sentence, too_high_text
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
    NotebookState.LENT: "Its slice is booked, and offered to preemptible jobs while the notebook is idle.",
    NotebookState.RETURNED: "Its slice was returned.",
}
"""The sentences for a workload that does not wait."""

_OTHERS = (
    "a higher quota, limit or ceiling nor a larger pool nor another request or time limit"
    " nor permission to be preempted"
)


def explanation_sentence(explanation: Explanation, shown: Shown = frozenset) -> str:
    """Why a workload waits and which changes would start it; for other workloads their state and reason.

    ``shown``: of some workloads, those that the reader may see; the others are not named.
    """
    reason = explanation.reason
    if explanation.outlook is Outlook.NOT_WAITING:
        words = _STATES[explanation.state]
        return words if reason is None else f"{words} {sentence(reason)}"
    assert reason is not None, "a workload that waits or starts has a reason"
    if explanation.outlook is Outlook.STARTS:
        return sentence(reason)
    return "".join(
        (
            sentence(reason, advised=False),
            _backfill_text(reason),
            _unchecked_text(explanation.unchecked),
            _in_force_text(explanation.in_force),
            _changes_text(explanation, reason, shown),
            _ended_early_text(explanation),
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


def _changes_text(explanation: Explanation, reason: Reason, shown: Shown) -> str:
    """The changes that would start it; if a quota or limit binds, also that no quota, or no single change, would."""
    changes = explanation.would_start
    words = f" {changes_sentence(changes, shown)}" if changes else ""
    if reason.code not in FIXED_BOUNDS or any(change.kind is ChangeKind.QUOTA for change in changes):
        return words
    too_high = too_high_text(explanation.quota_too_high) if explanation.quota_too_high else None
    if changes:
        return words + (f" No quota alone would start it: {too_high}." if too_high else "")
    if explanation.ended_early:
        return words
    return f" No single change would start it at once: {too_high or f'neither the end of running work nor {_OTHERS}'}."


def _in_force_text(quotas: Iterable[QuotaInForce]) -> str:
    return "".join(
        f" Training quota of {f'department {one.owner}' if one.is_department else one.owner} in pool {one.pool}: set "
        f"{gpu_text(one.set_milli)}, in force {gpu_text(one.in_force_milli)}; the rest is in force when work that may "
        "not be preempted has ended there, or missing devices are back."
        for one in quotas
    )


def _ended_early_text(explanation: Explanation) -> str:
    """The kinds of changes whose search stopped early; or that not every amount was tried."""
    kinds = [_KINDS[kind] for kind in explanation.ended_early]
    if kinds:
        *first, last = kinds
        which = f"{', '.join(first)} and {last}" if first else last
        return f" The search stopped early for {which}; another or a smaller change may exist."
    if all(change.is_smallest for change in explanation.would_start):
        return ""
    return " Not every change was tried; a smaller one may exist."


_KINDS = {
    ChangeKind.FREED: "the work that ends",
    ChangeKind.QUOTA: "the quota",
    ChangeKind.LIMIT: "the limit",
    ChangeKind.USER_CEILING: "the ceiling for each user",
    ChangeKind.POOL: "the pool's size",
    ChangeKind.PREEMPTIBLE: "the permission to be preempted",
    ChangeKind.GPU_MODEL: "the GPU model",
    ChangeKind.SIZE: "the size of the request",
    ChangeKind.TIME_LIMIT: "the time limit",
    ChangeKind.CALENDAR: "the calendar",
}


def _windows_text(amounts: Iterable[OwnerAmount]) -> str:
    by_window: dict[str | None, list[str]] = {}
    for amount in amounts:
        by_window.setdefault(amount.window, []).append(amount_text(amount))
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
