"""A driver that does not answer: it delays no end of a rank, and few starts wait for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, job_cgroup
from jupyter_gpu_quota.backends.local.enforcement.limiter import RETRY_AFTER_S, SLOW_S, Limiter
from jupyter_gpu_quota.backends.local.enforcement.limits_client import LimitAnswer, LimitRequest
from jupyter_gpu_quota.backends.local.jobs.executor import WORKERS
from jupyter_gpu_quota.backends.local.jobs.rank_enforcement import RankSettings
from jupyter_gpu_quota.backends.protocol import StartOrder
from jupyter_gpu_quota.core.enforcement.levels import DeviceShare
from jupyter_gpu_quota.core.facts import RankFact
from tests.backends.worlds import LocalWorld, order, passable_folder, stop
from tests.patience import PATIENCE_S, until

HALF = DeviceShare(workload="J", device="GPU-0", gpu_milli=500, memory_mib=4000)


def test_stops_and_lost_supervisors_wait_for_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, waiting = threading.Event(), list[str]()

    def silent(order: StartOrder, rank: int) -> RankSettings:
        waiting.append(order.job)
        answered.wait(PATIENCE_S)
        return RankSettings()

    with passable_folder() as state_dir:
        world = LocalWorld(state_dir)
        for job in ("STOPPED", "LOST"):
            world.executor.start(order(job, "runs on"))
            world.ready(job, "runs on")
        monkeypatch.setattr(world.executor._enforcement, "prepare", silent)
        for number in range(2 * WORKERS):
            world.executor.start(order(f"J{number}", "ends with 0"))
        until(lambda: len(waiting) == WORKERS)
        try:
            world.executor.stop(stop("STOPPED"))
            os.kill(world.supervisor("LOST"), signal.SIGKILL)
            for job, status in (("STOPPED", -signal.SIGTERM), ("LOST", -signal.SIGKILL)):
                assert ended(world, job).exit_status == status
            assert len(waiting) == WORKERS
        finally:
            answered.set()
            until(lambda: not world.executor._background._busy)
            world.close()


def ended(world: LocalWorld, job: str) -> RankFact:
    return world.until(lambda fact: fact.job == job and fact.tree_gone)


class Driver:
    """A driver that answers when a test says so, and the requests that it has."""

    def __init__(self) -> None:
        self.now, self.asked, self.answers = 0.0, list[LimitRequest](), threading.Semaphore(0)
        self.answer = LimitAnswer(why="the driver's library does not answer")
        self.callers = set[int]()

    def clock(self) -> float:
        """Each caller looks at it before it asks or waits."""
        self.callers.add(threading.get_ident())
        return self.now

    def __call__(self, requests: Sequence[LimitRequest]) -> list[LimitAnswer]:
        self.asked.extend(requests)
        assert self.answers.acquire(timeout=PATIENCE_S)
        return [self.answer] * len(requests)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def limiter(tmp_path: Path, driver: Driver) -> Limiter:
    return Limiter(Cgroups(tmp_path, tmp_path), driver, driver.clock)


def limit(limiter: Limiter, job: str) -> bool:
    return limiter.limit(job_cgroup(job, 1, 0), [HALF])


@pytest.fixture
def starts() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def test_after_a_refusal_one_start_asks_again_and_the_others_do_not_wait(
    driver: Driver, limiter: Limiter, starts: ThreadPoolExecutor
) -> None:
    driver.answers.release()
    assert not limit(limiter, "first")
    driver.now += RETRY_AFTER_S
    asking = starts.submit(limit, limiter, "second")
    until(lambda: len(driver.asked) == 2)
    others = [starts.submit(limit, limiter, f"other-{number}") for number in range(3)]
    try:
        assert [each.result(PATIENCE_S) for each in others] == [False] * 3
        driver.answer = LimitAnswer(limit_mib=4000, is_known=True)
    finally:
        driver.answers.release(5)
    assert asking.result(PATIENCE_S) and len(driver.asked) == 2
    assert limit(limiter, "third"), "the driver answers again"


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        pytest.param(LimitAnswer(limit_mib=4000, is_known=True), 4, id="it was slow: each gets its limit"),
        pytest.param(LimitAnswer(why="the driver's library does not answer"), 1, id="it hangs: no other asks"),
    ],
)
def test_starts_wait_for_the_answer_that_is_late(
    driver: Driver, limiter: Limiter, starts: ThreadPoolExecutor, answer: LimitAnswer, asked: int
) -> None:
    driver.answer = answer
    first = starts.submit(limit, limiter, "first")
    until(lambda: driver.asked)
    driver.now += SLOW_S + 1
    others = [starts.submit(limit, limiter, f"other-{number}") for number in range(3)]
    until(lambda: len(driver.callers) == 4)
    seen = len(driver.asked)
    driver.answers.release(4)
    assert [each.result(PATIENCE_S) for each in (first, *others)] == [answer.limit_mib is not None] * 4
    assert (seen, len(driver.asked)) == (1, asked)
