"""Enforcement labels: never stronger than the evidence that was read back; and the requirements of a policy."""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.local.enforcement.labels import label, offer
from jupyter_gpu_quota.backends.local.enforcement.mechanisms import (
    COMPUTE,
    MECHANISMS,
    MEMORY,
    PIPES,
    Evidence,
    Machine,
    mps_variables,
)
from jupyter_gpu_quota.backends.local.enforcement_backend import LocalEnforcement
from jupyter_gpu_quota.backends.local.sampling.reader_client import NoReading
from jupyter_gpu_quota.backends.local.sampling.reading import DeviceReading, Reading
from jupyter_gpu_quota.backends.rendering.variables import CONTEXT_MIB
from jupyter_gpu_quota.core.enforcement.levels import (
    STRONGEST_FIRST,
    DeviceShare,
    EnforcementLabel,
    EnforcementLevel,
    RequiredEnforcement,
    is_weaker,
)
from jupyter_gpu_quota.core.enforcement.over_share import (
    FRESH_MS,
    MIN_READINGS,
    SLACK_MIB,
    WARN_FOR_MS,
    Excess,
    excess_after,
)
from jupyter_gpu_quota.core.model import Device

HALF = DeviceShare(workload="J", device="GPU-0", gpu_milli=500, memory_mib=4000)
WHOLE = replace(HALF, gpu_milli=1000)
INSTANCE = replace(WHOLE, device="MIG-0")
NOTHING = Evidence(why_unread="it was not read yet", why_no_limit="not asked", why_no_memory="not read")
CAPPED = {"XLA_CLIENT_MEM_FRACTION": "0.425"}
LIMITED = Evidence(limit_mib=4000, variables={})
CLIENT = {MEMORY: "0=4000M", PIPES: "/run/mps", COMPUTE: "50"}


@pytest.mark.parametrize(
    ("share", "evidence", "memory", "compute", "why"),
    [
        pytest.param(INSTANCE, Evidence(), "hardware", "hardware", "", id="a whole MIG instance"),
        pytest.param(WHOLE, Evidence(), "hardware", "hardware", "", id="a whole device"),
        pytest.param(WHOLE, NOTHING, "none", "none", "was not read", id="a device that was not read"),
        pytest.param(replace(INSTANCE, gpu_milli=500), Evidence(), "none", "none", "same MIG", id="half an instance"),
        pytest.param(HALF, LIMITED, "driver", "none", "others may have", id="the limit was read back"),
        pytest.param(
            HALF,
            replace(LIMITED, limit_mib=8000, variables=CAPPED),
            "cooperative",
            "none",
            "8000 MiB, not 4000",
            id="the driver lies: the next that is true",
        ),
        pytest.param(
            HALF,
            replace(LIMITED, why_outside="pid 7 is outside"),
            "none",
            "none",
            "pid 7 is outside",
            id="a process outside the cgroup",
        ),
        pytest.param(HALF, Evidence(variables=CLIENT, mps=True), "mps", "mps", "no limit was read back", id="MPS"),
        pytest.param(HALF, Evidence(variables=CLIENT), "none", "none", "no client", id="MPS that NVML does not list"),
        pytest.param(
            HALF, Evidence(variables={MEMORY: "0=9000M"}, mps=True), "none", "none", "0=9000M", id="another MPS limit"
        ),
        pytest.param(
            HALF,
            replace(LIMITED, variables=CLIENT, mps=True),
            "driver",
            "mps",
            "",
            id="memory and compute by different mechanisms",
        ),
        pytest.param(HALF, Evidence(policed=True, variables={}), "policed", "none", "no limit was read", id="policed"),
        pytest.param(
            HALF,
            Evidence(policed=True, why_no_memory="MPS reports none", variables=CAPPED),
            "cooperative",
            "none",
            "MPS reports none",
            id="memory enforcement without readings",
        ),
        pytest.param(
            HALF,
            Evidence(policed=True, why_unread="too old", variables={}),
            "none",
            "none",
            "too old",
            id="old readings",
        ),
        pytest.param(HALF, Evidence(variables=CAPPED), "cooperative", "none", "no work is stopped", id="caps only"),
        pytest.param(HALF, Evidence(variables=None), "none", "none", "cannot be read", id="unreadable variables"),
        pytest.param(HALF, Evidence(variables={}), "none", "none", "without the frameworks' caps", id="no mechanism"),
        pytest.param(replace(WHOLE, simulated=True), Evidence(), "none", "none", "simulated", id="a simulated device"),
    ],
)
def test_a_label_has_the_level_that_was_read_back(
    share: DeviceShare, evidence: Evidence, memory: str, compute: str, why: str
) -> None:
    found = label(share, evidence)
    assert (found.memory, found.compute) == (memory, compute), found
    assert why in found.why


