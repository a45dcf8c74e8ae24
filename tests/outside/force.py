"""The quotas in force by R5 and R66: the range in which each lies, from a state alone.

The rules leave open how the shape of slices and foreign use count, so the least and the most are given. They are equal,
and the quotas set, where quotas fit the healthy devices and no work that may not be preempted is above its quota.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .model import WHOLE, Owner, State
from .shares import fixed_milli, notebooks_milli


@dataclass(frozen=True, slots=True)
class InForce:
    """The training quotas of one pool, in milli: the least and the most that may be in force, by owner."""

    least_of: dict[str, int]
    most_of: dict[str, int]
    department_least_of: dict[str, int]
    excess: int = 0
    """What has GPUs above its quota, and may not be preempted."""

    @property
    def certain(self) -> bool:
        """Whether they are known exactly, and fair shares, too."""
        return self.least_of == self.most_of

    def least(self, project: str) -> int:
        return self.least_of.get(project, 0)

    def most(self, project: str) -> int:
        return self.most_of.get(project, 0)


def in_force(state: State, pool: str) -> InForce:
    """The quotas in force of all projects and departments in a pool."""
    policy = state.policy
    most = {name: one.of(pool).training for name, one in policy.projects.items()}
    above = {name: one.of(pool).training for name, one in policy.departments.items()}
    for name, one in policy.projects.items():
        most[name] = min(most[name], above.get(one.department or "", most[name]))
    names = {*most, *(job.project for job in state.in_pool(pool))}
    fixed = {name: fixed_milli(policy.project(name), state, pool) for name in names}
    excess = sum(max(0, milli - most.get(name, 0)) for name, milli in fixed.items())
    capacity = _whole_devices(state, pool) - excess
    fit = all(sum(most[one.name] for one in _members(state, name)) <= milli for name, milli in above.items())
    if fit and sum(most.values()) <= capacity and sum(above.values()) <= capacity:
        return InForce(most, most, above, excess)
    departments = _reduced(policy.departments.values(), above, capacity)
    flat = _reduced(policy.projects.values(), most, capacity)
    least = _within_departments(state, most, flat, departments)
    lost = sum(max(0, milli - least.get(name, 0)) for name, milli in fixed.items())
    below = {name: max(min(most[name], fixed.get(name, 0)), milli - lost) for name, milli in least.items()}
    least_above = {name: max(0, milli - lost) for name, milli in departments.items()}
    return InForce(below, most, least_above, excess)


def _whole_devices(state: State, pool: str) -> int:
    """What healthy devices without foreign use have, in milli, less as many as the notebooks need at most."""
    free = [one for one in state.healthy(pool) if not one.foreign]
    names = {*state.policy.projects, *(one.project for one in state.slices(pool))}
    slices = sum(
        max(state.policy.project(name).of(pool).notebook, notebooks_milli(name, state, pool)) for name in names
    )
    return max(0, WHOLE * (len(free) - -(-slices // WHOLE)))


def _reduced(owners: Iterable[Owner], quotas: dict[str, int], capacity: int) -> dict[str, int]:
    """By priority, and within a priority in proportion to quota."""
    found: dict[str, int] = {}
    every = list(owners)
    for priority in sorted({one.priority for one in every}, reverse=True):
        names = [one.name for one in every if one.priority == priority]
        asked = sum(quotas[name] for name in names)
        given = max(0, min(asked, capacity))
        found |= {name: quotas[name] * given // asked if asked else 0 for name in names}
        capacity -= given
    return found


def _within_departments(
    state: State, quotas: dict[str, int], flat: dict[str, int], departments: dict[str, int]
) -> dict[str, int]:
    """The less of a division among all projects, and one among those of each department."""
    found = dict(flat)
    for name, milli in departments.items():
        for project, part in _reduced(_members(state, name), quotas, milli).items():
            found[project] = min(found[project], part)
    return found


def _members(state: State, department: str) -> list[Owner]:
    return [one for one in state.policy.projects.values() if one.department == department]
