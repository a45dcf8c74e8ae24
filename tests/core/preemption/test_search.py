"""The search: possible victims, their order, and the fewest of them."""

from __future__ import annotations

import dataclasses as dc
from collections import Counter

import pytest

from jupyter_gpu_quota.core.model import Health, JobState
from jupyter_gpu_quota.core.plan import Pause, Plan
from jupyter_gpu_quota.core.preemption.search.cheapest import MAX_WORK
from jupyter_gpu_quota.core.preemption.search.ledger_rooms import LedgerRooms
from jupyter_gpu_quota.core.preemption.search.node_rooms import Claimant
from jupyter_gpu_quota.core.preemption.search.room import DEVICES_PER_PLACE, PLACES_PER_TEST
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.world import GENTLE, World, world


def victims(plan: Plan) -> list[str]:
    return [action.workload for action in plan.actions if isinstance(action, Pause)]


def codes(plan: Plan) -> set[str]:
    return {str(action.reason.code) for action in plan.actions if isinstance(action, Pause)}


def running_for(made: World, name: str, *, ran_s: int = 3600, saved_s: int | None = None, priority: int = 50) -> None:
    """Let a running job have started, and saved, so long ago."""
    made.jobs[name] = dc.replace(
        made.jobs[name],
        started_at=made.now - ran_s * 1000,
        checkpoint_at=None if saved_s is None else made.now - saved_s * 1000,
        priority=priority,
    )


@pytest.mark.parametrize(
    ("jobs", "victim"),
    [
        # R39
        pytest.param([{"priority": 60}, {"priority": 40}, {}], "b2", id="lowest job priority first"),
        # R39
        pytest.param(
            [{"saved_s": 300}, {"saved_s": 30}, {"saved_s": 90}], "b2", id="then least work lost since saving"
        ),
        pytest.param(
            [{"ran_s": 900}, {"ran_s": 700}, {"ran_s": 800}],
            "b2",
            id="without a checkpoint, the shortest run time first",
        ),
        # R39
        pytest.param([{}, {}, {}], "b3", id="then the newest submission"),
    ],
)
def test_victims_of_a_project(jobs: list[dict[str, int]], victim: str) -> None:
    made = world("pool t 3\na 1 of t\nb 2 of t\nb runs 3 of 1\na queues 1")
    for at, row in enumerate(jobs):
        running_for(made, f"b{at + 1}", **row)
    assert victims(made.tick()) == [victim]


def test_a_save_before_the_last_start_does_not_count_as_saved_since() -> None:
    made = world("pool t 2\na 1 of t\nb 1 of t\nb runs 2 of 1\na queues 1")
    running_for(made, "b1", ran_s=50, saved_s=5000)
    running_for(made, "b2", ran_s=5000, saved_s=60)
    assert victims(made.tick()) == ["b1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # R39
        pytest.param(
            "a 1 of t\nb 1 of t\nc 1 of t\nb runs 2 of 1\nc runs 3 of 1\na queues 1", ["c3"],
            id="the project most above its quota loses first",
        ),
        # R18
        pytest.param(
            "a 1 of t\nb 1 of t\nc 1 of t, weight 0\nb runs 3 of 1\nc runs 2 of 1\na queues 1", ["c2"],
            id="a project of weight 0 is the first victim",
        ),
        # R38
        pytest.param(
            "a 1 of t\nb 2 of t\nc 2 of t\nb runs 3 of 1\nc runs 2 of 1\na queues 1", ["b3"],
            id="a project at its quota loses nothing",
        ),
        # R38
        pytest.param(
            "a 1 of t\nb 4 of t\nb runs 5 of 1 fixed\na queues 1", [], id="a non-preemptible job stays",
        ),
        # R41, R43
        pytest.param(
            "a 2 of t\nb 0 of t\nc 3 of t\nb runs 3 of 1\nc runs 2 of 1\na queues 2", ["b2", "b3"],
            id="the whole claim is freed, and no more",
        ),
        # R39
        pytest.param(
            "a 2 of t\nb 0 of t\nc 3 of t\nb runs 3 of 1\na queues 2", [], id="free GPUs come before pauses",
        ),
        # R37
        pytest.param(
            "a 0 of t\nb 0 of t\nb runs 5 of 1\na queues 3", [], id="a claim above the fair share pauses no job",
        ),
        # R18
        pytest.param(
            "a 0 of t, weight 0\nb 0 of t, priority 10\nb runs 5 of 1\na queues 1", [],
            id="weight 0 never reclaims surplus",
        ),
        # R44
        pytest.param(
            "a 0 of t\nb 0 of t\nb runs 5\na queues 1", [],
            id="no pause after which the claiming project has more above its quota than the other",
        ),
        # R44
        pytest.param(
            "a 0 of t\nb 0 of t, weight 0\nb runs 5\na queues 1", ["b1"],
            id="a project of weight 0 is an exception",
        ),
    ],
)  # fmt: skip
def test_five_gpus(text: str, expected: list[str]) -> None:
    made = world("pool t 5\n" + text)
    assert sorted(victims(made.tick())) == expected


