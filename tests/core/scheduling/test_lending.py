"""Slices of idle notebooks are lent to preemptible jobs, and returned."""

from __future__ import annotations

import dataclasses as dc

import pytest

from jupyter_gpu_quota.api.state.quota_states import shares_of
from jupyter_gpu_quota.core.explain.projection import advance, project
from jupyter_gpu_quota.core.explain.why_waiting import explain
from jupyter_gpu_quota.core.model import Activity, Health, JobState, NotebookState, Upkeep
from jupyter_gpu_quota.core.plan import Lend, Pause, Release, Reserve, Start
from jupyter_gpu_quota.core.reasons import WithinNotebookQuota
from jupyter_gpu_quota.messages.explanations import explanation_sentence
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.promises import check_plan
from tests.core.world import GENTLE, World, world


def idle_notebook(more: str = "b queues 1 of 1") -> World:
    """One device, one notebook that has all of it and is idle."""
    made = world(f"pool t 1\na 0 of t, notebooks 1\nb 0 of t\na notebook 1\n{more}")
    made.lend_for(3600)
    made.settle()
    made.idle("nb-a1")
    return made


def eight() -> World:
    """Eight slices of one device, all lent to one job of a whole GPU."""
    made = world("pool t 1\na 0 of t, notebooks 1\nb 0 of t\n" + "a notebook 0.125\n" * 8)
    made.lend_for(3600)
    made.settle()
    made.submit("b", 1000)
    made.idle(*made.notebooks)
    made.settle()
    assert made.jobs["b1"].borrower and {one.state for one in made.notebooks.values()} == {NotebookState.LENT}
    return made


def kinds(made: World) -> list[str]:
    return [f"{type(one).__name__} {one.workload}" for one in made.tick().actions]


# R59
def test_the_slice_of_an_idle_notebook_runs_a_borrower_and_stays_booked() -> None:
    made = idle_notebook()
    (lend,) = made.tick().actions
    assert isinstance(lend, Lend)
    assert "its slice of 1 GPU in pool t is offered to preemptible jobs. It stays booked for 1 hour" in sentence(
        lend.reason
    )
    assert kinds(made) == ["Start b1"] and made.jobs["b1"].borrower
    made.ask("a", 1000)
    made.tick()
    assert made.refused == {"nb-a2": "above_notebook_quota"}


def test_a_slice_whose_device_has_foreign_work_returns_to_another_device() -> None:
    """Foreign work has no share in the queue, and cannot be preempted."""
    made = world("pool t 2\na 0 of t, notebooks 0.5\na notebook 0.5")
    made.lend_for(3600)
    made.settle()
    made.idle("nb-a1")
    made.settle()
    home = made.notebooks["nb-a1"].device
    made.devices[home] = dc.replace(made.devices[home], foreign_milli=1000)
    made.set_activity("nb-a1", Activity.BUSY, empty=True)
    decision = made.decide()
    check_plan(made.snapshot(), made.policy, decision)
    (start,) = decision.plan.actions
    assert isinstance(start, Start) and start.placements[0].device != home


# R59
@pytest.mark.parametrize(
    ("activity", "empty", "enabled"),
    [
        pytest.param(Activity.UNKNOWN, True, True, id="a notebook of unknown activity"),
        pytest.param(Activity.BUSY, True, True, id="a busy notebook"),
        pytest.param(Activity.IDLE, False, True, id="a notebook with memory on the device"),
        pytest.param(Activity.IDLE, True, False, id="lending is off"),
    ],
)
def test_nothing_is_lent_of_a_notebook(activity: Activity, empty: bool, enabled: bool) -> None:
    made = idle_notebook()
    made.policy = dc.replace(made.policy, lending=dc.replace(made.policy.lending, enabled=enabled))
    made.set_activity("nb-a1", activity, empty=empty)
    assert made.settle() == 0 and made.jobs["b1"].state is JobState.QUEUED


# R60
@pytest.mark.parametrize(
    ("activity", "empty"),
    [
        pytest.param(Activity.BUSY, True, id="uses its kernel"),
        pytest.param(Activity.IDLE, False, id="uses the GPU from a terminal"),
        pytest.param(Activity.UNKNOWN, True, id="its activity becomes unknown"),
    ],
)
def test_the_loan_ends_for_the_owner(activity: Activity, empty: bool) -> None:
    made = idle_notebook()
    made.settle()
    made.set_activity("nb-a1", activity, empty=empty)
    pause, reserve = made.tick().actions
    assert isinstance(pause, Pause) and (pause.workload, pause.grace_s) == ("b1", GENTLE.lent_grace_s)
    assert isinstance(reserve, Reserve) and reserve.workload == "nb-a1"
    assert kinds(made) == ["Start nb-a1"]
    assert made.notebooks["nb-a1"].state is NotebookState.BOOKED and made.jobs["b1"].state is JobState.PAUSED


