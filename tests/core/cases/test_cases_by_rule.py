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
        # R28
        pytest.param(
            "reservation_back_to_a_job_that_lost_its_claim",
            id="a reservation returns to the job whose claim on devices that were left over is taken out of the plan",
        ),
        # R28, R29
        pytest.param(
            "reservation_that_passes_by_right_to_a_smaller_job",
            id="a reservation passes to a job within fair share, and not from it to one of higher priority above",
        ),
        # R14
        pytest.param(
            "share_beside_a_slice_that_waits_for_a_device",
            id="a slice that waits for a device counts as booked, also beside devices that have failed",
        ),
        # R29
        pytest.param(
            "reservation_that_passes_before_a_claim",
            id="a job to which the reservation of its project passes has its turn before jobs of lower priority",
        ),
        # R30
        pytest.param(
            "claim_beside_a_reservation_of_its_own_project",
            id="a claim takes over a reservation where idle devices are reserved for an older job of its project",
        ),
        # R29
        pytest.param(
            "reservation_that_passes_by_right_between_projects",
            id="a reservation passes to a job of another project by R32, and not to the first job of that project",
        ),
        # R27
        pytest.param(
            "first_job_that_fits_on_no_node", id="where the first job can be planned nowhere, the next is reserved for"
        ),
        # R40
        pytest.param(
            "take_over_beside_a_reservation_within_guarantee",
            id="a claim takes over a reservation rather than enter the backfill reservation within guarantee",
        ),
        # R33
        pytest.param(
            "start_on_devices_that_a_reservation_left",
            id="a job starts on devices that the reservation left for free ones, though it returns there",
        ),
        # R33
        pytest.param(
            "reservation_moved_by_a_notebook",
            id="a notebook moves the planned start, and a job that ends by the later one starts",
        ),
        # R32
        pytest.param(
            "better_right_beside_a_slice_that_waits",
            id="a reservation is above the fair share where a slice that waits lowers that",
        ),
        # R26
        pytest.param(
            "reservation_above_quota_beside_fixed_work",
            id="a reservation is taken over after work that may not be preempted has used its project's quota",
        ),
        # R24
        pytest.param(
            "job_behind_an_overdue_job_that_starts",
            id="a job that waits for an overdue job has its turn in the plan that starts that one",
        ),
        # R24
        pytest.param(
            "room_beside_an_overdue_job_of_the_same_class",
            id="what a claim frees goes to no job of a class once that would overtake an overdue job",
        ),
        # R24
        pytest.param(
            "overdue_job_that_had_the_reservation",
            id="a job whose reservation passed precedes the other overdue ones of its project",
        ),
        # R28
        pytest.param(
            "reservation_for_a_job_within_guarantee_before_a_claim",
            id="a reservation passes to a job within the guarantee, though a later claim of its project uses that",
        ),
        # R26, R6
        pytest.param(
            "reservation_of_notebook_quota_that_is_requested",
            id="a notebook takes over the reservation of a borrower, also of a project within its quota",
        ),
        # R29
        pytest.param(
            "reservation_that_passes_after_it_was_planned_again",
            id="a reservation that was planned again onto devices in use passes by past use",
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
        # R33
        pytest.param(
            "reservation_of_a_device_that_failed",
            id="a reservation that is planned on other devices since one failed leaves its other devices to the queue",
        ),
        # R44
        pytest.param(
            "claim_balanced_by_an_offer_that_is_withdrawn",
            id="a claim leaves the plan with the job without victims whose use had made its victims legal",
        ),
        # R26
        pytest.param("older_of_two_reservations", id="of two reservations the newer one is above the guarantee"),
        # R26
        pytest.param(
            "devices_taken_over_beside_a_later_claim",
            id="a claim that has taken over a device does not leave it to a claim above its guarantee",
        ),
        # R26
        pytest.param(
            "notebook_on_devices_reserved_for_a_borrower",
            id="a borrower loses its reservation to a notebook though it would be within its guarantee there",
        ),
        # R26
        pytest.param(
            "reservation_beside_work_of_its_project_that_restarts",
            id="a reservation is above its project's guarantee beside work that restarts, which does not run",
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
        # R23, R46
        pytest.param(
            "claim_of_another_job_than_the_one_that_was_paused",
            id="a job that was paused for a victim hides no equal job of its project, which may claim that",
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
        # R37
        pytest.param(
            "own_victim_beside_what_was_left_to_its_project",
            id="a claim above its fair share has no more than before it, also where a job before it loses its devices",
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
        # R43
        pytest.param(
            "ranks_that_two_claims_took_and_a_third_replaces",
            id="an elastic job that two claims shrink stays as it is where the victim of a third frees enough",
        ),
        # R43
        pytest.param(
            "victim_beside_a_claim_whose_victim_stays",
            id="a victim continues once a later claim of its project has no victim any more",
        ),
        # R43
        pytest.param("move_beside_work_that_stays", id="work stays once other work does not move to its devices"),
        # R29
        pytest.param(
            "reservation_that_passes_beside_fixed_work_above_quota",
            id="a reservation passes by past use where work above its quota may not be preempted",
        ),
        # R28, R29
        pytest.param(
            "reservation_that_passes_to_a_job_of_two_gpus",
            id="a reservation passes to a job within fair share, and from it to one of two GPUs that comes before it",
        ),
        # R32
        pytest.param(
            "claim_that_enters_the_reservation_of_its_victims_project",
            id="a claim enters a reservation that is within the fair share only without the victims of its project",
        ),
        # R43
        pytest.param(
            "victim_of_a_fixed_job_beside_fixed_work_above_quota",
            id="a job above its fair share pauses enough work of its project beside non-preemptible work above a quota",
        ),
        # R5
        pytest.param(
            "reservation_beside_fixed_work_on_a_drained_node",
            id="work that may not be preempted keeps no quota in force where its node is drained",
        ),
        # R33
        pytest.param(
            "claim_on_notebook_quota_beside_a_reservation",
            id="a planned start stays where a claim within guarantee has unbooked notebook quota reserved",
        ),
        # R40
        pytest.param(
            "claim_that_one_pause_serves_without_moves",
            id="a claim gets the one pause that serves it, whatever moves might serve beside another one",
        ),
        # R43
        pytest.param(
            "victim_beside_what_a_claim_left_as_it_was_placed_again",
            id="a victim continues where a claim that was placed again has left free devices",
        ),
        # R40, R47
        pytest.param(
            "second_project_left_below_its_quota",
            id="a claim that leaves a project below its quota leaves no second one there without need",
        ),
        # R37
        pytest.param(
            "own_victim_smaller_than_its_claim",
            id="a claim of a project passes over its smaller job, whose pause leaves it above its fair share",
        ),
        # R32
        pytest.param(
            "room_that_a_job_entered_by_right",
            id="what a job got on reserved devices by right makes no room for a claim that those were kept from",
        ),
        # R32
        pytest.param(
            "claim_placed_again_where_the_reservation_was",
            id="a claim that is placed again does not come where the reservation of a waiting job was at its turn",
        ),
        # R43
        pytest.param(
            "reservation_on_the_devices_of_a_claim",
            id="a victim continues where the devices of its claim are reserved for another job, from its end on",
        ),
        # R43
        pytest.param(
            "move_beside_a_start_above_fair_share",
            id="work does not move for a claim that fits where a job above its fair share starts",
        ),
        # R40
        pytest.param(
            "claim_that_fits_beside_unbooked_notebook_quota",
            id="a claim with the better right to reserved devices borrows no notebook quota that it does not need",
        ),
    ],
)
def test_the_plan_obeys_every_rule(name: str) -> None:
    document = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    assert list(every.check(Step(state_of(document), plan_of(document)))) == []
