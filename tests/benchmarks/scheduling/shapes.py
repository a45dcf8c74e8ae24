"""The time of one ``decide`` on the shapes of KAI-Scheduler's benchmark, in process, on 8-GPU nodes, one pool.

``python -m tests.benchmarks.scheduling.shapes [NAME ...]`` prints CPU seconds from a Snapshot object to a Plan. The
peer's figures are of KAI-Scheduler at d5bc503a, in process, on a two-core machine; its cluster test publishes 249.5 s
for the gang that can never fit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from jupyter_gpu_quota.controllers.main import reduce_garbage_collection
from jupyter_gpu_quota.core.model import Amounts, Department, Job, Policy, PreemptionPolicy, Project, Snapshot
from jupyter_gpu_quota.core.plan import Pause, Reserve, Start
from jupyter_gpu_quota.core.scheduling.decide import decide
from tests.benchmarks.scheduling.decide import EACH, NOW, devices, running

GENTLE = PreemptionPolicy(min_runtime_s=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One row of the table: a world, its expected plan, and the bound. ``peer``: the figure of KAI-Scheduler."""

    name: str
    build: Callable[[], tuple[Snapshot, Policy]]
    bound_s: float
    peer: str
    starts: int = 0
    pauses: int = 0
    reserves: int = 0


def world(nodes: int, policy: Policy, waiting: list[Job], owners: Callable[[int], str] | None = None) -> Snapshot:
    """A pool in which every device runs a one-GPU job of its owner, or is free."""
    rows, made = devices(nodes)
    jobs, owned = running(made, owners) if owners else ([], [])
    return Snapshot(version=1, now=NOW, nodes=rows, devices=made, jobs=(*jobs, *waiting), allocations=tuple(owned))


def project(name: str, quota: int, department: str | None = None) -> Project:
    """A project with a training quota in milli-GPU."""
    return Project(name=name, amounts={"train": Amounts(training_milli=quota)}, department=department)


def policy(*projects: Project, departments: tuple[Department, ...] = ()) -> Policy:
    """One pool and no protection of victims."""
    return Policy(revision=1, pools=("train",), projects=projects, departments=departments, preemption=GENTLE)


def waiting(count: int, owners: Callable[[int], str], *, gpu: int = 1000, ranks: int = 1) -> list[Job]:
    """Jobs in a queue, the oldest first."""
    return [
        Job(
            id=f"q{at:06d}",
            project=owners(at),
            user=f"user-{at % 50}",
            pool="train",
            gpu_milli=gpu,
            ranks=ranks,
            submitted_at=NOW - 10**7 + at,
        )
        for at in range(count)
    ]


def fill(nodes: int, projects: int, jobs: int, *, ranks: int = 1) -> tuple[Snapshot, Policy]:
    """An empty pool of equal projects in two departments, and jobs that fill it."""
    quota = nodes * EACH * 1000 // projects
    rows = [project(f"p{at:03d}", quota, f"d{at % 2}") for at in range(projects)]
    half = {"train": Amounts(training_milli=nodes * EACH * 500)}
    rules = policy(*rows, departments=(Department(name="d0", amounts=half), Department(name="d1", amounts=half)))
    queued = waiting(jobs, lambda at: f"p{at % projects:03d}", ranks=ranks)
    return world(nodes, rules, queued), rules


def gang_claims(nodes: int) -> tuple[Snapshot, Policy]:
    """All devices run one-GPU jobs of a project with quota 0; a gang of half the pool's nodes claims its quota."""
    rules = policy(project("over", 0), project("owner", nodes * EACH * 500))
    return world(nodes, rules, waiting(1, lambda at: "owner", gpu=8000, ranks=nodes // 2), lambda at: "over"), rules


def gang_claims_beside_room(nodes: int, free: int) -> tuple[Snapshot, Policy]:
    """The same, where some devices are free on nodes apart: work may move there instead of being paused."""
    snapshot, rules = gang_claims(nodes)
    gone = _on(snapshot, {f"n{at:04d}-0" for at in range(free)})
    kept = tuple(one for one in snapshot.allocations if one.workload not in gone)
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.id not in gone), allocations=kept), rules


def many_claim(nodes: int) -> tuple[Snapshot, Policy]:
    """The same victims, and as many one-GPU claims as there are devices."""
    rules = policy(project("over", 0), project("owner", nodes * EACH * 1000))
    return world(nodes, rules, waiting(nodes * EACH, lambda at: "owner"), lambda at: "over"), rules


def never_fits(nodes: int) -> tuple[Snapshot, Policy]:
    """A gang of 10 x 8 that finds nine whole nodes: a non-preemptible job runs on one device of each other node.

    The plan records its backfill reservation, with the instant at which such a job ends at the latest.
    """
    rules = policy(project("over", 0), project("owner", nodes * EACH * 1000))
    gang = waiting(1, lambda at: "owner", gpu=8000, ranks=10)
    snapshot = world(nodes, rules, gang, lambda at: "over")
    blocked = {f"n{at:04d}-0" for at in range(nodes - 9)}
    jobs = tuple(replace(job, preemptible=False) if job.id in _on(snapshot, blocked) else job for job in snapshot.jobs)
    return replace(snapshot, jobs=jobs), rules


