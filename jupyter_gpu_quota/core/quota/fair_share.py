"""Fair share: divides an amount among owners, guarantees first, then the surplus by priority and weight.

The same function divides a pool among departments and a department among projects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from math import lcm
from typing import NamedTuple


class Owner(NamedTuple):
    """The quota and demand of a department or project. ``wanted_milli``: running and queued work, within the limit.

    ``non_preemptible_milli``: running work that may not be preempted; not available to other projects before it ends.
    ``above_minimum_milli``: what elastic jobs run with above their minimum, which is not wanted.
    """

    name: str
    quota_milli: int
    wanted_milli: int
    weight: int = 1
    priority: int = 50
    past_use_milli_s: int = 0
    non_preemptible_milli: int = 0
    above_minimum_milli: int = 0

    @property
    def above_quota_milli(self) -> int:
        """Non-preemptible work above the quota, after the quota was lowered. Rule R66."""
        return max(0, self.non_preemptible_milli - self.quota_milli)


class Share(NamedTuple):
    """The result for one owner. ``guarantee_milli``: its quota, reduced while the quotas exceed the devices."""

    guarantee_milli: int
    fair_milli: int


class Part(NamedTuple):
    """One owner in :func:`pour`: gets ``floor`` to ``ceiling``, between them in proportion to ``weight`` (above 0).

    A ceiling is at least the floor.
    """

    name: str
    ceiling: int
    weight: int
    used: int = 0
    floor: int = 0


def divide(
    owners: Iterable[Owner], amount_milli: int, *, firm_milli: int | None = None, history_milli: int = 0
) -> dict[str, Share]:
    """Divide an amount: min(quota, wanted) to every owner first, the rest by priority, then weight, wasting nothing.

    ``firm_milli``: the part of the amount that guarantees may use (default: all); notebook quota, which notebooks may
    request at any time, is not part of it. ``history_milli``: how much past use lowers a weight, in thousandths.
    Work that drains is the least that its owner gets of the rest until it is gone: a raised quota is in force as far as
    others have drained.
    Returns {name: Share}; the fair shares sum to min(amount, sum of wanted), or to the sum of non-preemptible work if
    that is more.
    Raises ValueError for an amount, quota, wanted or weight below 0, or a name that occurs twice.
    Source: weighted max-min fairness; docs/scheduling.md, section 2.
    Rule R16.
    """
    rows = sorted(owners, key=lambda owner: owner.name)
    _check(rows, amount_milli)
    firm = amount_milli if firm_milli is None else max(0, min(amount_milli, firm_milli))
    firm = max(0, firm - sum(row.above_quota_milli for row in rows))
    first = {row.name: min(row.quota_milli, row.wanted_milli) for row in rows}
    if sum(first.values()) > firm:
        first = _reduced(rows, firm)
    guarantees = _guarantees(rows, first, firm)
    extra = _surplus(rows, first, amount_milli - sum(first.values()), history_milli)
    return {
        row.name: Share(
            guarantee_milli=guarantees[row.name],
            fair_milli=first[row.name] + extra[row.name],
        )
        for row in rows
    }


def pour(parts: Collection[Part], amount: int, history_milli: int = 0) -> dict[str, int]:
    """Weighted max-min fairness: an owner that wants less than its part returns the difference.

    An owner whose part is below its floor gets the floor, and the others divide what is left.
    Returns {name: amount}; the sum is min(amount, sum of ceilings), or the sum of floors if that is more.
    Rule R18.
    """
    if history_milli and any(part.used for part in parts):
        return _poured_in_steps(parts, amount, history_milli)
    at_floor = dict[str, int]()
    while True:
        others = [part for part in parts if part.name not in at_floor]
        given = _poured(others, max(0, amount - sum(at_floor.values())))
        below = {part.name: part.floor for part in others if given[part.name] < part.floor}
        if not below:
            return at_floor | given
        at_floor |= below


def _poured(parts: Collection[Part], amount: int) -> dict[str, int]:
    """:func:`pour` without floors and history.

    One level ``rest / weights`` is found in integers. Shares are rounded once, and what rounding leaves goes by largest
    fraction, then name.
    """
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


EXACT, ROUND = 128, 64
"""Binary places of amounts in a division in steps; differences of less than 2**-ROUND milli count as none."""


def _poured_in_steps(parts: Collection[Part], amount: int, history_milli: int) -> dict[str, int]:
    """:func:`pour` with weights lowered by past use, which are computed again at every step.

    A step ends where an owner reaches its ceiling, or its floor: what it gets below that costs the others nothing. An
    owner keeps each part that it was given, so that a larger amount gives no owner less. Amounts are integers in parts
    of 1 / 2**EXACT milli: the denominators of exact fractions would grow with every step.
    """
    given, error = {part.name: 0 for part in parts}, 1 << (EXACT - ROUND)
    rest = (amount - sum(part.floor for part in parts)) << EXACT
    left = sorted(parts, key=lambda part: part.name)
    while left and rest > error:
        weighed = _by_history(left, history_milli)
        bounds = {part.name: _next_bound(part, given[part.name], error) for part, _ in weighed}
        paying = {part.name for part, _ in weighed if bounds[part.name] > part.floor << EXACT}
        milli, weight = rest, sum(own for part, own in weighed if part.name in paying)
        for part, own in weighed:
            more = bounds[part.name] - given[part.name]
            if not weight or more * weight < milli * own:
                milli, weight = more, own
        for part, own in weighed:
            more = own * milli // weight
            given[part.name] += more
            rest -= more if part.name in paying else 0
        left = [part for part in left if (part.ceiling << EXACT) - given[part.name] > error]
    return _whole({part.name: max(part.floor << EXACT, given[part.name]) for part in parts})


def _next_bound(part: Part, given: int, error: int) -> int:
    """The floor of an owner that is below it, else its ceiling, in parts of 1 / 2**EXACT milli."""
    floor = part.floor << EXACT
    return floor if floor - given > error else part.ceiling << EXACT


def _whole(exact: Mapping[str, int]) -> dict[str, int]:
    """Round amounts in parts of 1 / 2**EXACT milli down; the rest goes by largest fraction, then name."""
    half = 1 << (EXACT - ROUND - 1)
    rounded = {name: (amount + half) >> (EXACT - ROUND) for name, amount in exact.items()}
    given = {name: amount >> ROUND for name, amount in rounded.items()}
    left = ((sum(exact.values()) + half) >> EXACT) - sum(given.values())
    by_fraction = sorted(rounded, key=lambda name: ((given[name] << ROUND) - rounded[name], name))
    for name in by_fraction[:left]:
        given[name] += 1
    return given


def _by_history(parts: Sequence[Part], history_milli: int) -> list[tuple[Part, int]]:
    """The parts with weight max(0, n + k(n - u)), scaled to integers; without history if all are 0.

    n is the weight and u the use before, each as a fraction of the sum over these parts.
    Rule R19.
    """
    weights, used = sum(part.weight for part in parts), sum(part.used for part in parts)
    plain, past = used * (1000 + history_milli), history_milli * weights
    weighed = [(part, part.weight * plain - part.used * past) for part in parts] if used else []
    return [row for row in weighed if row[1] > 0] or [(part, part.weight) for part in parts]


def _rounded(parts: Sequence[Part], rest: int, weights: int) -> dict[str, int]:
    given = {part.name: rest * part.weight // weights for part in parts}
    left = rest - sum(given.values())
    by_fraction = sorted(parts, key=lambda part: (-(rest * part.weight % weights), part.name))
    for part in by_fraction[:left]:
        given[part.name] += 1
    return given


def _reduced(rows: Sequence[Owner], amount: int) -> dict[str, int]:
    """Guarantees by priority, then in proportion to quota; no owner gets less than its non-preemptible use.

    Rule R5.
    """
    ceilings = {row.name: min(row.quota_milli, row.wanted_milli) for row in rows}
    floors = {row.name: min(ceilings[row.name], row.non_preemptible_milli) for row in rows}
    given = dict(floors)
    for level in _by_priority([row for row in rows if ceilings[row.name]]):
        names = {row.name for row in level}
        left = amount - sum(milli for name, milli in given.items() if name not in names)
        given |= pour([Part(n.name, ceilings[n.name], n.quota_milli, floor=floors[n.name]) for n in level], left)
    return given


def _guarantees(rows: Sequence[Owner], first: Mapping[str, int], amount: int) -> dict[str, int]:
    """The quotas, where all that is wanted and used within them fits; else as much, first of what is wanted.

    None is larger than the amount.
    """
    used = {row.name: min(row.quota_milli, row.wanted_milli + row.above_minimum_milli) for row in rows}
    left = amount - sum(first.values())
    if left >= sum(max(0, used[row.name] - first[row.name]) for row in rows):
        return {row.name: min(row.quota_milli, amount) for row in rows}
    given = dict(first)
    for level in _by_priority(rows) if left > 0 else ():
        parts = [
            Part(name=row.name, ceiling=used[row.name] - first[row.name], weight=row.quota_milli)
            for row in level
            if used[row.name] > first[row.name]
        ]
        got = pour(parts, left)
        given |= {name: first[name] + milli for name, milli in got.items()}
        left -= sum(got.values())
    return given


def _surplus(rows: Sequence[Owner], first: Mapping[str, int], amount: int, history_milli: int) -> dict[str, int]:
    given = {row.name: row.above_quota_milli for row in rows}
    open_rows = [row for row in rows if row.wanted_milli > first[row.name]]
    levels = [*_by_priority([row for row in open_rows if row.weight]), [row for row in open_rows if not row.weight]]
    for level in levels if amount > 0 else ():
        names = {row.name for row in level}
        left = amount - sum(milli for name, milli in given.items() if name not in names)
        parts = [
            Part(
                name=row.name,
                ceiling=row.wanted_milli - first[row.name],
                weight=row.weight or 1,
                used=row.past_use_milli_s,
                floor=row.above_quota_milli,
            )
            for row in level
        ]
        given |= pour(parts, left, history_milli if any(row.weight for row in level) else 0)
    return given


def _by_priority(rows: Sequence[Owner]) -> list[list[Owner]]:
    order = sorted(rows, key=lambda row: (-row.priority, row.name))
    return [list(level) for _, level in groupby(order, key=lambda row: row.priority)]


def _check(rows: Sequence[Owner], amount_milli: int) -> None:
    if amount_milli < 0:
        raise ValueError(f"{amount_milli} milli-GPU cannot be divided; the amount must be 0 or more")
    for row in rows:
        if min(row.quota_milli, row.wanted_milli, row.weight, row.non_preemptible_milli) < 0:
            raise ValueError(f"{row.name} has an amount or weight below 0: {row}")
    if len({row.name for row in rows}) < len(rows):
        raise ValueError("a name occurs twice among the owners")
