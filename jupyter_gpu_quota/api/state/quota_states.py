"""The quota state of each project and department in each pool: quota, use, fair share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...core.lifecycle import HOLDS_GPU, WAITING
from ...core.model import Department, Job, Notebook, NotebookState, Policy, Project, Snapshot
from ...core.quota.fair_share import Share
from ...core.scheduling.cycle import SchedulingCycle
from ...core.scheduling.read_pool import read_pools
from ...wire import ProjectPoolView
from .utilisation import Utilised, of_share, total_use

if TYPE_CHECKING:
    from .store_view import StoreView

OwnerPool = tuple[str, str]
"""The name of a project or department, and a pool."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Guarantees and fair shares."""

    projects: Mapping[OwnerPool, Share]
    departments: Mapping[OwnerPool, Share]


@dataclass(frozen=True, slots=True)
class QuotaStates:
    """The rows of each owner by pool; a project and a department may have the same name."""

    projects: Mapping[str, list[ProjectPoolView]]
    departments: Mapping[str, list[ProjectPoolView]]


NO_QUOTA_STATES = QuotaStates({}, {})


@dataclass(slots=True)
class _Use:
    """The use of one project or department in one pool."""

    notebook_milli: int = 0
    training_milli: int = 0
    borrowed_milli: int = 0
    queued_jobs: int = 0
    utilised: list[Utilised] = field(default_factory=list)


def shares_of(snapshot: Snapshot, policy: Policy) -> Shares:
    """The division that ``decide`` makes of every pool."""
    pools = read_pools(snapshot, policy)
    for pool in pools:
        SchedulingCycle(pool).run()
    levels = [(pool.name, pool.projects) for pool in pools], [(pool.name, pool.departments) for pool in pools]
    projects, departments = (
        {
            (name, pool): Share(guarantee_milli=one.guarantee, fair_milli=one.fair)
            for pool, rows in level
            for name, one in rows.items()
        }
        for level in levels
    )
    return Shares(projects, departments)


def quota_states_of(store_view: StoreView, policy: Policy, shares: Shares) -> QuotaStates:
    """The quota states under the amounts of this policy."""
    department_of = {project.name: project.department for project in policy.projects}
    projects, departments = defaultdict[OwnerPool, _Use](_Use), defaultdict[OwnerPool, _Use](_Use)

    def uses(work: Job | Notebook) -> tuple[_Use, _Use]:
        return projects[work.project, work.pool], departments[department_of.get(work.project) or "", work.pool]

    mirror, now = store_view.mirror, store_view.now()
    for record in mirror.jobs.values():
        job = record.job
        for use in uses(job):
            if job.state in HOLDS_GPU and job.borrower:
                use.borrowed_milli += job.held_milli
            elif job.state in HOLDS_GPU:
                use.training_milli += job.held_milli
            use.queued_jobs += job.state in WAITING
    for slice_ in mirror.notebooks.values():
        if slice_.notebook.state in (NotebookState.BOOKED, NotebookState.LENT):
            for use in uses(slice_.notebook):
                use.notebook_milli += slice_.notebook.gpu_milli
    for part in store_view.allocations.values():
        running, notebook = mirror.jobs.get(part.workload), mirror.notebooks.get(part.workload)
        work = running.job if running else notebook.notebook if notebook else None
        for use in uses(work) if work else ():
            use.utilised.append(of_share(store_view.samples.get(part.device), part.workload, now))
    return QuotaStates(
        {one.name: _rows(one, projects, shares.projects) for one in policy.projects},
        {one.name: _rows(one, departments, shares.departments) for one in policy.departments},
    )


def _rows(
    owner: Project | Department, uses: Mapping[OwnerPool, _Use], shares: Mapping[OwnerPool, Share]
) -> list[ProjectPoolView]:
    keys = [(owner.name, pool) for pool in sorted(owner.amounts)]
    return [_row(owner, pool, uses.get((name, pool)) or _Use(), shares.get((name, pool))) for name, pool in keys]


def _row(owner: Project | Department, pool: str, use: _Use, share: Share | None) -> ProjectPoolView:
    amounts, utilised = owner.amounts[pool], total_use(use.utilised)
    return ProjectPoolView(
        pool=pool,
        notebook_milli=amounts.notebook_milli,
        training_milli=amounts.training_milli,
        limit_milli=amounts.limit_milli,
        weight=amounts.weight,
        notebook_used_milli=use.notebook_milli,
        training_used_milli=use.training_milli,
        borrowed_milli=use.borrowed_milli,
        fair_share_milli=max(share.fair_milli, share.guarantee_milli) if share else 0,
        in_force_training_milli=share.guarantee_milli if share else 0,
        queued_jobs=use.queued_jobs,
        utilised_milli=utilised.milli,
        utilised_unknown=utilised.why,
    )
