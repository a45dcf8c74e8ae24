"""What a share may say of itself: never more than was read back, whatever was set; and what a policy accepts."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.local.enforcement.driver import DriverLimit
from jupyter_gpu_quota.backends.local.enforcement.labels import MECHANISMS, label, offer
from jupyter_gpu_quota.backends.local.enforcement.mps import COMPUTE, MEMORY, PIPES, Mps
from jupyter_gpu_quota.backends.local.enforcement.protocol import Machine, Seen
from jupyter_gpu_quota.backends.local.sampling.reading import DeviceReading
from jupyter_gpu_quota.core.enforcement import (
    STRONGEST_FIRST,
    DeviceShare,
    EnforcementLabel,
    EnforcementLevel,
    RequiredEnforcement,
    is_too_weak,
    is_weaker,
)
from jupyter_gpu_quota.core.over_share import LEAST_READINGS, SLACK_MIB, WARN_FOR_MS, Excess, watched

HALF = DeviceShare(workload="J", device="GPU-0", gpu_milli=500, memory_mib=4000)
WHOLE = replace(HALF, gpu_milli=1000)
INSTANCE = replace(WHOLE, device="MIG-0")
NOTHING = Seen(unread="it was not read yet", no_limit="not asked", no_memory="not read")
CAPPED = {"XLA_CLIENT_MEM_FRACTION": "0.425"}
LIMITED = Seen(limit_mib=4000, variables={})
CLIENT = {MEMORY: "0=4000M", PIPES: "/run/mps", COMPUTE: "50"}


@pytest.mark.parametrize(
    ("part", "seen", "memory", "compute", "why"),
    [
        pytest.param(INSTANCE, Seen(), "hardware", "hardware", "", id="a whole MIG instance"),
        pytest.param(WHOLE, Seen(), "hardware", "hardware", "", id="a whole device is shared with nobody"),
        pytest.param(WHOLE, NOTHING, "none", "none", "was not read", id="a device that nobody read"),
        pytest.param(replace(INSTANCE, gpu_milli=500), Seen(), "none", "none", "the same MIG", id="half an instance"),
        pytest.param(HALF, LIMITED, "driver", "none", "others may have", id="the limit was read back"),
        pytest.param(
            HALF, replace(LIMITED, limit_mib=8000, variables=CAPPED), "cooperative", "none", "8000 MiB, not 4000",
            id="the driver lies: the next that is true",
        ),
        pytest.param(
            HALF, replace(LIMITED, outside="pid 7 is outside"), "none", "none", "pid 7 is outside", id="it got away"
        ),
        pytest.param(HALF, Seen(variables=CLIENT, mps=True), "mps", "mps", "no limit was read back", id="MPS"),
        pytest.param(HALF, Seen(variables=CLIENT), "none", "none", "no client of MPS", id="MPS that NVML does not see"),
        pytest.param(
            HALF, Seen(variables={MEMORY: "0=9000M"}, mps=True), "none", "none", "0=9000M, not", id="another MPS limit"
        ),
        pytest.param(
            HALF, replace(LIMITED, variables=CLIENT, mps=True), "driver", "mps", "", id="each by another"
        ),
        pytest.param(HALF, Seen(policed=True, variables={}), "policed", "none", "no limit was read", id="policed"),
        pytest.param(
            HALF, Seen(policed=True, no_memory="MPS tells none", variables=CAPPED), "cooperative", "none",
            "MPS tells none", id="the police cannot see",
        ),
        pytest.param(
            HALF, Seen(policed=True, unread="too old", variables={}), "none", "none", "too old", id="old readings"
        ),
        pytest.param(HALF, Seen(variables=CAPPED), "cooperative", "none", "nobody is stopped", id="variables alone"),
        pytest.param(HALF, Seen(variables=None), "none", "none", "cannot be read", id="variables that cannot be read"),
        pytest.param(HALF, Seen(variables={}), "none", "none", "without the frameworks' caps", id="nothing at all"),
        pytest.param(
            replace(WHOLE, simulated=True), Seen(), "none", "none", "simulated", id="a simulated device holds nothing"
        ),
    ],
)  # fmt: skip
def test_a_label_is_what_was_read_back(part: DeviceShare, seen: Seen, memory: str, compute: str, why: str) -> None:
    found = label(part, seen)
    assert (found.memory, found.compute) == (memory, compute), found
    assert why in found.why


def test_nothing_that_is_unknown_makes_a_label_stronger() -> None:
    """Whatever else was seen: taking a piece of evidence away never makes the label better."""
    evidence: dict[str, tuple[Any, Any]] = {
        "unread": ("", "not read"), "limit_mib": (4000, None), "outside": ("", "away"), "variables": (CLIENT, None),
        "no_memory": ("", "not told"), "mps": (True, False), "policed": (True, False),
    }  # fmt: skip
    for chosen in itertools.product((0, 1), repeat=len(evidence)):
        picked = {name: values[place] for (name, values), place in zip(evidence.items(), chosen, strict=True)}
        before = label(HALF, Seen(**picked))
        for name, (_, lacking) in evidence.items():
            after = label(HALF, Seen(**{**picked, name: lacking}))
            assert not is_weaker(before.memory, after.memory) and not is_weaker(before.compute, after.compute), name


@pytest.mark.parametrize(("seen", "unsure"), [(NOTHING, True), (Seen(variables={}), False), (Seen(), True)])
def test_what_was_not_read_is_told_from_what_was_read_otherwise(seen: Seen, unsure: bool) -> None:
    assert label(HALF, seen).unsure == unsure


# --- what a policy accepts --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("found", "required", "expected"),
    [
        pytest.param({"memory": "driver"}, {"memory": "policed"}, False, id="stronger is enough"),
        pytest.param({"memory": "mps"}, {"memory": "driver"}, True, id="weaker is not"),
        pytest.param({"memory": "driver"}, {"compute": "mps"}, True, id="each by itself"),
        pytest.param({}, {}, False, id="a policy that asks for nothing"),
    ],
)
def test_a_policy_refuses_weaker(found: dict[str, str], required: dict[str, str], expected: bool) -> None:
    label = EnforcementLabel(**{name: EnforcementLevel(level) for name, level in found.items()})
    policy = RequiredEnforcement(**{name: EnforcementLevel(level) for name, level in required.items()})
    assert is_too_weak(label, policy) == expected


ABLE = {"mig": "turned off", "limits": ""}
DEVICE = DeviceReading(uuid="GPU-0", index=0, model="H200", memory_mib=8000, able=ABLE)
MACHINE = Machine(driver="615.10", root=True)


@pytest.mark.parametrize(
    ("device", "machine", "milli", "memory", "compute"),
    [
        pytest.param(DEVICE, MACHINE, 500, "driver", "none", id="a driver from 615 on"),
        pytest.param(DEVICE, MACHINE, 1000, "hardware", "hardware", id="a whole device"),
        pytest.param(DEVICE, replace(MACHINE, driver="580.1"), 500, "policed", "none", id="an older driver"),
        pytest.param(DEVICE, replace(MACHINE, root=False), 500, "policed", "none", id="no root"),
        pytest.param(DEVICE, replace(MACHINE, no_cgroups="no cgroup v2"), 500, "policed", "none", id="no cgroups"),
        pytest.param(
            replace(DEVICE, parent="GPU-9", uuid="MIG-1"), MACHINE, 500, "policed", "none", id="half a MIG instance"
        ),
        pytest.param(
            replace(DEVICE, able={"limits": "Not Supported"}, why={"processes": "not told"}), MACHINE, 500,
            "cooperative", "none", id="a device that tells no processes",
        ),
    ],
)  # fmt: skip
def test_what_a_device_offers(device: DeviceReading, machine: Machine, milli: int, memory: str, compute: str) -> None:
    found = offer(device, machine, milli, "vision", notebook=False)
    assert (found.memory, found.compute) == (memory, compute), found


def test_mps_is_offered_to_the_jobs_of_its_project_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/nvidia-cuda-mps-control")
    machine = Machine(driver="580.1", mps={"vision": str(tmp_path)})
    assert "no daemon listens for vision" in offer(DEVICE, machine, 500, "vision", notebook=False).why
    (tmp_path / "control").touch()
    assert offer(DEVICE, machine, 500, "vision", notebook=False).compute == "mps"
    assert offer(DEVICE, machine, 500, "speech", notebook=False).compute == "none"
    assert offer(DEVICE, machine, 500, "vision", notebook=True).compute == "none"


def test_what_mechanisms_are_worth_falls_and_each_has_its_own_name() -> None:
    places = [STRONGEST_FIRST.index(each.memory) for each in MECHANISMS]
    assert places == sorted(places) and len({each.name for each in MECHANISMS}) == len(MECHANISMS)
    for each in MECHANISMS:
        each.release(HALF)


def test_what_is_rendered() -> None:
    eighth = {PIPES: "/run/mps", MEMORY: "0=4000M", COMPUTE: "13"}
    assert Mps(pipes="/run/mps").render(replace(HALF, gpu_milli=125)) == eighth
    for nobody in (WHOLE, replace(HALF, notebook=True), replace(HALF, simulated=True)):
        assert Mps().render(HALF) == Mps(pipes="/m").render(nobody) == {}
    limits = {"NVIDIA_GPU_MEMORY_REQUEST": "4000", "NVIDIA_GPU_MEMORY_LIMIT": "4000"}
    assert DriverLimit().render(HALF) == limits and DriverLimit().render(WHOLE) == DriverLimit().render(INSTANCE) == {}


# --- the judgement of the police --------------------------------------------------------------------------------------
def seen_at(*used: tuple[int, int | None]) -> Excess | None:
    found: Excess | None = None
    for at, mib in used:
        found = watched(found, used_mib=mib, share_mib=4000, read_at=at)
    return found


def test_a_warning_goes_before_the_end_and_needs_several_readings() -> None:
    over = seen_at((0, 5000), (10_000, 5000), (20_000, 5000))
    assert over is not None and not over.is_over(20_000) and over.is_over(WARN_FOR_MS)
    one = seen_at((0, 5000))
    assert one is not None and not one.is_over(10 * WARN_FOR_MS), "one reading stops nobody"
    assert LEAST_READINGS > 1


@pytest.mark.parametrize(
    "used",
    [
        pytest.param([(0, 4000)], id="who keeps to its share"),
        pytest.param([(0, 4000 + SLACK_MIB)], id="who is above it by a rounding"),
        pytest.param([(0, None)], id="of whom nothing is known"),
        pytest.param([(0, 5000), (1, 3000)], id="who gave it back in time"),
        pytest.param([(0, None), (1, None), (2, None), (90_000, None)], id="of whom nothing is ever known"),
    ],
)
def test_nobody_else_is_warned(used: list[tuple[int, int | None]]) -> None:
    assert seen_at(*used) is None


def test_what_is_unknown_meanwhile_forgives_nothing_and_counts_for_nothing() -> None:
    over = seen_at((0, 5000), (10_000, None), (10_000, 5000), (10_000, 5000))
    assert over is not None and (over.since, over.readings) == (0, 2)


# --- the start-up file of kernels -------------------------------------------------------------------------------------
TORCH = """
calls = []
def _lazy_call(later): calls.append(later)
def set_per_process_memory_fraction(fraction, device): print("capped", fraction, device)
"""
USE = "import torch; print('imported'); [later() for later in torch.cuda.calls]"


@pytest.mark.parametrize(
    ("milli", "before", "said"),
    [
        pytest.param("250", "", ["imported", "capped 0.25 0"], id="a fraction, once CUDA is used and not before"),
        pytest.param("1000", "", ["imported"], id="a whole device"),
        pytest.param("", "", ["imported"], id="no share"),
        pytest.param("many", "", ["imported"], id="what is no share"),
        pytest.param("250", "print('mine')", ["mine", "imported", "capped 0.25 0"], id="their own file first"),
        pytest.param("250", "import torch", ["imported", "capped 0.25 0"], id="their own file imports torch"),
    ],
)
def test_pytorch_is_capped_in_kernels(tmp_path: Path, milli: str, before: str, said: list[str]) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("from . import cuda\n")
    (tmp_path / "torch" / "cuda.py").write_text(TORCH)
    (tmp_path / "mine.py").write_text(before)
    spec = importlib.util.find_spec("jupyter_gpu_quota.backends.rendering.torch_hook")
    assert spec is not None and spec.origin is not None
    variables = {"PYTHONPATH": str(tmp_path), "GPU_QUOTA_MILLI": milli, "PATH": "/usr/bin:/bin"}
    if before:
        variables["JUPYTER_GPU_QUOTA_STARTUP"] = str(tmp_path / "mine.py")
    code = f"exec(open({spec.origin!r}).read()); {USE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=60)
    assert done.stdout.split("\n")[:-1] == said, done.stderr
