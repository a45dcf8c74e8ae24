"""Claims whose reserved devices are quarantined in part: another set, or the same reservation for a bounded time."""

from __future__ import annotations

from jupyter_gpu_quota.core.model import Health, Placement, Reservation
from jupyter_gpu_quota.core.plan import Pause, Reserve, Unreserve
from jupyter_gpu_quota.core.scheduling.cycle import SchedulingCycle
from jupyter_gpu_quota.core.scheduling.read_pool import read_pools
from tests.core.world import GENTLE, World, world


def waiting(text: str, *devices: str) -> World:
    """Work b1 has these whole devices reserved, of which the first is quarantined."""
    made = world(text)
    where = tuple(Placement(rank=0, device=name, gpu_milli=1000, memory_mib=16_001) for name in devices)
    made.reserved["b1"] = Reservation(workload="b1", placements=where, reserved_at=made.now)
    made.health(devices[0], Health.QUARANTINED)
    return made


# R25
def test_a_claim_that_the_plan_takes_out_again_loses_its_reservation() -> None:
    made = waiting(
        """
        pool t 6
        a 0 of t, weight 0
        b 0 of t, weight 0
        d 0 of t
        a runs 2 on n1g2,n1g3
        a runs 2 on n1g4,n1g5
        b queues 2
        d queues 2
        """,
        "n1g0",
        "n1g1",
    )
    made.drain_ticks = 10
    made.hold("a1")
    plan = made.decide().plan
    assert not any(isinstance(one, Pause) for one in plan.actions), "d1 waits for a1, whose end b1 would wait for"
    (again,) = (one for one in plan.actions if isinstance(one, Reserve))
    assert again.workload == "d1" and "n1g1" in {one.device for one in again.placements}, "it was reserved for b1"
    assert [one.workload for one in plan.actions if isinstance(one, Unreserve)] == ["b1"]


# R25
def test_other_devices_are_searched_for_once_in_a_cycle() -> None:
    made = waiting("pool t 2x2\nb 2 of t\nc 1 of t\nc runs 1 fixed on n2g0\nb queues 2", "n1g0", "n1g1")
    (pool,) = read_pools(made.snapshot(), made.policy)
    assert SchedulingCycle(pool).run().actions() == []
    assert pool.searches == 1


# R25
def test_the_whole_reservation_counts_as_work_that_begins_after_the_quarantine() -> None:
    made = waiting("pool t 2x2\nb 2 of t\nc 1 of t\nc runs 1 fixed on n2g0\nb queues 2 minutes 5", "n1g0", "n1g1")
    (pool,) = read_pools(made.snapshot(), made.policy)
    cycle = SchedulingCycle(pool)
    cycle.run()
    (work,) = (one for one in cycle.builder.future_work() if one.job.id == "b1")
    assert work.size == 2000, "its project gives back what was counted for the reservation"
    assert work.ends_at == made.now + (5 * 60 + GENTLE.grace_s) * 1000


# R25
def test_a_job_whose_reservation_was_taken_over_is_not_started_on_it() -> None:
    """b1 takes over the reservation of c1 and waits for the end of d1; without it c is within its quota of 0."""
    made = waiting("pool t 3\nb 2 of t\nc 0 of t\nd 0 of t\nb queues 2\nc queues 1\nd runs 1 on n1g1", "n1g0", "n1g1")
    where = (Placement(rank=0, device="n1g2", gpu_milli=1000, memory_mib=16_001),)
    made.reserved["c1"] = Reservation(workload="c1", placements=where, reserved_at=made.now)
    made.cancel("d1")
    plan = made.decide().plan
    assert [type(one) for one in plan.actions if one.workload == "c1"] == [Unreserve]
    (again,) = (one for one in plan.actions if isinstance(one, Reserve))
    assert (again.workload, {one.device for one in again.placements}) == ("b1", {"n1g1", "n1g2"})
