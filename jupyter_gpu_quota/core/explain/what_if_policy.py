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


def with_quota(what_if: WhatIf, milli: int) -> Policy:
    """The policy with another quota for the case's project: the notebook quota of a notebook, else the training one."""
    return _with(what_if, quota_name(what_if), milli)


def with_limit(what_if: WhatIf, milli: int, *, department: bool = False) -> Policy:
    """The policy with another limit for the case's project, or for that one's department."""
    return _with(what_if, LIMIT, milli, department=department)


def with_user_ceiling(what_if: WhatIf, milli: int, *, department: bool) -> Policy:
    """The policy with another ceiling for each user, of the case's project or of that one's department."""
    return _with(what_if, ceiling_name(what_if), milli, department=department)


def quota_name(what_if: WhatIf) -> str:
    """The amount that is a case's quota."""
    return "notebook_milli" if what_if.is_notebook else "training_milli"


def ceiling_name(what_if: WhatIf) -> str:
    """The amount that is the ceiling for each user of the case's kind of work."""
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


def _with(what_if: WhatIf, amount: str, milli: int, *, department: bool = False) -> Policy:
    """The policy with another amount: where an open window sets it, in that entry of the calendar."""
    window, policy = window_of(what_if, amount, department=department), what_if.policy
    if window is not None:
        rows = (_changed(row, what_if, amount, milli, department) if row.name == window.name else row
                for row in policy.windows)  # fmt: skip
        return replace(policy, windows=tuple(rows))
    if department:
        return replace(policy, departments=_each(policy.departments, what_if.department, what_if.pool, {amount: milli}))
    return replace(policy, projects=_each(policy.projects, what_if.project, what_if.pool, {amount: milli}))


def _changed(window: Window, what_if: WhatIf, amount: str, milli: int, department: bool) -> Window:
    mine = (what_if.department if department else what_if.project, department, what_if.pool)
    return replace(
        window,
        changes=tuple(
            with_changes(each, **{amount: milli}) if (each.owner, each.department, each.pool) == mine else each
            for each in window.changes
        ),
    )


def _each(owners: Iterable[Owner], name: str | None, pool: str, changes: Mapping[str, int]) -> tuple[Owner, ...]:
    """The same owners, one of them with other amounts in a pool."""

    def changed(owner: Owner) -> Owner:
        before = owner.amounts.get(pool) or NO_AMOUNTS
        return replace(owner, amounts={**owner.amounts, pool: with_changes(before, **changes)})

    return tuple(changed(owner) if owner.name == name else owner for owner in owners)
