"""Devices that fail, are unavailable, or return: the work that is evicted, that stays, and that waits for them."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.core.eviction.quarantine import quarantine_changes
from jupyter_gpu_quota.core.explain.projection import dry_run, project
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import Health, Job, JobState, JobTarget, Upkeep
from jupyter_gpu_quota.core.plan import Pause, Resume, Stop
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.world import BEGIN, GENTLE, World, world


# -- work on an unhealthy device -----------------------------------------------------------------------------------
# R69
def test_a_job_on_an_unhealthy_device_is_queued_again_and_resumes_elsewhere_at_no_cost() -> None:
    made = world("pool t 2\na 2 of t\na runs 1")
    (device,) = {one.device for one in made.owned["a1"]}
    made.health(device, Health.UNHEALTHY)
    (stop,) = made.tick().actions
    assert isinstance(stop, Stop) and (stop.workload, stop.target) == ("a1", JobTarget.PAUSED)
    assert sentence(stop.reason).startswith(
        f"Device {device} of pool t on node n1 is unhealthy or gone (the cause is not known)"
    )
    (again,) = made.tick().actions
    assert isinstance(again, Resume) and {one.device for one in again.placements} == set(made.devices) - {device}
    assert made.jobs["a1"].paused_at == (), "no claim took its devices, so no pause is counted"


# R69
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("pool t 1\na 1 of t\na runs 1 fixed", id="a job that may not be preempted"),
        pytest.param("pool t 1\na 0 of t, notebooks 1\na notebook 1", id="a notebook"),
    ],
)
def test_non_preemptible_work_stays_on_an_unhealthy_device_with_that_reason(text: str) -> None:
    made = world(text)
    made.settle()
    (name,) = made.owned
    made.health("n1g0", Health.UNHEALTHY)
    assert made.tick().actions == ()
    found = explain(made.snapshot(), made.policy, name)
    assert found.reason is not None and found.reason.code == "device_unhealthy"
    assert "Device n1g0 of pool t on node n1 is unhealthy" in explanation_sentence(found)


def test_reasons_of_stopped_and_waiting_work_name_the_fault_of_the_device() -> None:
    made = world("pool t 2\na 2 of t\na runs 1 on n1g0\na queues 2")
    made.devices["n1g0"] = dc.replace(made.devices["n1g0"], health=Health.UNHEALTHY, trouble="XID 79")
    assert "Device n1g0 of pool t on node n1 is unhealthy or gone (XID 79)" in sentence(made.tick().actions[0].reason)
    assert "n1g0 is unhealthy: XID 79." in sentence(made.decide().waits["a2"])


def test_a_gang_with_one_rank_on_an_unhealthy_device_is_evicted_as_a_whole() -> None:
    made = world("pool t 2x1\na 2 of t\na queues 1 ranks 2")
    made.settle()
    made.health("n2g0", Health.UNHEALTHY)
    assert [(type(one), one.workload) for one in made.tick().actions] == [(Stop, "a1")]
    made.settle()
    assert made.jobs["a1"].state is JobState.PAUSED


def test_a_node_that_takes_no_new_work_continues_its_running_work() -> None:
    made = world("pool t 1\na 1 of t\na runs 1\na queues 1")
    made.nodes[0] = dc.replace(made.nodes[0], schedulable=False)
    assert made.tick().actions == ()


def test_other_work_on_a_quarantined_device_continues() -> None:
    made = world("pool t 1\na 1 of t\na runs 0.5")
    made.health("n1g0", Health.QUARANTINED)
    assert made.tick().actions == ()


def test_a_job_that_is_held_or_out_of_time_is_stopped_once_for_that_reason() -> None:
    made = world("pool t 1\na 1 of t\na runs 1")
    made.hold("a1")
    made.health("n1g0", Health.UNHEALTHY)
    assert [(one.workload, one.target) for one in made.tick().actions if isinstance(one, Stop)] == [
        ("a1", JobTarget.HELD)
    ]
    assert made.tick().actions == ()


def test_an_evicted_job_above_its_entitlement_pauses_no_other() -> None:
    made = world("pool t 2\na 1 of t\nb 1 of t\na runs 1\nb runs 1")
    (device,) = {one.device for one in made.owned["a1"]}
    made.health(device, Health.UNHEALTHY)
    made.settle()
    assert made.jobs["b1"].state is JobState.RUNNING and made.jobs["a1"].state is JobState.PAUSED
    assert not any(isinstance(one, Pause) for one in made.decide().plan.actions)
    made.health(device, Health.HEALTHY)
    made.settle()
    assert made.picture() == "a 1 / b 1"


def test_a_projection_counts_no_pause_of_work_that_leaves_an_unhealthy_device() -> None:
    made = world("pool t 2\na 2 of t\na runs 1")
    (device,) = {one.device for one in made.owned["a1"]}
    made.health(device, Health.UNHEALTHY)
    seen = project(made.snapshot(), made.policy)
    assert (seen.paused, seen.started) == ((), ("a1",)) and seen.snapshot.jobs[0].paused_at == ()


# -- nodes that an admin cordons and drains --------------------------------------------------------------------------
# R70
def test_a_cordoned_node_takes_nothing_new_and_an_uncordoned_one_does_again() -> None:
    made = world("pool t 2x1\na 2 of t\na queues 2 of 1\nn1 cordoned")
    made.settle()
    assert {one.device for rows in made.owned.values() for one in rows} == {"n2g0"}
    made.keep_up("n1", Upkeep.NONE)
    made.settle()
    assert made.picture() == "a 2"


def test_a_cordoned_node_continues_its_work_and_a_claim_takes_that_of_another_node() -> None:
    made = world("pool t 3x1\na 1 of t\nb 1 of t\na runs 3 of 1\nb queues 1\nn3 cordoned")
    made.settle()
    assert made.owned["a3"] and made.picture() == "a 2 / b 1"


# R70
def test_preemptible_work_of_a_drained_node_is_queued_again_without_counting_a_pause() -> None:
    made = world("pool t 2x1\na 2 of t\na runs 1 on n1g0\nn1 draining")
    (stop,) = made.tick().actions
    assert isinstance(stop, Stop) and (stop.workload, stop.target) == ("a1", JobTarget.PAUSED)
    assert (stop.grace_s, stop.reason.code) == (GENTLE.grace_s, "node_drained")
    assert sentence(stop.reason).startswith("An admin drains node n1, and this job uses its")
    made.settle()
    assert {one.device for one in made.owned["a1"]} == {"n2g0"} and made.jobs["a1"].paused_at == ()


def test_a_borrower_leaves_a_drained_node_within_its_own_grace() -> None:
    made = world("pool t 2x1\na 0 of t, notebooks 1\nb 0 of t\nb runs 1 on n1g0 lent\nn1 draining")
    (stop,) = made.tick().actions
    assert isinstance(stop, Stop) and stop.grace_s == GENTLE.lent_grace_s


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("pool t 1\na 1 of t\na runs 1 fixed", id="a job that may not be preempted"),
        pytest.param("pool t 1\na 0 of t, notebooks 1\na notebook 1", id="a notebook"),
    ],
)
def test_non_preemptible_work_drains_with_that_reason(text: str) -> None:
    made = world(text)
    made.settle()
    (name,) = made.owned
    made.keep_up("n1", Upkeep.DRAINING)
    assert made.tick().actions == ()
    found = explain(made.snapshot(), made.policy, name)
    assert found.reason is not None and found.reason.code == "node_drained"
    assert "An admin drains node n1" in explanation_sentence(found)


# R70
def test_at_the_deadline_of_a_drain_a_job_that_may_not_be_preempted_leaves_and_not_before() -> None:
    made = world("pool t 2x1\na 1 of t\na runs 1 on n1g0 fixed\nn1 draining by 3")
    assert [made.tick().actions for _ in range(2)] == [(), ()]
    found = explain(made.snapshot(), made.policy, "a1")
    assert explanation_sentence(found).endswith(
        "The drain's deadline is in 1 s; after it such jobs, too, are stopped and queued again."
    )
    (stop,) = made.tick().actions
    assert isinstance(stop, Stop) and (stop.workload, stop.target) == ("a1", JobTarget.PAUSED)
    made.settle()
    assert {one.device for one in made.owned["a1"]} == {"n2g0"}


def test_a_notebook_stays_past_the_deadline_of_a_drain() -> None:
    made = world("pool t 1\na 0 of t, notebooks 1\na notebook 1")
    made.settle()
    made.keep_up("n1", Upkeep.DRAINING, by_s=0)
    assert made.tick().actions == () and made.owned["nb-a1"]


def test_a_gang_with_one_rank_on_a_drained_node_is_evicted_as_a_whole() -> None:
    made = world("pool t 3x1\na 2 of t\na queues 1 ranks 2")
    made.settle()
    node = made.devices[made.owned["a1"][0].device].node
    made.keep_up(node, Upkeep.DRAINING)
    made.settle()
    assert len(made.owned["a1"]) == 2 and made.devices[made.owned["a1"][0].device].node != node


def test_a_gang_on_two_drained_nodes_leaves_at_the_earlier_deadline() -> None:
    """Found by random worlds: the decision was by the node whose device has the first name."""
    made = world("pool t 3x1\na 2 of t\na runs 1 of 1 ranks 2 on n1g0,n2g0 fixed\nn1 draining by 60\nn2 draining by 3")
    assert made.tick().actions == ()
    found = explain(made.snapshot(), made.policy, "a1")
    assert "An admin drains node n2" in explanation_sentence(found)
    made.now = BEGIN + 3000
    (stop,) = made.tick().actions
    assert isinstance(stop, Stop) and stop.reason.code == "node_drained"


def test_a_reservation_on_a_node_is_dropped_when_the_node_is_cordoned() -> None:
    made = world("pool t 2x1\na 0 of t\nb 1 of t\na runs 1 on n1g0\na runs 1 on n2g0\nb queues 1")
    made.drain_ticks = 3
    made.tick()
    (reservation,) = made.reserved.values()
    made.keep_up(made.devices[reservation.placements[0].device].node, Upkeep.CORDONED)
    made.settle()
    assert made.picture() == "a 0 / b 1"


def test_the_reason_of_a_waiting_job_names_the_cordoned_node() -> None:
    made = world("pool t 2x1\na 2 of t\na queues 1 ranks 2\nn2 cordoned")
    reason = made.decide().waits["a1"]
    assert reason.code == "device_unavailable"
    assert "n2g0 is on node n2, which is cordoned." in sentence(reason)


def test_freed_devices_of_a_cordoned_node_are_no_change_that_starts_a_job() -> None:
    made = world("pool t 2x1\na 1 of t\na runs 1 on n1g0\na runs 1 on n2g0\na queues 1\nn1 cordoned")
    found = explanation_sentence(explain(made.snapshot(), made.policy, "a3"))
    assert found.endswith(
        "It would start if a2 ended in pool t, which frees 1 GPU, or if pool t had one more node with 1 GPU."
    )


# -- who waits for devices that come back --------------------------------------------------------------------------
def stuck() -> World:
    """A victim that does not end occupies one of two devices, and a job needs both."""
    made = world("pool t 2\na 0 of t\nb 2 of t\na runs 1\nb queues 2")
    made.drain_ticks = 1_000
    made.tick()
    assert made.jobs["a1"].state is JobState.PAUSING
    made.now += (GENTLE.grace_s + 11) * 1000
    for device, health in quarantine_changes(made.snapshot(), made.policy).items():
        made.health(device, health)
    made.tick()
    return made


def test_the_reason_of_a_waiting_job_names_the_quarantined_device() -> None:
    made = stuck()
    reason = made.decide().waits["b1"]
    (device,) = {one.device for one in made.owned["a1"]}
    assert reason.code == "device_quarantined"
    assert sentence(reason) == (
        f"b asked for 2 GPU; device {device} of pool t, which it needs, is quarantined: processes of a1, attempt 1, "
        "were killed but still exist. It starts when they are gone."
    )
    assert explanation_sentence(explain(made.snapshot(), made.policy, "b1")).startswith(sentence(reason))


def test_a_dry_run_has_the_same_reason() -> None:
    made = stuck()
    job = Job(id="new", project="b", user="b", pool="t", gpu_milli=2000, submitted_at=made.now)
    assert dry_run(made.snapshot(), made.policy, job).reason.code == "device_quarantined"


def test_a_claim_starts_when_the_processes_of_its_victims_are_gone() -> None:
    made = stuck()
    made.leaves_at["a1"], made.drain_ticks = made.now, 1
    made.tick()
    for device, health in quarantine_changes(made.snapshot(), made.policy).items():
        made.health(device, health)
    made.settle()
    assert made.picture() == "a 0 / b 2"


# R58
@pytest.mark.parametrize(
    ("nodes", "times", "late"),
    [
        pytest.param(8, 1, 8, id="of as many nodes as may be stuck"),
        pytest.param(9, 1, 0, id="of more nodes, so that the cluster is slow"),
        pytest.param(9, 10, 9, id="in a slow cluster after ten times the time to die"),
    ],
)
def test_work_that_is_late_on_many_nodes_at_once_has_ten_times_the_time_to_die(
    nodes: int, times: int, late: int
) -> None:
    made = world(f"pool t {nodes}x1\na 0 of t\nb {nodes} of t\na runs {nodes} of 1\nb queues {nodes} of 1")
    made.drain_ticks = 1_000
    made.tick()
    assert len(made.paused()) == nodes
    made.now += times * (GENTLE.grace_s + 10) * 1000
    assert len(quarantine_changes(made.snapshot(), made.policy)) == late


def quarantine(made: World) -> None:
    """Let the devices of victims whose time to die is over be quarantined, and those of gone ones be healthy again."""
    for device, health in quarantine_changes(made.snapshot(), made.policy).items():
        made.health(device, health)


def both_quarantined(others: str) -> World:
    """Both victims of a claim of two GPUs do not end in time; ``others`` use two more devices."""
    made = world(f"pool t 4\na 0 of t\nb 2 of t\na runs 2 of 1\n{others}\nb queues 2")
    made.drain_ticks = 1_000
    made.tick()
    made.now += (GENTLE.grace_s + 11) * 1000
    quarantine(made)
    made.tick()
    return made


# R25
def test_a_claim_keeps_its_reservation_while_devices_of_it_are_quarantined() -> None:
    made = both_quarantined("c 2 of t\nc runs 2 of 1 fixed\nd 0 of t\nd queues 1")
    for name in ("a1", "a2"):
        made.tick()
        assert made.decide().waits["b1"].code == "device_quarantined"
        assert "b1" in made.reserved and not made.owned.get("d1"), "the device that is free already is not lost"
        made.leaves_at[name] = made.now
        made.tick()
        quarantine(made)
    made.settle()
    assert made.picture() == "a 0 / b 2 / c 2 / d 0"


# R25
def test_a_claim_whose_reserved_devices_are_quarantined_takes_another_set() -> None:
    made = both_quarantined("a runs 2 of 1")
    stuck = {one.device for name in ("a3", "a4") for one in made.owned[name]}
    assert made.jobs["a3"].state is made.jobs["a4"].state is JobState.PAUSING
    assert {one.device for one in made.reserved["b1"].placements} == made.devices.keys() - stuck


# R25
def test_a_reservation_of_quarantined_devices_ends_after_ten_times_the_time_to_die() -> None:
    made = both_quarantined("c 2 of t\nc runs 2 of 1 fixed\nd 0 of t\nd queues 1")
    made.leaves_at["a1"] = made.now
    made.tick()
    quarantine(made)
    made.now = made.reserved["b1"].reserved_at + 10 * (GENTLE.grace_s + 10) * 1000 - 1
    assert made.decide().plan.actions == ()
    made.now += 1
    assert [one.workload for one in made.decide().plan.actions] == ["b1", "d1"], "b1 loses it, and d1 starts"


# R25
def test_a_job_that_shrinks_and_does_not_end_in_time_keeps_its_reservation() -> None:
    made = world("pool t 3\na 0 of t\nb 2 of t\na runs 1 of 1 ranks 1-3 held 3\nb queues 2")
    made.drain_ticks = 1_000
    made.tick()
    made.now += (GENTLE.grace_s + 11) * 1000
    quarantine(made)
    made.submit("a", 1000, priority=90)
    made.tick()
    assert made.reserved.keys() == {"a1", "b1"}
    made.leaves_at["a1"] = made.now
    made.pass_time()
    quarantine(made)
    made.tick()
    assert made.owned.keys() == {"a1", "b1"}


# R71
@pytest.mark.parametrize(
    ("text", "out", "code"),
    [
        pytest.param(
            "pool t 2\na 2 of t\na queues 2", Health.UNHEALTHY, "device_unavailable", id="an unhealthy device"
        ),
        pytest.param(
            "pool t 2\na 2 of t\na queues 2", Health.QUARANTINED, "device_quarantined", id="a quarantined one"
        ),
        pytest.param(
            "pool t 2\na 2 of t\na queues 3", Health.QUARANTINED, "never_fits", id="it would not fit with it either"
        ),
        pytest.param("pool t 1\na 1 of t\na queues 1 model Y", Health.QUARANTINED, "never_fits", id="another model"),
    ],
)
def test_a_job_that_fits_with_unavailable_devices_waits_for_them(text: str, out: Health, code: str) -> None:
    made = world(text)
    made.health("n1g0", out)
    assert made.decide().waits["a1"].code == code


# R71
@pytest.mark.parametrize(
    ("model", "cpu_milli", "memory_mib", "code"),
    [
        pytest.param("A", 40_000, 0, "never_fits", id="two ranks on the one node of their model"),
        pytest.param("T4", 40_000, 0, "never_fits", id="two ranks on the cordoned node"),
        pytest.param("T4", 32_000, 0, "device_unavailable", id="half of its CPU each"),
        pytest.param("T4", 0, 256_001, "never_fits", id="more than half of its memory each"),
    ],
)
def test_an_unavailable_node_has_no_more_cpu_and_memory_than_it_states(
    model: str, cpu_milli: int, memory_mib: int, code: str
) -> None:
    made = world("pool t 4 A\npool t 2 T4\na 4 of t\nn2 cordoned")
    made.submit("a", 1000, ranks=2, gpu_models=(model,), cpu_milli=cpu_milli, memory_mib=memory_mib)
    assert made.decide().waits["a1"].code == code


# R71, R73
@pytest.mark.parametrize(
    ("out", "code"),
    [
        ("n1 cordoned", "device_unavailable"),
        ("n1g0 unhealthy", "device_unavailable"),
        ("n1g0 quarantined", "device_quarantined"),
    ],
)
def test_an_unavailable_node_in_two_pools_gives_each_its_part_of_cpu(out: str, code: str) -> None:
    made = world(f"pool t 1x2\npool u 1x1\na 1 of t\n{out}")
    made.devices["n1g1"] = dc.replace(made.devices["n1g1"], pool="u")
    made.submit("a", 1000, cpu_milli=32_000)
    made.submit("a", 1000, cpu_milli=32_001)
    waits = made.decide().waits
    assert (waits["a1"].code, waits["a2"].code) == (code, "never_fits")


def test_a_job_in_a_pool_whose_node_takes_no_new_work_can_start_later() -> None:
    made = world("pool t 1\na 1 of t\na queues 1")
    made.nodes[0] = dc.replace(made.nodes[0], schedulable=False)
    assert made.decide().waits["a1"].code == "device_unavailable"
    assert "on node n1, which is gone, or cannot be read now" in str(made.decide().waits["a1"])
    made.devices["n1g0"] = dc.replace(made.devices["n1g0"], trouble="node n1 is lost")
    assert "trouble='node n1 is lost'" in str(made.decide().waits["a1"])