def test_unknown_evidence_makes_no_label_stronger() -> None:
    """Removing a piece of evidence never makes the label stronger."""
    facts: dict[str, tuple[Any, Any]] = {
        "why_unread": ("", "not read"), "limit_mib": (4000, None), "why_outside": ("", "away"),
        "variables": (CLIENT, None), "why_no_memory": ("", "not reported"), "mps": (True, False),
        "policed": (True, False),
    }  # fmt: skip
    for chosen in itertools.product((0, 1), repeat=len(facts)):
        picked = {name: values[place] for (name, values), place in zip(facts.items(), chosen, strict=True)}
        before = label(HALF, Evidence(**picked))
        for name, (_, lacking) in facts.items():
            after = label(HALF, Evidence(**{**picked, name: lacking}))
            assert not is_weaker(before.memory, after.memory) and not is_weaker(before.compute, after.compute), name


UNREAD = Evidence(variables={}, why_no_limit="the driver's library does not answer", is_limit_unread=True)


@pytest.mark.parametrize(
    ("evidence", "unsure"), [(NOTHING, True), (Evidence(variables={}), False), (Evidence(), True), (UNREAD, True)]
)
def test_a_missing_reading_is_distinguished_from_a_contradicting_one(evidence: Evidence, unsure: bool) -> None:
    assert label(HALF, evidence).unsure == unsure


# --- the requirements of a policy -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("found", "required", "expected"),
    [
        pytest.param({"memory": "driver"}, {"memory": "policed"}, False, id="a stronger level is accepted"),
        pytest.param({"memory": "mps"}, {"memory": "driver"}, True, id="a weaker level is refused"),
        pytest.param({"memory": "driver"}, {"compute": "mps"}, True, id="memory and compute are compared separately"),
        pytest.param({}, {}, False, id="a policy without requirements"),
    ],
)
def test_a_policy_refuses_weaker_enforcement(found: dict[str, str], required: dict[str, str], expected: bool) -> None:
    label = EnforcementLabel(**{name: EnforcementLevel(level) for name, level in found.items()})
    policy = RequiredEnforcement(**{name: EnforcementLevel(level) for name, level in required.items()})
    assert label.is_enough(policy) != expected


ABLE = {"mig": "turned off", "limits": ""}
DEVICE = DeviceReading(uuid="GPU-0", index=0, model="H200", memory_mib=8000, unavailable=ABLE)
MACHINE = Machine(driver="615.10", root=True)


@pytest.mark.parametrize(
    ("device", "machine", "milli", "memory", "compute"),
    [
        pytest.param(DEVICE, MACHINE, 500, "driver", "none", id="a driver from 615 on"),
        pytest.param(DEVICE, MACHINE, 1000, "hardware", "hardware", id="a whole device"),
        pytest.param(DEVICE, replace(MACHINE, driver="580.1"), 500, "policed", "none", id="an older driver"),
        pytest.param(DEVICE, replace(MACHINE, root=False), 500, "policed", "none", id="no root"),
        pytest.param(DEVICE, replace(MACHINE, why_no_cgroups="no cgroup v2"), 500, "policed", "none", id="no cgroups"),
        pytest.param(
            replace(DEVICE, parent="GPU-9", uuid="MIG-1"), MACHINE, 500, "policed", "none", id="half a MIG instance"
        ),
        pytest.param(
            replace(DEVICE, unavailable={"limits": "Not Supported"}, why={"processes": "not reported"}), MACHINE, 500,
            "cooperative", "none", id="a device without a process list",
        ),
    ],
)  # fmt: skip
def test_the_offers_of_a_device(device: DeviceReading, machine: Machine, milli: int, memory: str, compute: str) -> None:
    found = offer(device, machine, milli, "vision", notebook=False)
    assert (found.memory, found.compute) == (memory, compute), found


@pytest.mark.parametrize(
    ("device", "machine", "unsure"),
    [
        pytest.param({"unprobed": ("limits",)}, {}, True, id="the driver's answer was not a lasting one"),
        pytest.param({}, {}, False, id="the driver has no limits"),
        pytest.param({"unprobed": ("limits",)}, {"driver": "580.1"}, False, id="no such driver has limits"),
        pytest.param({"unprobed": ("mig",)}, {}, False, id="no fraction is a MIG instance"),
    ],
)
def test_a_limit_that_could_not_be_probed_is_not_taken_for_none(
    device: dict[str, Any], machine: dict[str, Any], unsure: bool
) -> None:
    probed = replace(DEVICE, unavailable={"mig": "turned off", "limits": "NVML: Timeout"}, **device)
    assert offer(probed, replace(MACHINE, **machine), 500, "vision", notebook=False).unsure == unsure


