"""A failure of the volume that may pass fails no job: its attempt is lost, and the next one starts after a pause."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.lost_starts import MOST_LOST, TEMPORARY
from jupyter_gpu_quota.backends.job_files.paths import bundle_file
from jupyter_gpu_quota.backends.kubernetes.client.api_server import failure
from jupyter_gpu_quota.backends.kubernetes.jobs.volume import NOT_PREPARED, JobVolume
from jupyter_gpu_quota.core.facts import RankFact
from tests.backends.kubernetes.test_orders import FORBIDDEN, OrdersWorld
from tests.backends.worlds import order
from tests.patience import until

BUNDLE = "0" * 64
LOST = f"{NOT_PREPARED}: its folders cannot be made: "


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OrdersWorld]:
    made = OrdersWorld(tmp_path)
    yield made
    made.close()


def lost(folder: Path, attempt: int, why: str = LOST, **more: Any) -> None:
    """Record an attempt that was lost long ago."""
    status = {"job": "J", "attempt": attempt, "rank": 0, "tree_gone": True, "exit_status": None}
    JobVolume(str(folder)).record_end({**status, "ended_at": 1, "why_lost": why, **more}, None)


def fail_to_prepare(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fails(*given: object) -> None:
        raise OSError(number, os.strerror(number), "/volume")

    monkeypatch.setattr(JobVolume, "prepare", fails)


def end_of(world: OrdersWorld, **given: Any) -> RankFact:
    """How the only rank of a job ends without a pod."""
    world.jobs.start(order("J", "runs on", **given))
    (fact,) = until(lambda: [fact for fact in world.jobs.observe() if fact.tree_gone])
    assert not world.server.of("pods")
    return fact


def test_an_attempt_whose_code_the_volume_does_not_return_is_lost_and_the_next_starts_after_a_pause(
    world: OrdersWorld, tmp_path: Path
) -> None:
    bundle = Path(bundle_file(str(tmp_path / "bundles"), BUNDLE))
    bundle.parent.mkdir(parents=True)
    bundle.symlink_to("/proc/self/mem")  # it can be opened, and a read fails with EIO
    fact = end_of(world, bundle=BUNDLE)
    assert (fact.refused, fact.exit_status, fact.ended_at is None) == (None, None, False)
    assert fact.why_lost and fact.why_lost.startswith(LOST) and "Input/output error" in fact.why_lost

    world.jobs.start(order("J", "runs on", attempt=2))
    until(lambda: world.ended("start", "J", 2))
    assert not world.record("gq-j-2") and not world.server.of("pods"), "the pause after the loss is not over"
    lost(tmp_path, 1)
    world.jobs.start(order("J", "runs on", attempt=2))
    until(lambda: "gq-j-2-0" in world.server.of("pods"))


def test_an_attempt_whose_bundle_is_gone_is_lost(world: OrdersWorld) -> None:
    """The controllers hold its job before the next attempt."""
    fact = end_of(world, bundle=BUNDLE)
    assert fact.refused is None and fact.why_lost and "No such file or directory" in fact.why_lost


@pytest.mark.parametrize("number", [*sorted(TEMPORARY), errno.EACCES, errno.ENOENT, errno.ENOTDIR])
def test_only_failures_that_may_pass_are_losses(
    world: OrdersWorld, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fail_to_prepare(monkeypatch, number)
    fact = end_of(world)
    why, other = (fact.why_lost, fact.refused) if number in TEMPORARY else (fact.refused, fact.why_lost)
    assert why and os.strerror(number) in why and other is None


@pytest.mark.parametrize("losses", [MOST_LOST - 1, MOST_LOST])
def test_a_failure_that_does_not_pass_fails_the_job_in_the_end(
    world: OrdersWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """Otherwise the job would hold its devices, and start no pod, for ever. Other losses do not count."""
    lost(tmp_path, 1, why="NodeLost: its node is gone", pid=1)
    for attempt in range(2, losses + 2):
        lost(tmp_path, attempt)
    fail_to_prepare(monkeypatch, errno.EIO)
    fact = end_of(world, attempt=losses + 2)
    assert (fact.refused is not None, fact.why_lost is not None) == (losses == MOST_LOST, losses < MOST_LOST)


def test_an_attempt_starts_at_once_after_one_that_was_lost_with_its_node(world: OrdersWorld, tmp_path: Path) -> None:
    lost(tmp_path, 1, why="NodeLost: its node is gone", pid=1, ended_at=time.time_ns() // 1_000_000)
    world.jobs.start(order("J", "runs on", attempt=2))
    until(lambda: world.server.of("pods"))


def test_a_rank_that_was_forbidden_before_the_volume_failed_is_lost(
    world: OrdersWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server.why = failure(403, FORBIDDEN + "not yet ready to handle request")
    world.server.broken.add("/pods/gq-j-1-0")
    world.jobs.start(order("J", "runs on"))
    until(lambda: [fact for fact in world.jobs.observe() if fact.trouble])
    until(lambda: world.ended("start", "J", 1))
    fail_to_prepare(monkeypatch, errno.ESTALE)
    assert end_of(world).why_lost
