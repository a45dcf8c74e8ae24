"""How long one ``decide`` takes, from a Snapshot object to a Plan: 8 devices a node, jobs and queues in proportion.

``python -m tests.benchmarks.scheduling.decide [--json FILE]`` prints a table. Each figure is the best of five runs in
this process, in CPU time (other processes share the machine), with garbage collected before each and seldom in it, as
in the scheduler; building the snapshot is not timed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from jupyter_gpu_quota.controllers.main import reduce_garbage_collection
from jupyter_gpu_quota.core.model import (
    Allocation,
    Amounts,
    Device,
    Job,
    JobState,
    Node,
    Policy,
    PreemptionPolicy,
    Project,
    Snapshot,
)
from jupyter_gpu_quota.core.scheduling.decide import decide

NODES = (50, 100, 250, 500)
EACH = 8
PROJECTS = 40
QUEUED_PER_NODE = 20
NOW = 1_800_000_000_000
SIZES = (125, 250, 500, 1000, 1000, 1000, 2000, 4000, 8000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement."""

    situation: str
    nodes: int
    running: int
    queued: int
    actions: int
    milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A world and the policy it is decided under."""

    snapshot: Snapshot
    policy: Policy


def policy(nodes: int, *, quota_milli: int | None = None) -> Policy:
    """Forty projects that share the pool's guarantees evenly, and a twentieth of it as notebook quota."""
    each = nodes * EACH * 1000 * 7 // 10 // PROJECTS // 1000 * 1000 if quota_milli is None else quota_milli
    amounts = Amounts(training_milli=each, notebook_milli=nodes * EACH * 1000 // 20 // PROJECTS, weight=1)
    projects = tuple(Project(name=f"project-{at:02d}", amounts={"train": amounts}) for at in range(PROJECTS))
    return Policy(revision=1, pools=("train",), projects=projects, preemption=PreemptionPolicy(min_runtime_s=0))


def devices(nodes: int) -> tuple[tuple[Node, ...], tuple[Device, ...]]:
    """The hardware."""
    rows = tuple(Node(id=f"n{at:04d}", name=f"n{at:04d}", cpu_milli=1, memory_mib=1) for at in range(nodes))
    made = tuple(
        Device(id=f"{node.id}-{at}", node=node.id, index=at, model="A100", memory_mib=81_920, pool="train")
        for node in rows
        for at in range(EACH)
    )
    return rows, made


def queued(
    rng: random.Random,
    count: int,
    *,
    sizes: tuple[int, ...] = SIZES,
    priorities: tuple[int, ...] = (50,),
    only: str | None = None,
) -> list[Job]:
    """Waiting jobs of every project (or one) and size, with users and priorities."""
    return [
        Job(
            id=f"q{at:06d}",
            project=only or f"project-{rng.randrange(PROJECTS):02d}",
            user=f"user-{rng.randrange(400)}",
            pool="train",
            gpu_milli=rng.choice(sizes),
            priority=rng.choice(priorities),
            submitted_at=NOW - rng.randrange(10**7),
        )
        for at in range(count)
    ]


def running(rows: tuple[Device, ...], owners: Callable[[int], str]) -> tuple[list[Job], list[Allocation]]:
    """One-GPU jobs, one on each of these devices."""
    jobs, owned = [], []
    for at, device in enumerate(rows):
        name = f"r{at:06d}"
        jobs.append(
            Job(
                id=name,
                project=owners(at),
                user=f"user-{at % 400}",
                pool="train",
                gpu_milli=1000,
                submitted_at=NOW - 10**8 + at,
                state=JobState.RUNNING,
                attempt=1,
                started_at=NOW - 10**7 + at,
            )
        )
        owned.append(
            Allocation(id=name, workload=name, rank=0, device=device.id, gpu_milli=1000, memory_mib=device.memory_mib)
        )
    return jobs, owned


def saturated(nodes: int) -> Scene:
    """Everything runs, everybody holds an equal part, 20 jobs a node wait, and nothing is possible."""
    rng, rules = random.Random(1), policy(nodes)
    rules = replace(
        rules,
        projects=tuple(
            replace(p, amounts={"train": replace(p.amounts["train"], notebook_milli=0)}) for p in rules.projects
        ),
    )
    return _scene(nodes, 1.0, queued(rng, nodes * QUEUED_PER_NODE), rules, lambda at: f"project-{at % PROJECTS:02d}")


def half_free(nodes: int) -> Scene:
    """Half of the devices are free and fill up in one plan."""
    rng = random.Random(2)
    jobs = queued(rng, nodes * QUEUED_PER_NODE, priorities=(50, 50, 50, 30))
    return _scene(nodes, 0.5, jobs, policy(nodes), lambda at: f"project-{at % PROJECTS:02d}")


def one_claim(nodes: int) -> Scene:
    """One project holds everything over quota; another claims eight GPUs of one node within its guarantee."""
    rng = random.Random(3)
    rules = policy(nodes, quota_milli=nodes * EACH * 1000 // PROJECTS // 8000 * 8000)
    jobs = queued(rng, nodes * QUEUED_PER_NODE, only="project-00")
    jobs.append(replace(jobs[0], id="claim", project="project-01", gpu_milli=8000, priority=50))
    return _scene(nodes, 1.0, jobs, rules, lambda _at: "project-00")


def many_claims(nodes: int) -> Scene:
    """The same, and every other project claims all of its guarantee with one-GPU jobs."""
    rng = random.Random(4)
    rules = policy(nodes)
    return _scene(nodes, 1.0, queued(rng, nodes * QUEUED_PER_NODE, sizes=(1000,)), rules, lambda _at: "project-00")


def preempting(nodes: int) -> Scene:
    """Everything runs at job priority 50, and a quarter of what waits has 70: each project preempts inside itself."""
    rng = random.Random(5)
    jobs = queued(rng, nodes * QUEUED_PER_NODE, priorities=(50, 50, 50, 70))
    return _scene(nodes, 1.0, jobs, policy(nodes), lambda at: f"project-{at % PROJECTS:02d}")


def _scene(nodes: int, filled: float, jobs: list[Job], rules: Policy, owners: Callable[[int], str]) -> Scene:
    rows, made = devices(nodes)
    holders, owned = running(made[: int(len(made) * filled)], owners)
    snapshot = Snapshot(version=1, now=NOW, nodes=rows, devices=made, jobs=(*holders, *jobs), allocations=tuple(owned))
    return Scene(snapshot=snapshot, policy=rules)


SITUATIONS: dict[str, Callable[[int], Scene]] = {
    "saturated, nothing possible": saturated,
    "half free": half_free,
    "one claim of a whole node": one_claim,
    "every project reclaims": many_claims,
    "every project preempts": preempting,
}


def measure(nodes: tuple[int, ...] = NODES, runs: int = 5) -> list[Row]:
    """Every situation at every size."""
    return [_measure(name, build(count), count, runs) for name, build in SITUATIONS.items() for count in nodes]


def _measure(name: str, scene: Scene, nodes: int, runs: int) -> Row:
    best, actions = float("inf"), 0
    for _ in range(runs):
        reduce_garbage_collection()
        begun = time.process_time()
        plan = decide(scene.snapshot, scene.policy)
        best = min(best, time.process_time() - begun)
        actions = len(plan.actions)
    holding = sum(job.state is JobState.RUNNING for job in scene.snapshot.jobs)
    return Row(
        situation=name,
        nodes=nodes,
        running=holding,
        queued=len(scene.snapshot.jobs) - holding,
        actions=actions,
        milliseconds=round(best * 1000, 1),
    )


def main() -> None:
    """Print the table; ``--json FILE`` writes it as well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--nodes", type=int, nargs="*", default=list(NODES))
    given = parser.parse_args()
    rows = measure(tuple(given.nodes))
    for row in rows:
        sys.stdout.write(
            f"{row.situation:30} {row.nodes:5} nodes {row.running:6} running {row.queued:7} queued "
            f"{row.actions:6} actions {row.milliseconds:9.1f} ms\n"
        )
    if given.json:
        fields = ("situation", "nodes", "running", "queued", "actions", "milliseconds")
        given.json.write_text(json.dumps([{name: getattr(row, name) for name in fields} for row in rows], indent=1))


if __name__ == "__main__":
    main()