def test_devices_that_cannot_be_read_are_read_again_after_half_a_minute(tmp_path: Path) -> None:
    now, read_at = [1_000_000], list[int]()

    def hanging() -> NoReading:
        read_at.append(now[0])
        return NoReading("it hangs")

    enforcement = LocalEnforcement(tmp_path, probe=hanging, clock=lambda: now[0])
    device = Device(id="GPU-0", node="n", index=0, model="H200", memory_mib=8000, pool=None, uuid="GPU-0")
    for now[0] in (1_000_000, 1_000_001, 1_029_999, 1_030_000, 1_030_001):
        (found,) = enforcement.capabilities([device], gpu_milli=500, project="vision").offers
        assert found.unsure and "it hangs" in found.why
    assert read_at == [1_000_000, 1_030_000]


UNLISTED = replace(DEVICE, unavailable={}, why={"processes": "NVML: Timeout"}, unprobed=("processes",))


def test_processes_that_could_not_be_listed_this_time_make_an_offer_unsure_for_half_a_minute(tmp_path: Path) -> None:
    now, readings = [1_000_000], [Reading(devices=(UNLISTED,)), Reading(devices=(replace(DEVICE, unavailable={}),))]
    enforcement = LocalEnforcement(tmp_path, probe=lambda: readings.pop(0), clock=lambda: now[0])
    device = Device(id="GPU-0", node="n", index=0, model="H200", memory_mib=8000, pool=None, uuid="GPU-0")
    found = list[tuple[str, bool, int]]()
    for now[0] in (1_000_000, 1_029_999, 1_030_000, 1_600_000):
        answer = enforcement.capabilities([device], gpu_milli=500, project="vision")
        found.append((str(answer.offers[0].memory), answer.offers[0].unsure, answer.read_at))
    first, last = ("cooperative", True, 1_000_000), ("policed", False, 1_030_000)
    assert found == [first, first, last, last]


def test_an_offer_that_needs_no_list_of_processes_is_sure_without_one() -> None:
    able = replace(UNLISTED, unavailable=ABLE)
    assert not offer(able, MACHINE, 500, "vision", notebook=False).unsure
    assert offer(able, replace(MACHINE, root=False), 500, "vision", notebook=False).unsure


def test_mps_is_offered_to_jobs_of_its_project_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/nvidia-cuda-mps-control")
    machine = Machine(driver="580.1", mps={"vision": str(tmp_path), "audio": str(tmp_path / "dead")})
    assert "no daemon listens for vision" in offer(DEVICE, machine, 500, "vision", notebook=False).why
    os.mkfifo(tmp_path / "control")
    assert "no daemon listens for vision" in offer(DEVICE, machine, 500, "vision", notebook=False).why
    daemon = os.open(tmp_path / "control", os.O_RDONLY | os.O_NONBLOCK)
    assert offer(DEVICE, machine, 500, "vision", notebook=False).compute == "mps"
    assert offer(DEVICE, machine, 500, "speech", notebook=False).compute == "none"
    assert offer(DEVICE, machine, 500, "vision", notebook=True).compute == "none"
    os.close(daemon)


def test_a_daemon_that_left_its_socket_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/nvidia-cuda-mps-control")
    machine = Machine(driver="580.1", mps={"vision": str(tmp_path)})
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "control"))
        daemon.listen()
        assert offer(DEVICE, machine, 500, "vision", notebook=False).compute == "mps"
    assert "no daemon listens for vision" in offer(DEVICE, machine, 500, "vision", notebook=False).why


def test_mechanisms_are_ordered_by_level_and_each_has_its_own_name() -> None:
    places = [STRONGEST_FIRST.index(each.memory) for each in MECHANISMS]
    assert places == sorted(places) and len({each.name for each in MECHANISMS}) == len(MECHANISMS)


def test_only_a_fraction_of_a_real_device_is_a_client_of_mps() -> None:
    assert mps_variables(replace(HALF, gpu_milli=125), "/run/mps") == {
        PIPES: "/run/mps",
        MEMORY: "0=4000M",
        COMPUTE: "13",
    }
    assert mps_variables(HALF, "") == {}
    for share in (WHOLE, replace(HALF, notebook=True), replace(HALF, simulated=True)):
        assert mps_variables(share, "/run/mps") == {}


