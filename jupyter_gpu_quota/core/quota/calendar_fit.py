"""Whether the quotas fit at every instant of the calendar: each set of windows that are open together is checked once.

Only the pools that a window changes are checked again.
Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from ..model import Department, Device, Policy, Project, Window
from .fit import QuotaRefusal, TooManyCombinations, check_quotas
from .in_force import seasons, with_windows

Owner = TypeVar("Owner", Project, Department)
Season = tuple[int, tuple[Window, ...]]

MAX_CHECKED_QUOTAS = 200_000
"""The most quotas that are checked for one calendar; a quota counts once for each set of open windows."""
COST_OF_SET = 10
"""The fixed cost of one set of open windows, in quotas."""


def check_calendar(policy: Policy, devices: Iterable[Device]) -> list[QuotaRefusal]:
    """:func:`check_quotas` for every set of windows that are open together.

    Returns what does not fit without any window, then, for each subject that a window makes worse, the worst case.
    A calendar with too many such sets is refused as a whole, with the code calendar.
    Rule R64.
    """
    devices, plain = tuple(devices), replace(policy, windows=())
    always, found = check_quotas(plain, devices), _affordable(policy)
    if isinstance(found, QuotaRefusal):
        return [*always, found]
    worst = {one.subject: one for one in always}
    for at, windows in found:
        for one in check_quotas(with_windows(_part(plain, windows), windows), devices):
            known = worst.get(one.subject)
            if known is None or one.missing_milli > known.missing_milli:
                worst[one.subject] = replace(one, windows=tuple(window.name for window in windows), begins_at=at)
    return [*always, *(one for one in worst.values() if one.begins_at is not None)]


def _pools(windows: Iterable[Window]) -> frozenset[str]:
    return frozenset(change.pool for window in windows for change in window.changes)


def _part(policy: Policy, windows: Iterable[Window]) -> Policy:
    """The policy reduced to the pools that these windows change."""
    pools = _pools(windows)
    return replace(
        policy,
        pools=tuple(pool for pool in policy.pools if pool in pools),
        projects=tuple(_in_pools(row, pools) for row in policy.projects),
        departments=tuple(_in_pools(row, pools) for row in policy.departments),
    )


def _in_pools(owner: Owner, pools: frozenset[str]) -> Owner:
    amounts = owner.amounts
    if amounts.keys() <= pools:
        return owner
    return replace(owner, amounts={pool: row for pool, row in amounts.items() if pool in pools})


def _affordable(policy: Policy) -> list[Season] | QuotaRefusal:
    """The sets of open windows to check; a refusal where that would take more than a few seconds."""
    owners: tuple[Project | Department, ...] = (*policy.projects, *policy.departments)
    rows = Counter(pool for owner in owners for pool in owner.amounts)
    found, cost = list[Season](), 0
    for at, windows in seasons(policy):
        found.append((at, windows))
        cost += COST_OF_SET + len(owners) + sum(len(window.changes) for window in windows)
        cost += sum(rows.get(pool, 0) for pool in _pools(windows))
        if cost > MAX_CHECKED_QUOTAS:
            finding = TooManyCombinations(checked=len(found) - 1, most_quotas=MAX_CHECKED_QUOTAS)
            return QuotaRefusal(code="calendar", pool="", finding=finding)
    return found