def _on(snapshot: Snapshot, devices: set[str]) -> set[str]:
    return {one.workload for one in snapshot.allocations if one.device in devices}


def at_quota(nodes: int) -> tuple[Snapshot, Policy]:
    """Full and exactly at quota; as many jobs wait as run. The first of them gets the backfill reservation."""
    rules = policy(*(project(f"p{at}", nodes * EACH * 250) for at in range(4)))
    return world(nodes, rules, waiting(nodes * EACH, lambda at: f"p{at % 4}"), lambda at: f"p{at % 4}"), rules


def huge(nodes: int, queued: int) -> tuple[Snapshot, Policy]:
    """40 projects at their quotas, a full pool, and a long queue of many sizes."""
    rules = policy(*(project(f"p{at:02d}", nodes * EACH * 1000 // 40 // 2) for at in range(40)))
    sizes = (125, 250, 500, 1000, 1000, 1000, 2000, 4000, 8000)
    jobs = [
        replace(job, gpu_milli=sizes[at % 9]) for at, job in enumerate(waiting(queued, lambda at: f"p{at % 40:02d}"))
    ]
    snapshot = world(nodes, rules, jobs, lambda at: f"p{at % 40:02d}")
    gone = {one.workload for one in snapshot.allocations if one.device.endswith("-7")}
    kept = tuple(job for job in snapshot.jobs if job.id not in gone)
    return replace(
        snapshot, jobs=kept, allocations=tuple(one for one in snapshot.allocations if one.workload not in gone)
    ), rules


SHAPES = (
    Shape(
        name="fill 500 nodes, 4 projects, 4,000 jobs",
        build=lambda: fill(500, 4, 4000),
        bound_s=0.8,
        peer="2.6 s CPU",
        starts=4000,
    ),
    Shape(
        name="fill 500 nodes, 200 projects",
        build=lambda: fill(500, 200, 4000),
        bound_s=0.8,
        peer="3.3 s CPU",
        starts=4000,
    ),
    Shape(
        name="fill 500 nodes, 1,000 gangs of 4",
        build=lambda: fill(500, 4, 1000, ranks=4),
        bound_s=0.8,
        peer="2.6 s CPU",
        starts=1000,
    ),
    Shape(
        name="gang of 250 x 8 claims, 500 nodes",
        build=lambda: gang_claims(500),
        bound_s=0.5,
        peer="11.1 s",
        pauses=2000,
        reserves=1,
    ),
    Shape(
        name="gang of 250 x 8 claims, 500 nodes, 5 devices free",
        build=lambda: gang_claims_beside_room(500, 5),
        bound_s=10.0,
        peer="-",
        pauses=1999,
        reserves=5,
    ),
    Shape(
        name="gang of 500 x 8 claims, 1,000 nodes",
        build=lambda: gang_claims(1000),
        bound_s=1.0,
        peer="39.6 s",
        pauses=4000,
        reserves=1,
    ),
    Shape(
        name="1,600 one-GPU claims, 200 nodes",
        build=lambda: many_claim(200),
        bound_s=1.0,
        peer="18.5 s",
        pauses=1600,
        reserves=1600,
    ),
    Shape(
        name="4,000 one-GPU claims, 500 nodes",
        build=lambda: many_claim(500),
        bound_s=2.5,
        peer="not done in 150 s",
        pauses=4000,
        reserves=4000,
    ),
    Shape(
        name="gang of 10 x 8 never fits, 100 nodes",
        build=lambda: never_fits(100),
        bound_s=0.020,
        reserves=1,
        peer="36 s",
    ),
    Shape(
        name="gang of 10 x 8 never fits, 500 nodes",
        build=lambda: never_fits(500),
        bound_s=0.100,
        reserves=1,
        peer="249.5 s published",
    ),
    Shape(
        name="full and at quota, 500 nodes", build=lambda: at_quota(500), bound_s=0.060, reserves=1, peer="27-34 s CPU"
    ),
    Shape(name="10,000 devices, 100,000 queued", build=lambda: huge(1250, 100_000), bound_s=1.5, peer="-"),
    Shape(name="1,000 devices, 10,000 queued", build=lambda: huge(125, 10_000), bound_s=0.15, peer="-"),
)


def measure(shape: Shape) -> float:
    """CPU seconds of one decide, the best of three; raises AssertionError where the plan is wrong."""
    snapshot, rules = shape.build()
    best = 1e9
    for _ in range(3):
        reduce_garbage_collection()
        before = time.process_time()
        plan = decide(snapshot, rules)
        best = min(best, time.process_time() - before)
    found = tuple(sum(isinstance(one, kind) for one in plan.actions) for kind in (Start, Pause, Reserve))
    wanted = (shape.starts, shape.pauses, shape.reserves)
    if not shape.name.startswith("1"):
        assert found == wanted, f"{shape.name}: starts, pauses, reserves {found}, should be {wanted}"
    return best


def main(names: list[str]) -> None:
    for shape in SHAPES:
        if not names or any(name in shape.name for name in names):
            seconds = measure(shape)
            mark = "" if seconds <= shape.bound_s else "  MISSED"
            took = f"{seconds * 1000:9.1f} ms   bound {shape.bound_s * 1000:7.0f}"
            print(f"{shape.name:45} {took}   peer {shape.peer}{mark}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