# R41
def test_two_gpus_of_one_node_come_from_one_node() -> None:
    made = world("pool t 2x2\na 2 of t\nb 2 of t\nb runs 4 of 1\na queues 2")
    running_for(made, "b1", ran_s=100)
    running_for(made, "b3", ran_s=200)
    running_for(made, "b4", ran_s=300)
    plan = made.tick()
    assert sorted(victims(plan)) == ["b3", "b4"]  # b1 alone is cheaper, but with b2 the pair costs more


# R38
def test_the_borrowers_of_a_project_make_none_of_its_other_jobs_a_victim() -> None:
    """With them a is above its fair share of 2, and they have no device that b's job may use."""
    devices = "pool t 2\npool t 2 Y\na 0 of t\nb 0 of t\nn 0 of t, notebooks 2\na runs 2 of 1 lent\n"
    made = world(devices + "a runs 1 on n2g0\nb runs 1 on n2g1\nb queues 1 model Y")
    assert made.tick().actions == ()


# R38
def test_a_claim_within_guarantee_takes_nothing_from_a_project_at_its_quota() -> None:
    """Each node has one device that b could lose; a pair would cost b its quota. One job moves instead."""
    made = world("pool t 2x2\na 2 of t\nb 2 of t\nb runs 2 of 1\nb runs 1 fixed\na queues 2")
    made.settle()
    assert made.picture() == "a 2 / b 2"


# R38
def test_a_claim_within_fair_share_takes_nothing_from_a_project_at_its_fair_share() -> None:
    """Of b and c only one device each is above; b loses one of two jobs, and the other one moves."""
    made = world("pool t 2x2\na 0 of t, priority 60\nb 0 of t\nc 1 of t\nb runs 2 of 1\nc runs 1\na queues 2")
    made.settle()
    assert made.picture() == "a 2 / b 1 / c 1"


# R43
def test_a_victim_that_a_later_claim_made_unnecessary_continues() -> None:
    """The first claim takes b's job, the second all of c's two devices, and then both find room there."""
    text = "pool t 3\na 2 of t\nb 0 of t, weight 0\nc 0 of t\nb runs 1\nc runs 2\na queues 2 of 1"
    assert victims(world(text).tick()) == ["c1"]


def test_a_victim_that_a_later_claim_made_unnecessary_continues_with_all_its_ranks() -> None:
    elastic = "b runs 0.5 ranks 1-2 held 2 on n1g0,n1g0"
    made = world(f"pool t 3\na 2 of t\nb 0 of t, weight 0\nc 0 of t\n{elastic}\nc runs 2\na queues 2 of 1")
    assert victims(made.tick()) == ["c1"]


def test_an_unnecessary_victim_continues_though_a_part_of_it_is_on_an_unavailable_device() -> None:
    made = world("pool t 4\na 2 of t\nb 0 of t, weight 0\nc 0 of t\nb runs 1 ranks 2\nc runs 2\na queues 2 of 1")
    made.health("n1g0", Health.QUARANTINED)
    assert victims(made.tick()) == ["c1"]


def test_an_earlier_candidate_continues_where_a_later_one_is_enough() -> None:
    made = world("pool t 1\na 1 of t\na runs 0.6\na runs 0.2\na queues 0.6 priority 70")
    assert victims(made.tick()) == ["a1"]


def test_a_restored_victim_counts_when_the_next_claim_chooses() -> None:
    """For a, b2 stops and b1, the first candidate, continues; so b is still most above its quota when d claims."""
    made = world(
        """
        pool t 2
        a 0.5 of t
        b 0.3 of t
        c 0.1 of t
        d 0.4 of t
        e 0.4 of t
        b runs 0.3 on n1g0
        b runs 0.5 on n1g0
        b runs 0.4 on n1g1
        c runs 0.4 on n1g1
        e runs 0.2 fixed on n1g0
        e runs 0.2 fixed on n1g1
        a queues 0.5
        d queues 0.4
        """
    )
    for at, job in enumerate(("b1", "b2", "b3", "c1")):
        running_for(made, job, ran_s=100 * (at + 1))
    assert victims(made.tick()) == ["b2", "b3"]


