"""Fixed notebook quota: always available, never more, packed, and used by borrowers while it is not booked."""

from __future__ import annotations

import dataclasses as dc
import time

import pytest

from jupyter_gpu_quota.core.model import Health
from jupyter_gpu_quota.core.plan import Pause, Refuse, Reserve, Start, Unreserve
from jupyter_gpu_quota.messages.reasons import sentence
from tests.core.world import GENTLE, placed, world


def kinds(plan) -> list[str]:  # type: ignore[no-untyped-def]
    return [type(action).__name__ for action in plan.actions]


@pytest.mark.parametrize(
    ("asked", "codes"),
    [
        # R7
        pytest.param(["0.5"], [], id="exactly at the quota is admitted"),
        # R7
        pytest.param(["0.501"], ["above_notebook_quota"], id="one milli more is not"),
        pytest.param(["0.1", "0.2", "0.2"], [], id="0.1 and 0.2 and 0.2 are exactly 0.5"),
        pytest.param(["0.25", "0.25", "0.001"], ["above_notebook_quota"], id="the request beyond the quota is refused"),
        # R7
        pytest.param(["0.6", "0.5"], ["above_notebook_quota"], id="a refused request takes no quota from the next"),
    ],
)
def test_admission_at_a_notebook_quota_of_0_5(asked: list[str], codes: list[str]) -> None:
    made = world("pool t 2\na 1 of t, notebooks 0.5\n" + "\n".join(f"a notebook {milli}" for milli in asked))
    plan = made.tick()
    assert [action.reason.code for action in plan.actions if isinstance(action, Refuse)] == codes
    assert sum(isinstance(action, Start) for action in plan.actions) == len(asked) - len(codes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            "a 1 of t, notebooks 0.5\na notebook 0.25\na notebook 0.5",
            "is 0.5 and 0.25 is in use. Choose a smaller slice, or stop a notebook of a; the hub's page"
            " Services > gpu-quota lists them with their users.",
            id="part of the quota is unused",
        ),
        pytest.param(
            "a 1 of t, notebooks 0.5\na notebook 0.5\na notebook 0.25",
            "is 0.5 and 0.5 is in use. Stop a notebook of a; the hub's page Services > gpu-quota lists them with their"
            " users.",
            id="all of the quota is used",
        ),
        pytest.param(
            "a 1 of t\na notebook 0.25",
            "is 0 and 0 is in use. Choose another pool, or ask for notebook quota there.",
            id="the project has no notebook quota",
        ),
    ],
)
def test_the_reason_of_a_notebook_above_its_quota_names_a_remedy(text: str, says: str) -> None:
    (refuse,) = (action for action in world(f"pool t 2\n{text}").tick().actions if isinstance(action, Refuse))
    found = sentence(refuse.reason)
    assert found.startswith("a asked for a notebook of ") and found.endswith(says)


@pytest.mark.parametrize("huge", [5, 1_000_000], ids=["a few devices too many", "a million devices too many"])
def test_notebook_quotas_far_above_a_pool_reserve_no_more_than_it_has(huge: int) -> None:
    """An admin may accept such quotas; the decision is the same, and takes no longer."""
    rows = [f"q{n} 0 of t, notebooks {huge}" for n in range(9)]
    made = world("\n".join(["pool t 2", "a 0.5 of t, notebooks 0.25", *rows, "a notebook 0.25", "a queues 1 of 0.5"]))
    begun = time.process_time()
    plan = made.tick()
    assert time.process_time() - begun < 1
    assert "Start" in kinds(plan)
    assert {(action.workload) for action in plan.actions if isinstance(action, Start)} >= {"nb-a1"}


def test_a_notebook_larger_than_a_device_is_refused() -> None:
    made = world("pool t 4\na 0 of t, notebooks 2\na notebook 1.5")
    (refuse,) = made.tick().actions
    assert isinstance(refuse, Refuse)
    assert refuse.reason.code == "never_fits"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("pool t 1\na 0 of t\nb notebook 0.1", "no_such_project", id="no such project"),
        pytest.param("pool t 1\npool u 1\na 0 of u, notebooks 1\na notebook 0.1", "above_notebook_quota", id="none"),
    ],
)  # fmt: skip
def test_a_request_without_quota_is_refused(text: str, code: str) -> None:
    (refuse,) = world(text).tick().actions
    assert isinstance(refuse, Refuse)
    assert refuse.reason.code == code


