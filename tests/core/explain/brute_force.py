"""The smallest single changes that start a job, by trying every change: one plan of ``decide`` for each."""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from jupyter_gpu_quota.core.model import Amounts, Department, Device, Job, JobState, Node, Policy, Project, Snapshot
from jupyter_gpu_quota.core.plan import gives_devices
from jupyter_gpu_quota.core.scheduling.decide import decide

Ends = tuple[int, int, tuple[str, ...]]
"""Milli-GPU, number of jobs, ids."""


def starts(snapshot: Snapshot, policy: Policy, name: str) -> bool:
    """Whether the next plan starts the workload, or makes room for it now."""
    return any(one.workload == name and gives_devices(one) for one in decide(snapshot, policy).actions)


def without(snapshot: Snapshot, names: Iterable[str]) -> Snapshot:
    """The snapshot without some work."""
    gone = set(names)
    return dc.replace(
        snapshot,
        jobs=tuple(one for one in snapshot.jobs if one.id not in gone),
        notebooks=tuple(one for one in snapshot.notebooks if one.id not in gone),
        allocations=tuple(one for one in snapshot.allocations if one.workload not in gone),
        reservations=tuple(one for one in snapshot.reservations if one.workload not in gone),
    )


def running_sizes(snapshot: Snapshot) -> dict[str, int]:
    """What may end, and the GPU that it has."""
    runs = (JobState.STARTING, JobState.RUNNING)
    sizes = {job.id: job.gpu_milli * (job.held_ranks or job.ranks) for job in snapshot.jobs if job.state in runs}
    return sizes | {one.id: one.gpu_milli for one in snapshot.notebooks if one.state in ("booked", "lent")}


def all_ends(snapshot: Snapshot) -> list[Ends]:
    """Every set of running work, the smallest first."""
    sizes = running_sizes(snapshot)
    return sorted(
        (sum(sizes[name] for name in names), count, names)
        for count in range(1, len(sizes) + 1)
        for names in combinations(sorted(sizes), count)
    )


def ways(snapshot: Snapshot, milli: int) -> list[Ends]:
    """The sets of running work with at least that much, and none to spare."""
    sizes = running_sizes(snapshot)
    return [ends for ends in all_ends(snapshot) if ends[0] >= milli > ends[0] - min(sizes[one] for one in ends[2])]


def least_ends(snapshot: Snapshot, policy: Policy, name: str) -> Ends | None:
    """The smallest set of running work whose end starts the workload."""
    return next((ends for ends in all_ends(snapshot) if starts(without(snapshot, ends[2]), policy, name)), None)


def with_amount(policy: Policy, owner: str, field: str, milli: int, *, department: bool) -> Policy:
    """The policy with another amount of a project or department in pool t."""

    def changed(rows: Iterable[Project] | Iterable[Department]) -> Iterator[Project | Department]:
        for row in rows:
            if row.name == owner:
                amounts = dict(row.amounts) | {"t": dc.replace(row.amounts.get("t", Amounts()), **{field: milli})}
                row = dc.replace(row, amounts=amounts)
            yield row

    if department:
        return dc.replace(policy, departments=tuple(changed(policy.departments)))  # type: ignore[arg-type]
    return dc.replace(policy, projects=tuple(changed(policy.projects)))  # type: ignore[arg-type]


def first(works: Callable[[int], bool], most: int, step: int) -> int | None:
    """The first multiple of the step that works."""
    return next((by for by in range(step, most + 1, step) if works(by)), None)


def with_node(snapshot: Snapshot, count: int) -> Snapshot:
    """The snapshot with one more node like the others, with this many devices."""
    like = snapshot.devices[0]
    node = Node(id="zz", name="zz", cpu_milli=snapshot.nodes[0].cpu_milli, memory_mib=snapshot.nodes[0].memory_mib)
    made = tuple(
        Device(id=f"zz{at}", node="zz", index=at, model=like.model, memory_mib=like.memory_mib, pool=like.pool)
        for at in range(count)
    )
    return dc.replace(snapshot, nodes=(*snapshot.nodes, node), devices=(*snapshot.devices, *made))


def with_job(snapshot: Snapshot, job: Job) -> Snapshot:
    """The snapshot with a changed job, without its reservation."""
    return dc.replace(
        snapshot,
        jobs=tuple(job if one.id == job.id else one for one in snapshot.jobs),
        reservations=tuple(one for one in snapshot.reservations if one.workload != job.id),
    )


def smaller(job: Job, step: int) -> Iterator[tuple[int, Job]]:
    """Smaller requests: fewer ranks, fewer devices for each, or a smaller part of one (in steps, then each milli)."""
    least = job.least_ranks
    field = "ranks" if job.min_ranks is None else "min_ranks"
    rows = [((least - ranks) * job.gpu_milli, dc.replace(job, **{field: ranks})) for ranks in range(1, least)]
    part = min(job.gpu_milli, 1000)
    sizes = {*range(1000, job.gpu_milli, 1000), *range(step, part, step), *range(1, min(step, part))}
    rows += [((job.gpu_milli - size) * least, dc.replace(job, gpu_milli=size)) for size in sizes]
    yield from sorted(rows, key=lambda row: row[0])


def least_reduction(snapshot: Snapshot, policy: Policy, job: Job, step: int) -> int | None:
    """By how much the largest smaller request that starts is smaller."""
    return next((by for by, one in smaller(job, step) if starts(with_job(snapshot, one), policy, job.id)), None)