def test_inside_a_project_only_necessary_victims_are_paused() -> None:
    made = world("pool t 1\na 1 of t\na runs 0.2\na runs 0.6\na queues 0.6 priority 70")
    assert victims(made.tick()) == ["a2"]


def test_a_fraction_takes_one_device_and_the_smallest_set_on_it() -> None:
    made = world("pool t 1\na 0.5 of t\nb 0.5 of t\nb runs 3 of 0.3\na queues 0.5")
    assert len(victims(made.tick())) == 2
    made.settle()
    assert made.picture() == "a 0.5 / b 0.3"


# R47
def test_an_indivisible_last_victim_is_avoided_where_another_set_is_legal() -> None:
    made = world("pool t 4\na 1 of t\nb 3 of t\nb runs 3\nb runs 1\na queues 1")
    running_for(made, "b1", ran_s=10)
    assert victims(made.tick()) == ["b2"]


# R47
def test_the_first_candidate_continues_where_its_project_would_end_below_its_quota() -> None:
    """b, of weight 0, is the first that loses; without b1 it would have half a GPU, and its quota is one."""
    quotas = "pool t 3\na 1 of t\nb 1 of t, weight 0\nc 0 of t\n"
    made = world(quotas + "b runs 1\nb runs 0.5\nc runs 1\nc runs 0.5\na queues 1")
    running_for(made, "b1", ran_s=100)
    running_for(made, "c1", ran_s=100)
    assert victims(made.tick()) == ["c1"]


# R47
def test_a_gang_takes_a_project_below_its_quota_only_where_no_other_set_avoids_it() -> None:
    """a1 is first and makes room for two of three ranks; with a victim for the third rank a would have 0.65."""
    made = world(
        """
        pool t 2
        a 0.7 of t
        c 0.8 of t, priority 60
        a runs 0.25 on n1g1 priority 30
        a runs 0.1 ranks 2 on n1g0,n1g1
        a runs 0.1 on n1g0
        a runs 0.45 on n1g0 fixed
        c runs 0.35 on n1g0 fixed
        c runs 0.65 on n1g1 fixed
        c queues 0.1 ranks 3
        """
    )
    assert victims(made.tick()) == ["a3", "a2"]


# R53
def test_a_guarantee_takes_protected_work_only_as_a_last_resort() -> None:
    rules = dc.replace(GENTLE, min_runtime_s=600)
    made = world("pool t 2\na 1 of t\nb 0 of t\nb runs 2 of 1\na queues 1", preemption=rules)
    running_for(made, "b1", ran_s=10)
    assert victims(made.tick()) == ["b2"]
    young = world("pool t 1\na 1 of t\nb 0 of t\nb runs 1\na queues 1", preemption=rules)
    running_for(young, "b1", ran_s=10)
    assert victims(young.tick()) == ["b1"]


# R47, R53
def test_a_guarantee_takes_protected_work_that_leaves_its_project_below_its_quota_where_nothing_else_helps() -> None:
    rules = dc.replace(GENTLE, min_runtime_s=600)
    made = world("pool t 2\np 1 of t\nq 1 of t\np runs 2\nq queues 1", preemption=rules)
    running_for(made, "p1", ran_s=10)
    assert victims(made.tick()) == ["p1"]


SPITE = "the claim is within a training quota and nothing else could satisfy it, so this was allowed."


# R53
@pytest.mark.parametrize(
    ("claim", "ran_s", "paused", "expected"),
    [
        pytest.param(
            "a queues 1", 10, 0, f"It had run 11 s of its minimum run time of 10 minutes; {SPITE}",
            id="it had not run its minimum",
        ),
        pytest.param(
            "a queues 1", 900, 2, f"It had 2 pauses within 1 day, its limit; {SPITE}",
            id="it had been paused as often as it may be",
        ),
        pytest.param("a queues 1", 900, 0, "queued again at its old position.", id="it was not protected"),
    ],
)  # fmt: skip
def test_the_reason_of_a_pause_of_protected_work_has_the_protection(
    claim: str, ran_s: int, paused: int, expected: str
) -> None:
    rules = dc.replace(GENTLE, min_runtime_s=600, max_pauses=2, per_s=86_400)
    made = world(f"pool t 1\na 1 of t\nb 0 of t\nb runs 1\n{claim}", preemption=rules)
    running_for(made, "b1", ran_s=ran_s)
    made.jobs["b1"] = dc.replace(made.jobs["b1"], paused_at=(made.now - 2000, made.now - 1000)[:paused])
    (pause,) = [action for action in made.tick().actions if isinstance(action, Pause)]
    assert sentence(pause.reason).endswith(expected)


