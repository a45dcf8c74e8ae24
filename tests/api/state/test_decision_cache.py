"""What is computed from the view of the store, for many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.state.decision_cache import DecisionCache
from jupyter_gpu_quota.store.memory import MemoryStore
from tests.api.world import ServiceWorld, service_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path, store=MemoryStore()) as made:
        yield made


async def _computed(world: ServiceWorld, ask: Callable[[DecisionCache], Any], times: int = 10) -> tuple[int, float]:
    """How often it is computed for requests at once, and how long before its end the result is dated, in seconds."""
    view, calls, may_end = world.services.store_view, list[str](), asyncio.Event()
    await view.refresh()
    cache, computes = DecisionCache(view), (view.compute, view.compute_slow)

    def held(compute: Any) -> Any:
        async def computing(question: Any, *args: Any) -> Any:
            calls.append(question.__name__)
            await may_end.wait()
            return await compute(question, *args)

        return computing

    view.compute, view.compute_slow = map(held, computes)  # type: ignore[method-assign]
    try:
        asked = [asyncio.ensure_future(ask(cache)) for _ in range(times)]
        while not calls:
            await asyncio.sleep(0)
        ended_at = asyncio.get_running_loop().time()
        may_end.set()
        await asyncio.gather(*asked)
    finally:
        view.compute, view.compute_slow = computes  # type: ignore[method-assign]
    dated = [cache._shares[1]] if cache._shares else [each[1] for each in cache._explained.values()]
    return len(calls), ended_at - dated[0]


@pytest.mark.parametrize("what", ["shares", "explanation"])
def test_requests_at_once_share_one_computation_which_is_dated_at_its_end(world: ServiceWorld, what: str) -> None:
    job, quota = world.submit()["id"], world.services.store_view.quota
    assert quota is not None
    ask = {"shares": DecisionCache.shares, "explanation": lambda cache: cache.explain(job, quota.policy)}[what]
    calls, before_end_s = world.run(_computed(world, ask))
    assert calls == 1
    assert before_end_s <= 0
