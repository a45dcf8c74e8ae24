"""The search: possible victims, their order, the fewest of them, and the reservation of a claim."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.model import Health, JobState, JobTarget
from jupyter_gpu_quota.core.plan import Pause, Plan, Reserve, Resume, Start, Stop, Unreserve
from jupyter_gpu_quota.core.reason_figures import figure_pairs
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
        # R31
        pytest.param([{"priority": 60}, {"priority": 40}, {}], "b2", id="lowest job priority first"),
        # R31
        pytest.param(
            [{"saved_s": 300}, {"saved_s": 30}, {"saved_s": 90}], "b2", id="then least work lost since saving"
        ),
        pytest.param([{"ran_s": 900}, {"ran_s": 700}, {"ran_s": 800}], "b2", id="never saved: what ran shortest"),
        # R31
        pytest.param([{}, {}, {}], "b3", id="then what was submitted last"),
    ],
)
def test_a_project_gives_up(jobs: list[dict[str, int]], victim: str) -> None:
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
        # R31
        pytest.param(
            "a 1 of t\nb 1 of t\nc 1 of t\nb runs 2 of 1\nc runs 3 of 1\na queues 1", ["c3"],
            id="the project most above its quota loses first",
        ),
        # R17
        pytest.param(
            "a 1 of t\nb 1 of t\nc 1 of t, weight 0\nb runs 3 of 1\nc runs 2 of 1\na queues 1", ["c2"],
            id="a project of weight 0 is the first victim",
        ),
        # R30
        pytest.param(
            "a 1 of t\nb 2 of t\nc 2 of t\nb runs 3 of 1\nc runs 2 of 1\na queues 1", ["b3"],
            id="a project at its quota gives nothing",
        ),
        # R30
        pytest.param(
            "a 1 of t\nb 4 of t\nb runs 5 of 1 fixed\na queues 1", [], id="a non-preemptible job stays",
        ),
        # R32, R33
        pytest.param(
            "a 2 of t\nb 0 of t\nc 3 of t\nb runs 3 of 1\nc runs 2 of 1\na queues 2", ["b2", "b3"],
            id="the whole claim is freed, and no more",
        ),
        # R31
        pytest.param(
            "a 2 of t\nb 0 of t\nc 3 of t\nb runs 3 of 1\na queues 2", [], id="free GPUs come before pauses",
        ),
        # R29
        pytest.param(
            "a 0 of t\nb 0 of t\nb runs 5 of 1\na queues 3", [], id="a claim above the fair share pauses no job",
        ),
        # R17
        pytest.param(
            "a 0 of t, weight 0\nb 0 of t, priority 10\nb runs 5 of 1\na queues 1", [],
            id="weight 0 never reclaims surplus",
        ),
        # R34
        pytest.param(
            "a 0 of t\nb 0 of t\nb runs 5\na queues 1", [],
            id="no pause after which the claiming project has more above its quota than the other",
        ),
        # R34
        pytest.param(
            "a 0 of t\nb 0 of t, weight 0\nb runs 5\na queues 1", ["b1"],
            id="but of a project of weight 0",
        ),
    ],
)  # fmt: skip
def test_five_gpus(text: str, expected: list[str]) -> None:
    made = world("pool t 5\n" + text)
    assert sorted(victims(made.tick())) == expected


# R32
def test_two_gpus_of_one_node_come_from_one_node() -> None:
    made = world("pool t 2x2\na 2 of t\nb 2 of t\nb runs 4 of 1\na queues 2")
    running_for(made, "b1", ran_s=100)
    running_for(made, "b3", ran_s=200)
    running_for(made, "b4", ran_s=300)
    plan = made.tick()
    assert sorted(victims(plan)) == ["b3", "b4"]  # b1 alone is cheaper, but with b2 the pair costs more


# R30
def test_a_guarantee_takes_nothing_from_a_project_that_the_first_pause_brings_to_its_quota() -> None:
    made = world("pool t 2x2\na 2 of t\nb 2 of t\nb runs 2 of 1\nb runs 1 fixed\na queues 2")
    assert made.tick().actions == ()  # both nodes have one free or preemptible_use GPU; a pair would cost b its quota


# R30
def test_a_fair_share_takes_nothing_from_a_project_that_the_first_pause_brings_to_its_own() -> None:
    text = "pool t 2x2\na 0 of t, priority 60\nb 0 of t\nc 1 of t\nb runs 2 of 1\nc runs 1\na queues 2"
    assert world(text).tick().actions == ()


# R33
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


def test_on_one_device_an_earlier_candidate_continues_where_the_next_one_is_enough() -> None:
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


# R37
def test_an_indivisible_last_victim_is_avoided_where_another_set_is_legal() -> None:
    made = world("pool t 4\na 1 of t\nb 3 of t\nb runs 3\nb runs 1\na queues 1")
    running_for(made, "b1", ran_s=10)
    assert victims(made.tick()) == ["b2"]


# R37
def test_for_a_gang_too_a_project_ends_below_its_quota_only_where_no_other_set_on_all_devices_avoids_it() -> None:
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


# R42
def test_protected_work_is_taken_for_a_guarantee_only_when_nothing_else_is_left() -> None:
    rules = dc.replace(GENTLE, min_runtime_s=600)
    made = world("pool t 2\na 1 of t\nb 0 of t\nb runs 2 of 1\na queues 1", preemption=rules)
    running_for(made, "b1", ran_s=10)
    assert victims(made.tick()) == ["b2"]
    young = world("pool t 1\na 1 of t\nb 0 of t\nb runs 1\na queues 1", preemption=rules)
    running_for(young, "b1", ran_s=10)
    assert victims(young.tick()) == ["b1"]


SPITE = "the claim is within a training quota and nothing else could satisfy it, so this was allowed."


# R42
@pytest.mark.parametrize(
    ("claim", "ran_s", "paused", "expected"),
    [
        pytest.param(
            "a queues 1", 10, 0, f"It had run 11 s of its minimum run time of 10 minutes; {SPITE}",
            id="it had not run its minimum",
        ),
        pytest.param(
            "a queues 1", 900, 2, f"It had been paused 2 times within 1 day, its limit; {SPITE}",
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


def test_a_claim_within_fair_share_takes_no_protected_work_and_its_reason_says_so() -> None:
    rules = dc.replace(GENTLE, min_runtime_s=600)
    made = world("pool t 2\na 0 of t\nb 0 of t\nb runs 2 of 1\na queues 1", preemption=rules)
    running_for(made, "b1", ran_s=10)
    running_for(made, "b2", ran_s=10)
    assert made.tick().actions == ()
    assert made.decide().waits["a1"].code == "victims_protected"
    made.now += 600_000
    assert victims(made.tick()) == ["b2"]


# R38
def test_a_job_of_higher_priority_takes_a_place_inside_its_own_project() -> None:
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


class TestClaimInProgress:
    """Victims take several ticks to leave."""

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

    # R23
    def test_no_other_work_takes_draining_devices(self) -> None:
        made = self.made()
        made.submit("c", 1000)
        for _ in range(2):
            assert made.tick().actions == ()
        (start,) = made.tick().actions
        assert isinstance(start, Start)
        assert start.workload == "a1"

    def test_a_claimer_that_is_cancelled_gives_its_place_back(self) -> None:
        made = self.made()
        made.cancel("a1")
        (unreserve,) = made.tick().actions
        assert isinstance(unreserve, Unreserve)
        made.settle()
        assert made.picture() == "a 0 / b 3 / c 0"

    def test_a_reserved_device_that_breaks_is_given_up_and_another_is_chosen(self) -> None:
        made = self.made()
        (reservation,) = made.reserved.values()
        made.health(reservation.placements[0].device, Health.QUARANTINED)
        plan = made.tick()
        assert len(victims(plan)) == 1
        (again,) = [action for action in plan.actions if isinstance(action, Reserve)]
        assert again.placements[0].device != reservation.placements[0].device

    def test_a_place_that_comes_free_sooner_is_taken(self) -> None:
        made = self.made()
        running = next(name for name, job in made.jobs.items() if job.project == "b" and job.state is JobState.RUNNING)
        made.end(running)
        assert [action.workload for action in made.tick().actions if isinstance(action, Start)] == ["a1"]

    # R24
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

    def test_a_guarantee_takes_over_a_place_that_was_promised_on_held_room(self) -> None:
        made = world("pool t 2\na 0 of t, notebooks 0.25\nb 0 of t\nc 1 of t\nb runs 1\nb runs 1 lent\na queues 2")
        made.drain_ticks = 2
        made.jobs["b1"] = dc.replace(made.jobs["b1"], target=JobTarget.CANCELLED)
        made.tick()
        made.submit("c", 1000)
        made.settle()
        assert made.jobs["c1"].state is JobState.RUNNING

    def test_a_job_that_leaves_anyway_is_waited_for(self) -> None:
        made = world("pool t 2\na 1 of t\nb 1 of t\nb runs 2 of 1\na queues 1")
        made.drain_ticks = 3
        made.cancel("b1")
        plan = made.tick()
        assert [type(action) for action in plan.actions] == [Stop, Reserve]
        made.settle()
        assert made.picture() == "a 1 / b 1"


class TestStops:
    """Work that leaves for good, or until it is released."""

    @pytest.mark.parametrize(
        ("event", "target", "code"),
        [
            pytest.param("hold", JobTarget.HELD, "held_by_person", id="held"),
            pytest.param("cancel", JobTarget.CANCELLED, "cancelled_by_person", id="cancelled"),
        ],
    )
    def test_a_person_stops_a_running_job(self, event: str, target: JobTarget, code: str) -> None:
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

    # R9
    def test_a_time_limit_ends_an_attempt_when_it_is_reached(self) -> None:
        made = world("pool t 1\na 1 of t\na queues 1 minutes 1")
        made.tick()
        made.now += 59_000
        assert made.decide().plan.actions == ()
        (stop,) = made.tick().actions
        assert isinstance(stop, Stop)
        assert (stop.target, stop.reason.code) == (JobTarget.FAILED, "time_limit")

    def test_a_held_job_takes_no_part_until_it_is_released(self) -> None:
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


class TestQueueOrder:
    """Inside a project and between projects."""

    def starts(self, text: str, **rules: str) -> list[str]:
        return [action.workload for action in world(text, **rules).tick().actions]  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            # R22
            pytest.param("a queues 1\na queues 1 priority 60", ["a2"], id="job priority first"),
            # R22
            pytest.param("a queues 2 of 1 by u\na queues 1 by v", ["a1"], id="then first submit time"),
        ],
    )
    def test_inside_a_project(self, text: str, expected: list[str]) -> None:
        assert self.starts("pool t 1\na 1 of t\n" + text) == expected

    def test_first_submit_time_decides_and_not_the_id(self) -> None:
        made = world("pool t 1\na 1 of t")
        made.submit("a", 1000, id="z")
        made.submit("a", 1000, id="b")
        assert [action.workload for action in made.tick().actions] == ["z"]

    # R20
    def test_a_job_within_the_guarantee_comes_before_an_older_one_above_it(self) -> None:
        assert self.starts("pool t 2\na 1 of t\na queues 2\na queues 1") == ["a2"]

    # R22
    def test_users_take_turns(self) -> None:
        text = "pool t 2\na 2 of t\na queues 2 of 1 by u\na queues 1 by v"
        assert self.starts(text) == ["a1", "a3"]
        assert self.starts(text, within_project="first_come") == ["a1", "a2"]

    def test_the_user_of_a_victim_is_next(self) -> None:
        made = world(
            "pool t 3\na 3 of t\nb 0 of t\na runs 2 of 1 by u\na runs 1 by v\na queues 1 by u\na queues 1 by v"
        )
        made.end("a3")
        assert [action.workload for action in made.tick().actions] == ["a5"]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            # R21
            pytest.param("a 0 of t\nb 1 of t\na queues 1\nb queues 1", ["b1"], id="within guarantee first"),
            # R21
            pytest.param("a 0 of t\nb 0 of t, priority 60\na queues 1\nb queues 1", ["b1"], id="then project priority"),
            # R21
            pytest.param("a 0 of t\nb 0 of t\nb queues 1\na queues 1", ["b1"], id="then the longest waiting"),
            # R21
            pytest.param("a 0 of t, weight 0\nb 0 of t\na queues 1\nb queues 1", ["b1"], id="weight 0 last"),
            # R21
            pytest.param(
                "a 0 of t, weight 0, priority 60\nb 0 of t\nc 0 of t\na queues 1\nb queues 1\nc queues 1",
                ["b1"],
                id="and of those above their fair share, whatever its priority",
            ),
        ],
    )
    def test_between_projects(self, text: str, expected: list[str]) -> None:
        assert self.starts("pool t 1\n" + text) == expected

    # R22
    def test_a_paused_job_keeps_its_first_submit_time(self) -> None:
        made = world("pool t 1\na 1 of t\nb 0 of t\nb queues 1")
        made.tick()
        made.submit("b", 1000)
        made.submit("a", 1000)
        made.settle()
        made.end("a1")
        (resume,) = made.tick().actions
        assert isinstance(resume, Resume)
        assert resume.workload == "b1"


class TestUnequalPolicy:
    """Quotas beyond what is there, projects and pools that are gone."""

    def test_a_claim_reclaims_up_to_its_reduced_guarantee(self) -> None:
        made = world("pool t 4\na 2 of t\nb 2 of t\na runs 2 of 1\nb runs 2 of 1\na queues 1")
        made.health("n1g3", Health.UNHEALTHY)
        made.owned.pop("b2")
        made.jobs["b2"] = dc.replace(made.jobs["b2"], state=JobState.QUEUED)
        made.settle()
        assert made.picture() == "a 2 / b 1"

    def test_a_job_of_a_removed_project_continues_and_is_the_first_victim(self) -> None:
        made = world("pool t 2\na 1 of t\nb 1 of t\na runs 1\nb runs 1")
        made.policy = dc.replace(made.policy, projects=made.policy.projects[1:])
        made.submit("b", 1000)
        plan = made.tick()
        assert victims(plan) == ["a1"]
        made.settle()
        assert made.decide().waits["a1"].code == "no_such_project"

    def test_a_job_of_an_unknown_pool_waits_with_that_reason(self) -> None:
        made = world("pool t 1\na 1 of t")
        made.submit("a", 1000, pool="gone")
        assert made.tick().actions == ()
        assert made.decide().waits["a1"].code == "no_such_pool"

    def test_a_pool_in_which_a_project_has_nothing_gives_it_nothing(self) -> None:
        made = world("pool t 1\npool u 1\na 1 of u\na queues 1 pool t")
        assert made.tick().actions == ()
        assert made.decide().waits["a1"].code == "above_limit"


def test_inside_one_project_a_job_may_be_paused_twice_on_the_way_to_rest() -> None:
    """P8 holds between projects: a1 makes room for a3, comes back on surplus, and makes room for a4 too."""
    made = world(
        "pool t 5\na 3 of t\nb 1 of t\nb runs 1\na runs 1 priority 30\na runs 2 priority 30\n"
        "a queues 3 priority 40\na queues 4 priority 50\nb queues 2 priority 60"
    )
    made.settle()
    assert (made.picture(), {name: len(made.jobs[name].paused_at) for name in made.paused()}) == (
        "a 4 / b 1", {"a1": 2, "a2": 1, "a3": 1},
    )  # fmt: skip
    assert [made.tick().actions for _ in range(5)] == [()] * 5
