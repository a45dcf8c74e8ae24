"""Sentences for quotas that do not fit: :class:`.QuotaRefusal`, the packing of quotas on devices, long lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from ..core.amounts import gpu_text
from ..core.model import WHOLE_DEVICE
from ..core.quota.fit import Contradiction, Packing, QuotaRefusal, QuotaSum, TooManyCombinations, Unpackable

MOST_LISTED = 40
"""A sentence names at most this many quotas or devices, and counts the others."""


def refusal_sentence(refusal: QuotaRefusal) -> str:
    """Why the quotas are refused, without the calendar windows that :class:`.QuotaRefusal` names."""
    match refusal.finding:
        case Contradiction() as finding:
            return _contradiction(refusal, finding)
        case QuotaSum() as finding:
            return _sum(refusal, finding) if refusal.department is None else _department(refusal, finding)
        case Unpackable() as finding:
            return _shape(refusal, finding)
        case TooManyCombinations() as finding:
            return (
                f"The calendar leads to more than {finding.checked} different sets of open windows, and with so many "
                f"quotas no more are checked: {finding.most_quotas} quotas are looked at at most, those of each set "
                "anew. Use fewer windows, or such as open and close together."
            )
    assert_never(refusal.finding)


def packing_rows(packing: Packing, amount: Callable[[int], str] = gpu_text) -> tuple[str, ...]:
    """The content of each device; devices that one owner uses whole share a row. ``amount`` formats milli-GPU."""
    shared = (" + ".join(f"{amount(part.milli)} {part.label}" for part in row) for row in packing.shared)
    whole = (
        f"{amount(WHOLE_DEVICE)} {label}" if count == 1 else f"{count} whole devices for {label}"
        for count, label in packing.whole
    )
    return (*shared, *whole)


def joined(parts: Sequence[str], separator: str) -> str:
    """A list in one string; a long one is cut and ends with the number of the parts left out."""
    more = [f"and {len(parts) - MOST_LISTED} more"] if len(parts) > MOST_LISTED else []
    return separator.join([*parts[:MOST_LISTED], *more])


def _contradiction(refusal: QuotaRefusal, finding: Contradiction) -> str:
    pool, amounts = refusal.pool, finding.amounts
    name = f"department {refusal.department}" if refusal.department is not None else refusal.project
    if pool not in finding.pools:
        return f"{name} has quotas in pool {pool}, which does not exist. The pools are: {', '.join(finding.pools)}."
    if min(amounts.notebook_milli, amounts.training_milli, refusal.available_milli, amounts.weight) < 0:
        return f"{name} has an amount or weight below 0 in pool {pool}. Use 0 or more."
    return (
        f"The limit of {name} in pool {pool} is {gpu_text(refusal.available_milli)} and its quotas add up to "
        f"{gpu_text(refusal.needed_milli)}: {gpu_text(amounts.notebook_milli)} for notebooks and "
        f"{gpu_text(amounts.training_milli)} for training. A limit is never below the two quotas."
    )


def _department(refusal: QuotaRefusal, finding: QuotaSum) -> str:
    kind, needed, own = refusal.code.removeprefix("department_"), refusal.needed_milli, refusal.available_milli
    amounts = [(one.name, one.notebook_milli if kind == "notebook" else one.training_milli) for one in finding.quotas]
    parts = [f"{name} {gpu_text(milli)}" for name, milli in amounts if milli]
    return (
        f"The {kind} quotas of the projects of department {refusal.department} add up to {gpu_text(needed)} GPU in "
        f"pool {refusal.pool} and its own is {gpu_text(own)}: {joined(parts, ', ')}. Raise it, or lower theirs by "
        f"{gpu_text(needed - own)}."
    )


def _sum(refusal: QuotaRefusal, finding: QuotaSum) -> str:
    needed, available = refusal.needed_milli, refusal.available_milli
    parts = [
        f"{one.name} {gpu_text(one.notebook_milli)} for notebooks and {gpu_text(one.training_milli)} for training"
        for one in finding.quotas
        if one.notebook_milli or one.training_milli
    ]
    advice = f"Lower them by {gpu_text(needed - available)}." if available else "Give it a device, or take them out."
    return (
        f"The quotas of pool {refusal.pool} add up to {gpu_text(needed)} GPU and it has {gpu_text(available)}: "
        f"{joined(parts, ', ')}. {advice}"
    )


def _shape(refusal: QuotaRefusal, finding: Unpackable) -> str:
    return (
        f"The quotas of pool {refusal.pool} add up to {gpu_text(finding.quotas_milli)} of "
        f"{gpu_text(refusal.available_milli)} GPU and do not fit in their shapes: they need {finding.packing.devices} "
        f"devices and the pool has {refusal.available_milli // WHOLE_DEVICE}: "
        f"{joined(packing_rows(finding.packing), '; ')}. Notebook slices and training quotas below one device share "
        "devices, larger ones are asked for in whole ones."
    )
