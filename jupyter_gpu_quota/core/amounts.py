"""Which amounts are in force at an instant. Windows come expanded, as instants; here they are only compared.

Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from .model import Amounts, Change, Department, Policy, Project, Window

Owner = TypeVar("Owner", Project, Department)
Before = TypeVar("Before", int, int | None)


def in_force(policy: Policy, now: int) -> Policy:
    """The policy with the amounts of this instant. Where several open windows change one amount the last one wins."""
    changes = [
        change for window in policy.windows if window.begins_at <= now < window.ends_at for change in window.changes
    ]
    if not changes:
        return policy
    return replace(
        policy,
        projects=_changed(policy.projects, [change for change in changes if not change.department]),
        departments=_changed(policy.departments, [change for change in changes if change.department]),
    )


def _changed(owners: Sequence[Owner], changes: Sequence[Change]) -> tuple[Owner, ...]:
    rows = {owner.name: owner for owner in owners}
    for change in changes:
        if change.owner in rows:
            rows[change.owner] = _apply(rows[change.owner], change)
    return tuple(rows.values())


def _apply(owner: Owner, change: Change) -> Owner:
    before = owner.amounts.get(change.pool) or Amounts()
    after = replace(
        before,
        notebook_milli=_either(change.notebook_milli, before.notebook_milli),
        training_milli=_either(change.training_milli, before.training_milli),
        limit_milli=_either(change.limit_milli, before.limit_milli),
        weight=_either(change.weight, before.weight),
        user_notebook_milli=_either(change.user_notebook_milli, before.user_notebook_milli),
        user_jobs_milli=_either(change.user_jobs_milli, before.user_jobs_milli),
    )
    return replace(owner, amounts={**owner.amounts, change.pool: after})


def _either(change: int | None, before: Before) -> int | Before:
    return before if change is None else change


def next_change_at(policy: Policy, now: int) -> int | None:
    """The next instant at which a window opens or closes, None where none will."""
    return min((at for at in _boundaries(policy) if at > now), default=None)


def last_change_at(policy: Policy, now: int) -> int | None:
    """The last instant until now at which a window opened or closed, None where none did."""
    return max((at for at in _boundaries(policy) if at <= now), default=None)


def reachable(policy: Policy) -> list[tuple[int, Policy]]:
    """Every different combination of amounts that the windows lead to, each with the first instant of it.

    The first is the one without any window.
    """
    found = {_amounts(policy): (0, replace(policy, windows=()))}
    seen = set[tuple[int, ...]]()
    for at, windows in _open_windows(policy.windows):
        if (open_now := tuple(number for number, _ in windows)) in seen:
            continue
        seen.add(open_now)
        combination = replace(in_force(replace(policy, windows=tuple(w for _, w in windows)), at), windows=())
        found.setdefault(_amounts(combination), (at, combination))
    return list(found.values())


def _open_windows(windows: Sequence[Window]) -> Iterator[tuple[int, list[tuple[int, Window]]]]:
    """Each instant at which a window opens or closes, with those open from then on, numbered by what they change."""
    numbers: dict[tuple[Change, ...], int] = {}
    opening = sorted((w.begins_at, order) for order, w in enumerate(windows) if w.begins_at < w.ends_at)
    closing = sorted((windows[order].ends_at, order) for _, order in opening)
    is_open, begun, over = set[int](), 0, 0
    for at in sorted({at for at, _ in opening} | {at for at, _ in closing}):
        while over < len(closing) and closing[over][0] <= at:
            is_open.discard(closing[over][1])
            over += 1
        while begun < len(opening) and opening[begun][0] <= at:
            is_open.add(opening[begun][1])
            begun += 1
        rows = [windows[order] for order in sorted(is_open)]
        yield at, [(numbers.setdefault(window.changes, len(numbers)), window) for window in rows]


def _boundaries(policy: Policy) -> Iterable[int]:
    for window in policy.windows:
        yield window.begins_at
        yield window.ends_at


def _amounts(policy: Policy) -> tuple[tuple[str, tuple[tuple[str, Amounts], ...]], ...]:
    owners: tuple[Project | Department, ...] = (*policy.departments, *policy.projects)
    return tuple((owner.name, tuple(sorted(owner.amounts.items(), key=lambda row: row[0]))) for owner in owners)
