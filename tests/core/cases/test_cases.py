"""Snapshots in which an earlier release made a wrong plan, with the plan that docs/scheduling.md demands.

Each snapshot is a document for ``jupyter gpu-quota decide``. A plan is written as one line for each action: what it
does, to which workload, on which devices, and the code of its reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota.core.plan import Action
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument, read

HERE = Path(__file__).parent


def line(action: Action) -> str:
    devices = sorted({one.device for one in getattr(action, "placements", ())})
    words = [type(action).__name__.lower(), action.workload, *devices, str(action.reason.code)]
    return " ".join(words)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # R52
        pytest.param(
            "move_of_a_job_of_two_gpus",
            ["pause a2 moved", "reserve a2 n0/2 n0/3 moved", "reserve b0 n1/1 n1/2 n1/3 waits_for_drain"],
            id="a job of two GPUs moves as a whole",
        ),
        # R52
        pytest.param(
            "gang_that_moves_onto_its_own_devices",
            ["pause a0 moved", "reserve a0 n1/0 n1/1 n1/2 moved", "reserve b0 n0/0 n0/1 n0/2 waits_for_drain"],
            id="a gang moves onto devices of which it has some",
        ),
        # R51
        pytest.param(
            "elastic_job_that_shrinks_by_two_ranks",
            ["pause a0 shrunk", "reserve a0 n0/0 n0/1 shrunk", "reserve b0 n0/2 n0/3 waits_for_drain"],
            id="an elastic job gives up no more ranks than the claim needs",
        ),
        # R40
        pytest.param(
            "move_beside_a_pause",
            [
                "pause a2 reclaimed",
                "pause a0 moved",
                "reserve a0 n1/2 n1/3 moved",
                "reserve b0 n0/0 n0/1 n0/2 n0/3 waits_for_drain",
            ],
            id="one job moves and a small one is paused, so that their project ends at its quota",
        ),
        # R43
        pytest.param(
            "one_victim_for_a_gang",
            ["pause big preempted_in_project", "reserve gang n0/0 n0/1 waits_for_drain"],
            id="a gang takes both ranks from one victim of its own project",
        ),
        # R26
        pytest.param(
            "reservation_within_guarantee_beside_surplus",
            ["pause s reclaimed", "reserve a1 n2/0 waits_for_drain"],
            id="a claim within guarantee keeps its reservation; its project's surplus is paused",
        ),
        # R26
        pytest.param(
            "notebook_on_devices_reserved_for_a_borrower",
            [
                "unreserve j04 drain_taken_over",
                "reserve nb1 n0/0 waits_for_drain",
                "pause j02 reclaimed",
                "reserve j04 n2/0 waits_for_drain",
            ],
            id="a notebook takes over the reservation of a borrower, which claims a device within its guarantee",
        ),
        # R42
        pytest.param(
            "freed_device_offered_again",
            [
                "pause j005 fair_share_reclaimed",
                "reserve j009 n1/1 n1/2 waits_for_drain",
                "reserve j011 n1/0 waits_for_drain",
                "pause j000 fair_share_reclaimed",
                "pause j001 fair_share_reclaimed",
                "reserve j008 n1/3 n2/0 waits_for_drain",
            ],
            id="what is freed beyond a claim goes to the next in the order, which may not be preempted",
        ),
        # R49
        pytest.param(
            "two_elastic_jobs_at_their_guarantees",
            ["start a0 n0/0 n0/2 n0/3 n0/4 within_guarantee", "start b0 n0/1 n0/5 n0/6 n0/7 within_guarantee"],
            id="two elastic jobs start with their guarantees of four each",
        ),
        # R31
        pytest.param(
            "jobs_within_fair_share_beside_a_reservation",
            [
                "start s1 n0/1 borrows_reserved_devices",
                "start s2 n0/1 borrows_reserved_devices",
                "reserve K n0/1 backfill_reserved",
            ],
            id="small jobs start on devices that are reserved for a larger one",
        ),
    ],
)
def test_the_plan_is(name: str, expected: list[str]) -> None:
    document = read((HERE / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(document, SnapshotDocument), document
    assert [line(one) for one in decide(document.snapshot, document.policy).actions] == expected
