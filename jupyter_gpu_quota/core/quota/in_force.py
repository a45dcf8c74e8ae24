"""The amounts in force at an instant. Windows are already expanded to instants.

Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from ..model import Amounts, Change, Department, Policy, Project, Window

Owner = TypeVar("Owner", Project, Department)
Toggle = tuple[int, int, int]
"""Instant, number of the calendar entry, and whether it opens (1) or closes (-1)."""


def in_force(policy: Policy, now: int) -> Policy:
    """The policy with the amounts of an instant; of several open windows that change one amount the last one counts.

    Rule R63.
    """
    is_open = open_windows(policy, now)
    return replace(with_windows(policy, is_open), windows=policy.windows) if is_open else policy


def open_windows(policy: Policy, now: int) -> list[Window]:
    """The windows that are open at an instant, in the policy's order."""
    return [window for window in policy.windows if window.begins_at <= now < window.ends_at]


def _changed(owners: Sequence[Owner], changes: Sequence[Change]) -> tuple[Owner, ...]:
    rows = {owner.name: owner for owner in owners}
    for change in changes:
        if (owner := rows.get(change.owner)) is not None:
            amounts = {name: value for name in _AMOUNTS if (value := getattr(change, name)) is not None}
            after = replace(owner.amounts.get(change.pool) or Amounts(), **amounts)
            rows[change.owner] = replace(owner, amounts={**owner.amounts, change.pool: after})
    return tuple(rows.values())


_AMOUNTS = tuple(field.name for field in fields(Amounts))


def next_change_at(policy: Policy, now: int) -> int | None:
    """The next instant at which a window opens or closes; None if none will."""
    return min((at for at in _boundaries(policy) if at > now), default=None)


def last_change_at(policy: Policy, now: int) -> int | None:
    """The last instant until now at which a window opened or closed; None if none did."""
    return max((at for at in _boundaries(policy) if at <= now), default=None)


def seasons(policy: Policy) -> Iterator[tuple[int, tuple[Window, ...]]]:
    """Every set of calendar entries that are open together, with its first instant; an entry as one of its windows."""
    entries, toggles = _toggles(policy.windows)
    for at, is_open in together(toggles):
        if is_open:
            yield at, tuple(entry for number, entry in enumerate(entries) if is_open >> number & 1)


def together(toggles: Iterable[Toggle]) -> Iterator[tuple[int, int]]:
    """Every set of entries that are open together, as the bits of a number, with its first instant."""
    count, is_open, seen = defaultdict[int, int](int), 0, set[int]()
    for at, group in groupby(toggles, key=itemgetter(0)):
        for _, number, change in group:
            count[number] += change
            is_open = is_open | 1 << number if count[number] else is_open & ~(1 << number)
        if is_open not in seen:
            seen.add(is_open)
            yield at, is_open


def _toggles(windows: Iterable[Window]) -> tuple[list[Window], list[Toggle]]:
    """One window of each entry, and all openings and closings by time; windows of one entry are adjacent."""
    entries, toggles = list[Window](), list[Toggle]()
    for window in windows:
        if window.begins_at >= window.ends_at:
            continue
        if not entries or (entries[-1].name, entries[-1].changes) != (window.name, window.changes):
            entries.append(window)
        toggles += (window.begins_at, len(entries) - 1, 1), (window.ends_at, len(entries) - 1, -1)
    return entries, sorted(toggles)


def with_windows(policy: Policy, windows: Iterable[Window]) -> Policy:
    """The policy with the amounts that it has while these windows are open, without its calendar."""
    changes = [change for window in windows for change in window.changes]
    return replace(
        policy,
        windows=(),
        projects=_changed(policy.projects, [change for change in changes if not change.department]),
        departments=_changed(policy.departments, [change for change in changes if change.department]),
    )


def _boundaries(policy: Policy) -> Iterable[int]:
    for window in policy.windows:
        yield window.begins_at
        yield window.ends_at
