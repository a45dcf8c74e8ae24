"""A simulated device is not read for its notebooks: their servers say what they use, and every sum has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.api.state.simulated_use import SILENT, Reported, with_reports
from jupyter_gpu_quota.api.state.utilisation import STALE_MS
from jupyter_gpu_quota.api.views.idle_states import FIRST_MS
from jupyter_gpu_quota.backends.local.sampling.simulated import UNSEEN
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.api.handlers.cluster.test_utilisation import Busy
from tests.api.world import QUOTA, service_world, train_devices
from tests.patience import until

NOW = 1_800_000_000_000


def reading(percent: int | None, device: str = "d", at: int = NOW, **use: int | None) -> DeviceSample:
    """A reading as the sampler of simulated devices gives it."""
    unseen = {name: UNSEEN for name, each in use.items() if each is None}
    why = {"memory_used_mib": "none", **unseen, **({"utilisation_percent": UNSEEN} if percent is None else {})}
    return DeviceSample(
        node="node-1", device=device, at=at, utilisation_percent=percent, memory_used_mib=None,
        coverage_permille=0 if percent is None else 1000, simulated=True, workloads=use, why=why,
    )  # fmt: skip


def said(percent: int, at: int = NOW) -> Reported:
    return Reported(percent=percent, at=at)


@pytest.mark.parametrize(
    ("row", "expected", "use", "percent"),
    [
        pytest.param(reading(None, N=None), {"N": said(30)}, {"N": 30}, 30, id="a notebook that says its use has it"),
        pytest.param(reading(None, N=None, J=20), {"N": said(30)}, {"N": 30, "J": 20}, 50, id="beside a job: the sum"),
        pytest.param(reading(None, N=None, J=90), {"N": said(30)}, {"N": 30, "J": 90}, 100, id="a sum is a device"),
        pytest.param(reading(None, N=None, M=None), {"N": said(30)}, {"N": 30, "M": None}, None, id="one is silent"),
        pytest.param(reading(None, N=None, J=None), {"N": said(3)}, {"N": 3, "J": None}, None, id="a job is unknown"),
        pytest.param(reading(0), {"N": said(30)}, {"N": 30}, 30, id="it began after the reading, and says its use"),
        pytest.param(reading(0), {}, {}, 0, id="it began after the reading, and says nothing"),
        pytest.param(reading(None, N=None), {}, {"N": None}, None, id="it says nothing"),
        pytest.param(
            reading(None, N=None), {"N": said(30, NOW - STALE_MS - 1)}, {"N": None}, None, id="it spoke long ago"
        ),
        pytest.param(reading(70, N=70), {"N": said(30)}, {"N": 70}, 70, id="a reading that has it is believed"),
    ],
)
def test_reported_use_is_added_to_the_reading(
    row: DeviceSample, expected: Mapping[str, Reported], use: Mapping[str, int | None], percent: int | None
) -> None:
    found = with_reports(row, ["N", *({"M"} & row.workloads.keys())], expected)
    assert (found.workloads, found.utilisation_percent) == (use, percent)
    assert found.coverage_permille == (0 if percent is None else 1000)
    assert ("utilisation_percent" in found.why) == (percent is None)
    assert {name for name in found.why if name in use} == {name for name in use if use[name] is None}
    assert (found.at, found.memory_used_mib, found.why["memory_used_mib"]) == (NOW, None, "none")


def test_a_silent_server_explains_the_unknown_use_of_its_notebook() -> None:
    assert with_reports(reading(None, N=None), ["N"], {}).why["N"] == SILENT
    assert with_reports(reading(None, J=None), [], {}).why["J"] == UNSEEN


def test_a_real_device_is_as_it_was_read() -> None:
    real = replace(reading(None, N=None), simulated=False)
    assert with_reports(real, ["N"], {"N": said(30)}) is real


# --- every view ---------------------------------------------------------------------------------------------------
@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    with service_world(tmp_path) as world:
        world.apply(QUOTA)
        yield Busy(world)


def report(busy: Busy, sequence: int, cpu_ms: int) -> int:
    """Report, and return when the next report is wanted once the controller has looked at this one."""
    kernel = {
        "id": "k", "name": "python3", "state": "busy", "quiet_ms": 0, "running_ms": 1_000 * sequence, "pid": 7,
        "asks_gpu": True, "cpu_ms": cpu_ms,
    }  # fmt: skip
    body = {
        "instance": "i", "sequence": sequence, "running_ms": 1_000 * sequence, "kernels": [kernel], "programs": [],
        "asks_first": True,
    }  # fmt: skip
    busy.world.post(f"notebooks/{busy.notebook}/activity", "bob", body)
    busy.world.controllers.turn(busy.world.controllers.idleness)
    answer = busy.world.post(f"notebooks/{busy.notebook}/activity", "bob", body)
    assert answer.status == 200, answer
    return int(answer.json["report_in_ms"])


def test_tiles_pools_and_projects_show_the_use_reported_by_a_server(busy: Busy) -> None:
    now = busy.world.clock()
    busy.world.clock = lambda: now
    assert report(busy, 1, 0) == FIRST_MS
    now += 10_000
    assert report(busy, 11, 4_000) > FIRST_MS
    rows = [reading(0, device.id, now) for device in train_devices() if device.id != busy.device]
    rows += [reading(60, busy.device, now, **{busy.job: 60}), reading(None, "build-0", now, **{busy.notebook: None})]
    assert busy.world.store.add_samples("node-1", 1, rows, now=now)
    until(lambda: busy._device("build-0")["sampled_at"] is not None)
    found = busy.shown()
    shown = ("notebook", "notebooks", "notebook as holder", "pool build", "project in build")
    assert {name: found[name] for name in shown} == dict.fromkeys(shown, (400, None))
    assert found["pool train"] == (600, None)
    device = busy._device("build-0")
    assert (device["utilisation_percent"], device["utilisation_unknown"]) == (40, None)
