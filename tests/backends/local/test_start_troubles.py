"""A start that fails again and again: its cause is the trouble of the ranks that have not begun."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.local.jobs import prefork
from jupyter_gpu_quota.backends.local.jobs.rank_enforcement import RankSettings
from jupyter_gpu_quota.backends.protocol import StartOrder
from jupyter_gpu_quota.core.facts import RankFact
from tests.backends.worlds import LocalWorld, order, stop
from tests.patience import until


def start(world: LocalWorld, *, ranks: int = 1) -> list[RankFact]:
    """Order a start as the controllers do every few seconds. Returns the facts once it was carried out, or failed."""
    world.executor.start(order("J", "runs on", ranks=ranks))
    until(lambda: not world.executor._background._busy)
    return list(world.executor.observe())


def begins(world: LocalWorld) -> RankFact:
    """Repeat the order until the rank has begun."""
    return until(lambda: [fact for fact in start(world) if fact.handle is not None])[0]


def test_the_cause_is_reported_until_the_rank_begins(world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(prefork, "SCRIPT", world.state_dir / "no-such-script")
        for _ in range(2):
            (fact,) = start(world)
            assert fact.trouble == "the supervisor of job J ended with 2 before it started"
            assert (fact.handle, fact.started_at, fact.ended_at, fact.tree_gone) == (None, None, None, False)
    assert begins(world).trouble is None


def test_a_supervisor_that_records_no_start_is_reported(
    world: LocalWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends.py").write_text("")
    with monkeypatch.context() as broken:
        broken.setattr(prefork, "SCRIPT", tmp_path / "ends.py")
        assert start(world) == [], "it may record its start a moment later"
        (fact,) = start(world)
        control = rank_paths(str(world.state_dir), "J", 1, 0).control
        assert fact.trouble and f"supervisor.log in {control} may have the cause" in fact.trouble
    assert begins(world).trouble is None


def test_the_ranks_of_a_gang_that_began_have_no_trouble(world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = world.executor._enforcement.prepare

    def fails(order: StartOrder, rank: int) -> RankSettings:
        if rank == 1:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return prepare(order, rank)

    monkeypatch.setattr(world.executor._enforcement, "prepare", fails)
    start(world, ranks=3)
    world.until(lambda fact: fact.rank == 0 and fact.handle is not None)
    troubles = {fact.rank: fact.trouble for fact in world.executor.observe()}
    assert troubles == {0: None, 1: "[Errno 12] Cannot allocate memory", 2: "[Errno 12] Cannot allocate memory"}
    world.executor.stop(stop("J", ranks=3))
    until(lambda: all(fact.tree_gone and fact.trouble is None for fact in world.executor.observe()))


@pytest.mark.parametrize("end", ["it is stopped", "another leader"])
def test_a_trouble_ends_with_its_attempt(world: LocalWorld, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(prefork, "SCRIPT", world.state_dir / "no-such-script")
    assert start(world)
    if end == "another leader":
        world.executor.fence(2)
    else:
        world.executor.stop(stop("J"))
        world.until(lambda fact: fact.tree_gone and fact.trouble is None)
        world.executor.settled("J", 1)
    assert list(world.executor.observe()) == []
