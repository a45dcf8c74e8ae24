"""Reservations: the devices of a claim while its victims stop."""

from __future__ import annotations

import dataclasses as dc

from jupyter_gpu_quota.core.model import Health, JobState, JobTarget, Placement, Reservation
from jupyter_gpu_quota.core.plan import Pause, Reserve, Start, Stop, Unreserve
from jupyter_gpu_quota.core.reason_figures import figure_pairs
from tests.core.preemption.test_search import victims
from tests.core.world import World, world


class TestClaimInProgress:
    """Victims take several ticks to stop."""

    def made(self) -> World:
        made = world("pool t 3\na 2 of t\nb 1 of t\nc 0 of t\nb runs 3 of 1\na queues 1")
        made.drain_ticks = 3
        made.tick()
        return made

    def test_the_next_ticks_pause_no_other_work(self) -> None:
        made = self.made()
        assert [made.tick().actions, made.tick().actions] == [(), ()]

    def test_a_second_claim_pauses_its_own_victim_only(self) -> None:
        made = self.made()
        made.submit("a", 1000)
        assert len(victims(made.tick())) == 1

    # R25
    def test_no_other_work_takes_draining_devices(self) -> None:
        made = self.made()
        made.submit("c", 1000)
        for _ in range(2):
            assert made.tick().actions == ()
        (start,) = made.tick().actions
        assert isinstance(start, Start)
        assert start.workload == "a1"

    def test_a_cancelled_preemptor_releases_its_reservation(self) -> None:
        made = self.made()
        made.cancel("a1")
        (unreserve,) = made.tick().actions
        assert isinstance(unreserve, Unreserve)
        made.settle()
        assert made.picture() == "a 0 / b 3 / c 0"

    def test_a_reservation_on_a_failed_device_is_replaced(self) -> None:
        made = self.made()
        (reservation,) = made.reserved.values()
        made.health(reservation.placements[0].device, Health.QUARANTINED)
        plan = made.tick()
        assert len(victims(plan)) == 1
        (again,) = [action for action in plan.actions if isinstance(action, Reserve)]
        assert again.placements[0].device != reservation.placements[0].device

    # R25
    def test_a_reservation_on_an_unhealthy_device_is_no_use_of_its_project_any_more(self) -> None:
        made = world(
            "pool t 5\na 0 of t\nb 0 of t\na runs 1 priority 30\nb runs 3 of 1\na queues 1\na queues 1 priority 70"
        )
        lost = Placement(rank=0, device="n1g4", gpu_milli=1000, memory_mib=16_001)
        made.reserved["a2"] = Reservation(workload="a2", placements=(lost,), reserved_at=made.now)
        made.health("n1g4", Health.UNHEALTHY)
        (for_a3, for_a2) = [one for one in made.decide().plan.actions if isinstance(one, Pause)]
        assert for_a3.preemptor == "a3" and for_a3.workload.startswith("b"), "a comes to its fair share of 2"
        assert (for_a2.preemptor, for_a2.workload) == ("a2", "a1"), "a is at its fair share"

    def test_a_reserved_job_starts_on_other_devices_that_are_free_sooner(self) -> None:
        made = self.made()
        running = next(name for name, job in made.jobs.items() if job.project == "b" and job.state is JobState.RUNNING)
        made.end(running)
        assert [action.workload for action in made.tick().actions if isinstance(action, Start)] == ["a1"]

    # R26
    def test_a_claim_within_guarantee_takes_over_a_reservation_above_it_with_a_reason(self) -> None:
        made = world("pool t 2\na 0 of t\nb 0 of t\nc 1 of t\nb runs 2 of 1\na queues 1")
        made.drain_ticks = 3
        (pause, _) = made.tick().actions
        made.submit("c", 1000)
        plan = made.tick()
        (unreserve, reserve) = plan.actions
        assert isinstance(unreserve, Unreserve)
        assert isinstance(reserve, Reserve)
        assert (unreserve.workload, unreserve.reason.code) == ("a1", "drain_taken_over")
        assert ("took_over_from", "a1") in figure_pairs(reserve.reason)
        made.settle()
        assert made.jobs["c1"].state is JobState.RUNNING
        assert made.paused() == [pause.workload]

    def test_a_claim_within_guarantee_takes_over_a_reservation_on_unbooked_quota(self) -> None:
        made = world("pool t 2\na 0 of t, notebooks 0.25\nb 0 of t\nc 1 of t\nb runs 1\nb runs 1 lent\na queues 2")
        made.drain_ticks = 2
        made.jobs["b1"] = dc.replace(made.jobs["b1"], target=JobTarget.CANCELLED)
        made.tick()
        made.submit("c", 1000)
        made.settle()
        assert made.jobs["c1"].state is JobState.RUNNING

    def test_a_claim_waits_for_a_job_that_is_stopping_already(self) -> None:
        made = world("pool t 2\na 1 of t\nb 1 of t\nb runs 2 of 1\na queues 1")
        made.drain_ticks = 3
        made.cancel("b1")
        plan = made.tick()
        assert [type(action) for action in plan.actions] == [Stop, Reserve]
        made.settle()
        assert made.picture() == "a 1 / b 1"


# R12
def test_a_claim_starts_beside_stopping_work_whatever_other_claims_wait_for() -> None:
    made = world("pool t 6\na 3 of t, limit 3\na runs 3 of 1 priority 30")
    made.drain_ticks = 3
    made.submit("a", 1000, id="z", priority=70)
    made.tick()
    made.submit("a", 1000, id="b", priority=70)
    made.tick()
    assert made.tick().actions == ()
    assert [one.workload for one in made.tick().actions if isinstance(one, Start)] == ["z"], "the oldest claim"
    assert [one.workload for one in made.tick().actions if isinstance(one, Start)] == ["b"]


# R12
def test_a_claim_waits_for_stopping_work_of_its_user_where_the_ceiling_was_lowered() -> None:
    made = world("pool t 4\na 3 of t, limit per user 4\nb 1 of t\na runs 3 of 1 priority 30\nb runs 1 of 1")
    made.drain_ticks = 3
    made.submit("a", 1000, id="z", priority=70)
    made.tick()
    made.project("a", "t", training_milli=3000, user_jobs_milli=3000)
    made.end("b1")
    assert [made.tick().actions, made.tick().actions] == [(), ()], "a device is free"
    assert [one.workload for one in made.tick().actions if isinstance(one, Start)] == ["z"]
