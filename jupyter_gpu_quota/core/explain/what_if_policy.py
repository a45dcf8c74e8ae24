"""Changed policies for explanations: another quota, limit or ceiling, where it is set at this instant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from ..frozen import with_changes
from ..model import NO_AMOUNTS, Department, Policy, Project, Window
from ..quota.in_force import open_windows
from .counterfactual import WhatIf

Owner = TypeVar("Owner", Project, Department)
LIMIT = "limit_milli"


def quota_name(what_if: WhatIf) -> str:
    """The name of the amount that is the workload's quota."""
    return "notebook_milli" if what_if.is_notebook else "training_milli"


def ceiling_name(what_if: WhatIf) -> str:
    """The name of the amount that is the ceiling for each user, for the workload's kind."""
    return "user_notebook_milli" if what_if.is_notebook else "user_jobs_milli"


def window_of(what_if: WhatIf, amount: str, *, department: bool = False) -> Window | None:
    """The open window of the calendar that sets an amount now, None where none does."""
    owner = what_if.department if department else what_if.project
    return next(
        (
            window
            for window in reversed(open_windows(what_if.policy, what_if.snapshot.now))
            for change in window.changes
            if (change.owner, change.department, change.pool) == (owner, department, what_if.pool)
            and getattr(change, amount) is not None
        ),
        None,
    )


def with_amount(what_if: WhatIf, amount: str, milli: int, *, department: bool = False) -> Policy:
    """The policy with another amount for the project, or its department, where it is set now."""
    policy, owner = what_if.policy, what_if.department if department else what_if.project
    window = window_of(what_if, amount, department=department)
    if window is not None:
        mine = owner, department, what_if.pool

        def changed(row: Window) -> Window:
            rows = (
                with_changes(each, **{amount: milli}) if (each.owner, each.department, each.pool) == mine else each
                for each in row.changes
            )
            return replace(row, changes=tuple(rows)) if row.name == window.name else row

        return replace(policy, windows=tuple(map(changed, policy.windows)))
    if department:
        return replace(policy, departments=_each(policy.departments, owner, what_if.pool, {amount: milli}))
    return replace(policy, projects=_each(policy.projects, owner, what_if.pool, {amount: milli}))


def _each(owners: Iterable[Owner], name: str | None, pool: str, changes: Mapping[str, int]) -> tuple[Owner, ...]:
    """The owners, one of them with changed amounts in a pool."""
    return tuple(
        replace(
            owner,
            amounts={**owner.amounts, pool: with_changes(owner.amounts.get(pool) or NO_AMOUNTS, **changes)},
        )
        if owner.name == name
        else owner
        for owner in owners
    )