def test_eight_slices_lent_to_one_job_return_with_one_pause_when_one_notebook_wakes() -> None:
    made = eight()
    made.set_activity("nb-a3", Activity.BUSY)
    assert kinds(made) == ["Pause b1", "Reserve nb-a3"]
    assert kinds(made) == ["Start nb-a3"]
    made.settle()
    assert len(made.jobs["b1"].paused_at) == 1 and made.jobs["b1"].state is JobState.PAUSED


def test_the_device_is_not_lent_again_as_a_whole_before_all_eight_slices_are_idle() -> None:
    made = eight()
    made.set_activity("nb-a3", Activity.BUSY)
    made.settle()
    made.submit("b", 875)
    made.settle()
    assert (made.jobs["b1"].state, made.jobs["b2"].borrower) == (JobState.PAUSED, True)
    made.end("b2")
    made.idle("nb-a3")
    made.settle()
    assert made.jobs["b1"].borrower


# R61
def test_a_waking_slice_stops_borrowers_only() -> None:
    made = world("pool t 2\na 0 of t, notebooks 1\nb 1 of t\na notebook 1\nb runs 1 on n1g1\nb queues 1")
    made.lend_for(3600)
    made.settle()
    made.idle("nb-a1")
    made.settle()
    made.set_activity("nb-a1", Activity.BUSY)
    made.settle()
    assert made.paused() == ["b2"] and made.owned["nb-a1"][0].device == "n1g0"


# R61
def test_a_lent_slice_returns_to_its_own_device_though_another_is_free() -> None:
    made = world("pool t 2\na 0 of t, notebooks 1\nb 0 of t\na notebook 1")
    made.lend_for(3600)
    made.settle()
    home = made.owned["nb-a1"][0].device
    made.idle("nb-a1")
    made.settle()
    made.submit("b", 1000)
    made.submit("b", 1000)
    made.settle()
    made.end(next(name for name, job in made.jobs.items() if not job.borrower))
    made.set_activity("nb-a1", Activity.BUSY)
    made.settle()
    assert made.owned["nb-a1"][0].device == home


# R61
def test_a_waking_slice_preempts_its_own_borrower_and_not_that_of_another() -> None:
    made = world("pool t 2\na 0 of t, notebooks 1\nb 0 of t, notebooks 1\nc 0 of t\na notebook 1\nb notebook 1")
    made.lend_for(3600)
    made.settle()
    homes = {rows[0].device: name for name, rows in made.owned.items()}
    made.idle(*made.notebooks)
    made.settle()
    made.submit("c", 1000)
    made.settle()
    device = made.owned["c1"][0].device
    made.set_activity(homes[device], Activity.BUSY)
    made.settle()
    assert made.owned[homes[device]][0].device == device


# R61
def test_a_new_slice_is_not_placed_on_the_lent_part_of_a_device() -> None:
    made = world("pool t 3\na 0 of t, notebooks 1\nb 0 of t, notebooks 1\na notebook 1")
    made.lend_for(3600)
    made.settle()
    home = made.owned["nb-a1"][0].device
    made.idle("nb-a1")
    made.settle()
    made.ask("b", 125)
    made.settle()
    (new,) = (rows for name, rows in made.owned.items() if name != "nb-a1")
    assert new[0].device != home


# R61
def test_a_new_slice_on_another_device_does_not_release_the_room_of_a_lent_slice() -> None:
    made = world(
        """
        pool t 4
        a 0 of t, notebooks 0.875
        b 0 of t, notebooks 0.5
        c 0 of t, notebooks 0.75
        d 1 of t
        d runs 1 of 0.875 on n1g0 fixed
        """
    )
    made.lend_for(3600)
    for owner, size, device in (("a", 125, "n1g0"), ("a", 750, "n1g1"), ("c", 750, "n1g2")):
        made.book(made.ask(owner, size), device)
    made.idle("nb-a1")
    made.settle()
    made.ask("b", 500)
    made.submit("d", 125, preemptible=False)
    made.settle()
    assert made.owned["nb-b1"][0].device == "n1g3" and made.owned["d2"][0].device != "n1g0"


