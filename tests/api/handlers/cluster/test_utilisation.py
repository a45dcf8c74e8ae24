"""Wherever a share is shown, so is what is used of it; and where nobody knows that, it is unknown with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.state import store_view
from jupyter_gpu_quota.api.state.utilisation import (
    STALE_MS,
    Utilised,
    memory_of_share,
    of_device,
    of_devices,
    of_share,
    total_use,
)
from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Device, Health
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.api.pages.browser import open_page, seen
from tests.api.world import QUOTA, ServiceWorld, service_world, train_devices
from tests.patience import until

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
WHY = "its processes share the device by MPS"


def row(
    device: str, at: int = NOW, percent: int | None = 50, why: dict[str, str] | None = None, **use: int | None
) -> DeviceSample:
    return DeviceSample(
        node="node-1", device=device, at=at, utilisation_percent=percent, memory_used_mib=None, coverage_permille=1000,
        simulated=False, workloads=use, why=why or {},
    )  # fmt: skip


# --- arithmetic ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(row("d", J=0), Utilised(0), id="a share at rest is used by nothing, and that is known"),
        pytest.param(row("d", J=40), Utilised(400), id="so many percent of the device"),
        pytest.param(row("d", J=None, why={"J": WHY}), Utilised(None, WHY), id="unknown with its reason"),
        pytest.param(row("d", J=None), Utilised(None, "no reason was given"), id="unknown without one"),
        pytest.param(row("d", I=40), Utilised(None, "it began after the last reading"), id="too new to be read"),
        pytest.param(None, Utilised(None, "it was not read yet"), id="a device that was never read"),
        pytest.param(
            row("d", at=NOW - STALE_MS - 1_000, I=40),
            Utilised(None, "it began after the last reading"),
            id="too new for an old reading",
        ),
        pytest.param(
            row("d", at=NOW - STALE_MS - 1_000, J=40),
            Utilised(None, "it was last read 61 seconds ago"),
            id="readings stopped",
        ),
    ],
)
def test_the_use_of_a_share(found: DeviceSample | None, expected: Utilised) -> None:
    assert of_share(found, "J", NOW) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(replace(row("d"), workload_memory_mib={"J": 0}), 0, id="no memory in use, and that is known"),
        pytest.param(replace(row("d"), workload_memory_mib={"J": 900}), 900, id="as it was read"),
        pytest.param(replace(row("d"), workload_memory_mib={"J": None}), None, id="unreadable memory is unknown"),
        pytest.param(replace(row("d"), workload_memory_mib={"I": 900}), None, id="the memory of other work is not its"),
        pytest.param(
            replace(row("d", at=NOW - STALE_MS - 1_000), workload_memory_mib={"J": 900}), None, id="an old reading"
        ),
        pytest.param(None, None, id="memory of a device that was never read"),
    ],
)
def test_the_memory_use_of_a_share(found: DeviceSample | None, expected: int | None) -> None:
    assert memory_of_share(found, "J", NOW) == expected


def test_a_sum_is_unknown_while_any_part_is() -> None:
    assert total_use([Utilised(100), Utilised(20)]) == Utilised(120)
    assert total_use([]) == Utilised(0)
    assert total_use([Utilised(None, WHY)]) == Utilised(None, WHY)
    assert total_use([Utilised(100), Utilised(None, WHY)]) == Utilised(None, f"1 of 2 shares have no reading: {WHY}")


def test_an_unhealthy_device_does_not_count_in_its_pool() -> None:
    def device(name: str, health: Health) -> Device:
        return Device(id=name, node="n", index=0, model="H", memory_mib=1, pool="p", health=health)

    found = of_devices([device("a", Health.HEALTHY), device("b", Health.UNHEALTHY)], {"a": row("a", percent=30)}, NOW)
    assert found == Utilised(300)


def test_a_reading_with_a_future_date_is_ignored() -> None:
    far = 253_402_300_799_000
    for at, percent in ((far, None), (NOW + 61_000, None), (NOW + 59_000, 300)):
        found = of_device(row("a", at=at, percent=30), NOW)
        assert found.milli == percent
        assert (found.milli is None) == ("ahead of this machine's clock" in (found.why or ""))


# --- every interface ----------------------------------------------------------------------------------------------
class Busy:
    """A job on a whole device of the pool train, and a notebook with an eighth of the pool build."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world = world
        with world.stepping():
            asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
            self.notebook = str(world.post("notebooks", "hub", asked).json["id"])
        self.job = str(world.submit()["id"])
        world.step()
        world.see_running(self.job)
        found = world.store.changes(0).allocations
        self.device = next(part.device for part in found if part.workload == self.job)

    def add_samples(self, job: int | None, notebook: int | None, **why: str) -> None:
        now = self.world.clock()
        rows = [row(device.id, at=now, percent=0) for device in train_devices() if device.id != self.device]
        rows.append(row(self.device, at=now, percent=job, why=why, **{self.job: job}))
        held = {self.notebook: None if notebook is None else 700}
        rows.append(replace(row("build-0", at=now, percent=notebook, why=why, **{self.notebook: notebook}),
                            workload_memory_mib=held))  # fmt: skip
        assert self.world.store.add_samples("node-1", 1, rows, now=now)

    def read(self, job: int | None, notebook: int | None, **why: str) -> None:
        self.add_samples(job, notebook, **why)
        until(lambda: self._device(self.device)["sampled_at"] is not None)

    def shown(self) -> dict[str, tuple[Any, Any]]:
        world = self.world
        listed = {
            "job": world.get(f"jobs/{self.job}").json,
            "jobs": world.get("jobs").json["items"][0],
            "notebook": world.get(f"notebooks/{self.notebook}").json,
            "notebooks": world.get("notebooks").json["items"][0],
            "holder": self._device(self.device)["holders"][0],
            "notebook as holder": self._device("build-0")["holders"][0],
            **{f"pool {pool['name']}": pool for pool in world.get("pools").json["items"]},
            **{f"project in {row['pool']}": row for row in self._project()},
        }
        return {name: (found["utilised_milli"], found["utilised_unknown"]) for name, found in listed.items()}

    def _device(self, name: str) -> Any:
        return next(device for device in self.world.get("devices").json["items"] if device["id"] == name)

    def _project(self) -> Any:
        return next(each for each in self.world.get("projects").json["items"] if each["name"] == "vision")["pools"]


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    monkeypatch.setattr(store_view, "SAMPLES_FRESH_S", 0.2)
    with service_world(tmp_path) as world:
        world.apply(QUOTA)
        yield Busy(world)


