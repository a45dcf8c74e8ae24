"""Dividing an amount among claims: guarantees first, then the surplus by priority and weight.

One function on (claims, amount): it divides a pool among departments as well as a department among projects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from math import lcm
from typing import NamedTuple

from .fit import QuotaRefusal, check_quotas


class Claim(NamedTuple):
    """What one owner is promised and wants. ``wanted_milli``: what it runs plus what it has queued, under its limit.

    ``fixed_milli`` runs and may not be preempted: nobody gets that before it ends.
    """

    name: str
    quota_milli: int
    wanted_milli: int
    weight: int = 1
    priority: int = 50
    used_before: int = 0
    fixed_milli: int = 0

    @property
    def drains_milli(self) -> int:
        """What runs above its quota and only leaves by itself: the quota was lowered."""
        return max(0, self.fixed_milli - self.quota_milli)


class Share(NamedTuple):
    """What one owner gets. ``guarantee_milli`` is its quota, or the reduced one while quotas exceed what is there."""

    guarantee_milli: int
    fair_milli: int


class Part(NamedTuple):
    """One taker in :func:`pour`: at most ``ceiling``, in proportion to ``weight`` (above 0)."""

    name: str
    ceiling: int
    weight: int
    used: int = 0


def divide(
    claims: Iterable[Claim], amount_milli: int, *, firm_milli: int | None = None, history_milli: int = 0
) -> dict[str, Share]:
    """Divide an amount: min(quota, wanted) to everyone first, the rest by priority, then weight, wasting nothing.

    ``firm_milli`` is the part of the amount that guarantees can stand on (default: all of it); what notebooks
    may ask for at any time is not. ``history_milli``: how much past use lowers a weight, in thousandths.
    What drains is its holder's until it is gone, so that a raised quota is in force only as far as others have drained.
    Returns {name: Share}; the fair shares sum to min(amount, sum of wanted).
    Raises ValueError for an amount, quota, wanted or weight below 0, or a name that occurs twice.
    Source: weighted max-min fairness; docs/scheduling.md, section 2.
    """
    rows = sorted(claims, key=lambda claim: claim.name)
    _check(rows, amount_milli)
    firm = amount_milli if firm_milli is None else max(0, min(amount_milli, firm_milli))
    drains = {row.name: row.drains_milli for row in rows}
    if drained := sum(drains.values()):
        rows = [row._replace(wanted_milli=max(0, row.wanted_milli - drains[row.name])) for row in rows]
        amount_milli, firm = max(0, amount_milli - drained), max(0, firm - drained)
    first = {row.name: min(row.quota_milli, row.wanted_milli) for row in rows}
    reduced = sum(first.values()) > firm
    if reduced:
        first = _reduced(rows, firm)
    extra = _surplus(rows, first, amount_milli - sum(first.values()), history_milli)
    return {
        row.name: Share(
            guarantee_milli=first[row.name] if reduced else row.quota_milli,
            fair_milli=first[row.name] + extra[row.name] + drains[row.name],
        )
        for row in rows
    }


def pour(parts: Collection[Part], amount: int, history_milli: int = 0) -> dict[str, int]:
    """Weighted max-min: who wants less than its part returns the difference, until nothing moves.

    Exact: one level ``rest / weights`` is found in integers, shares are rounded once, and what rounding leaves
    goes by largest fraction, then name. Returns {name: amount}; the sum is min(amount, sum of ceilings).
    """
    if history_milli and any(part.used for part in parts):
        return _poured_by_history(parts, amount, history_milli)
    scale = lcm(*(part.weight for part in parts))
    order = sorted(parts, key=lambda part: (part.ceiling * (scale // part.weight), part.name))
    rest, weights, given = amount, sum(part.weight for part in order), dict[str, int]()
    for at, part in enumerate(order):
        if part.ceiling * weights > rest * part.weight:
            return given | _rounded(order[at:], rest, weights)
        given[part.name] = part.ceiling
        rest -= part.ceiling
        weights -= part.weight
    return given


def _poured_by_history(parts: Collection[Part], amount: int, history_milli: int) -> dict[str, int]:
    """The same, with the weights made anew from weight and past use whenever somebody has what it wants.

    What was given before that is kept, so that more to divide gives nobody less.
    """
    given, rest = {part.name: Fraction(0) for part in parts}, Fraction(amount)
    left = sorted(parts, key=lambda part: part.name)
    while left and rest:
        weighed = _by_history(left, history_milli)
        weights = sum(part.weight for part in weighed)
        step = min(rest / weights, *((part.ceiling - given[part.name]) / part.weight for part in weighed))
        for part in weighed:
            given[part.name] += part.weight * step
        rest -= weights * step
        left = [part for part in left if given[part.name] < part.ceiling]
    return _whole(given)


def _whole(exact: Mapping[str, Fraction]) -> dict[str, int]:
    """Rounded down; what that leaves goes by largest fraction, then name."""
    given = {name: int(amount) for name, amount in exact.items()}
    left = int(sum(exact.values())) - sum(given.values())
    by_fraction = sorted(exact, key=lambda name: (given[name] - exact[name], name))
    for name in by_fraction[:left]:
        given[name] += 1
    return given


def _by_history(parts: Sequence[Part], history_milli: int) -> list[Part]:
    """Those who take part in this round: weight max(0, n + k(n - u)), scaled to integers; all zero is the plain rule.

    n is the weight and u the use before, each as a fraction of the sum over these parts.
    """
    weights, used = sum(part.weight for part in parts), sum(part.used for part in parts)
    if not used:
        return list(parts)
    weighed = [
        part._replace(weight=part.weight * used * (1000 + history_milli) - history_milli * part.used * weights)
        for part in parts
    ]
    return [part for part in weighed if part.weight > 0] or list(parts)


def _rounded(parts: Sequence[Part], rest: int, weights: int) -> dict[str, int]:
    given = {part.name: rest * part.weight // weights for part in parts}
    left = rest - sum(given.values())
    by_fraction = sorted(parts, key=lambda part: (-(rest * part.weight % weights), part.name))
    for part in by_fraction[:left]:
        given[part.name] += 1
    return given


def _reduced(rows: Sequence[Claim], amount: int) -> dict[str, int]:
    """By priority, and within one in proportion to quota; nobody gets less than what cannot be taken from them."""
    given = {row.name: min(row.quota_milli, row.wanted_milli, row.fixed_milli) for row in rows}
    for level in _by_priority(rows):
        parts = [
            Part(name=row.name, ceiling=min(row.quota_milli, row.wanted_milli), weight=row.quota_milli)
            for row in level
            if row.quota_milli and row.wanted_milli
        ]
        names = {part.name for part in parts}
        others = sum(milli for name, milli in given.items() if name not in names)
        given |= _pour_above(parts, given, max(0, amount - others))
    return given


def _pour_above(parts: Sequence[Part], floor: Mapping[str, int], amount: int) -> dict[str, int]:
    """:func:`pour`, but nobody gets less than their floor."""
    low: dict[str, int] = {}
    while True:
        got = pour([part for part in parts if part.name not in low], max(0, amount - sum(low.values())))
        short = {name: floor[name] for name, milli in got.items() if milli < floor[name]}
        if not short:
            return low | got
        low |= short


def _surplus(rows: Sequence[Claim], first: dict[str, int], amount: int, history_milli: int) -> dict[str, int]:
    given = {row.name: 0 for row in rows}
    if amount <= 0:
        return given
    open_rows = [row for row in rows if row.wanted_milli > first[row.name]]
    levels = [*_by_priority([row for row in open_rows if row.weight]), [row for row in open_rows if not row.weight]]
    for level in levels:
        parts = [
            Part(
                name=row.name,
                ceiling=row.wanted_milli - first[row.name],
                weight=row.weight or 1,
                used=row.used_before,
            )
            for row in level
        ]
        got = pour(parts, amount, history_milli if any(row.weight for row in level) else 0)
        given |= got
        amount -= sum(got.values())
    return given


def _by_priority(rows: Sequence[Claim]) -> list[list[Claim]]:
    order = sorted(rows, key=lambda row: (-row.priority, row.name))
    return [list(level) for _, level in groupby(order, key=lambda row: row.priority)]


def _check(rows: Sequence[Claim], amount_milli: int) -> None:
    if amount_milli < 0:
        raise ValueError(f"{amount_milli} milli-GPU cannot be divided; the amount must be 0 or more")
    for row in rows:
        if min(row.quota_milli, row.wanted_milli, row.weight, row.fixed_milli) < 0:
            raise ValueError(f"{row.name} has an amount or weight below 0: {row}")
    if len({row.name for row in rows}) < len(rows):
        raise ValueError("a name occurs twice among the claims")


__all__ = ["Claim", "Part", "QuotaRefusal", "Share", "check_quotas", "divide", "pour"]