# R61
def test_a_new_slice_does_not_claim_the_lent_part_of_a_device() -> None:
    made = world("pool t 2\na 0 of t, notebooks 1\nb 0 of t, notebooks 1\nc 0 of t\na notebook 1")
    made.lend_for(3600)
    made.settle()
    home = made.owned["nb-a1"][0].device
    made.idle("nb-a1")
    made.settle()
    made.submit("c", 1000)
    made.submit("c", 1000)
    made.settle()
    made.end(next(name for name in ("c1", "c2") if made.owned[name][0].device == home))
    made.submit("c", 1000)  # the youngest, so that it is preferred as a victim
    made.settle()
    assert made.owned["c3"][0].device == home
    made.ask("b", 1000)
    made.settle()
    (new,) = made.notebooks.keys() - {"nb-a1"}
    assert made.jobs["c3"].state is JobState.RUNNING and made.owned[new][0].device != home
    made.set_activity("nb-a1", Activity.BUSY)
    made.settle()
    assert made.owned["nb-a1"][0].device == home


# R61
def test_a_new_slice_pauses_the_job_beside_a_lent_slice_that_no_job_borrows() -> None:
    made = world("pool t 1\na 0 of t, notebooks 0.5\nc 0 of t\nc runs 1 of 0.5 on n1g0")
    made.lend_for(3600)
    made.book(made.ask("a", 500), "n1g0")
    made.idle("nb-a1")
    made.settle()
    made.project("a", "t", training_milli=0, notebook_milli=1000)
    made.ask("a", 500)
    assert kinds(made) == ["Pause c1", "Reserve nb-a2"]
    assert made.notebooks["nb-a1"].state is NotebookState.LENT


# R61
def test_of_two_lent_slices_without_room_for_both_the_first_to_wake_has_its_own() -> None:
    """The room is too small after a change that no plan made, as foreign work."""
    made = world("pool t 1\na 0 of t, notebooks 1\na notebook 0.5\na notebook 0.5")
    made.lend_for(3600)
    made.settle()
    made.idle(*made.notebooks)
    made.settle()
    made.devices["n1g0"] = dc.replace(made.devices["n1g0"], foreign_milli=500)
    made.set_activity("nb-a2", Activity.BUSY)
    made.settle()
    assert made.owned["nb-a2"][0].device == "n1g0"


def test_a_lent_slice_without_borrowers_returns_within_a_tick() -> None:
    made = idle_notebook(more="")
    made.settle()
    made.set_activity("nb-a1", Activity.BUSY)
    assert kinds(made) == ["Start nb-a1"]


def test_a_lent_slice_whose_device_became_unhealthy_returns_to_another_device() -> None:
    made = world("pool t 2\na 0 of t, notebooks 1\na notebook 1")
    made.lend_for(3600)
    made.settle()
    home = made.owned["nb-a1"][0].device
    made.idle("nb-a1")
    made.settle()
    made.health(home, Health.UNHEALTHY)
    made.set_activity("nb-a1", Activity.BUSY)
    made.settle()
    assert made.owned["nb-a1"][0].device != home


# R59
@pytest.mark.parametrize("trouble", ["n1 cordoned", "n1 draining", "n1g0 quarantined", "n1g0 unhealthy"])
def test_a_slice_on_an_unavailable_device_is_not_lent(trouble: str) -> None:
    """Its device takes no borrower, and would not take the slice back."""
    made = world(f"pool t 2x1\na 0 of t, notebooks 1\nb 0 of t\n{trouble}")
    notebook = made.ask("a", 1000)
    made.book(notebook, "n1g0")
    made.lend_for(3600)
    made.idle(notebook.id)
    assert kinds(made) == []
    assert made.notebooks[notebook.id].state is NotebookState.BOOKED


# R61
def test_a_lent_slice_on_a_cordoned_node_returns_as_a_new_slice_and_may_pause_work_over_quota() -> None:
    made = world("pool t 2x1\na 0 of t, notebooks 1\nb 0 of t, weight 0\na notebook 1")
    made.lend_for(3600)
    made.settle()
    home = made.owned["nb-a1"][0].device
    made.idle("nb-a1")
    made.submit("b", 1000)
    made.settle()
    assert made.owned["b1"][0].device != home
    made.keep_up(made.devices[home].node, Upkeep.CORDONED)
    made.set_activity("nb-a1", Activity.BUSY)
    made.settle()
    assert made.paused() == ["b1"] and made.owned["nb-a1"][0].device != home


# R62
def test_a_released_slice_returns_to_the_quota_and_another_notebook_starts() -> None:
    made = idle_notebook(more="")
    made.lend_for(3)
    assert [type(action) for _ in range(5) for action in made.tick().actions] == [Lend, Release]
    assert made.notebooks["nb-a1"].state is NotebookState.RETURNED
    made.ask("a", 1000)
    assert kinds(made) == ["Start nb-a2"]


