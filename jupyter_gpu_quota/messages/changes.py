"""Sentences about the single changes that would start a workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

from ..core.amounts import counted, duration_text, gpu_text
from ..core.explain.explanation import AmountKind, Change, ChangeKind, OwnerAmount, QuotaTooHigh
from .rendering import instant_text, open_text

Shown = Callable[[Iterable[str]], Set[str]]
"""The workloads, of those given, that the reader may see."""

MAX_NAMED = 5
"""A sentence names at most this many workloads, and counts the others."""

_AMOUNTS = {
    AmountKind.TRAINING_QUOTA: "{owner}'s training quota in pool {pool}",
    AmountKind.NOTEBOOK_QUOTA: "{owner}'s notebook quota in pool {pool}",
    AmountKind.LIMIT: "{owner}'s limit in pool {pool}",
    AmountKind.USER_CEILING: "the ceiling for each user of {owner} in pool {pool}",
}


def changes_sentence(changes: Sequence[Change], shown: Shown = frozenset) -> str:
    """All changes: "It would start if ..., or if ... ."."""
    return f"It would start {', or '.join(_condition(change, shown) for change in changes)}."


def _condition(change: Change, shown: Shown) -> str:
    """One change as a condition, to be used after "It would start"."""
    if change.amount is not None:
        return f"if {raise_text(change, 'were raised')}"
    match change.kind:
        case ChangeKind.FREED:
            return f"if {_ends_text(change, shown)}"
        case ChangeKind.POOL:
            model = f" {change.model}" if change.model else ""
            return f"if pool {change.pool} had one more node with {gpu_text(change.by_milli)}{model} GPU"
        case ChangeKind.GPU_MODEL:
            model = f"GPU model {change.model}, too" if change.model else "any GPU model"
            return f"if it accepted {model}{_anew(change)}"
        case ChangeKind.SIZE:
            return f"if it asked for {_size_text(change)}{_anew(change)}"
        case ChangeKind.TIME_LIMIT:
            assert change.time_limit_s is not None, "a shorter time limit has a length"
            return f"if its time limit were {duration_text(change.time_limit_s)} or less{_anew(change)}"
        case ChangeKind.CALENDAR:
            return _calendar_text(change)
        case _:
            return f"if it were submitted as a preemptible job (without --non-preemptible){_anew(change)}"


def _ends_text(change: Change, shown: Shown) -> str:
    """The work that has to end; work that the reader may not see is only counted."""
    gpu, first = gpu_text(change.by_milli), _first_text(change.started_first, shown)
    if change.any_ends:
        return f"any {gpu} GPU of running work ended in pool {change.pool}{first}"
    return f"{_names_text(change.ends, shown)} ended in pool {change.pool}, which frees {gpu} GPU{first}"


def _first_text(started_first: Sequence[str], shown: Shown) -> str:
    if not started_first:
        return ""
    names = _names_text(started_first, shown)
    return f" ({names} {'starts' if len(started_first) == 1 else 'start'} before it)"


def _names_text(workloads: Sequence[str], shown: Shown) -> str:
    """The workloads that the reader may see, by id, and the number of the others."""
    seen = shown(workloads)
    names = [name for name in workloads if name in seen][:MAX_NAMED]
    rest = len(workloads) - len(names)
    if rest:
        names.append(counted(rest, "other workload" if names else "workload of others"))
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _size_text(change: Change) -> str:
    assert change.gpu_milli is not None and change.to_milli is not None, "a smaller request has a size"
    if change.ranks == 1:
        return f"{gpu_text(change.to_milli)} GPU"
    return f"{gpu_text(change.to_milli)} GPU ({change.ranks} ranks of {gpu_text(change.gpu_milli)})"


def _calendar_text(change: Change) -> str:
    assert change.at is not None, "a change of the calendar has an instant"
    windows = f"the calendar's {'window' if len(change.windows) == 1 else 'windows'} {' and '.join(change.windows)}"
    changes = "changes" if len(change.windows) == 1 else "change"
    return f"at {instant_text(change.at)}, when {windows} {changes} the amounts"


def _anew(change: Change) -> str:
    return "" if change.by_resubmission else " (at its present queue position; a new submission would wait)"


def raise_text(change: Change, verb: str) -> str:
    """A raised amount: whose it is, by how much and to what, and the window that sets it."""
    assert change.amount is not None and change.to_milli is not None, "an amount is raised to another one"
    where = f" in the calendar's window {change.amount.window}" if change.amount.window else ""
    to = f"by {gpu_text(change.by_milli)} to {gpu_text(change.to_milli)}"
    return f"{amount_text(change.amount)} {verb} {to}{where}"


def too_high_text(quota: QuotaTooHigh) -> str:
    """Why a quota that would start it does not fit."""
    needed, available = gpu_text(quota.needed_milli), gpu_text(quota.available_milli)
    when = "" if quota.begins_at is None else f" from {instant_text(quota.begins_at)}, while {open_text(quota.windows)}"
    return f"{raise_text(quota.change, 'raised')} would need {needed} GPU{when}, and quotas can have {available}"


def amount_text(amount: OwnerAmount) -> str:
    """An amount of a project or department: "a's limit in pool train"."""
    owner = f"department {amount.owner}" if amount.is_department else amount.owner
    return _AMOUNTS[amount.kind].format(owner=owner, pool=amount.pool)
