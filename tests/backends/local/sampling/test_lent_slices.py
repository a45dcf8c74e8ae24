"""The samples of a device with a lent slice: its owner uses nothing while it has no process there."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.backends.local.sampling.device_shares import Owners, shares_of
from jupyter_gpu_quota.backends.local.sampling.node import workloads_that_lent
from jupyter_gpu_quota.backends.local.sampling.reading import DeviceReading, GpuProcess
from jupyter_gpu_quota.backends.local.sampling.simulated import SimulatedSampler
from jupyter_gpu_quota.core.model import Activity, Allocation, Device, Notebook, NotebookState
from jupyter_gpu_quota.store.records.rows import NotebookRecord
from tests.controllers.setups.scheduling import World


def process(claim: str, percent: int | None, memory_mib: int = 300) -> GpuProcess:
    return GpuProcess(pid=10, memory_mib=memory_mib, percent=percent, lineage=((10, 5),), claim=claim)


def device(*processes: GpuProcess, why: dict[str, str] | None = None, **other: object) -> DeviceReading:
    facts = {"percent": 90, "memory_used_mib": 400, "unlisted_mib": 0, "why": why or {}, **other}
    return DeviceReading(uuid="g", index=0, model="M", memory_mib=16_000, processes=processes, **facts)  # type: ignore[arg-type]


def read(found: DeviceReading) -> tuple[int | None, int | None, int | None]:
    """(the owner's percent, its memory, the borrower's percent)."""
    owners = Owners({}, ("nb", "job"), found.processes or (), is_alive=lambda pid, started: True)
    shares = shares_of(found, ("job", "nb"), owners, frozenset({"nb"}))
    return shares.percent["nb"], shares.memory_mib["nb"], shares.percent["job"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(device(process("job", 90)), (0, 0, 90), id="the borrower's use"),
        pytest.param(
            device(process("job", None), why={"activity": "not reported"}),
            (0, 0, 90),
            id="where no process has figures, the borrower that is alone has the device's",
        ),
        pytest.param(device(process("job", 80), process("nb", 10)), (10, 300, 80), id="a busy terminal of the owner"),
        pytest.param(device(process("job", 80), process("nb", 0)), (0, 300, 80), id="an idle terminal of the owner"),
        pytest.param(
            device(process("job", 90), unlisted_mib=4_000), (None, None, 90), id="unlisted memory may be of the owner"
        ),
    ],
)
def test_use_of_a_lent_device(found: DeviceReading, expected: tuple[int | None, int | None, int | None]) -> None:
    assert read(found) == expected


def test_the_owner_of_a_lent_slice_is_sampled_on_its_own_device() -> None:
    world = World()
    world.turn(2)
    nb = Notebook(
        id="nb", project="vision", user="u", pool="build", gpu_milli=500, requested_at=0, state=NotebookState.LENT,
        activity=Activity.IDLE, seen_empty=True, device="n1-4", lent_at=1,
    )  # fmt: skip
    record = NotebookRecord(notebook=nb, server="", reason=None, booked_at=1, ended_at=None, changed=1)
    world.controller.mirror.notebooks["nb"] = record
    users = {device.id: parts for device, parts in world.controller.mirror.allocations_by_device().items()}
    (away,) = users["n1-4"]
    assert (away.workload, away.gpu_milli, workloads_that_lent(users["n1-4"])) == ("nb", 0, {"nb"})


def test_a_simulated_device_is_sampled_by_its_allocations() -> None:
    here = Device(id="s", node="n", index=0, model="M", memory_mib=1, pool="p", simulated=True)
    lent = Allocation(id="nb", workload="nb", rank=0, device="s", gpu_milli=0, memory_mib=0)
    (row,) = SimulatedSampler().sample({here: [lent]}, {}, now=1)
    assert row.workloads == {} and row.utilisation_percent == 0
