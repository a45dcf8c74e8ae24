"""The quota state of each project and department in each pool: quota, use, fair share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...core.lifecycle import HOLDS_GPU, HOLDS_SLICE, WAITING
from ...core.model import Department, Job, Notebook, NotebookState, Policy, Project, Snapshot
from ...core.quota.fair_share import Share
from ...core.scheduling.cycle import SchedulingCycle
from ...core.scheduling.read_pool import read_pools
from ...wire import ProjectPoolView
from .queue_positions import queue_order
from .utilisation import Utilised, of_share, total_use

if TYPE_CHECKING:
    from .store_view import StoreView

OwnerPool = tuple[str, str]
"""The name of a project or department, and a pool."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Guarantees and fair shares, and the positions of waiting jobs."""

    projects: Mapping[OwnerPool, Share]
    departments: Mapping[OwnerPool, Share]
    positions: Mapping[str, int]


@dataclass(slots=True)
class _Use:
    """The use of one project or department in one pool."""

    notebook_milli: int = 0
    training_milli: int = 0
    borrowed_milli: int = 0
    queued_jobs: int = 0
    jobs_milli_by_user: Counter[str] = field(default_factory=Counter)
    notebook_milli_by_user: Counter[str] = field(default_factory=Counter)
    """A requested slice counts too, as it does for the ceiling."""
    utilised: list[Utilised] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class QuotaStates:
    """The rows of each project or department by pool, and the use of each person."""

    rows: Mapping[str, list[ProjectPoolView]] = field(default_factory=dict)
    uses: Mapping[OwnerPool, _Use] = field(default_factory=dict)

    def of(self, owner: str, user: str) -> list[ProjectPoolView]:
        """The rows of one project or department, with the use of this user."""
        return [self._with_own(owner, row, user) for row in self.rows.get(owner, ())]

    def _with_own(self, owner: str, row: ProjectPoolView, user: str) -> ProjectPoolView:
        use = self.uses.get((owner, row.pool))
        jobs_milli, notebook_milli = (use.jobs_milli_by_user[user], use.notebook_milli_by_user[user]) if use else (0, 0)
        if not (jobs_milli or notebook_milli):
            return row
        return row.model_copy(update={"own_jobs_milli": jobs_milli, "own_notebook_milli": notebook_milli})


NO_QUOTA_STATES = QuotaStates(), QuotaStates()
"""Those of projects and of departments without a quota file; both kinds may have the same name."""


def shares_of(snapshot: Snapshot, policy: Policy) -> Shares:
    """The division that ``decide`` makes of every pool."""
    pools, positions = read_pools(snapshot, policy), dict[str, int]()
    for pool in pools:
        with suppress(Exception):  # a defect, which the decision logs: the jobs of the pool have no position
            plan = SchedulingCycle(pool).run().actions()
            positions |= {job: at for at, job in enumerate(queue_order(pool, [each.workload for each in plan]), 1)}
    levels = [(pool.name, pool.projects) for pool in pools], [(pool.name, pool.departments) for pool in pools]
    projects, departments = (
        {
            (name, pool): Share(guarantee_milli=one.guarantee, fair_milli=one.fair)
            for pool, rows in level
            for name, one in rows.items()
        }
        for level in levels
    )
    return Shares(projects, departments, positions)


def quota_states_of(store_view: StoreView, policy: Policy, shares: Shares) -> tuple[QuotaStates, QuotaStates]:
    """The quota states of the projects and of the departments under the amounts of this policy."""
    department_of = {project.name: project.department for project in policy.projects}
    projects, departments = defaultdict[OwnerPool, _Use](_Use), defaultdict[OwnerPool, _Use](_Use)

    def uses(work: Job | Notebook) -> tuple[_Use, _Use]:
        return projects[work.project, work.pool], departments[department_of.get(work.project) or "", work.pool]

    mirror, now = store_view.mirror, store_view.now()
    for record in mirror.jobs.values():
        job = record.job
        for use in uses(job):
            if job.state in HOLDS_GPU:
                use.jobs_milli_by_user[job.user] += job.held_milli
                use.borrowed_milli += job.held_milli if job.borrower else 0
                use.training_milli += 0 if job.borrower else job.held_milli
            use.queued_jobs += job.state in WAITING
    for slice_ in mirror.notebooks.values():
        one = slice_.notebook
        for use in uses(one):
            use.notebook_milli += one.gpu_milli if one.state in HOLDS_SLICE else 0
            if one.state in HOLDS_SLICE or one.state is NotebookState.REQUESTED:
                use.notebook_milli_by_user[one.user] += one.gpu_milli
    for part in store_view.allocations.values():
        running, notebook = mirror.jobs.get(part.workload), mirror.notebooks.get(part.workload)
        work = running.job if running else notebook.notebook if notebook else None
        for use in uses(work) if work else ():
            use.utilised.append(of_share(store_view.samples.get(part.device), part.workload, now))
    return (
        QuotaStates({each.name: _rows(each, projects, shares.projects) for each in policy.projects}, projects),
        QuotaStates(
            {each.name: _rows(each, departments, shares.departments) for each in policy.departments}, departments
        ),
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
        user_jobs_milli=amounts.user_jobs_milli,
        user_notebook_milli=amounts.user_notebook_milli,
    )
