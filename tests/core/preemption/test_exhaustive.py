"""The search takes the cheapest legal set: compared with a search that tries every set and every place."""

from __future__ import annotations

import dataclasses as dc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.plan import Reserve
from jupyter_gpu_quota.core.preemption.operations import Cost, cost_of
from jupyter_gpu_quota.core.preemption.search import find, room
from tests.core.preemption.exhaustive import cheapest, count_of_sets
from tests.core.world import GENTLE, World

WORLDS = int(os.environ.get("GPU_QUOTA_WORLDS", "0"))
MOST_SETS = 600_000 if WORLDS >= 10_000 else 8_000
"""12 candidates that may each pause or move have about 530,000 sets."""
POOLS, LARGE_POOLS = 1200, 120
CHUNKS = 8
SIZES = (250, 400, 500, 600, 1000, 1000, 2000)

Compared = tuple[Cost | None, Cost | None]
"""The cost that the search found, and the least that there is."""


@contextmanager
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Compared]]:
    """Every search among few candidates inside the block, beside the exhaustive one."""
    rows = list[Compared]()
    shipped = find._Search._among_few

    def among_few(self: Any, options: Any) -> bool:
        exact = count_of_sets(options) <= MOST_SETS
        least = cheapest(self.attempt, options) if exact else None
        found = shipped(self, options)
        if exact and not self.attempt.ended_early:
            rows.append((cost_of(self.attempt.operations) if found else None, least))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(find._Search, "_among_few", among_few)
        yield rows


JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "project": st.sampled_from("abc"),
            "gpu": st.sampled_from(SIZES),
            "ranks": st.sampled_from([1, 1, 1, 1, 2, 3]),
            "least": st.sampled_from([None, None, 1]),
            "priority": st.sampled_from([50, 50, 30]),
            "preemptible": st.sampled_from([True] * 6 + [False]),
            "ran_s": st.sampled_from([1, 100, 3600]),
            "seed": st.integers(0, 1000),
        }
    ),
    min_size=1,
    max_size=9,
)
CLAIMS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(SIZES), st.sampled_from([1, 1, 2, 3]), st.sampled_from([50, 70])),
    min_size=1,
    max_size=2,
)


SMALL_JOB = {"gpu": 400, "ranks": 1, "least": None, "priority": 50, "preemptible": True, "ran_s": 3600}
TWO_PARTS = [{**SMALL_JOB, "project": "a", "seed": 257}, {**SMALL_JOB, "project": "b", "seed": 314}]
"""Two jobs, each on one of two devices; one may move to the other's, but not for a claim above its fair share."""


def made_of(nodes: tuple[int, int], quotas: list[int], jobs: list[dict[str, Any]], claims: Any, young_s: int) -> World:
    """A world with these jobs where they find room, and these claims."""
    made = World(preemption=dc.replace(GENTLE, min_runtime_s=young_s))
    made.pool("t", *nodes)
    left = nodes[0] * nodes[1] * 1000
    for name, quota in zip("abc", quotas, strict=True):
        made.project(name, "t", training_milli=min(left, quota), weight=1)
        left -= min(left, quota)
    for job in jobs:
        put(made, **job)
    for project, gpu, ranks, priority in claims:
        made.submit(project, gpu, ranks=ranks, priority=priority)
    return made


