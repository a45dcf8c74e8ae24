"""The snapshot index equals one that is built from the newest snapshot alone."""

from __future__ import annotations

from dataclasses import replace

from jupyter_gpu_quota.core.model import Allocation, Device, Job, JobState, Node, Snapshot
from jupyter_gpu_quota.core.scheduling.cache.snapshot_index import PoolSnapshot, SnapshotIndex

NODES = (Node(id="n1", name="n1", cpu_milli=64_000, memory_mib=512_000),)
DEVICES = tuple(
    Device(id=f"n1-{at}", node="n1", index=at, model="A100", memory_mib=81_920, pool="train") for at in range(4)
)


def job(name: str, **more: object) -> Job:
    plain = Job(id=name, project="bob", user="ann", pool="train", gpu_milli=1000, submitted_at=1)
    return replace(plain, **more)  # type: ignore[arg-type]


def holding(work: Job, device: str) -> Allocation:
    return Allocation(
        id=f"{work.id}@{device}", workload=work.id, rank=0, device=device, gpu_milli=1000, memory_mib=81_920
    )


def follow(*steps: tuple[tuple[Job, ...], tuple[Allocation, ...]]) -> PoolSnapshot:
    """The part of the pool after snapshots with these jobs and allocations, the demand learnt after each."""
    index = SnapshotIndex(("train",), DEVICES, NODES)
    for version, (jobs, owned) in enumerate(steps):
        index.update(Snapshot(version=version, now=0, nodes=NODES, devices=DEVICES, jobs=jobs, allocations=owned))
        index.of["train"].set_demand(())
    return index.of["train"]


def test_jobs_before_the_first_cpu_request_count_in_the_demand() -> None:
    few, many = (job("a"), job("b", gpu_milli=500, ranks=8)), (job("c", cpu_milli=8000), job("d", gpu_milli=500))
    before, together = follow((few, ())), follow((few, ()), (few + many, ()))
    assert before.bare.score is None
    assert together.bare.score is not None
    assert together.bare.score is follow((few + many, ())).bare.score


def test_ended_jobs_do_not_count_in_the_demand() -> None:
    few, many = (job("a"),), (job("c", cpu_milli=8000), job("d", gpu_milli=500, ranks=4))
    assert follow((few + many, ()), (few, ())).bare.score is None


def test_a_moved_job_is_indexed_under_its_new_pool() -> None:
    runs = job("a", state=JobState.RUNNING, started_at=1)
    there, here = holding(runs, "n1-0"), holding(runs, "n1-3")
    index = SnapshotIndex(("train",), DEVICES, NODES)
    found, work = [], []
    for owned in ((there,), (there, here), (here,), ()):
        index.update(Snapshot(version=1, now=0, nodes=NODES, devices=DEVICES, jobs=(runs,), allocations=owned))
        found.append([piece.device for piece in index.of["train"].pieces("a")])
        work.append([list(index.of["train"].work_on.get(device, ())) for device in ("n1-0", "n1-3")])
    assert found == [[0], [0, 3], [3], []]
    assert work == [[["a"], []], [["a"], ["a"]], [[], ["a"]], [[], []]]


def test_jobs_that_differ_only_in_the_largest_number_of_ranks_are_one_class() -> None:
    small, large = job("a", ranks=2, min_ranks=1), job("b", ranks=4, min_ranks=1)
    part = follow(((small, large), ()))
    assert [sorted(one.id for one in job_class.jobs()) for job_class in part.waiting_by_class.values()] == [["a", "b"]]
    part.remove_job(small)
    part.remove_job(large)
    part.add_job(large)
    assert [[one.id for one in job_class.jobs()] for job_class in part.waiting_by_class.values()] == [["b"]]


def test_new_jobs_are_ordered_by_submit_time() -> None:
    first, second, third = (job(name, submitted_at=at) for name, at in (("x", 3), ("y", 1), ("z", 2)))
    part = follow(((first, second), ()), ((first, second, third), ()))
    (job_class,) = part.waiting_by_class.values()
    assert [one.id for one in job_class.jobs()] == ["y", "z", "x"]
    part.remove_job(third)
    assert [one.id for one in job_class.jobs()] == ["y", "x"]