# R76
def test_slices_of_several_projects_share_as_few_devices_as_possible() -> None:
    rows = "\n".join(f"p{at} 0 of t, notebooks 0.125\np{at} notebook 0.125" for at in range(8))
    plan = world(f"pool t 4\n{rows}").tick()
    assert len({part.device for action in plan.actions for part in action.placements}) == 1  # type: ignore[union-attr]


def test_a_slice_has_its_share_of_the_memory_rounded_down() -> None:
    made = world("pool t 1\na 0 of t, notebooks 1\na notebook 0.125")
    (part,) = placed(made.tick(), "nb-a1")
    assert part.memory_mib == (16_001 - 512) * 125 // 1000 == 1936


# R6
def test_unbooked_quota_runs_preemptible_jobs_as_borrowers() -> None:
    made = world("pool t 2\na 1 of t, notebooks 0.25\nb 0 of t\nb queues 2 of 1")
    starts = {action.workload: action.borrower for action in made.tick().actions if isinstance(action, Start)}
    assert starts == {"b1": False, "b2": True}


def test_a_guarantee_starts_beside_unbooked_quota_and_never_on_it() -> None:
    made = world("pool t 1\na 0.75 of t, notebooks 0.25\na queues 0.75\na queues 0.25 fixed")
    made.settle()
    assert made.picture() == "a 0.75"
    assert not made.jobs["a1"].borrower


# R6
def test_a_non_preemptible_job_never_borrows() -> None:
    made = world("pool t 1\na 0 of t, notebooks 0.5\nb 0.5 of t\nb runs 0.5\nc 0.5 of t\nc queues 0.5 fixed")
    made.settle()
    assert made.picture() == "a 0 / b 0.5 / c 0"


# R6
def test_a_notebook_within_quota_starts_within_lent_grace_however_full_the_pool_is() -> None:
    made = world("pool t 2\na 1 of t, notebooks 0.25\nb 0 of t\nb queues 2 of 1")
    made.settle()
    made.ask("a", 250)
    plan = made.tick()
    assert kinds(plan) == ["Pause", "Reserve"]
    (pause, reserve) = plan.actions
    assert isinstance(pause, Pause)
    assert isinstance(reserve, Reserve)
    assert (pause.workload, pause.grace_s, pause.reason.code) == ("b2", GENTLE.lent_grace_s, "borrower_returns")
    assert placed(made.tick(), "nb-a1") == reserve.placements


def test_a_notebook_starts_beside_a_borrower_that_leaves_room() -> None:
    made = world("pool t 1\na 0 of t, notebooks 1\nb 0 of t\nb queues 0.5")
    made.settle()
    made.ask("a", 500)
    assert kinds(made.tick()) == ["Start"]
    assert made.paused() == []


def test_a_notebook_quota_that_was_raised_reclaims_from_projects_over_quota() -> None:
    made = world("pool t 1\na 0 of t\nb 0 of t\nb queues 1")
    made.settle()
    made.project("a", "t", notebook_milli=500)
    made.ask("a", 500)
    made.settle()
    assert made.notebooks["nb-a1"].state == "booked"
    assert made.paused() == ["b1"]


def test_no_non_preemptible_job_pays_for_a_notebook() -> None:
    made = world("pool t 1\na 0 of t, notebooks 0.5\nb 1 of t\nb runs 1 fixed")
    made.ask("a", 500)
    assert made.tick().actions == ()
    assert made.decide().waits["nb-a1"].code == "no_free_gpu"


def test_no_job_within_its_guarantee_pays_for_a_notebook_where_quotas_fit() -> None:
    made = world("pool t 2\na 0 of t, notebooks 0.5\nb 1 of t\nc 0 of t\nb runs 1\nc runs 1")
    made.ask("a", 500)
    made.settle()
    assert made.paused() == ["c1"]


def test_a_withdrawn_notebook_request_frees_its_quota() -> None:
    made = world("pool t 1\na 0 of t, notebooks 1\nb 0 of t\nb queues 1")
    made.settle()
    made.drain_ticks = 3
    made.ask("a", 500)
    made.tick()
    made.close("nb-a1")
    (unreserve,) = made.tick().actions
    assert isinstance(unreserve, Unreserve)
    assert unreserve.reason.code == "claim_ended"