def test_every_interface_shows_the_use(busy: Busy) -> None:
    busy.read(60, 5)
    of_job, of_notebook = (600, None), (50, None)
    assert busy.shown() == {
        "job": of_job, "jobs": of_job, "holder": of_job, "pool train": of_job, "project in train": of_job,
        "notebook": of_notebook, "notebooks": of_notebook, "notebook as holder": of_notebook, "pool build": of_notebook,
        "project in build": of_notebook,
    }  # fmt: skip


@pytest.mark.parametrize("path", ["jobs", "notebooks"])
def test_a_client_that_reads_only_one_list_gets_new_samples(busy: Busy, path: str) -> None:
    busy.world.get(path)
    busy.add_samples(60, 5)
    until(
        lambda: any(
            part in str(busy.world.get(path).json) for part in ("'utilised_milli': 600", "'utilised_milli': 50,")
        )
    )


def test_no_interface_shows_unknown_use_as_zero(busy: Busy) -> None:
    busy.read(None, None, **{busy.job: WHY, busy.notebook: WHY, "utilisation_percent": WHY})
    found = busy.shown()
    assert {milli for milli, _ in found.values()} == {None}
    assert all(why and WHY in why for _, why in found.values())


@pytest.mark.parametrize(("percent", "mib"), [pytest.param(5, 700, id="read"), pytest.param(None, None, id="unknown")])
def test_a_notebook_shows_its_device_memory(busy: Busy, percent: int | None, mib: int | None) -> None:
    busy.read(60, percent)
    assert busy.world.get(f"notebooks/{busy.notebook}").json["memory_used_mib"] == mib


def test_workloads_without_devices_have_no_enforcement_text(busy: Busy) -> None:
    busy.read(60, 5)
    waiting = busy.world.submit(gpu="4")
    assert (waiting["utilised_milli"], waiting["utilised_unknown"]) == (None, None)


def test_pages_show_it_too(busy: Busy, chromium: Any) -> None:
    busy.read(60, None, **{busy.notebook: WHY})
    page = open_page(busy.world, chromium, "", "bob")
    seen(page, "0.6 GPU in use when last read", ".pool-head")
    seen(page, "uses 0.6", ".holders")
    page.locator("#notebooks summary", has_text="unknown").click()
    seen(page, WHY, "#notebooks details")
    page.goto(page.url + "jobs")
    seen(page, "uses 0.6", "#jobs")
    page.goto(f"{page.url}/{busy.job}")
    seen(page, "In use, last read0.6", "#facts-list")
    page.context.close()


def test_foreign_use_without_a_reading_has_its_possible_causes(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.step()
        lease = world.store.lease()
        assert lease is not None
        world.store.observe((DeviceFact(device="train-0", foreign_milli=500),), lease=lease, now=world.clock())
        world.run(world.services.store_view.refresh())
        found = {each["id"]: each["foreign_why"] or "" for each in world.get("devices").json["items"]}
        assert found.pop("train-0").endswith("jobs that its database does not have (`recover` lists these)")
        assert set(found.values()) == {""}
