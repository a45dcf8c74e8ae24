"""How attempts end and are stopped, by an API server in memory: what others do to their pods meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.kubernetes.test_orders import OrdersWorld
from tests.backends.worlds import order
from tests.patience import until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OrdersWorld]:
    made = OrdersWorld(tmp_path)
    yield made
    made.close()


def test_an_end_that_was_seen_before_an_eviction_keeps_its_exit_status_even_if_it_is_kept_later(
    world: OrdersWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpu_quota.backends.kubernetes.jobs.jobs.PUBLISH_EVERY_S", 0.01)
    world.jobs.start(order("J", "runs on"))
    until(lambda: world.server.of("pods") and world.ended("start", "J", 1))
    world.server.broken.add("gq-j-1-0/log")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ended = {"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now}}
    world.see("gq-j-1-0", "Succeeded", ended)
    until(lambda: world.server.failed and world.ended("keep end", "J", 1, 0))
    evicted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now}
    world.see("gq-j-1-0", "Succeeded", ended, conditions=[evicted | {"reason": "EvictionByEvictionAPI"}])
    world.server.broken.clear()
    world.thread.run(("progress",), world.jobs.publish_forever)
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert (fact.exit_status, fact.why_lost) == (0, None)