def test_a_slice_that_wakes_at_the_last_instant_is_not_released() -> None:
    made = idle_notebook(more="")
    made.lend_for(3)
    for _ in range(3):
        made.tick()
    made.set_activity("nb-a1", Activity.BUSY)
    assert kinds(made) == ["Start nb-a1"]


# R59
def test_guarantees_do_not_count_lent_devices() -> None:
    made = world("pool t 2\na 0 of t, notebooks 1\nb 2 of t\na notebook 1")
    made.lend_for(3600)
    made.settle()
    made.idle("nb-a1")
    made.settle()
    made.submit("b", 1000, preemptible=False)
    made.submit("b", 1000, preemptible=False)
    assert shares_of(made.snapshot(), made.policy).projects["b", "t"].guarantee_milli == 1000
    made.settle()
    assert made.picture() == "a 0 / b 1"


# R14
@pytest.mark.parametrize(
    ("idle", "fair_milli"),
    [
        pytest.param(False, 1500, id="without a booked slice"),
        pytest.param(True, 2000, id="with a lent one"),
    ],
)
def test_the_pool_is_divided(idle: bool, fair_milli: int) -> None:
    made = world("pool t 4\na 0 of t, notebooks 1\nb 0 of t\nc 0 of t\na notebook 1\nb queues 4 of 1\nc queues 4 of 1")
    made.lend_for(3600)
    made.settle()
    if idle:
        made.idle("nb-a1")
        made.settle()
    shares = shares_of(made.snapshot(), made.policy).projects
    assert [shares[name, "t"].fair_milli for name in ("b", "c")] == [fair_milli, fair_milli]


def test_turning_lending_off_returns_every_slice() -> None:
    made = idle_notebook()
    made.settle()
    made.policy = dc.replace(made.policy, lending=dc.replace(made.policy.lending, enabled=False))
    made.settle()
    assert made.notebooks["nb-a1"].state is NotebookState.BOOKED and made.jobs["b1"].state is JobState.PAUSED


def test_a_lent_slice_and_a_returning_owner_have_their_reasons() -> None:
    made = idle_notebook()
    made.settle()
    assert explanation_sentence(explain(made.snapshot(), made.policy, "nb-a1")) == (
        "Its slice is booked, and offered to preemptible jobs while the notebook is idle."
    )
    made.set_activity("nb-a1", Activity.BUSY)
    made.drain_ticks = 3
    made.tick()
    found = explain(made.snapshot(), made.policy, "nb-a1")
    assert found.reason is not None and found.reason.code == "waits_for_drain"


def test_a_projection_lends_as_the_scheduler_does() -> None:
    made = idle_notebook()
    seen = project(made.snapshot(), made.policy)
    assert seen.started == ("b1",) and seen.snapshot.notebooks[0].device == "n1g0"
    made.settle()
    made.set_activity("nb-a1", Activity.BUSY)
    after = advance(made.snapshot(), made.decide().plan, made.policy)
    assert [type(action) for action in made.decide().plan.actions] == [Pause, Reserve] and after.reservations
    assert project(made.snapshot(), made.policy).snapshot.notebooks[0].device is None


def test_the_sentences_of_lending_say_that_the_slice_stays_booked() -> None:
    made = eight()
    made.set_activity("nb-a3", Activity.BUSY)
    made.tick()
    (start,) = made.tick().actions
    assert isinstance(start, Start)
    assert sentence(start.reason) == (
        "The slice of 0.125 GPU was lent while the notebook was idle; it stayed booked, and the notebook has it back."
    )
    assert isinstance(start.reason, WithinNotebookQuota)
    assert "booked" not in sentence(dc.replace(start.reason, was=None))


# R76
def test_a_new_slice_is_placed_on_its_own_reserved_room_and_not_on_that_of_a_lent_slice() -> None:
    """Beside the lent slice, 0.25 is reserved for notebook quota, and 0.875 on the next device."""
    made = world(
        """
        pool t 3
        p 0 of t, notebooks 0.5
        q 0 of t, notebooks 0.875
        r 1.375 of t
        r runs 1 of 1 on n1g2 fixed
        p notebook 0.25
        """
    )
    made.lend_for(3600)
    made.settle()
    made.idle("nb-p1")
    made.settle()
    assert (made.notebooks["nb-p1"].state, made.notebooks["nb-p1"].device) == (NotebookState.LENT, "n1g0")
    made.ask("q", 500)
    made.submit("r", 375)
    starts = [(one.workload, one.placements[0].device) for one in made.tick().actions if isinstance(one, Start)]
    assert starts == [("nb-q1", "n1g1"), ("r2", "n1g0")]
