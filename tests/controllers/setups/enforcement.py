"""Jobs on shares of devices whose enforcement is read back, with controllers on a virtual clock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.record_files import write_record
from jupyter_gpu_quota.backends.local.enforcement.limits_client import LimitAnswer, LimitRequest
from jupyter_gpu_quota.backends.local.enforcement_backend import LocalEnforcement
from jupyter_gpu_quota.backends.local.host.processes import process
from jupyter_gpu_quota.backends.local.sampling.reader_client import NoReading
from jupyter_gpu_quota.backends.local.sampling.reading import DeviceReading, Reading
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import Device
from jupyter_gpu_quota.core.samples import DeviceSample, ProcessUse
from tests.api.world import ServiceWorld, service_world

DEVICES = tuple(
    Device(id=f"GPU-{n}", node="node-1", index=n, model="H200", memory_mib=8000, pool=None, uuid=f"GPU-{n}")
    for n in (0, 1)
)
REAL = """\
version: 1
pools: [{name: train, selector: {gpu_model: [H200]}, uses: [training, notebook]}]
projects:
  - name: vision
    members: {users: [bob, olga]}
    quota: {train: {training: 1, notebook: 1}}
"""


def policy(memory: str = "none", compute: str = "none") -> str:
    return f"{REAL}policy: {{enforcement: {{memory: {memory}, compute: {compute}}}}}\n"


class EnforcementSetup:
    """A world with two real devices, whose readings and limits the test sets."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world, self.now, self.sequence = world, world.clock(), 0
        self.limits: dict[str, LimitAnswer] = {}
        self.requests: list[LimitRequest] = []
        self.samples: dict[str, DeviceSample] = {}
        self.child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "XLA_CLIENT_MEM_FRACTION": "0.4"},
        )  # fmt: skip
        world.clock = lambda: self.now
        for name in ("bob", "olga"):
            world.add(name)
        self.enforcement = LocalEnforcement(world.state_dir, limits=self._limits, probe=self._probe)
        world.controllers.enforcement_backend = self.enforcement
        world.controllers.take_over()
        self.stopped: list[str] = []
        self.using: dict[str, tuple[ProcessUse, ...]] = {}
        self.weak = self.gone = ""
        world.services.offers.backend = self.enforcement

    def _limits(self, requests: Sequence[LimitRequest]) -> list[LimitAnswer]:
        self.requests += requests
        return [
            self.limits.get(each.device, LimitAnswer(why="NVML: Not Supported", is_known=True)) for each in requests
        ]

    def _probe(self) -> Reading | NoReading:
        """The devices of NVML: without the one that is ``gone``, and without the processes of ``weak``."""
        unavailable = {"mig": "turned off", "limits": "NVML: Not Supported"}
        devices = tuple(
            DeviceReading(
                uuid=each.id, index=each.index, model=each.model, memory_mib=each.memory_mib, unavailable=unavailable,
                why={"processes": "NVML: No Permission"} if each.id == self.weak else {},
            )
            for each in DEVICES
            if each.id != self.gone
        )  # fmt: skip
        return NoReading(why="it hangs") if self.gone == "all" else Reading(devices=devices, driver="580.1")

    def apply(self, text: str) -> None:
        self.world.apply(text, DEVICES)

    def running(self, gpu: str = "0.5", who: str = "bob") -> str:
        """A running job; its process is a child of the test."""
        job: str = self.world.submit(who, gpu=gpu)["id"]
        self.world.step()
        found = process(self.child.pid)
        assert found is not None
        status = Path(rank_paths(str(self.world.state_dir), job, 1, 0).status)
        status.parent.mkdir(parents=True)
        write_record(str(status), {"pid": found.pid, "pid_started": found.started})
        self.world.see(RankFact(job=job, attempt=1, rank=0, handle=str(found.pid), started_at=self.now))
        return job

    def device_of(self, job: str) -> str:
        return str(self.view(job)["allocations"][0]["device"])

    def view(self, job: str) -> Any:
        return self.world.get(f"jobs/{job}").json

    def read(self, pass_ms: int = 0, **memory_mib: int | None) -> None:
        """A new sample of all devices, with the memory of each workload."""
        self.now += pass_ms
        self.sequence += 1
        rows = [
            DeviceSample(
                node="node-1", device=device.id, at=self.now, utilisation_percent=1, memory_used_mib=1,
                coverage_permille=1000, simulated=False, workloads=dict.fromkeys(memory_mib, 1),
                workload_memory_mib=memory_mib, processes=self.using,
            )
            for device in DEVICES
        ]  # fmt: skip
        assert self.world.store.add_samples("node-1", self.sequence, rows, now=self.now)
        self.run_enforcement()

    def run_enforcement(self) -> None:
        self.world.controllers.turn(self.world.controllers.enforcement)

    def label(self, job: str) -> tuple[str, str]:
        held = self.view(job)["enforcement"]
        return held["memory"], held["compute"]


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[EnforcementSetup]:
    with service_world(tmp_path) as world:
        setup = EnforcementSetup(world)
        yield setup
        setup.child.kill()
        setup.child.communicate()


# --- memory enforcement  ----------------------------------------------------------------------------------------------
def readings(setup: EnforcementSetup, count: int, every_ms: int = 20_000, **memory_mib: int | None) -> None:
    for _ in range(count):
        setup.read(every_ms, **memory_mib)
