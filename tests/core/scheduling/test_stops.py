"""Stops: a user stops a job, or it reaches its time limit."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import JobTarget
from jupyter_gpu_quota.core.plan import Stop
from jupyter_gpu_quota.core.recovery.differences import AttemptRecord, with_attempt
from tests.core.world import GENTLE, world


class TestStops:
    """Work that stops for good, or until it is released."""

    @pytest.mark.parametrize(
        ("event", "target", "code"),
        [
            pytest.param("hold", JobTarget.HELD, "held_by_user", id="held"),
            pytest.param("cancel", JobTarget.CANCELLED, "cancelled_by_user", id="cancelled"),
        ],
    )
    def test_a_user_stops_a_running_job(self, event: str, target: JobTarget, code: str) -> None:
        made = world("pool t 1\na 1 of t\na runs 1")
        getattr(made, event)("a1")
        (stop,) = made.tick().actions
        assert isinstance(stop, Stop)
        assert (stop.target, stop.reason.code, stop.grace_s) == (target, code, GENTLE.grace_s)

    def test_the_reason_is_given_once(self) -> None:
        made = world("pool t 1\na 1 of t\na runs 1")
        made.drain_ticks = 5
        made.hold("a1")
        made.tick()
        assert [made.tick().actions for _ in range(3)] == [()] * 3

    # R10
    def test_a_time_limit_ends_an_attempt_when_it_is_reached(self) -> None:
        made = world("pool t 1\na 1 of t\na queues 1 minutes 1")
        made.tick()
        made.now += 59_000
        assert made.decide().plan.actions == ()
        (stop,) = made.tick().actions
        assert isinstance(stop, Stop)
        assert (stop.target, stop.reason.code) == (JobTarget.FAILED, "time_limit")

    def test_a_held_job_is_not_scheduled_until_it_is_released(self) -> None:
        made = world("pool t 1\na 1 of t\na queues 1")
        made.hold("a1")
        assert made.tick().actions == ()
        made.release("a1")
        assert len(made.tick().actions) == 1

    def test_a_stopped_borrower_has_the_short_grace(self) -> None:
        made = world("pool t 1\na 0 of t, notebooks 1\nb 0 of t\nb queues 1")
        made.settle()
        made.cancel("b1")
        (stop,) = made.tick().actions
        assert isinstance(stop, Stop)
        assert stop.grace_s == GENTLE.lent_grace_s

    @pytest.mark.parametrize(
        ("reason", "target"),
        [
            pytest.param("held_by_user", JobTarget.HELD, id="held"),
            pytest.param("cancelled_by_person", JobTarget.CANCELLED, id="cancelled, by the code of an earlier version"),
            pytest.param("reclaimed", JobTarget.RUNNING, id="paused"),
        ],
    )
    def test_a_job_that_was_stopped_after_the_backup_keeps_the_target_of_its_stop(
        self, reason: str, target: JobTarget
    ) -> None:
        made = world("pool t 1\na 1 of t\na runs 1")
        job = made.jobs["a1"]
        rank = RankFact(job="a1", attempt=job.attempt, rank=0, handle="7", started_at=1, ended_at=2, tree_gone=True)
        attempt = AttemptRecord(job="a1", attempt=job.attempt, facts=(rank,), stop_reason=reason)
        assert with_attempt(job, attempt).target is target
