"""Devices that broke: what says so, in which words, and what does not."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Device, Health
from jupyter_gpu_quota.sampling.xids import FATAL, fatal
from tests.gpu.world import FakeGpu


@pytest.fixture(autouse=True)
def one_device(fake: FakeGpu) -> None:
    fake.script.device(0)


def state(fake: FakeGpu) -> tuple[Health, str | None]:
    fake.sample({})
    fake.sample({})
    (device,) = fake.devices()
    return device.health, device.trouble


WELL = (Health.HEALTHY, None)


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        pytest.param("0 xid 79", "XID 79: the GPU has fallen off the bus", id="it fell off the bus"),
        pytest.param("0 xid 48", "XID 48: double bit ECC error", id="a double bit error"),
        pytest.param("0 ecc 2", "2 uncorrectable memory errors since", id="uncorrectable errors"),
        pytest.param("0 recovery 1", "the driver says that the GPU must be reset", id="the driver wants a reset"),
        pytest.param("0 recovery 2", "the machine must be started again", id="the driver wants a reboot"),
        pytest.param("0 remap 1", "no spare rows", id="its spare memory is used up"),
        pytest.param("0 error nvmlDeviceGetUtilizationRates 15", "GPU is lost", id="it says that it is lost"),
        pytest.param("0 error nvmlDeviceGetMemoryInfo_v2 16", "GPU requires restart", id="it asks for a reset"),
    ],
)
def test_a_device_that_broke_says_why(fake: FakeGpu, line: str, trouble: str) -> None:
    assert state(fake) == WELL
    fake.script.put(line) if "error" not in line else fake.script.add(line)
    health, told = state(fake)
    assert health is Health.UNHEALTHY and told is not None and trouble.lower() in told.lower()


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("0 xid 13", id="an application's mistake"),
        pytest.param("0 xid 31", id="an application's page fault"),
        pytest.param("0 xid 43", id="a program that was stopped"),
        pytest.param("0 xid 45", id="a program that was killed"),
        pytest.param("0 xid 94", id="an error that was contained"),
        pytest.param("0 xid 109", id="a program that hangs"),
        pytest.param("0 xid 4711", id="an event nobody knows"),
        pytest.param("0 recovery 3", id="traffic between devices to be drained"),
        pytest.param("0 error nvmlDeviceGetTotalEccErrors 3", id="a device without ECC"),
        pytest.param("0 error nvmlDeviceGetUtilizationRates 999", id="a figure that is not told"),
        pytest.param("0 error nvmlDeviceGetHandleByIndex_v2 999", id="a device that does not answer"),
    ],
)
def test_these_end_no_device(fake: FakeGpu, line: str) -> None:
    assert state(fake) == WELL
    fake.script.put(line) if "error" not in line else fake.script.add(line)
    assert state(fake) == WELL


def test_only_the_device_of_the_event_is_ended(fake: FakeGpu) -> None:
    fake.script.device(1)
    fake.sample({})
    fake.script.add("1 xid 119")
    fake.sample({})
    fake.sample({})
    assert [device.health for device in fake.devices()] == [Health.HEALTHY, Health.UNHEALTHY]


def test_an_event_counts_after_the_reader_was_begun_anew(fake: FakeGpu) -> None:
    fake.sample({})
    fake.script.add("0 xid 79")
    fake.sample({})
    fake.script.drop("0 xid")
    fake.sampler.close()
    assert state(fake)[0] is Health.UNHEALTHY


def test_the_store_is_told_once_and_a_quarantine_is_not_ended(fake: FakeGpu) -> None:
    fake.script.put("0 recovery 1")
    (device,) = fake.devices()
    well = Device(id="GPU-0", node="here", index=0, model="H", memory_mib=1, pool=None, uuid="GPU-0")
    fake.sample({well: []})
    told = DeviceFact(device="GPU-0", health="unhealthy", trouble="the driver says that the GPU must be reset")
    assert list(fake.sampler.facts()) == [told]
    fake.sample({device: []})
    assert list(fake.sampler.facts()) == []
    quarantined = Device(
        id="GPU-0", node="here", index=0, model="H", memory_mib=1, pool=None, uuid="GPU-0", health=Health.QUARANTINED
    )
    fake.sample({quarantined: []})
    assert list(fake.sampler.facts()) == []


def test_a_device_that_is_lost_keeps_its_name(fake: FakeGpu) -> None:
    assert state(fake) == WELL
    fake.script.add("0 error nvmlDeviceGetUUID 15")
    assert state(fake)[0] is Health.UNHEALTHY
    assert [device.id for device in fake.devices()] == ["GPU-0"]


def test_a_device_that_is_lost_is_not_idle(fake: FakeGpu) -> None:
    pid = fake.start(1000)
    fake.row("J", pids={"J": [pid]})
    fake.script.add("0 error nvmlDeviceGetHandleByIndex_v2 15")
    row = fake.row("J", pids={"J": [pid]})
    assert (row.workloads, row.utilisation_percent, row.coverage_permille) == ({"J": None}, None, 0)


def test_a_device_that_nvml_does_not_name_is_not_in_the_inventory(fake: FakeGpu) -> None:
    fake.script.device(1)
    first, second = fake.devices()
    fake.sample({})
    fake.script.drop("1 uuid")
    rows = fake.sample({first: [], second: ["J"]})
    assert rows["GPU-1"].why["J"] == "NVML does not name this device"
    assert [device.id for device in fake.devices()] == ["GPU-0"]


def test_every_fatal_event_has_a_name() -> None:
    assert all(fatal(xid) == f"XID {xid}: {name}" for xid, name in FATAL.items())
    assert [fatal(xid) for xid in (0, 13, 31, 43, 45, 63, 68, 92, 94, 109, 154)] == [None] * 11