def put(
    made: World, *, project: str, gpu: int, ranks: int, least: int | None, seed: int, ran_s: int, **fields: Any
) -> None:
    """Let a job run on random devices with room, if there are any for all of its ranks."""
    random, each, many = Random(seed), min(gpu, 1000), max(1, gpu // 1000)
    taken = list[str]()
    for _ in range(ranks):
        choices = [
            devices
            for node in made.nodes
            for devices in combinations([name for name, device in made.devices.items() if device.node == node.id], many)
            if all(made.free(name) - each * taken.count(name) >= each for name in devices)
        ]
        if not choices:
            return
        taken += random.choice(choices)
    least = least if least is not None and least < ranks and fields["preemptible"] else None
    made.put(made.submit(project, gpu, ranks=ranks, min_ranks=least, **fields), taken, ran_s=ran_s)


@settings(max_examples=400 if WORLDS >= 10_000 else 120)
@given(
    nodes=st.sampled_from([(1, 2), (1, 3), (2, 2), (1, 4), (2, 3)]),
    quotas=st.lists(st.sampled_from([0, 500, 1000, 2000, 3000]), min_size=3, max_size=3),
    jobs=JOBS,
    claims=CLAIMS,
    young_s=st.sampled_from([0, 0, 600]),
)
@example(
    nodes=(1, 2), quotas=[1000, 500, 0], jobs=TWO_PARTS, claims=[("c", 1000, 1, 50), ("a", 1000, 1, 70)], young_s=0
)
# R40 R47
def test_the_search_takes_a_set_of_least_cost(
    nodes: tuple[int, int], quotas: list[int], jobs: list[dict[str, Any]], claims: Any, young_s: int
) -> None:
    made = made_of(nodes, quotas, jobs, claims, young_s)
    with pytest.MonkeyPatch.context() as patch, compared(patch) as rows:
        made.tick()
    assert [found for found, _ in rows] == [least for _, least in rows], made.dump()


# --- fragmented pools -------------------------------------------------------------------------------------------------
def fragmented(seed: int) -> World:
    """Projects within their quotas, with free room in parts that are too small for a claim within guarantee."""
    random = Random(seed)
    nodes, each = random.choice([(2, 2), (3, 2), (4, 1), (5, 1), (2, 3), (6, 1), (2, 4)])
    made, whole = World(preemption=GENTLE), nodes * each * 1000
    made.pool("t", nodes, each)
    size = random.choice([500, 600, 1000, 1000, *([2000] if each > 1 else [])])
    made.project("a", "t", training_milli=size)
    made.project("b", "t", training_milli=whole - size)
    sizes = random.choice([(1000,), (500, 500, 250), (600, 400, 300), (250, 500, 1000), (1000, 2000, 500)])
    while sum(made.free(name) for name in made.devices) > size and len(made.jobs) < 11:
        before = len(made.owned)
        small = [one for one in sizes if one <= min(each * 1000, sum(map(made.free, made.devices)) - size)]
        if not small:
            break
        put(
            made, project="b", gpu=random.choice(small), ranks=1, least=None, seed=random.randrange(1000), ran_s=3600,
            preemptible=random.random() < 0.9,
        )  # fmt: skip
        if len(made.owned) == before:
            break
    made.submit("a", size)
    return made


def could_be_served(made: World) -> bool:
    """Whether the claim fits after some of the jobs that may move have moved; tries all of them and all places."""
    claim = next(job for job in made.jobs.values() if job.project == "a")
    movable = [job for name, job in made.jobs.items() if name in made.owned and job.preemptible]
    room = {name: made.free(name) for name in made.devices}
    nodes: dict[str, list[str]] = {}
    for name, device in made.devices.items():
        nodes.setdefault(device.node, []).append(name)
    for count in range(len(movable) + 1):
        for moved in combinations(movable, count):
            left = dict(room)
            for job in moved:
                for one in made.owned[job.id]:
                    left[one.device] += one.gpu_milli
            sizes = sorted([claim.gpu_milli, *(job.gpu_milli for job in moved)], reverse=True)
            if _pack(sizes, left, list(nodes.values())):
                return True
    return False


def _pack(sizes: list[int], left: dict[str, int], nodes: list[list[str]]) -> bool:
    if not sizes:
        return True
    if sum(sizes) > sum(left.values()):
        return False
    each, many = min(sizes[0], 1000), max(1, sizes[0] // 1000)
    tried = set[tuple[tuple[int, ...], tuple[int, ...]]]()
    for node in nodes:
        for devices in combinations([name for name in node if left[name] >= each], many):
            look = tuple(sorted(left[name] for name in node)), tuple(sorted(left[name] for name in devices))
            if look in tried:
                continue
            tried.add(look)
            after = {name: milli - each * (name in devices) for name, milli in left.items()}
            if _pack(sizes[1:], after, nodes):
                return True
    return False


# R52
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_claim_is_missed_that_moves_alone_could_serve(chunk: int) -> None:
    assert not list(missed(range(chunk, POOLS, CHUNKS)))


# R52
def test_the_search_of_a_large_pool_misses_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SMALL_POOL", 0)
    assert not list(missed(range(LARGE_POOLS)))


def missed(seeds: range) -> Iterator[int]:
    """The seeds of pools whose claim was not served, though moves alone could serve it."""
    for seed in seeds:
        made = fragmented(seed)
        plan = made.decide().plan
        served = {one.workload for one in plan.actions if not isinstance(one, Reserve) or one.starts_at is None}
        claim = next(job.id for job in made.jobs.values() if job.project == "a")
        if claim not in served and could_be_served(made):
            yield seed
