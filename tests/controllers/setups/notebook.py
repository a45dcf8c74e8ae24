"""A notebook whose kernels report to a service with controllers on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.controllers.idleness import Idleness
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.calls import Page
from tests.api.world import QUOTA, ServiceWorld, build_devices, service_world, train_devices

IDLE = """
policy:
  idle: {mode: MODE, gpu_idle_after: 20m, kernel_idle_after: 20m, when_nobody_waits: 20m, warn_for: 5m, keep_at_most: 1,
         stop_server_after: 30m}
"""
NOW = 1_900_000_000_000
SECOND, MINUTE = 1_000, 60_000


class Watched:
    """A notebook of bob's whose server reports every half a minute, on a device that is read every ten seconds."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world, self.now, self.sequence, self.samples = world, NOW, 0, 0
        self.started = NOW
        world.clock = lambda: self.now
        with world.stepping():
            asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
            answer = world.post("notebooks", "hub", asked)
            assert answer.status == 201, answer.json
            self.id = answer.json["id"]
        self.percent: int | None = 0
        self.memory_mib: int | None = None
        self.kernels = [self.kernel("k1"), self.kernel("k2", asks_gpu=False)]
        self.used_at = self.now

    def kernel(self, name: str, **other: Any) -> dict[str, Any]:
        facts = {
            "id": name,
            "name": "python3",
            "state": "idle",
            "quiet_ms": 0,
            "running_ms": 0,
            "pid": 7,
            "asks_gpu": True,
        }
        return {**facts, **other}

    @property
    def idleness(self) -> Idleness:
        return self.world.controllers.idleness

    def send(self, who: str | None = "bob", **other: Any) -> Any:
        """One report, and its answer."""
        age, running_ms = self.now - self.used_at, self.now - self.started
        kernels = [{"quiet_ms": age, "running_ms": running_ms, **_state_only(kernel)} for kernel in self.kernels]
        body = {"instance": "i", "sequence": self.sequence, "running_ms": running_ms, "kernels": kernels}
        self.sequence += 1
        body |= {"programs": [], "asks_first": True, "server_quiet_ms": max(0, age)}
        self.last = {**body, **other}
        return self.world.post(f"notebooks/{self.id}/activity", who, self.last)

    def report(self, who: str | None = "bob", **other: Any) -> Any:
        """One report and one run of the controller; returns the answer to the next report."""
        answer = self.send(who, **other)
        if answer.status != 200:
            return answer
        self.run_controller()
        return self.world.post(f"notebooks/{self.id}/activity", who, self.last)

    def set_back(self, by_ms: int) -> None:
        """Set the clock of the service back; the server measures ages by another one."""
        self.now, self.used_at, self.started = self.now - by_ms, self.used_at - by_ms, self.started - by_ms

    def run_controller(self) -> None:
        """One run of the controller."""
        self.world.controllers.turn(self.idleness)

    def pass_(self, minutes: float) -> Any:
        """Let time pass, with samples and reports; returns the answer to the newest report."""
        answer = None
        for step in range(1, round(minutes * 6) + 1):
            self.now += 10 * SECOND
            self.read()
            if step % 3 == 0:
                answer = self.report().json
        return answer

    def read(self) -> None:
        """One reading and one run of the controller."""
        self.store_reading()
        self.run_controller()

    def store_reading(self) -> None:
        row = DeviceSample(
            node="node-1", device="build-0", at=self.now, utilisation_percent=self.percent, memory_used_mib=None,
            coverage_permille=1000, simulated=False,
            workloads={self.id: self.percent}, workload_memory_mib={self.id: self.memory_mib},
        )  # fmt: skip
        self.samples += 1
        self.world.store.add_samples("node-1", self.samples, [row], now=self.now)

    def shown(self, who: str = "bob") -> Any:
        return self.world.get(f"notebooks/{self.id}", who).json

    def audited(self) -> list[str]:
        rows, _ = self.world.store.audit(page=Page(limit=1000))
        return [row.kind for row in reversed(rows) if row.subject == self.id]


def _state_only(kernel: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kernel.items() if name not in ("quiet_ms", "running_ms")}


def watched(folder: Path, mode: str) -> Iterator[Watched]:
    with service_world(folder, store=MemoryStore()) as world:
        real = tuple(replace(device, simulated=False) for device in (*train_devices(), *build_devices()))
        world.apply(QUOTA + IDLE.replace("MODE", mode), real)
        yield Watched(world)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Watched]:
    yield from watched(tmp_path, "reclaim")


@pytest.fixture
def only_reported(tmp_path: Path) -> Iterator[Watched]:
    yield from watched(tmp_path, "report")
