"""Whether the quotas fit at every instant of the calendar: each different set of open windows is checked once.

Only what a window changes is checked anew: its pools, with everybody who has quotas there.
Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from ..model import Department, Device, Policy, Project, Window
from .fit import QuotaRefusal, check_quotas
from .in_force import seasons, with_windows

Owner = TypeVar("Owner", Project, Department)
Season = tuple[int, tuple[Window, ...]]

LARGEST = 200_000
"""Quotas of projects and departments that are looked at for one calendar, each once for each set of open windows."""
EACH = 10
"""What a set of open windows costs by itself, in quotas."""


def check_calendar(policy: Policy, devices: Iterable[Device]) -> list[QuotaRefusal]:
    """What :func:`check_quotas` says, of every combination of amounts that the windows lead to.

    First what does not fit without any window; then, of all that a window makes worse, the worst of each subject. A
    calendar that leads to too many combinations is refused whole, with the code calendar.
    """
    devices, plain = tuple(devices), replace(policy, windows=())
    always, found = check_quotas(plain, devices), _affordable(policy)
    if isinstance(found, QuotaRefusal):
        return [*always, found]
    worst = {one.subject: one for one in always}
    for at, windows in found:
        for one in check_quotas(with_windows(_part(plain, windows), windows), devices):
            known = worst.get(one.subject)
            if known is None or _lacking(one) > _lacking(known):
                worst[one.subject] = replace(one, windows=tuple(window.name for window in windows), begins_at=at)
    return [*always, *(one for one in worst.values() if one.begins_at is not None)]


def _lacking(refusal: QuotaRefusal) -> int:
    return refusal.needed_milli - refusal.available_milli


def _pools(windows: Iterable[Window]) -> frozenset[str]:
    return frozenset(change.pool for window in windows for change in window.changes)


def _part(policy: Policy, windows: Iterable[Window]) -> Policy:
    """The policy with nothing but the pools that these windows change."""
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
    """What has to be checked; the refusal of a calendar for which that would take more than a few seconds."""
    owners: tuple[Project | Department, ...] = (*policy.projects, *policy.departments)
    rows = Counter(pool for owner in owners for pool in owner.amounts)
    found, looks = list[Season](), 0
    for at, windows in seasons(policy):
        found.append((at, windows))
        looks += EACH + len(owners) + _cost(windows, rows)
        if looks > LARGEST:
            return _too_large(len(found))
    return found


def _too_large(number: int) -> QuotaRefusal:
    words = (
        f"The calendar leads to more than {number - 1} different sets of open windows, and with so many quotas no more "
        f"are checked: {LARGEST} quotas are looked at at most, those of each set anew. Use fewer windows, or such as "
        "open and close together."
    )
    return QuotaRefusal(
        code="calendar", pool="", project=None, needed_milli=0, available_milli=0, packing=(), sentence=words
    )


def _cost(windows: Iterable[Window], rows: Mapping[str, int]) -> int:
    changes = sum(len(window.changes) for window in windows)
    return changes + sum(rows.get(pool, 0) for pool in _pools(windows))
