"""A failure of the machine that may pass, such as a full disk, fails no job: its rank is lost, and started later."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.job_code import has_code
from jupyter_gpu_quota.backends.job_files.lost_starts import MOST_LOST, TEMPORARY, may_start
from jupyter_gpu_quota.backends.job_files.paths import bundle_file, rank_paths
from jupyter_gpu_quota.backends.job_files.record_files import write_record
from jupyter_gpu_quota.backends.local.jobs import supervisor
from jupyter_gpu_quota.backends.local.jobs.executor import make_control, make_layout
from jupyter_gpu_quota.backends.local.jobs.supervisor import Supervisor
from tests.backends.worlds import LocalWorld, is_root, order, shell
from tests.patience import until

BUNDLE = "0" * 64
NOW = 1_000_000_000


def lost(state_dir: Path, attempt: int, ended_at: int = 1) -> None:
    """Record an attempt that was lost before its command ran."""
    paths = rank_paths(str(state_dir), "J", attempt, 0)
    make_control(paths)
    status = {"job": "J", "attempt": attempt, "rank": 0, "claimed_at": 1, "tree_gone": True, "why_lost": "full"}
    write_record(paths.status, {**status, "ended_at": ended_at}, durable=False)


def began(state_dir: Path, attempt: int) -> None:
    """Record an attempt whose command ran."""
    paths = rank_paths(str(state_dir), "J", attempt, 0)
    make_control(paths)
    status = {"job": "J", "attempt": attempt, "rank": 0, "claimed_at": 1, "pid": 1, "tree_gone": True, "ended_at": 1}
    write_record(paths.status, status, durable=False)


def test_a_rank_whose_code_the_disk_does_not_return_is_lost_and_starts_again_after_a_pause(world: LocalWorld) -> None:
    bundle = Path(bundle_file(world.executor.bundles_dir, BUNDLE))
    bundle.parent.mkdir(parents=True)
    bundle.symlink_to("/proc/self/mem")  # it can be opened, and a read fails with EIO
    world.executor.start(shell("J", "exit 0", bundle=BUNDLE))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.refused, fact.ended_at is None) == (None, None, False)
    assert fact.why_lost and "Input/output error" in fact.why_lost and fact.why_lost in world.log("J")

    world.executor.start(shell("J", "exit 0", attempt=2))
    until(lambda: not world.executor._background._busy)
    status = Path(rank_paths(str(world.state_dir), "J", 2, 0).status)
    assert not status.exists(), "the pause after the loss is not over"
    lost(world.state_dir, 1)
    world.executor.start(shell("J", "exit 0", attempt=2))
    assert world.until(lambda fact: fact.attempt == 2 and fact.tree_gone).exit_status == 0


def test_a_rank_whose_bundle_is_gone_is_lost(world: LocalWorld) -> None:
    """The controllers hold its job before the next attempt."""
    world.executor.start(shell("J", "exit 0", bundle=BUNDLE))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.refused) == (None, None)
    assert fact.why_lost == "its code bundle cannot be read: No such file or directory"


def test_a_job_has_code_while_its_bundle_or_what_it_unpacked_is_there(world: LocalWorld) -> None:
    found = world.executor.has_code
    assert not found("J", BUNDLE)
    bundle = Path(bundle_file(world.executor.bundles_dir, BUNDLE))
    bundle.parent.mkdir(parents=True)
    bundle.touch()
    assert found("J", BUNDLE)
    bundle.unlink()
    bundle.parent.rmdir()
    bundle.parent.touch()
    assert not found("J", BUNDLE)
    Path(rank_paths(str(world.state_dir), "J", 1, 0).code).mkdir(parents=True)
    assert found("J", BUNDLE) and not found("K", BUNDLE)


def test_code_that_cannot_be_looked_for_counts_as_there(tmp_path: Path) -> None:
    too_long = str(tmp_path / ("x" * 300))
    assert has_code(too_long, too_long, "J", BUNDLE)


def prepared(state_dir: Path, attempt: int = 1) -> Supervisor:
    """A supervisor of a rank that has not begun."""
    world, paths = LocalWorld(state_dir), rank_paths(str(state_dir), "J", attempt, 0)
    make_control(paths)
    found = Supervisor(world.executor._rank_order(shell("J", "", attempt=attempt), 0, paths, None), paths, None)
    world.executor.close()
    return found


def fail_to_prepare(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(number, os.strerror(number), "/var/lib/jobs")

    monkeypatch.setattr(supervisor, "prepare_directories", fails)


@pytest.mark.parametrize("number", [*sorted(TEMPORARY), errno.EACCES, errno.ENOENT, errno.ENOTDIR])
def test_only_failures_that_may_pass_are_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    rank = prepared(tmp_path)
    fail_to_prepare(monkeypatch, number)
    rank.run()
    status = json.loads(Path(rank.paths.status).read_text())
    why, other = ("why_lost", "refused") if number in TEMPORARY else ("refused", "why_lost")
    assert os.strerror(number) in status[why] and other not in status
    assert (status["exit_status"], status["tree_gone"]) == (None if number in TEMPORARY else 126, True)


def test_a_loss_that_a_full_disk_does_not_take_is_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, writes = prepared(tmp_path), list[bool]()
    fail_to_prepare(monkeypatch, errno.ENOSPC)
    monkeypatch.setattr(supervisor, "SAVE_AGAIN_S", 0.0)

    def full_at_first(path: str, record: dict[str, Any]) -> None:
        writes.append("why_lost" in record)
        if writes.count(True) in (1, 2):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write_record(path, record)

    monkeypatch.setattr(supervisor, "write_record", full_at_first)
    rank.run()
    assert "No space left" in json.loads(Path(rank.paths.status).read_text())["why_lost"]
    assert writes == [False, True, True, True]


@pytest.mark.skipif(not is_root(), reason="another account needs root")
@pytest.mark.parametrize("losses", [0, MOST_LOST])
def test_a_missing_account_is_refused_after_several_attempts(world: LocalWorld, losses: int) -> None:
    for attempt in range(1, losses + 1):
        lost(world.state_dir, attempt)
    world.executor.start(order("J", "ends with 0", run_as="no-such-account", attempt=losses + 1))
    fact = world.until(lambda fact: fact.attempt == losses + 1 and fact.tree_gone)
    why = fact.refused if losses else fact.why_lost
    assert fact.handle is None and fact.exit_status == (126 if losses else None)
    assert why and "no account 'no-such-account'" in why and why in world.log("J", losses + 1)


@pytest.mark.parametrize("losses", [MOST_LOST - 1, MOST_LOST])
def test_a_failure_that_does_not_pass_fails_the_job_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """Otherwise the job would hold its devices, and start no command, for ever."""
    rank = prepared(tmp_path, attempt=losses + 1)
    for attempt in range(1, losses + 1):
        lost(tmp_path, attempt)
    fail_to_prepare(monkeypatch, errno.EIO)
    rank.run()
    status = json.loads(Path(rank.paths.status).read_text())
    assert status["exit_status"] == (126 if losses == MOST_LOST else None)
    assert ("refused" in status) == (losses == MOST_LOST)


@pytest.mark.parametrize(("losses", "pause_s"), [(0, 0), (1, 15), (2, 30), (3, 60), (4, 120), (9, 120)])
def test_each_loss_doubles_the_pause_before_the_next_attempt(tmp_path: Path, losses: int, pause_s: int) -> None:
    make_layout(str(tmp_path))
    for attempt in range(2, losses + 2):
        lost(tmp_path, attempt, NOW - 1000 * (losses + 1 - attempt))
    state_dir, after = str(tmp_path), losses + 2
    assert may_start(state_dir, "J", after, NOW + 1000 * pause_s)
    assert may_start(state_dir, "J", after, NOW + 1000 * pause_s - 1) is (losses == 0)
    assert may_start(state_dir, "J", after, NOW - 1), "the clock was set back"
    assert may_start(state_dir, "J", after + 1, NOW) is (losses == 0), "the attempt between did not begin"
    began(tmp_path, after)
    assert may_start(state_dir, "J", after + 1, NOW), "another attempt ended otherwise"
