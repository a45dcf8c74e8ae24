"""What a quota file asks of a pool whose devices cannot: a warning with its arithmetic, in preview and apply."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.controllers.setups.enforcement import EnforcementSetup, policy, setup

__all__ = ["setup"]


def previewed(setup: EnforcementSetup, memory: str, compute: str = "none") -> list[str]:
    setup.world.add("root", admin=True, scopes=("read", "submit", "admin"))
    reply = setup.world.post("quota/preview", "root", {"text": policy(memory, compute)})
    assert reply.status == 200, reply.body
    return list(reply.json["warnings"])


@pytest.mark.parametrize("memory", ["none", "cooperative", "policed"])
def test_a_policy_that_the_devices_meet_gives_no_warning(setup: EnforcementSetup, memory: str) -> None:
    setup.apply(policy())
    assert previewed(setup, memory) == []


def test_a_policy_that_no_device_can_meet_is_warned_of_with_the_arithmetic(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    (found,) = previewed(setup, "hardware")
    for part in (
        "Pool train: policy.enforcement requires at least memory hardware and compute none, and 0 of 2 devices",
        "as read at 20", "GPU-0, offers memory policed, compute none (", "less than a whole device are refused there",
        "require less in policy.enforcement", "doctor",
    ):  # fmt: skip
        assert part in found, found


def test_the_one_of_two_devices_that_is_too_weak_is_named(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    setup.weak = "GPU-1"
    (found,) = previewed(setup, "policed")
    assert "1 of 2 devices can enforce this for a fraction" in found and "GPU-1, offers memory cooperative" in found
    assert "on another device is warned and stopped" in found


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        pytest.param("all", "Unknown for 2 devices: its devices cannot be read: it hangs", id="no answer"),
        pytest.param("GPU-1", "Unknown for 1 device: NVML does not list it", id="a device that is not named"),
    ],
)
def test_an_unreadable_device_is_listed_as_unknown(setup: EnforcementSetup, gone: str, expected: str) -> None:
    setup.apply(policy())
    setup.gone = gone
    (warning,) = previewed(setup, "policed")
    assert expected in warning and "offers memory" not in warning


def test_apply_gives_the_same_warning_and_succeeds(setup: EnforcementSetup) -> None:
    setup.apply(policy())
    setup.world.add("root", admin=True, scopes=("read", "submit", "admin"))
    reply = setup.world.call("PUT", "quota", "root", {"text": policy("driver")}, {"If-Match": "2"})
    assert (reply.status, len(reply.json["warnings"])) == (200, 1), reply.body
    back = setup.world.post("quota/revisions/3/actions/revert", "root")
    assert (back.status, len(back.json["warnings"])) == (200, 1), back.body
    assert setup.world.get("quota", "root").json["warnings"] == []


def test_jobs_that_an_mps_daemon_holds_are_named(
    setup: EnforcementSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "control").touch()
    (tmp_path / "nvidia-cuda-mps-control").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    setup.apply(policy())
    setup.enforcement.mps = {"vision": str(tmp_path)}
    setup.world.services.settings = replace(setup.world.services.settings, mps=setup.enforcement.mps)
    (found,) = previewed(setup, "mps")
    assert "An MPS daemon enforces this for jobs of vision; they are not refused." in found, found
    assert "MPS daemon, and are" not in previewed(setup, "driver")[0]
