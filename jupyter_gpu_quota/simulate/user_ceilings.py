"""The room of each user under the ceilings for each user, of projects and of their departments.

Source: docs/scheduling.md, rule R12.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from ..core.lifecycle import HOLDS_GPU
from ..core.model import Department, Job, Policy, Project

OwnerPool = tuple[bool, str, str]
"""Whether the owner is a department, its name, and a pool."""


@dataclass(slots=True)
class UserCeilings:
    """The use of each user's jobs, and the ceilings in force. Jobs that are being stopped count until they end."""

    _ceilings: dict[OwnerPool, int] = field(default_factory=dict)
    _departments: dict[str, str | None] = field(default_factory=dict)
    _use: Counter[tuple[OwnerPool, str]] = field(default_factory=Counter)
    _counted: dict[str, tuple[Job, int]] = field(default_factory=dict)

    def set_amounts(self, policy: Policy) -> None:
        """Set the ceilings: those of a policy's amounts, without its windows."""
        owners: tuple[Project | Department, ...] = (*policy.projects, *policy.departments)
        self._departments = {project.name: project.department for project in policy.projects}
        self._ceilings = {
            (isinstance(owner, Department), owner.name, pool): amounts.user_jobs_milli
            for owner in owners
            for pool, amounts in owner.amounts.items()
            if amounts.user_jobs_milli is not None
        }

    def update(self, job: Job) -> None:
        """Count what a job has now."""
        if job.id in self._counted:
            self._add(*self._counted.pop(job.id), sign=-1)
        if job.state in HOLDS_GPU:
            self._counted[job.id] = job, job.held_milli
            self._add(job, job.held_milli, sign=1)

    def _add(self, job: Job, milli: int, *, sign: int) -> None:
        for owner in self._owners(job.project, job.pool):
            self._use[owner, job.user] += sign * milli

    def room(self, project: str, pool: str, user: str) -> float:
        """The room of a user's jobs in a project and its department; infinite without a ceiling."""
        owners = (owner for owner in self._owners(project, pool) if owner in self._ceilings)
        return min((self._ceilings[owner] - self._use[owner, user] for owner in owners), default=math.inf)

    def projects_with(self, project: str, pool: str) -> list[str]:
        """The projects in which users' room changes with the jobs of a project: under a ceiling of its department."""
        department = self._departments.get(project)
        if department is None or (True, department, pool) not in self._ceilings:
            return [project]
        return [name for name, of in self._departments.items() if of == department]

    def _owners(self, project: str, pool: str) -> list[OwnerPool]:
        department = self._departments.get(project)
        return [(False, project, pool), *([(True, department, pool)] if department is not None else [])]
