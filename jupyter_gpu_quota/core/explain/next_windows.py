"""The next instant at which windows of the calendar bring the amounts that start a workload.

Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..model import Amounts, Department, Policy, Project, Window
from ..quota.in_force import in_force, open_windows
from .counterfactual import WhatIf
from .trials import Trials

MAX_INSTANTS = 8
"""This many different sets of amounts of the workload's pool are tried at most."""


def bringing_window(trials: Trials) -> tuple[int, tuple[str, ...]] | None:
    """The first instant whose amounts start the workload now, and the names of the windows that open or close then.

    Only windows that change its pool matter. ``trials.ended_early`` is set where there are too many sets of amounts.
    """
    what_if = trials.what_if
    now, pool = what_if.snapshot.now, what_if.pool
    policy = replace(what_if.policy, windows=tuple(one for one in what_if.policy.windows if _changes_pool(one, pool)))
    seen = [_amounts(in_force(policy, now), pool)]
    for at in sorted({at for one in policy.windows for at in (one.begins_at, one.ends_at) if at > now}):
        then = in_force(policy, at)
        amounts = _amounts(then, pool)
        if amounts in seen:
            continue
        if len(seen) > MAX_INSTANTS:
            trials.ended_early = True
            return None
        seen.append(amounts)
        if trials.starts(policy=replace(then, windows=())):
            return at, _changed_at(what_if, policy, at)
    return None


def _changes_pool(window: Window, pool: str) -> bool:
    return any(change.pool == pool for change in window.changes)


def _amounts(policy: Policy, pool: str) -> list[Amounts | None]:
    """The amounts of all projects and departments in a pool."""
    owners: tuple[Project | Department, ...] = (*policy.projects, *policy.departments)
    return [owner.amounts.get(pool) for owner in owners]


def _changed_at(what_if: WhatIf, policy: Policy, at: int) -> tuple[str, ...]:
    """The windows that open or close at an instant; where some of them change the workload's project or its department
    in its pool, these alone.
    """
    before, after = open_windows(policy, at - 1), open_windows(policy, at)
    moved = _names(before) ^ _names(after)
    mine = _names(one for one in (*before, *after) if _changes_owner(what_if, one)) & moved
    return tuple(sorted(mine or moved))


def _names(windows: Iterable[Window]) -> set[str]:
    return {one.name for one in windows}


def _changes_owner(what_if: WhatIf, window: Window) -> bool:
    owners = {(what_if.project, False), (what_if.department, True)}
    return any(one.pool == what_if.pool and (one.owner, one.department) in owners for one in window.changes)
