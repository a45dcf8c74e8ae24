"""Snapshots in which a plan broke a rule of docs/scheduling.md, each as small as the fault allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.outside.documents import state_of
from tests.outside.product import plan_of
from tests.outside.rules import every
from tests.outside.steps import Step

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "name",
    [
        # R28
        pytest.param(
            "reservation_beside_work_that_leaves_its_user",
            id="a reservation stays while work that leaves counts under its user's ceiling",
        ),
        # R28
        pytest.param(
            "reservation_back_from_a_job_at_its_limit",
            id="a reservation returns from a job that a later claim of its project leaves at the limit",
        ),
        # R29
        pytest.param(
            "reservation_that_passes_before_a_claim",
            id="a job to which the reservation of its project passes has its turn before jobs of lower priority",
        ),
        # R27
        pytest.param(
            "first_job_that_fits_on_no_node", id="where the first job can be planned nowhere, the next is reserved for"
        ),
        # R31
        pytest.param(
            "reservation_with_a_borrower_of_its_own",
            id="a reservation that is planned again counts its borrowers as gone at its planned start",
        ),
        # R33
        pytest.param(
            "reservation_whose_devices_a_claim_left_again",
            id="a reservation keeps its devices where minimizing moved the claim that had taken them",
        ),
        # R33
        pytest.param(
            "reservation_whose_earlier_devices_a_claim_got",
            id="a reservation keeps its recorded start where another claim starts on the earlier devices",
        ),
        # R26
        pytest.param("older_of_two_reservations", id="of two reservations the newer one is above the guarantee"),
        # R26
        pytest.param(
            "devices_taken_over_beside_a_later_claim",
            id="a claim that has taken over a device does not leave it to a claim above its guarantee",
        ),
        # R6
        pytest.param(
            "notebook_and_two_reservations", id="room for a notebook is kept on the reservation above the guarantee"
        ),
        # R76
        pytest.param(
            "slice_beside_a_reservation_above_quota",
            id="room for notebook quota is kept on a reservation above quota before another device is used",
        ),
        # R61
        pytest.param(
            "start_beside_work_that_leaves_and_a_lent_slice",
            id="a job waits for work that is leaving rather than start on the lent part of a device",
        ),
        # R43
        pytest.param(
            "victim_that_left_after_an_earlier_claim",
            id="the use before a claim includes work that left for a later one",
        ),
        # R43
        pytest.param(
            "victim_beside_a_later_job_of_its_project",
            id="a victim continues beside its claim though a job behind it is above the fair share then",
        ),
        # R43
        pytest.param(
            "victim_behind_a_claim_within_guarantee",
            id="a victim continues though its project is above its guarantee then, after a claim within it",
        ),
        # R43
        pytest.param("rank_that_an_elastic_job_keeps", id="an elastic job keeps a rank that a later victim replaces"),
        # R43
        pytest.param(
            "job_above_its_share_once_a_victim_stays",
            id="a job above its fair share beside a victim that stays does not go before another victim",
        ),
        # R43
        pytest.param(
            "victim_beside_a_fixed_job_above_its_share",
            id="a victim continues before a job above its fair share starts that may not be preempted",
        ),
        # R23
        pytest.param(
            "claim_for_the_job_that_lost_its_place",
            id="a job that loses its place to a victim has the claim of a job of lower priority",
        ),
        # R37
        pytest.param(
            "victim_of_a_claim_that_moves_work",
            id="a victim does not stay where a claim that moves work would be above its fair share",
        ),
        # R37
        pytest.param(
            "claim_within_a_quota_above_the_fair_share",
            id="a claim makes elastic jobs of its project give up no rank that fits its quota",
        ),
        # R39
        pytest.param(
            "drain_on_devices_of_a_later_start",
            id="a job that ends before the planned start gets reserved devices that work is leaving",
        ),
        # R38
        pytest.param(
            "elastic_job_at_the_quota_of_its_project",
            id="an elastic job gives up no rank to another project where its own has its quota, though it wants less",
        ),
        # R45
        pytest.param(
            "rank_of_a_project_that_ends_below_quota", id="a rank that an elastic job gives up is no job that reclaims"
        ),
        # R40
        pytest.param(
            "whole_devices_of_a_crowded_node",
            id="on a crowded node a claim takes whole devices without work that may not be preempted",
        ),
        # R37
        pytest.param(
            "own_victim_beside_what_another_claim_left",
            id="a claim above its fair share has no more than before it, also where another claim leaves it a device",
        ),
        # R43
        pytest.param(
            "claim_under_a_new_reservation",
            id="a victim continues where its claim keeps a device that a new reservation of the plan has, too",
        ),
        # R43
        pytest.param(
            "rank_of_a_job_that_two_claims_shrink",
            id="an elastic job that two claims shrink keeps a rank that neither needs",
        ),
    ],
)
def test_the_plan_obeys_every_rule(name: str) -> None:
    document = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    assert list(every.check(Step(state_of(document), plan_of(document)))) == []
