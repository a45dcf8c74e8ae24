"""The running jobs kept from one decision to the next equal those that are built from the newest snapshot alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from jupyter_gpu_quota.core.model import Allocation, Device, Health, Job, JobState, Node, Snapshot
from jupyter_gpu_quota.core.placement.node_resources import NOTHING
from jupyter_gpu_quota.core.queue.running_jobs import RunningJobs
from jupyter_gpu_quota.core.scheduling.cache.snapshot_index import SnapshotIndex

NODES = tuple(Node(id=name, name=name, cpu_milli=64_000, memory_mib=512_000) for name in ("n1", "n2"))
DEVICES = tuple(
    Device(
        id=f"{node.id}-{at}", node=node.id, index=at, model="A100", memory_mib=81_920, pool="train",
        health=Health.UNHEALTHY if (node.id, at) == ("n2", 3) else Health.HEALTHY,
    )
    for node in NODES for at in range(4)
)  # fmt: skip
STATES = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.RUNNING, JobState.PAUSING)


def any_job(rng: random.Random, name: str, now: int) -> Job:
    state = rng.choice(STATES)
    is_elastic = rng.random() < 0.3
    return Job(
        id=name, project=rng.choice("ab"), user=rng.choice("uv"), pool=rng.choice(("train", "train", "train", "other")),
        submitted_at=1, state=state, gpu_milli=rng.choice((500, 1000)), ranks=2, min_ranks=1 if is_elastic else None,
        held_ranks=rng.choice((1, 2)) if is_elastic else None, preemptible=is_elastic or rng.random() < 0.6,
        borrower=rng.random() < 0.2, cpu_milli=rng.choice((0, 4000)), time_limit_s=rng.choice((60, 600)),
        started_at=rng.randrange(now) if state is JobState.RUNNING else None,
    )  # fmt: skip


def rows_of(rng: random.Random, job: Job) -> list[Allocation]:
    """The allocations of a job on random devices; also of a waiting one, whose devices are not free yet."""
    if rng.random() < (0.8 if job.state is JobState.QUEUED else 0.1):
        return []
    return [
        Allocation(
            id=f"{job.id}@{rank}", workload=job.id, rank=rank, device=rng.choice(DEVICES).id, gpu_milli=job.gpu_milli,
            memory_mib=1,
        )
        for rank in range(job.held_ranks or job.ranks)
    ]  # fmt: skip


class Cluster:
    """Jobs and allocations that change at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now = rng, 1000
        self.jobs: dict[str, Job] = {}
        self.owned: dict[str, list[Allocation]] = {"notebook": [
            Allocation(id="notebook@0", workload="notebook", rank=0, device="n1-0", gpu_milli=250, memory_mib=1)
        ]}  # fmt: skip

    def step(self) -> None:
        self.now += 1000
        for name in self.rng.sample("cdefghij", 4):
            if self.rng.random() < 0.3:
                self.jobs.pop(name, None)
                self.owned.pop(name, None)
            elif self.rng.random() < 0.3 and name in self.jobs:
                self.owned[name] = rows_of(self.rng, self.jobs[name])
            else:
                self.jobs[name] = any_job(self.rng, name, self.now)
                self.owned[name] = rows_of(self.rng, self.jobs[name])

    def snapshot(self) -> Snapshot:
        jobs = tuple(self.jobs[name] for name in sorted(self.jobs))
        owned = tuple(one for name in sorted(self.owned) for one in self.owned[name])
        return Snapshot(version=1, now=self.now, nodes=NODES, devices=DEVICES, jobs=jobs, allocations=owned)


def content(index: SnapshotIndex, now: int, without: list[str], *, counts_preemptible: bool) -> dict[str, object]:
    part = index.of["train"]
    work = part.read_running_jobs(now, without=without)
    return {
        "jobs": work.jobs,
        "ends": [one.ends_at for one in work.jobs.values()],
        "preemptible": work.preemptible,
        "borrowers": work.borrowers,
        "firm": work.firm,
        "borrowed": work.borrowed,
        "on nodes": {node: used for node, used in work.on_nodes.items() if used != NOTHING},
        "use groups": {
            key: (one.size, one.non_preemptible_on_devices, one.count) for key, one in work.use_groups.items()
        },
        "starting": work.starting,
        "preemptible on": work.preemptible_on if counts_preemptible else (),
        "not running": part.not_running,
        "other work": set(part.other_work),
    }


def index_of(snapshot: Snapshot) -> SnapshotIndex:
    index = SnapshotIndex(("train", "other"), DEVICES, NODES)
    index.update(snapshot)
    return index


@pytest.mark.parametrize("counts_preemptible", [False, True])
def test_kept_running_jobs_equal_those_that_are_built_anew(counts_preemptible: bool) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        cluster = Cluster(rng)
        kept = index_of(cluster.snapshot())
        for _ in range(8):
            cluster.step()
            kept.update(snapshot := cluster.snapshot())
            without = [name for name in sorted(kept.of["train"].busy) if rng.random() < 0.1]
            found = [
                content(index, cluster.now, without, counts_preemptible=counts_preemptible)
                for index in (kept, index_of(snapshot))
            ]
            assert found[0] == found[1], f"world {seed} at {cluster.now}"


def test_jobs_without_a_start_end_as_if_they_began_now() -> None:
    job = Job(
        id="c", project="a", user="u", pool="train", gpu_milli=1000, submitted_at=1, state=JobState.STARTING,
        time_limit_s=60,
    )  # fmt: skip
    runs = replace(job, id="d", state=JobState.RUNNING, started_at=10_000)
    index = index_of(Snapshot(version=1, now=5_000, nodes=NODES, devices=DEVICES, jobs=(job, runs)))
    ends = []
    for now in (5_000, 20_000, 5_000):
        work = index.of["train"].read_running_jobs(now, without=())
        ends.append([(one.id, one.ends_at) for one in work.jobs.values()])
    assert ends == [[("c", 65_000), ("d", 70_000)], [("d", 70_000), ("c", 80_000)], ends[0]]


def test_the_running_jobs_are_built_anew_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(random.Random(1))
    cluster.step()
    kept = index_of(cluster.snapshot())
    kept.of["train"].read_running_jobs(cluster.now, without=())
    cluster.jobs["c"] = replace(any_job(cluster.rng, "c", cluster.now), pool="train", state=JobState.STARTING)
    kept.update(snapshot := cluster.snapshot())
    with monkeypatch.context() as broken, pytest.raises(TypeError):
        broken.setattr(RunningJobs, "put", None)
        kept.of["train"].read_running_jobs(cluster.now, without=())
    found = [content(index, cluster.now, [], counts_preemptible=False) for index in (kept, index_of(snapshot))]
    assert found[0] == found[1]
