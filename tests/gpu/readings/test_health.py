"""The health of devices: which events and figures make one unhealthy, and with which reason."""

from __future__ import annotations

import sys

import pytest

from jupyter_gpu_quota.backends.local.sampling.reader_client import Reader
from jupyter_gpu_quota.backends.local.sampling.xids import FATAL, fatal
from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Device, Health
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.commands import ChangeNode, Recorded, SetInventory
from tests.gpu.fake_library import Script
from tests.gpu.world import FakeGpu
from tests.patience import until


@pytest.fixture(autouse=True)
def one_device(fake: FakeGpu) -> None:
    fake.script.device(0)


class Kept:
    """A store with the device facts that the scheduler records."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def devices(self) -> dict[Device, list[str]]:
        return {device: [] for device in self.store.changes(0).devices}

    def follow(self, fake: FakeGpu) -> None:
        """One inventory and one sample, with the facts that it leads to."""
        found = fake.sampler.inventory("here") or until(lambda: fake.sampler.inventory("here"), what="an inventory")
        self.store.record([SetInventory(nodes=found[0], devices=found[1])], now=1)
        fake.sample(self.devices())
        lease = self.store.acquire_lease("test", clock=lambda: 1, ttl_ms=1000)
        assert lease is not None
        self.store.observe(fake.sampler.facts(), lease=lease, now=1)

    def uncordon(self) -> None:
        (found,) = self.store.record([ChangeNode(node="here", actor="root", change="uncordon")], now=1)
        assert isinstance(found, Recorded)

    def states(self) -> list[tuple[Health, str | None]]:
        return [(device.health, device.trouble) for device in sorted(self.devices(), key=lambda each: each.id)]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def state(fake: FakeGpu, kept: Kept) -> tuple[Health, str | None]:
    for _ in range(3):  # a sample that reads nothing new, one that does, and an inventory after it
        kept.follow(fake)
    return kept.states()[0]


WELL = (Health.HEALTHY, None)
FELL = (Health.UNHEALTHY, "XID 79: the GPU has fallen off the bus")
LOADED_ANEW = """
from jupyter_gpu_quota.backends.local.sampling import nvml_session as library
library.driver_loaded = lambda: "another boot"
from jupyter_gpu_quota.backends.local.sampling.reader import main
main()
"""


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        pytest.param("0 xid 79", "XID 79: the GPU has fallen off the bus", id="it fell off the bus"),
        pytest.param("0 xid 48", "XID 48: double bit ECC error", id="a double bit error"),
        pytest.param("0 ecc 2", "2 uncorrectable memory errors since", id="uncorrectable errors"),
        pytest.param("0 recovery 1", "the driver reports that the GPU must be reset", id="the driver wants a reset"),
        pytest.param("0 recovery 2", "the machine must be started again", id="the driver wants a reboot"),
        pytest.param("0 remap 1", "no spare rows", id="its spare memory is used up"),
        pytest.param("0 error nvmlDeviceGetUtilizationRates 15", "GPU is lost", id="the GPU is lost"),
        pytest.param("0 error nvmlDeviceGetMemoryInfo_v2 16", "GPU requires restart", id="the GPU requires a restart"),
    ],
)
def test_an_unhealthy_device_has_a_reason(fake: FakeGpu, kept: Kept, line: str, trouble: str) -> None:
    assert state(fake, kept) == WELL
    fake.script.put(line) if "error" not in line else fake.script.add(line)
    health, found = state(fake, kept)
    assert health is Health.UNHEALTHY and found is not None and trouble.lower() in found.lower()


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("0 xid 13", id="an application error"),
        pytest.param("0 xid 31", id="an application's page fault"),
        pytest.param("0 xid 43", id="a program that was stopped"),
        pytest.param("0 xid 45", id="a program that was killed"),
        pytest.param("0 xid 94", id="an error that was contained"),
        pytest.param("0 xid 109", id="a program that hangs"),
        pytest.param("0 xid 4711", id="an unknown event"),
        pytest.param("0 recovery 3", id="traffic between devices to be drained"),
        pytest.param("0 error nvmlDeviceGetTotalEccErrors 3", id="a device without ECC"),
        pytest.param("0 error nvmlDeviceGetUtilizationRates 999", id="a figure that is not reported"),
        pytest.param("0 error nvmlDeviceGetHandleByIndex_v2 999", id="a device that does not answer"),
    ],
)
def test_other_events_make_no_device_unhealthy(fake: FakeGpu, kept: Kept, line: str) -> None:
    assert state(fake, kept) == WELL
    fake.script.put(line) if "error" not in line else fake.script.add(line)
    assert state(fake, kept) == WELL


def test_only_the_device_of_the_event_is_unhealthy(fake: FakeGpu, kept: Kept) -> None:
    fake.script.device(1)
    state(fake, kept)
    fake.script.add("1 xid 119")
    state(fake, kept)
    assert [health for health, _ in kept.states()] == [Health.HEALTHY, Health.UNHEALTHY]


# --- a fault remains until it is cleared --------------------------------------------------------------------------
def broken(fake: FakeGpu, kept: Kept) -> None:
    """A device for which the driver reported one fatal event, and none again."""
    state(fake, kept)
    fake.script.add("0 xid 79")
    assert state(fake, kept) == FELL
    fake.script.drop("0 xid")


def test_a_fault_survives_a_restart_of_reader_and_sampler(fake: FakeGpu, kept: Kept, script: Script) -> None:
    broken(fake, kept)
    fake.sampler.close()
    assert state(fake, kept) == FELL
    with FakeGpu(script) as after_a_restart:
        assert state(after_a_restart, kept) == FELL


def test_uncordoning_the_node_clears_a_fault(fake: FakeGpu, kept: Kept, script: Script) -> None:
    broken(fake, kept)
    kept.uncordon()
    assert kept.states() == [WELL]
    assert state(fake, kept) == WELL, "the sampler reported the old event again"
    with FakeGpu(script) as after_a_restart:
        assert state(after_a_restart, kept) == WELL


def test_an_event_after_a_cleared_fault_is_a_new_fault(fake: FakeGpu, kept: Kept) -> None:
    broken(fake, kept)
    kept.uncordon()
    fake.script.add("0 xid 79", "0 xid 79")  # the fake library reports each line once, in this order
    assert state(fake, kept) == FELL


def test_a_reloaded_driver_clears_a_fault(fake: FakeGpu, kept: Kept, script: Script) -> None:
    broken(fake, kept)
    with FakeGpu(script, Reader(command=(sys.executable, "-c", LOADED_ANEW))) as after_a_boot:
        assert state(after_a_boot, kept) == WELL


def test_a_fault_reported_by_the_driver_stays_after_a_clear(fake: FakeGpu, kept: Kept) -> None:
    broken(fake, kept)
    fake.script.put("0 recovery 1")
    assert state(fake, kept) == FELL
    kept.uncordon()
    assert state(fake, kept) == (Health.UNHEALTHY, "the driver reports that the GPU must be reset")


def test_a_fault_remains_after_a_quarantine(fake: FakeGpu, kept: Kept) -> None:
    broken(fake, kept)
    for health in ("quarantined", "healthy"):
        lease = kept.store.acquire_lease("test", clock=lambda: 1, ttl_ms=1000)
        assert lease is not None
        kept.store.observe([DeviceFact(device="GPU-0", health=health)], lease=lease, now=1)
        kept.follow(fake)
    assert state(fake, kept) == FELL


def test_a_fault_is_reported_once_and_ends_no_quarantine(fake: FakeGpu) -> None:
    fake.script.put("0 recovery 1")
    (device,) = fake.devices()
    well = Device(id="GPU-0", node="here", index=0, model="H", memory_mib=1, pool=None, uuid="GPU-0")
    fake.sample({well: []})
    found = DeviceFact(device="GPU-0", health="unhealthy", trouble="the driver reports that the GPU must be reset")
    assert list(fake.sampler.facts()) == [found]
    fake.sample({device: []})
    assert list(fake.sampler.facts()) == []
    quarantined = Device(
        id="GPU-0", node="here", index=0, model="H", memory_mib=1, pool=None, uuid="GPU-0", health=Health.QUARANTINED
    )
    fake.sample({quarantined: []})
    assert list(fake.sampler.facts()) == []


def test_a_device_that_is_lost_keeps_its_name(fake: FakeGpu, kept: Kept) -> None:
    assert state(fake, kept) == WELL
    fake.script.add("0 error nvmlDeviceGetUUID 15")
    assert state(fake, kept)[0] is Health.UNHEALTHY
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
    assert "does not list this device, or could not read it" in rows["GPU-1"].why["J"]
    assert [device.id for device in fake.devices()] == ["GPU-0"]


def test_every_fatal_event_has_a_name() -> None:
    assert all(fatal(xid) == f"XID {xid}: {name}" for xid, name in FATAL.items())
    assert [fatal(xid) for xid in (0, 13, 31, 43, 45, 63, 68, 92, 94, 109, 154)] == [None] * 11