# --- work above its share ---------------------------------------------------------------------------------------------
def seen_at(*used: tuple[int, int | None]) -> Excess | None:
    found: Excess | None = None
    for at, mib in used:
        found = excess_after(found, used_mib=mib, share_mib=4000, read_at=at)
    return found


def test_work_is_warned_and_needs_several_readings_before_it_is_stopped() -> None:
    over = seen_at((0, 5000), (10_000, 5000), (20_000, 5000))
    assert over is not None and not over.is_over(20_000) and over.is_over(WARN_FOR_MS)
    assert not over.is_over(20_000 + FRESH_MS + 1), "it may have freed the memory since the last reading"
    one = seen_at((0, 5000))
    assert one is not None and not one.is_over(10 * WARN_FOR_MS), "one reading stops no work"
    assert MIN_READINGS > 1


@pytest.mark.parametrize(
    "used",
    [
        pytest.param([(0, 4000)], id="use within the share"),
        pytest.param([(0, 4000 + SLACK_MIB)], id="use above the share within the slack"),
        pytest.param([(0, None)], id="unknown use"),
        pytest.param([(0, 5000), (1, 3000)], id="memory that was freed in time"),
        pytest.param([(0, None), (1, None), (2, None), (90_000, None)], id="use that stays unknown"),
    ],
)
def test_other_workloads_are_not_warned(used: list[tuple[int, int | None]]) -> None:
    assert seen_at(*used) is None


def test_a_countdown_begins_again_after_a_gap_in_the_readings() -> None:
    over = seen_at((0, 5000), (10_000, 5000), (20_000, 5000), (20_001 + FRESH_MS, 5000))
    assert over is not None and (over.since, over.readings) == (20_001 + FRESH_MS, 1)


def test_unknown_readings_neither_reset_nor_extend_an_excess() -> None:
    over = seen_at((0, 5000), (10_000, None), (10_000, 5000), (10_000, 5000))
    assert over is not None and (over.since, over.readings) == (0, 2)


# --- the start-up file of kernels -------------------------------------------------------------------------------------
TORCH = """
calls = []
class Properties: total_memory = 8000 << 20
def _lazy_call(later): calls.append(later)
def get_device_properties(device): return Properties
def set_per_process_memory_fraction(fraction, device): print("capped", fraction, device)
"""
USE = "import torch; print('imported'); [later() for later in torch.cuda.calls]"
HOOK = importlib.util.find_spec("jupyter_gpu_quota.backends.rendering.torch_hook")


def kernel(folder: Path, code: str, **variables: str) -> list[str]:
    """The lines that code prints after the start-up file of kernels, with a stand-in for torch."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("from . import cuda\n")
    (folder / "torch" / "cuda.py").write_text(TORCH)
    assert HOOK is not None and HOOK.origin is not None
    code = f"exec(open({HOOK.origin!r}).read()); {code}"
    env = {"PYTHONPATH": str(folder), "GPU_QUOTA_MEMORY_MIB": "2000", "PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("milli", "before", "said"),
    [
        pytest.param("250", "", ["imported", "capped 0.175 0"], id="a fraction, once CUDA is used and not before"),
        pytest.param("1000", "", ["imported"], id="a whole device"),
        pytest.param("", "", ["imported"], id="no share"),
        pytest.param("many", "", ["imported"], id="an invalid share"),
        pytest.param(
            "250", "print('mine')", ["mine", "imported", "capped 0.175 0"], id="the user's start-up file runs first"
        ),
        pytest.param(
            "250", "import torch", ["imported", "capped 0.175 0"], id="the user's start-up file imports torch"
        ),
    ],
)
def test_pytorch_is_capped_in_kernels_without_its_context(
    tmp_path: Path, milli: str, before: str, said: list[str]
) -> None:
    (tmp_path / "mine.py").write_text(before)
    variables = {"JUPYTER_GPU_QUOTA_STARTUP": str(tmp_path / "mine.py")} if before else {}
    assert kernel(tmp_path, USE, GPU_QUOTA_MILLI=milli, **variables) == said


def test_pytorch_is_capped_after_a_library_has_looked_it_up(tmp_path: Path) -> None:
    looks_up = "from importlib.util import find_spec; assert find_spec('torch')"
    assert kernel(tmp_path, f"{looks_up}; {looks_up}; {USE}", GPU_QUOTA_MILLI="250") == ["imported", "capped 0.175 0"]


def test_the_start_up_file_has_the_context_of_the_other_caps() -> None:
    assert HOOK is not None and HOOK.origin is not None
    assert f"\nCONTEXT_MIB = {CONTEXT_MIB}\n" in Path(HOOK.origin).read_text()
