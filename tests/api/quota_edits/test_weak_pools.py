"""What a quota file asks of a pool whose devices cannot: a warning with its arithmetic, in preview and apply."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.controllers.test_enforcement import Stage, policy, stage

__all__ = ["stage"]


def previewed(stage: Stage, memory: str, compute: str = "none") -> list[str]:
    stage.world.add("root", admin=True, scopes=("read", "submit", "admin"))
    reply = stage.world.post("quota/preview", "root", {"text": policy(memory, compute)})
    assert reply.status == 200, reply.body
    return list(reply.json["warnings"])


@pytest.mark.parametrize("memory", ["none", "cooperative", "policed"])
def test_a_policy_that_the_devices_can_meet_warns_of_nothing(stage: Stage, memory: str) -> None:
    stage.apply(policy())
    assert previewed(stage, memory) == []


def test_a_policy_that_no_device_can_meet_is_warned_of_with_the_arithmetic(stage: Stage) -> None:
    stage.apply(policy())
    (found,) = previewed(stage, "hardware")
    for part in (
        "Pool train: policy.enforcement requires at least memory hardware and compute none, and 0 of 2 devices",
        "as read at 20", "GPU-0, offers memory policed, compute none (", "less than a whole device are refused there",
        "require less in policy.enforcement", "doctor",
    ):  # fmt: skip
        assert part in found, found


def test_one_device_of_two_that_cannot_meet_it_is_named(stage: Stage) -> None:
    stage.apply(policy())
    stage.weak = "GPU-1"
    (found,) = previewed(stage, "policed")
    assert "1 of 2 devices can enforce a fraction so" in found and "GPU-1, offers memory cooperative" in found
    assert "on another device is warned and stopped" in found


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        pytest.param("all", "Unknown for 2 devices: its devices cannot be read: it hangs", id="no answer"),
        pytest.param("GPU-1", "Unknown for 1 device: NVML does not list it", id="a device that is not named"),
    ],
)
def test_what_cannot_be_read_stays_unknown(stage: Stage, gone: str, expected: str) -> None:
    stage.apply(policy())
    stage.gone = gone
    (warning,) = previewed(stage, "policed")
    assert expected in warning and "offers memory" not in warning


def test_applying_says_it_too_and_is_done_all_the_same(stage: Stage) -> None:
    stage.apply(policy())
    stage.world.add("root", admin=True, scopes=("read", "submit", "admin"))
    reply = stage.world.call("PUT", "quota", "root", {"text": policy("driver")}, {"If-Match": "2"})
    assert (reply.status, len(reply.json["warnings"])) == (200, 1), reply.body
    back = stage.world.post("quota/revisions/3/actions/revert", "root")
    assert (back.status, len(back.json["warnings"])) == (200, 1), back.body
    assert stage.world.get("quota", "root").json["warnings"] == []


def test_jobs_that_an_mps_daemon_holds_are_named(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "control").touch()
    (tmp_path / "nvidia-cuda-mps-control").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    stage.apply(policy())
    stage.enforcement.mps = {"vision": str(tmp_path)}
    stage.world.services.settings = replace(stage.world.services.settings, mps=stage.enforcement.mps)
    (found,) = previewed(stage, "mps")
    assert "Jobs of vision are enforced so by an MPS daemon, and are not refused." in found, found
    assert "MPS daemon, and are" not in previewed(stage, "driver")[0]