def test_a_claim_within_fair_share_takes_no_protected_work_and_gives_that_reason() -> None:
    rules = dc.replace(GENTLE, min_runtime_s=600)
    made = world("pool t 2\na 0 of t\nb 0 of t\nb runs 2 of 1\na queues 1", preemption=rules)
    running_for(made, "b1", ran_s=10)
    running_for(made, "b2", ran_s=10)
    assert made.tick().actions == ()
    assert made.decide().waits["a1"].code == "victims_protected"
    made.now += 600_000
    assert victims(made.tick()) == ["b2"]


# R48
def test_a_job_of_higher_priority_preempts_inside_its_own_project() -> None:
    made = world("pool t 1\na 1 of t\na runs 1\na queues 1 priority 70\na queues 1 priority 50")
    plan = made.tick()
    assert (victims(plan), codes(plan)) == (["a1"], {"preempted_in_project"})
    made.settle()
    assert made.jobs["a2"].state is JobState.RUNNING


def test_two_claims_of_a_plan_share_the_devices_of_one_victim() -> None:
    made = world("pool t 1\na 1 of t\nb 0 of t\nb runs 1\na queues 2 of 0.5")
    assert victims(made.tick()) == ["b1"]
    made.settle()
    assert made.picture() == "a 1 / b 0"


# R40
@pytest.mark.parametrize(
    ("scene", "count"),
    [
        pytest.param(
            "pool t 1x8\na 8 of t\nb 0 of t\nb runs 16 of 0.5\na queues 8", 16, id="a rank over sixteen halves"
        ),
        pytest.param(
            "pool t 1x8\na 8 of t\nb 0 of t\nb runs 24 of 0.3\na queues 3", 9, id="a rank over nine of 24 parts"
        ),
    ],
)
def test_a_claim_with_many_victims_on_one_node_is_served(scene: str, count: int) -> None:
    assert len(victims(world(scene).tick())) == count


# R40
@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        pytest.param("pool t 72\na 20 of t\nb 52 of t\nb runs 50\nb runs 5\na queues 20", ["b2"], id="on one node"),
        pytest.param("pool t 9x8\na 8 of t\nb 36 of t\nb runs 9 of 5\na queues 8", ["b9"], id="on nodes of eight"),
    ],
)
def test_in_a_large_pool_a_claim_uses_idle_devices_beside_those_of_its_victims(scene: str, expected: list[str]) -> None:
    assert victims(world(scene).tick()) == expected


def test_a_claim_of_many_ranks_in_a_large_pool_reads_a_bounded_number_of_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no room, though its GPUs in sum are free: what moves for it takes whole devices."""
    read, places = Counter[LedgerRooms](), LedgerRooms.places

    def counted(rooms: LedgerRooms, claimant: Claimant) -> list[list[int]]:
        read[rooms] += len(made.devices)
        return places(rooms, claimant)

    monkeypatch.setattr(LedgerRooms, "places", counted)
    made = world(
        "pool t 32x8\na 125 of t\nb 125 of t\na runs 4 of 1 ranks 33\nb runs 3 of 1 ranks 33\na queues 0.375 ranks 54"
    )
    assert victims(made.tick()) == []
    assert 0 < max(read.values()) < 2 * MAX_WORK * PLACES_PER_TEST * DEVICES_PER_PLACE


def test_a_device_with_less_than_no_room_takes_nothing_from_the_bound() -> None:
    """Others use a tenth of the device of our fixed job."""
    made = world(
        "pool t 2\na 0 of t\nb 0 of t\ndepartment x 0.9 of t\nc 0.9 of t in x\n"
        "b runs 1 fixed on n1g0\na runs 1 on n1g1\nc queues 0.9"
    )
    made.devices["n1g0"] = dc.replace(made.devices["n1g0"], foreign_milli=100)
    assert victims(made.tick()) == ["a1"]
