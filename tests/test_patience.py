"""Waits and measurements of the tests on a machine that pauses."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import patience
from tests.patience import Stopwatch, cpu_s, stays, until, until_in_loop

ROOT = Path(__file__).resolve().parents[1]
STANDS_STILL_S = 1.5


class Clock:
    """A clock that advances with each pause, and by a step of the test with each reading."""

    def __init__(self) -> None:
        self.now, self.paused = 1000.0, 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.paused += 1
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(patience, "time", made)
    return made


def after(turns: int) -> Callable[[], int]:
    """A question that is answered with 0 so often, and then with 7."""
    answers = itertools.chain(itertools.repeat(0, turns), itertools.repeat(7))
    return lambda: next(answers)


def test_the_first_true_answer_is_returned_at_once(clock: Clock) -> None:
    assert until(after(0)) == 7 and clock.paused == 0
    assert until(after(5)) == 7 and clock.paused == 5


def test_a_wait_ends_after_its_time(clock: Clock) -> None:
    begun = clock.now
    with pytest.raises(AssertionError, match="in 2 s in which this process ran there was never a job that runs"):
        until(lambda: None, 2, "a job that runs")
    assert clock.now - begun == pytest.approx(2, abs=0.05)


def test_a_failure_shows_the_last_state(clock: Clock) -> None:
    def wrong() -> None:
        asked.append(1)
        clock.sleep(1)

    asked: list[int] = []
    with pytest.raises(AssertionError, match="never it, but 3 answers were wrong"):
        until(wrong, 3, lambda: f"{len(asked)} answers were wrong")


def test_a_pause_of_the_machine_counts_for_a_second_at_most(clock: Clock) -> None:
    def stands_still() -> bool:
        clock.now += 3600
        turns.append(clock.now)
        return len(turns) > 29

    turns: list[float] = []
    assert until(stands_still, 30)
    turns.clear()
    with pytest.raises(AssertionError, match="in 29 s"):
        until(stands_still, 29)


async def test_the_wait_in_an_event_loop_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await until_in_loop(after(3)) == 7
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)

    def stands_still() -> None:
        clock.now += 3600

    with pytest.raises(AssertionError, match="there was never an answer"):
        await until_in_loop(stands_still, 10, "an answer")
    assert clock.now == 1000 + 10 * 3600


def test_a_condition_that_must_stay_true_is_checked_all_the_time() -> None:
    looks, begun = itertools.count(1), time.monotonic()
    assert stays(lambda: next(looks), 0.2)
    assert time.monotonic() - begun >= 0.2 and next(looks) > 3
    assert not stays(lambda: False, 60)


def test_a_stopwatch_counts_running_time_only() -> None:
    begun = time.monotonic()
    with Stopwatch() as watch:
        until(lambda: watch.seconds >= 0.3)
    passed_s, counted_s = time.monotonic() - begun, watch.seconds
    assert 0.3 <= counted_s <= passed_s
    until(lambda: time.monotonic() - begun > passed_s + 0.1)
    assert watch.seconds == counted_s
    assert not any(thread.name == "stopwatch" for thread in threading.enumerate())


COUNTS = """
import sys, time
from tests.patience import Stopwatch, until
began = time.monotonic()
with Stopwatch() as watch:
    print("ready", flush=True)
    until(lambda: time.monotonic() - began > float(sys.argv[1]), 1.2)
print(watch.seconds, watch.lost_s, time.monotonic() - began)
"""


@pytest.fixture
def counting() -> Iterator[subprocess.Popen[str]]:
    """A process that measures, and waits with a patience of 1.2 s until more than that has passed."""
    command = [sys.executable, "-c", COUNTS, str(STANDS_STILL_S)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_time_of_a_stopped_process_is_not_counted(counting: subprocess.Popen[str]) -> None:
    assert counting.stdout is not None and counting.stdout.readline() == "ready\n"
    os.kill(counting.pid, signal.SIGSTOP)
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > STANDS_STILL_S)
    os.kill(counting.pid, signal.SIGCONT)
    counted_s, lost_s, passed_s = map(float, counting.stdout.readline().split())
    assert counted_s <= passed_s - STANDS_STILL_S + 0.1
    assert lost_s >= STANDS_STILL_S - 0.1


def test_hypothesis_examples_have_no_deadline() -> None:
    assert settings().deadline is None and HealthCheck.too_slow in settings().suppress_health_check


def test_a_bound_of_cpu_time_is_longer_on_a_slower_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(step=0.3)
    monkeypatch.setattr(patience.time, "process_time", lambda: next(times))
    assert cpu_s(2) == pytest.approx(20)
    monkeypatch.setattr(patience.time, "process_time", lambda: 1.0)
    assert cpu_s(2) == 2, "and never shorter"
