"""The stored reason of a job that has ended: how it ended, and never why it was started or paused earlier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.job_ends import (
    CommandFailed,
    CommandKilled,
    CommandNotStarted,
    EndCause,
    OutOfMemory,
    SupervisorLost,
)
from jupyter_gpu_quota.core.model import JobTarget
from jupyter_gpu_quota.core.plan import Stop
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reasons import (
    CancelledByUser,
    DeviceUnhealthy,
    HeldByUser,
    RankFailed,
    Reason,
    TimeLimit,
)
from jupyter_gpu_quota.store.records.commands import ChangeJob
from tests.store.worlds import NODE, T0, World, opened


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path) as store:
        yield World(store)


LIMIT = TimeLimit(ran_s=60, time_limit_s=60, grace_s=5)
STOPS: dict[JobTarget, Reason] = {
    JobTarget.FAILED: LIMIT,
    JobTarget.HELD: HeldByUser(user="bob", grace_s=60),
    JobTarget.CANCELLED: CancelledByUser(user="bob", grace_s=60),
}


def stop(world: World, target: JobTarget, reason: Reason | None = None) -> None:
    """Commit a stop with the reason that the core gives, which does not know who held or cancelled."""
    world.committed(Stop(workload="j", target=target, grace_s=60, reason=reason or STOPS[target]))


def reason_code(world: World) -> str | None:
    reason = world.job("j").reason
    return None if reason is None else str(reason.code)


def test_a_failed_job_has_its_node_and_exit_status(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.see(world.gone("j", 3))
    assert world.job("j").reason == CommandFailed(exit_status=3, node=NODE.id)


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        pytest.param({"exit_status": -9}, CommandKilled(exit_status=-9, node=NODE.id), id="killed"),
        pytest.param(
            {"exit_status": 1, "cause": EndCause.OUT_OF_MEMORY},
            OutOfMemory(exit_status=1, node=NODE.id),
            id="out of memory",
        ),
        pytest.param(
            {"exit_status": -9, "cause": EndCause.SUPERVISOR_LOST}, SupervisorLost(node=NODE.id), id="lost supervisor"
        ),
        pytest.param(
            {"exit_status": 126, "handle": None, "started_at": None, "refused": "there is no account"},
            CommandNotStarted(trouble="there is no account", node=NODE.id),
            id="not started",
        ),
    ],
)
def test_the_evidence_of_the_supervisor_decides_the_reason(
    world: World, fact: dict[str, object], expected: Reason
) -> None:
    world.submit("j")
    world.start("j", "d0")
    world.see(replace(world.gone("j", 0), **fact))
    assert world.job("j").reason == expected


def test_the_cause_outlives_the_wait_for_the_last_process(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    ended = replace(world.gone("j", 1), cause=EndCause.OUT_OF_MEMORY, tree_gone=False)
    world.see(ended)
    world.see(replace(ended, cause=None, tree_gone=True))
    assert world.job("j").reason == OutOfMemory(exit_status=1, node=NODE.id)


def test_a_failure_while_pausing_is_not_described_by_the_pause(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.pause("j")
    world.see(world.gone("j", 3, asked=True))
    assert world.state("j") == "failed -> paused"
    assert world.job("j").reason == CommandFailed(exit_status=3, node=NODE.id, was="pausing")


def test_a_job_that_completes_after_a_pause_request_keeps_no_reason(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.pause("j")
    world.see(world.gone("j", 0, asked=True, completed=True))
    assert (world.state("j"), world.job("j").reason) == ("succeeded -> paused", None)


def test_a_paused_job_keeps_the_reason_of_its_pause(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    world.pause("j")
    world.see(world.gone("j", 75, asked=True))
    assert (world.state("j"), reason_code(world)) == ("paused -> running", "reclaimed")


def test_the_time_limit_stays_the_reason(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    stop(world, JobTarget.FAILED)
    world.see(world.gone("j", -15, asked=True))
    assert world.job("j").reason == LIMIT


def test_a_job_that_fails_before_the_stop_at_its_time_limit_has_its_own_failure(world: World) -> None:
    world.submit("j")
    world.run("j", "d0")
    stop(world, JobTarget.FAILED)
    world.see(world.gone("j", 3))
    assert world.job("j").reason == CommandFailed(exit_status=3, node=NODE.id)


# --- gangs ------------------------------------------------------------------------------------------------------------
def gang(world: World, **more: object) -> None:
    world.submit("j", ranks=3, **more)
    world.run("j", "d0", "d1", "d2")


def test_a_failed_gang_names_the_first_rank_that_failed_and_its_cause(world: World) -> None:
    gang(world)
    first = replace(world.gone("j", -9, rank=1), ended_at=T0 + 100, cause=EndCause.OUT_OF_MEMORY)
    late = replace(world.gone("j", 1, rank=0), ended_at=T0 + 200)
    world.see(late, first, world.fact("j", rank=2))
    expected = OutOfMemory(exit_status=-9, rank=1, ranks=3, node=NODE.id)
    assert (world.state("j"), world.job("j").reason) == ("running -> failed", expected)
    stop(world, JobTarget.FAILED, RankFailed(user="bob", grace_s=60))
    assert world.job("j").reason == expected, "the plan knows less"
    world.see(world.gone("j", -15, rank=2, asked=True))
    assert (world.state("j"), world.job("j").reason) == ("failed -> failed", expected)


def test_a_gang_that_is_tried_again_keeps_no_reason(world: World) -> None:
    gang(world, retries=1)
    world.see(world.gone("j", 1, rank=1), world.fact("j", rank=0))
    assert reason_code(world) == ReasonCode.COMMAND_FAILED
    stop(world, JobTarget.FAILED, RankFailed(user="bob", grace_s=60))
    world.see(world.gone("j", -15, rank=0, asked=True), world.gone("j", -15, rank=2, asked=True))
    assert (world.state("j"), world.job("j").reason) == ("queued -> running", None)


def test_a_failed_rank_of_a_gang_that_leaves_an_unhealthy_device_uses_no_retry(world: World) -> None:
    gang(world, retries=1)
    why = DeviceUnhealthy(device="d0", pool="train", node="n1", kind="preemptible job", trouble="XID 79")
    stop(world, JobTarget.PAUSED, why)
    world.see(*(world.gone("j", 1, rank=rank) for rank in range(3)))
    assert (world.state("j"), world.job("j").retries_left) == ("queued -> running", 1)


# --- by whom ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "target", "kind"),
    [
        pytest.param("hold", JobTarget.HELD, HeldByUser, id="held"),
        pytest.param("cancel", JobTarget.CANCELLED, CancelledByUser, id="cancelled"),
    ],
)
@pytest.mark.parametrize("runs", [False, True], ids=["waiting", "running"])
def test_a_held_or_cancelled_job_knows_by_whom(
    world: World, change: str, target: JobTarget, kind: type[HeldByUser | CancelledByUser], runs: bool
) -> None:
    world.submit("j")
    if runs:
        world.run("j", "d0")
    world.record(ChangeJob(job="j", actor="lea", change=change))
    assert world.job("j").reason == kind(by="lea")
    if runs:
        stop(world, target)
        assert world.job("j").reason == kind(by="lea", user="bob", grace_s=60)
        world.see(world.gone("j", -15, asked=True))
    assert world.state("j") == f"{target} -> {target}"
    reason = world.job("j").reason
    assert isinstance(reason, kind) and reason.by == "lea"
    assert set(world.job("j").people) == {"bob", "lea"}
