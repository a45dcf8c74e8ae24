"""Sentences about the quotas of a pool: their sum, their packing on devices, and :class:`.QuotaRefusal`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from ...core.amounts import counted, gpu_text
from ...core.model import WHOLE_DEVICE, Amounts
from ...core.quota.checked_ranks import CheckedRanks
from ...core.quota.fit import (
    Contradiction,
    OwnerQuota,
    Packing,
    QuotaRefusal,
    QuotaSum,
    TooManyCombinations,
    Unpackable,
    pack,
)
from ...core.quota.lower_quota import least_lowered
from ..rendering import instant_text, open_text

MAX_LISTED = 40
"""A sentence names at most this many quotas or devices, and counts the others."""


def refusal_sentence(refusal: QuotaRefusal) -> str:
    """Why the quotas are refused; for a conflict in a calendar window, also when it begins."""
    when = ""
    if refusal.begins_at is not None:
        when = f"From {instant_text(refusal.begins_at)}, while {open_text(refusal.windows)}: "
    match refusal.finding:
        case Contradiction() as finding:
            return when + _contradiction_text(refusal, finding)
        case QuotaSum() as finding:
            return when + (
                _sum_text(refusal, finding) if refusal.department is None else _department_text(refusal, finding)
            )
        case Unpackable() as finding:
            return when + _unpackable_text(refusal, finding)
        case TooManyCombinations() as finding:
            return (
                f"The calendar has more than {finding.checked} different sets of windows that are open together, too "
                f"many to check with so many quotas: at most {finding.most_quotas} quotas are checked, those of each "
                "set again. Use fewer windows, or windows that open and close together."
            )
    assert_never(refusal.finding)


def pool_sentences(
    pool: str,
    devices: int | None,
    rows: Mapping[str, Amounts],
    base: Mapping[str, Amounts],
    windows: Sequence[str],
    checked: CheckedRanks,
) -> list[str]:
    """The quotas of a pool in force now, those without an open window if they differ, the packing and checked shapes.

    ``rows`` are the amounts now, while ``windows`` are open; ``base`` those while no window is open. ``devices`` is
    None before any node has reported one.
    """
    differs = listed_amounts(rows) != listed_amounts(base)
    when = f"now, while {open_text(windows)}: " if windows and differs else ""
    usual = [f"Pool {pool}, while no window is open: {_quotas_text(base, devices)}."] if differs else []
    has = "no node has reported a device yet, so whether this fits is not known"
    if devices is not None:
        has = counted(devices, "device")
    packing = pack(dict(rows))
    needed = f"{counted(packing.devices, 'device')} needed: {joined(packing_rows(packing), '; ')}"
    return [
        f"Pool {pool}: {has}; {when}{_quotas_text(rows, devices)}.",
        *usual,
        f"Pool {pool}, packed: {needed if packing.devices else 'no quota needs a device'}.",
        *_checked_sentences(pool, checked),
    ]


def listed_amounts(rows: Mapping[str, Amounts]) -> dict[str, tuple[int, int]]:
    """The amounts that the sentences of a pool have: notebook and training quota of each owner that has one."""
    return {
        name: (row.notebook_milli, row.training_milli)
        for name, row in rows.items()
        if row.notebook_milli or row.training_milli
    }


def _checked_sentences(pool: str, checked: CheckedRanks) -> list[str]:
    ranks = sorted(checked.projects.items())
    ranks += ((f"department {name}", rank) for name, rank in sorted(checked.departments.items()))
    if not ranks:
        return []
    each = joined([f"{rank} GPU ({name})" for name, rank in ranks], ", ")
    return [f"Pool {pool}, largest rank on one node that always fits: {each}. Larger ones rely on moves."]


def _quotas_text(rows: Mapping[str, Amounts], devices: int | None) -> str:
    notebooks = _sum_terms((name, row.notebook_milli) for name, row in sorted(rows.items()))
    training = _sum_terms((name, row.training_milli) for name, row in sorted(rows.items()))
    quotas = f"notebook quotas {notebooks}, training quotas {training}"
    if devices is None:
        return quotas
    left = devices * WHOLE_DEVICE - sum(row.notebook_milli + row.training_milli for row in rows.values())
    rest = f"{gpu_text(left)} GPU {'are' if left > WHOLE_DEVICE else 'is'} left over" if left else "none is left over"
    if left < 0:
        rest = f"{gpu_text(-left)} GPU too many"
    return f"{quotas}; {rest}"


def _sum_terms(quotas: Iterable[tuple[str, int]]) -> str:
    """A sum with its terms: "1 (speech) + 2 (vision) = 3"."""
    parts = [(name, milli) for name, milli in quotas if milli]
    terms = joined([f"{gpu_text(milli)} ({name})" for name, milli in parts], " + ")
    return f"{terms} = {gpu_text(sum(milli for _, milli in parts))}" if len(parts) > 1 else terms or "none"


def packing_rows(packing: Packing, amount: Callable[[int], str] = gpu_text) -> tuple[str, ...]:
    """The content of each device; devices that one owner uses whole share a row. ``amount`` formats milli-GPU."""
    shared = (" + ".join(f"{amount(part.milli)} for {part.label}" for part in row) for row in packing.shared)
    whole = (
        f"{amount(WHOLE_DEVICE)} for {label}" if count == 1 else f"{count} whole devices for {label}"
        for count, label in packing.whole
    )
    return (*shared, *whole)


def joined(parts: Sequence[str], separator: str) -> str:
    """A list in one string; a long one is cut and ends with the number of the parts left out."""
    more = [f"and {len(parts) - MAX_LISTED} more"] if len(parts) > MAX_LISTED else []
    return separator.join([*parts[:MAX_LISTED], *more])


def _contradiction_text(refusal: QuotaRefusal, finding: Contradiction) -> str:
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


def _department_text(refusal: QuotaRefusal, finding: QuotaSum) -> str:
    kind, needed, own = refusal.code.removeprefix("department_"), refusal.needed_milli, refusal.available_milli
    amounts = [(one.name, one.notebook_milli if kind == "notebook" else one.training_milli) for one in finding.quotas]
    parts = [f"{name} {gpu_text(milli)}" for name, milli in amounts if milli]
    return (
        f"The {kind} quotas of the projects of department {refusal.department} add up to {gpu_text(needed)} GPU in "
        f"pool {refusal.pool} and its own is {gpu_text(own)}: {joined(parts, ', ')}. Raise it, or lower theirs by "
        f"{gpu_text(needed - own)}."
    )


def _sum_text(refusal: QuotaRefusal, finding: QuotaSum) -> str:
    needed, available = refusal.needed_milli, refusal.available_milli
    parts = [_owner_text(one) for one in finding.quotas if one.notebook_milli or one.training_milli]
    enough = _enough_text(finding.quotas, available // WHOLE_DEVICE, departments_only=True)
    advice = f"Lower them by {gpu_text(needed - available)}.{enough}"
    if not available:
        advice = f"Change the selectors so that pool {refusal.pool} has a device, or set these quotas to 0."
    return (
        f"The quotas of pool {refusal.pool} add up to {gpu_text(needed)} GPU and it has {gpu_text(available)}: "
        f"{joined(parts, ', ')}. {advice}"
    )


def _owner_text(quota: OwnerQuota) -> str:
    """Its quotas above 0, those of a department with those of its projects: "p 1 for notebooks and 2 for training"."""
    notebooks = training = ""
    if quota.projects is not None:
        notebooks = _inside_text(quota.notebook_milli, ((one.name, one.notebook_milli) for one in quota.projects))
        training = _inside_text(quota.training_milli, ((one.name, one.training_milli) for one in quota.projects))
    parts = [f"{gpu_text(quota.notebook_milli)} for notebooks{notebooks}"] if quota.notebook_milli else []
    parts += [f"{gpu_text(quota.training_milli)} for training{training}"] if quota.training_milli else []
    return f"{'' if quota.projects is None else 'department '}{quota.name} {' and '.join(parts)}"


def _inside_text(own: int, quotas: Iterable[tuple[str, int]]) -> str:
    """The parts of a department's quota that its projects have, and the rest."""
    parts = [(name, milli) for name, milli in quotas if milli]
    beyond = own - sum(milli for _, milli in parts)
    if not parts:
        return " (all of it beyond its projects)"
    terms = joined([f"{name} {gpu_text(milli)}" for name, milli in parts], " + ")
    rest = f", {gpu_text(beyond)} beyond {'it' if len(parts) == 1 else 'them'}" if beyond else ""
    return f" (project{'' if len(parts) == 1 else 's'} {terms}{rest})"


def _enough_text(quotas: Sequence[OwnerQuota], devices: int, *, departments_only: bool = False) -> str:
    """The one quota that is enough to lower, with both values; empty where there is none."""
    found = least_lowered(quotas, devices, departments_only=departments_only) if devices else None
    if found is None:
        return ""
    owner = f"department {found.owner}" if found.is_department else found.owner
    lower = f"from {gpu_text(found.quota_milli)} to {gpu_text(found.lower_milli)}"
    return f" It is enough to lower the {found.kind} quota of {owner} {lower}."


def _unpackable_text(refusal: QuotaRefusal, finding: Unpackable) -> str:
    enough = _enough_text(finding.quotas, refusal.available_milli // WHOLE_DEVICE)
    return (
        f"The quotas of pool {refusal.pool} add up to {gpu_text(finding.quotas_milli)} of "
        f"{gpu_text(refusal.available_milli)} GPU and do not fit in their shapes: they need {finding.packing.devices} "
        f"devices and the pool has {refusal.available_milli // WHOLE_DEVICE}: "
        f"{joined(packing_rows(finding.packing), '; ')}. Notebook slices and training quotas below one device share "
        f"devices; larger quotas need whole devices.{enough}"
    )
