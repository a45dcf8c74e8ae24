"""The cache changes no plan: worlds are stepped with it, without it, and with a disabled one."""

from __future__ import annotations

import dataclasses as dc
import random

import pytest

from jupyter_gpu_quota.core.canonical import canonical
from jupyter_gpu_quota.core.model import Policy, Snapshot
from jupyter_gpu_quota.core.queue.pool_state import checked_shapes
from jupyter_gpu_quota.core.quota.checked_ranks import CheckedRanks
from jupyter_gpu_quota.core.scheduling.cache.decision_cache import DecisionCache
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.core.scheduling.read_pool import read_pool
from tests.core.world import BEGIN, World, world

WORLDS, TICKS = 300, 5


def random_world(rng: random.Random) -> World:
    made = world(f"pool t {rng.randint(1, 4)}\npool u 2x{rng.randint(1, 4)}")
    for name in "abc"[: rng.randint(1, 3)]:
        made.project(name, "t", training_milli=rng.choice((0, 500, 1000)), notebook_milli=rng.choice((0, 250)))
        made.project(name, "u", training_milli=rng.choice((0, 1000)))
    return made


def step(made: World, rng: random.Random) -> None:
    project = rng.choice(made.policy.projects).name
    if rng.random() < 0.2:
        made.ask(project, 250, pool="t")
    elif rng.random() < 0.8:
        made.submit(project, rng.choice((250, 500, 1000)), pool=rng.choice("tu"), preemptible=rng.random() < 0.7)
    elif made.jobs:
        made.cancel(rng.choice(sorted(made.jobs)))


@pytest.mark.parametrize("part", range(3))
def test_plans_are_equal_with_and_without_the_cache(part: int) -> None:
    for seed in range(part, WORLDS, 3):
        rng = random.Random(seed)
        made, kept, off = random_world(rng), DecisionCache(), DecisionCache(enabled=False)
        for _ in range(TICKS):
            step(made, rng)
            made.pass_time()
            snapshot = made.snapshot()
            plan = decide(snapshot, made.policy)
            for cache in (kept, off):
                assert canonical(decide(snapshot, made.policy, cache)) == canonical(plan), f"world {seed}"
            assert kept.next_at() == off.next_at(), f"world {seed}"
            made.apply(plan)


def test_a_pool_is_decided_again_when_a_job_has_waited_for_the_patience() -> None:
    """a2 has the reservation. u uses less than v and is first; once v's older job is overdue, it comes before u's."""
    made = world("pool t 2\na 2 of t\na runs 1 by v fixed\na queues 2 by u")
    made.policy = dc.replace(made.policy, patience_s=100)
    made.tick()
    old = made.submit("a", 1000, user="v", preemptible=False, id="old")
    made.jobs["old"] = dc.replace(old, submitted_at=BEGIN - 50_000)
    made.submit("a", 1000, user="u", preemptible=False, id="new", time_limit_s=1_000_000)
    assert made.tick().actions == ()
    assert made.decision_cache.next_at() == made.now + 48_000
    made.now += 47_000
    assert [one.workload for one in made.tick().actions] == ["old"]


def test_a_pool_without_waiting_work_is_decided_again_when_the_calendar_lowers_a_quota_past_the_drain_deadline() -> (
    None
):
    made = world("pool t 4\na 4 of t\nwindow w from 100 to 200: a 1 of t\na runs 4 of 1 fixed")
    made.policy = dc.replace(made.policy, drain_by_at=BEGIN)
    assert made.tick().actions == ()
    assert made.decision_cache.next_at() == BEGIN + 100_000
    made.now = BEGIN + 99_000
    assert [one.reason.code for one in made.tick().actions] == ["drain_deadline"] * 3


def test_checked_shapes_are_kept_until_the_policy_or_a_device_changes() -> None:
    made, cache = world("pool t 2x4\na 4 of t"), DecisionCache()
    first = shapes(cache, made.snapshot(), made.policy)
    made.pass_time()
    assert shapes(cache, made.snapshot(), made.policy) is first
    assert (
        first.projects["a"],
        shapes(cache, made.snapshot(), world("pool t 2x4\na 2 of t").policy).projects["a"],
    ) == (
        4,
        2,
    )
    assert shapes(cache, world("pool t 2x1\na 4 of t").snapshot(), made.policy).projects["a"] == 1


def shapes(cache: DecisionCache, snapshot: Snapshot, policy: Policy) -> CheckedRanks:
    """The checked shapes of pool t as a decision with this cache has them."""
    policy = cache.follow(snapshot, policy)
    return checked_shapes(read_pool(cache.index.of["t"], cache.index, snapshot, policy), ())
