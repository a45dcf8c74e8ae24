"""How attempts end and are stopped, by an API server in memory: what others do to their pods meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import NotFound, RequestFailed, failure
from jupyter_gpu_quota.backends.kubernetes.jobs.volume import JobVolume
from jupyter_gpu_quota.core.facts import RankFact
from tests.backends.kubernetes.test_orders import OrdersWorld
from tests.backends.worlds import order, stop
from tests.patience import until

AT_10_00 = 1_795_514_400_000
ENDED = {"exitCode": 0, "startedAt": "2026-11-24T10:00:01Z", "finishedAt": "2026-11-24T10:00:02Z"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OrdersWorld]:
    made = OrdersWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def unkept(world: OrdersWorld, monkeypatch: pytest.MonkeyPatch) -> str:
    """When a rank ended, whose end was seen and could not be kept yet."""
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.PUBLISH_EVERY_S", 0.01)
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    world.server.broken.add("gq-j-1-0/log")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    world.see("gq-j-1-0", "Succeeded", {"terminated": ENDED | {"finishedAt": now}})
    until(lambda: world.server.failed and world.ended("keep end", "J", 1, 0))
    return now


def kept(world: OrdersWorld) -> RankFact:
    """The end, once it is kept."""
    world.server.broken.clear()
    world.thread.run(("progress",), world.jobs.publish_forever)
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    return fact


def test_an_end_that_was_seen_before_an_eviction_keeps_its_exit_status_even_if_it_is_kept_later(
    world: OrdersWorld, unkept: str
) -> None:
    evicted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": unkept}
    ended = {"terminated": ENDED | {"finishedAt": unkept}}
    world.see("gq-j-1-0", "Succeeded", ended, conditions=[evicted | {"reason": "EvictionByEvictionAPI"}])
    fact = kept(world)
    assert (fact.exit_status, fact.why_lost) == (0, None)


@pytest.mark.usefixtures("unkept")
def test_an_end_that_was_seen_before_a_stop_order_is_no_pause_even_if_it_is_kept_later(world: OrdersWorld) -> None:
    world.jobs.stop(stop("J"))
    until(lambda: world.jobs.stop_ordered_at("J", 1))
    fact = kept(world)
    assert (fact.exit_status, fact.pause_requested) == (0, False)


def test_a_rank_that_kubelets_refuse_for_a_sysctl_again_and_again_is_refused(
    world: OrdersWorld, tmp_path: Path
) -> None:
    why = "SysctlForbidden: Pod was rejected: forbidden sysctl"
    before = {"ended_at": AT_10_00 - 40_000, "exit_status": None, "why_lost": why}
    JobVolume(str(tmp_path)).record_end({"job": "J", "attempt": 1, "rank": 0, **before}, b"")
    world.jobs.start(order("J", "runs on", attempt=2))
    until(lambda: world.server.of("pods"))
    reason, _, message = why.partition(": ")
    world.see("gq-j-2-0", "Failed", {}, reason=reason, message=message, containerStatuses=[])
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert (fact.refused, fact.why_lost) == (why, None)


@pytest.mark.parametrize(
    ("answer", "is_ordered"),
    [
        pytest.param(failure(409, "the object has been modified"), False, id="the pod changed meanwhile"),
        pytest.param(NotFound(404, "no such pod"), True, id="the pod is gone"),
    ],
)
def test_a_stop_is_ordered_when_no_pod_needs_a_deletion_any_more(
    world: OrdersWorld, answer: RequestFailed, is_ordered: bool
) -> None:
    world.jobs.start(order("J", "runs on", ranks=2))
    until(lambda: len(world.server.of("pods")) == 2 and world.ended("start", "J", 1))
    world.server.why = answer
    world.server.broken.add("/pods/gq-j-1-1")
    world.jobs.stop(stop("J", ranks=2))
    until(lambda: world.server.failed and world.ended("stop", "J", 1))
    assert (world.jobs.stop_ordered_at("J", 1) is not None) == is_ordered
    world.server.broken.clear()
    world.jobs.stop(stop("J", ranks=2))
    until(lambda: world.jobs.stop_ordered_at("J", 1), what=lambda: world.server.objects)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["it ended by itself", "it obeyed a pause"])
def test_a_container_beside_the_job_has_a_short_grace_when_the_job_has_ended(
    world: OrdersWorld, is_stopped: bool
) -> None:
    world.open(world.server.later)
    world.jobs.start(order("J", "runs on", grace_s=600))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    states = {"job": {"terminated": ENDED}, "proxy": {"running": {"startedAt": ENDED["startedAt"]}}}
    running = [{"name": name, "state": states["proxy"]} for name in states]
    world.see("gq-j-1-0", "Running", {}, containerStatuses=running)
    if is_stopped:
        world.jobs.stop(stop("J", grace_s=600))
        until(lambda: world.jobs.stop_ordered_at("J", 1))
    ended = [{"name": name, "state": state} for name, state in states.items()]
    world.see("gq-j-1-0", "Running", {}, containerStatuses=ended)
    until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    world.jobs.settled("J", 1)
    until(lambda: world.ended("settled", "J", 1) and not world.server.of("configmaps"))
    assert world.server.of("pods")["gq-j-1-0"]["metadata"]["deletionGracePeriodSeconds"] == 5
