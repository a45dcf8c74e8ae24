"""The known cases of docs/scheduling.md that show only in time: work that is starved, or devices that stay idle."""

from __future__ import annotations

import dataclasses as dc

from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.reason_figures import figures_of
from jupyter_gpu_quota.core.scheduling.decide import decide_and_explain
from tests.traces.endless import Demand, Endless, endless

LONG_S = 600


def first_start_of(played: Endless, job: str, *, within_s: int = LONG_S) -> int | None:
    """Play until a job starts. Returns the second of the world, or None if it waits on."""
    for _ in range(within_s):
        played.step()
        if job in played.first_starts:
            return played.first_starts[job]
    return None


# R31
def test_own_small_jobs_do_not_enter_their_projects_reservation_and_no_device_is_idle_for_it() -> None:
    played = endless(
        "pool t 3\nhistory 0, half-life 400\na 1 of t, weight 0\nb 2 of t, weight 3\nc 0 of t",
        Demand("b", (1,), runs_s=19, queued=2),
        Demand("c", (1,), runs_s=23, queued=1),
    )
    for _ in range(30):
        played.step()
    large = played.made.submit("b", 2000, time_limit_s=60)
    held = _overtaken_by(played, large.id)
    assert held is not None and not {name for name in held if name.startswith("b")}, held
    assert played.longest_idle_s <= 19 + 19 // 4 + played.made.policy.preemption.grace_s


def _overtaken_by(played: Endless, job: str, *, within_s: int = LONG_S) -> set[str] | None:
    """The jobs that start on reserved devices after the first reservation for a job, until it starts; None if never."""
    found = set[str]()
    for _ in range(within_s):
        kept = {one.device for each in played.made.backfill if each.workload == job for one in each.placements}
        plan = played.step()
        if job in played.first_starts:
            return found
        for action in plan.actions:
            if type(action).__name__ in ("Start", "Resume") and not getattr(action, "borrower", False):
                found |= {action.workload for one in action.placements if one.device in kept}
    return None


# R29
def test_two_projects_with_jobs_as_large_as_the_pool_run_by_their_weights() -> None:
    played = endless(
        "pool t 2\nhistory 0, half-life 400\na 0 of t, weight 2\nb 0 of t", Demand("a", (2,)), Demand("b", (2,))
    )
    played.play(900, warm_up_s=100)
    assert 0.63 <= played.parts()["a"] <= 0.70
    assert played.longest_idle_s <= played.made.policy.preemption.grace_s


# R31
def test_a_borrower_of_the_reservation_leaves_before_the_planned_start() -> None:
    played = endless(
        "pool t 4\nhistory 0, half-life 400\na 2 of t\nb 0 of t, weight 2",
        Demand("a", (1, 2), runs_s=19, queued=2),
        Demand("b", (1,), runs_s=23, queued=2, limit_s=120),
    )
    seen = 0
    for _ in range(LONG_S):
        played.step()
        for kept in played.made.backfill:
            devices = {one.device for one in kept.placements}
            seen += len(_borrowers_on(played, devices))
            assert kept.starts_at is not None
            assert played.made.now < kept.starts_at or not _borrowers_on(played, devices), played.made.dump()
    assert seen, "no job ever borrowed reserved devices"


def _borrowers_on(played: Endless, devices: set[str]) -> list[str]:
    """The borrowers that run on these devices without a pause request."""
    jobs = (job for job in played.made.jobs.values() if job.borrower and job.state is JobState.RUNNING)
    return [job.id for job in jobs if any(one.device in devices for one in played.made.owned[job.id])]


# R32, R33
def test_large_jobs_of_a_small_weight_get_their_sixth_and_no_device_is_idle_for_long() -> None:
    demands = [Demand("a", (1,), runs_s=19), Demand("b", (1,), runs_s=17), Demand("c", (3,), runs_s=23)]
    played = endless("pool t 6\nhistory 0, half-life 400\na 0 of t, weight 3\nb 0 of t, weight 2\nc 0 of t", *demands)
    played.play(900, warm_up_s=200)
    parts = played.parts()
    assert abs(parts["a"] - 1 / 2) < 0.03 and abs(parts["b"] - 1 / 3) < 0.03 and abs(parts["c"] - 1 / 6) < 0.03, parts
    assert played.longest_idle_s <= max(demand.time_limit_s for demand in demands)


# R24
def test_a_job_beside_an_endless_stream_of_its_own_project_starts_by_its_patience() -> None:
    played = endless("pool t 2\na 2 of t", Demand("a", (1,), runs_s=19, queued=3))
    played.made.policy = dc.replace(played.made.policy, patience_s=120)
    played.play(30)
    large = played.made.submit("a", 2000, time_limit_s=60)
    asked = played.now_s
    started = first_start_of(played, large.id)
    limit = 19 + 19 // 4
    assert started is not None and started - asked <= 120 + 2 * limit + 2 * played.made.policy.preemption.grace_s


# R22, R30
def test_a_job_of_two_gpus_has_its_turn_beside_a_stream_of_another_project() -> None:
    played = endless("pool t 2\nhistory 0, half-life 400\na 0 of t\nb 0 of t", Demand("a", (1,), runs_s=19, queued=3))
    played.play(30)
    large = played.made.submit("b", 2000, time_limit_s=60)
    entered = _overtaken_by(played, large.id)
    limit = 19 + 19 // 4
    assert entered == set()
    assert played.first_starts[large.id] <= 30 + 2 * limit + 2 * played.made.policy.preemption.grace_s


# R27
def test_a_job_that_does_not_fit_beside_the_guarantees_has_no_reservation_and_no_device_is_idle_for_it() -> None:
    played = endless("pool t 2\np 1 of t\nq 1 of t", Demand("q", (1,), runs_s=19, queued=3))
    played.play(30)
    large = played.made.submit("p", 2000, time_limit_s=60)
    for _ in range(200):
        played.step()
        assert large.id not in {one.workload for one in played.made.backfill}
    assert large.id not in played.first_starts
    assert played.longest_idle_s <= 1
    decision = decide_and_explain(played.made.snapshot(), played.made.policy)
    assert figures_of(decision.waits[large.id])["others_milli"] == 1000
