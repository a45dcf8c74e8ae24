"""The hold after an older database was restored, in ``ready``, which pages show, and for the admin who continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota.api.state import decision_cache
from jupyter_gpu_quota.core.recovery.differences import Difference, DifferenceKind
from jupyter_gpu_quota.core.recovery.evidence import BackupRestored, FencingWentBack, WorkDiffers
from jupyter_gpu_quota.store.records.commands import Recorded
from jupyter_gpu_quota.store.records.recovery import HoldDecisions
from tests.api.world import service_world

HOW = "so no decision is made: an admin continues with jupyter gpu-quota recover --accept"


def test_a_hold_is_shown_and_an_admin_ends_it(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        assert world.get("recovery", "ann").json["held"] is False
        found = (
            Difference(job="J1", kind=DifferenceKind.UNKNOWN, attempt=1, devices=("d1", "d2")),
            Difference(job="J2", kind=DifferenceKind.ENDED, attempt=2, known_attempt=1, exit_status=0),
        )
        why = (BackupRestored(file="b.sqlite", at=0), FencingWentBack(fencing=3, used=7), WorkDiffers(jobs=1))
        (outcome,) = world.store.record(
            [HoldDecisions(why=why, differences=found, without_code=2)], now=world.clock_now()
        )
        assert isinstance(outcome, Recorded)
        ready = world.get("ready")
        assert (ready.status, ready.json["held"]) == (503, True)
        assert HOW in ready.json["message"]
        shown = world.get("recovery", "ann").json
        assert shown["why"] == [
            "The backup b.sqlite was restored at 1970-01-01 00:00:00Z.",
            "The leader's fencing number is 3, and 7 was used already.",
            "1 job on the nodes differed from the database.",
        ]
        assert shown["differences"] == [
            "Job J1 runs on d1, d2 and is not in the database; it keeps its devices until it ends.",
            "Attempt 2 of job J2 ended with exit status 0; its end is recorded.",
            "2 jobs lack their code bundles, and cannot start: restore the folder bundles of the state folder before"
            " you continue.",
        ]
        answer = world.post("recovery/actions/accept", "ann", {"stop_unknown": True})
        assert (answer.status, answer.json["accepted"]) == (200, True)
        hold = world.store.hold()
        assert hold is not None and hold.accepted is not None and hold.accepted.stop_unknown
        text = " ".join(row["what"] for row in world.get("audit", "ann").json["items"])
        assert "let the scheduler continue with the restored database, and stop unknown jobs" in text
        assert "held all decisions, because the database is older" in text


def test_during_a_hold_nothing_is_said_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_cache, "FRESH_S", 0.0)
    held = "no decision is made until an admin runs jupyter gpu-quota recover --accept."
    with service_world(tmp_path) as world:
        job = world.submit()["id"]
        assert world.get(f"jobs/{job}").json["reason"] is not None
        world.store.record([HoldDecisions(why=(WorkDiffers(jobs=1),), differences=())], now=world.clock_now())
        world.run(world.services.store_view.refresh())
        assert world.get(f"explain/{job}").json["reason"]["message"].endswith(held)
        tried = world.post("jobs", "bob", {"command": ["x"], "dry_run": True}).json
        assert (tried["starts_now"], tried["estimate_at"]) == (False, None)
        assert tried["reason"]["message"].endswith(held)
        assert world.get("jobs").json["items"][0]["reason"] is None
