"""Where each project and each department stands in each pool: what it has, uses, and could have now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.lifecycle import HOLDS_GPU, WAITING
from ...core.model import Allocation, Department, NotebookState, Policy, Project, Snapshot
from ...core.quota.fair_share import Share
from ...core.scheduling.cycle import SchedulingCycle
from ...core.scheduling.read_pool import read_pools
from ...wire import ProjectPoolView
from .utilisation import Utilised, of_share, together

if TYPE_CHECKING:
    from .store_view import World

Place = tuple[str, str]
"""The name of a project or department, and a pool."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Guarantee and fair share of everybody."""

    projects: Mapping[Place, Share]
    departments: Mapping[Place, Share]


@dataclass(frozen=True, slots=True)
class Standings:
    """The rows of everybody in each of their pools; a project and a department may have the same name."""

    projects: Mapping[Place, ProjectPoolView]
    departments: Mapping[Place, ProjectPoolView]


NO_STANDINGS = Standings({}, {})


@dataclass(frozen=True, slots=True)
class Use:
    notebook: Counter[Place]
    training: Counter[Place]
    borrowed: Counter[Place]
    queued: Counter[Place]
    utilised: Mapping[Place, Sequence[Utilised]]
    """What is really used, by share."""


def shares_of(snapshot: Snapshot, policy: Policy) -> Shares:
    """The division that ``decide`` makes of every pool."""
    pools = read_pools(snapshot, policy, frozenset())
    for pool in pools:
        SchedulingCycle(pool).run()
    projects, departments = (
        {
            (name, pool.name): Share(guarantee_milli=one.guarantee, fair_milli=one.fair)
            for pool, rows in level
            for name, one in rows.items()
        }
        for level in (
            [(pool, pool.projects) for pool in pools],
            [(pool, pool.departments) for pool in pools],
        )
    )
    return Shares(projects, departments)


def use_of(world: World) -> Use:
    """What every project has in use and in its queue."""
    use = Use(Counter(), Counter(), Counter(), Counter(), _utilised(world))
    for record in world.mirror.jobs.values():
        job = record.job
        key = (job.project, job.pool)
        if job.state in HOLDS_GPU:
            (use.borrowed if job.borrower else use.training)[key] += job.held_milli
        elif job.state in WAITING:
            use.queued[key] += 1
    for slice_ in world.mirror.notebooks.values():
        if slice_.notebook.state in (NotebookState.BOOKED, NotebookState.LENT):
            use.notebook[slice_.notebook.project, slice_.notebook.pool] += slice_.notebook.gpu_milli
    return use


def _utilised(world: World) -> dict[Place, list[Utilised]]:
    found, now = defaultdict[Place, list[Utilised]](list), world.now()
    jobs, notebooks = world.mirror.jobs, world.mirror.notebooks
    for part in world.allocations.values():
        record = jobs.get(part.workload)
        work = record.job if record is not None else None
        if work is None and (slice_ := notebooks.get(part.workload)) is not None:
            found[slice_.notebook.project, slice_.notebook.pool].append(_of(world, part, now))
        elif work is not None:
            found[work.project, work.pool].append(_of(world, part, now))
    return found


def _of(world: World, part: Allocation, now: int) -> Utilised:
    return of_share(world.samples.get(part.device), part.workload, now)


def standings_of(policy: Policy, use: Use, shares: Shares) -> Standings:
    """Everybody in each of their pools, under the amounts of this policy."""
    of_departments = _by_department(use, {project.name: project.department for project in policy.projects})
    return Standings(
        {(p.name, pool): _row(p, pool, use, shares.projects) for p in policy.projects for pool in p.amounts},
        {
            (d.name, pool): _row(d, pool, of_departments, shares.departments)
            for d in policy.departments
            for pool in d.amounts
        },
    )


def _by_department(use: Use, department_of: Mapping[str, str | None]) -> Use:
    def grouped(counts: Counter[Place]) -> Counter[Place]:
        found = Counter[Place]()
        for (project, pool), count in counts.items():
            found[department_of.get(project) or "", pool] += count
        return found

    parts = defaultdict[Place, list[Utilised]](list)
    for (project, pool), own in use.utilised.items():
        parts[department_of.get(project) or "", pool] += own
    return Use(grouped(use.notebook), grouped(use.training), grouped(use.borrowed), grouped(use.queued), parts)


def _row(owner: Project | Department, pool: str, use: Use, shares: Mapping[Place, Share]) -> ProjectPoolView:
    amounts, key = owner.amounts[pool], (owner.name, pool)
    share, utilised = shares.get(key), together(use.utilised.get(key, ()))
    return ProjectPoolView(
        pool=pool,
        notebook_milli=amounts.notebook_milli,
        training_milli=amounts.training_milli,
        limit_milli=amounts.limit_milli,
        weight=amounts.weight,
        notebook_used_milli=use.notebook[key],
        training_used_milli=use.training[key],
        borrowed_milli=use.borrowed[key],
        fair_share_milli=max(share.fair_milli, share.guarantee_milli) if share else 0,
        in_force_training_milli=share.guarantee_milli if share else 0,
        queued_jobs=use.queued[key],
        utilised_milli=utilised.milli,
        utilised_unknown=utilised.why,
    )