def test_a_request_to_a_pool_without_a_device_is_refused_with_that_reason() -> None:
    made = world("pool t 2\na 1 of t")
    made.policy = dc.replace(made.policy, pools=(*made.policy.pools, "build"))
    made.project("a", "build", notebook_milli=500)
    made.ask("a", 125, pool="build")
    (refuse,) = made.tick().actions
    assert isinstance(refuse, Refuse)
    assert refuse.reason.code == "no_device"
    assert "pool build has no device" in sentence(refuse.reason)


def test_a_request_to_a_pool_of_unhealthy_devices_waits_with_that_reason() -> None:
    made = world("pool t 1\na 0 of t, notebooks 0.5\na notebook 0.5")
    made.health("n1g0", Health.QUARANTINED)
    assert made.tick().actions == ()
    reason = made.decide().waits["nb-a1"]
    assert reason.code == "device_unavailable"
    assert "1 device that cannot be allocated now: device n1g0 is in quarantine" in sentence(reason)
    made.health("n1g0", Health.HEALTHY)
    assert kinds(made.tick()) == ["Start"]


def test_a_quarantined_device_takes_no_slice() -> None:
    made = world("pool t 2\na 0 of t, notebooks 1\na notebook 0.5")
    made.health("n1g0", Health.QUARANTINED)
    (part,) = placed(made.tick(), "nb-a1")
    assert part.device == "n1g1"


def test_a_pool_with_only_notebook_quota_serves_notebooks() -> None:
    made = world("pool train 4\npool build 1\nbob 2 of train")
    made.project("bob", "build", notebook_milli=125)
    made.ask("bob", 125, pool="build")
    (part,) = placed(made.tick(), "nb-bob1")
    assert made.devices[part.device].pool == "build"


# R76
def test_a_slice_preempts_a_borrower_rather_than_use_another_device() -> None:
    """Otherwise slices are on more devices than the quotas were checked for, and a guarantee finds no whole device."""
    made = world("pool t 3\na 0 of t, notebooks 1\nb 1 of t\nc 1 of t\nd 0 of t\nd queues 2 of 1\nd queues 0.5")
    made.ask("a", 500)
    made.settle()
    assert made.jobs["d3"].borrower and made.notebooks["nb-a1"].state == "booked"
    made.end("d1")
    made.ask("a", 500)
    plan = made.tick()
    assert kinds(plan) == ["Pause", "Reserve"] and plan.actions[0].workload == "d3"  # type: ignore[union-attr]
    made.settle()
    assert made.notebooks["nb-a2"].state == "booked"
    made.submit("b", 1000)
    made.submit("c", 1000)
    made.settle()
    assert made.running("b") == made.running("c") == 1000


def test_a_slice_is_beside_others_where_the_job_that_is_planned_there_waits_for_the_end_of_another() -> None:
    made = world("pool t 2\na 0 of t, notebooks 0.25\nb 0 of t\nb runs 0.75 on n1g0\nb runs 1 on n1g1 minutes 999999")
    made.book(made.ask("a", 125), "n1g0")
    made.submit("b", 750)
    made.settle()
    assert [part.device for kept in made.backfill for part in kept.placements] == ["n1g0"]
    made.end("b2")
    made.ask("a", 125)
    assert [part.device for part in placed(made.tick(), "nb-a2")] == ["n1g0"]


def test_slices_are_kept_apart_from_a_job_where_the_quotas_leave_them_a_device() -> None:
    """Beside the job there is room for now; once all slices are booked there would be none."""
    made = world("pool t 3\na 0 of t, notebooks 0.5\nb 0 of t, notebooks 0.5\nc 1 of t\nd 1 of t\nc runs 0.5")
    job = made.snapshot().allocations[0].device
    made.ask("a", 500)
    made.settle()
    (slice_,) = (one.device for one in made.snapshot().allocations if one.workload.startswith("nb-"))
    assert slice_ != job
    made.ask("b", 500)
    made.submit("d", 1000)
    made.settle()
    assert made.running("d") == 1000 and made.notebooks["nb-b1"].state == "booked"


def test_slices_share_a_device_with_a_guarantee_where_the_quotas_were_packed_so() -> None:
    made = world("pool t 2\na 0 of t, notebooks 0.25\nb 0.75 of t\nc 1 of t\nb runs 0.75 fixed")
    made.ask("a", 250)
    made.submit("c", 1000)
    made.settle()
    assert made.running("c") == 1000 and made.notebooks["nb-a1"].state == "booked"
