"""Reading back evidence of enforcement: how old an answer of the driver, or a sample, may be."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, job_cgroup
from jupyter_gpu_quota.backends.local.enforcement.labels import label
from jupyter_gpu_quota.backends.local.enforcement.limits_client import LimitAnswer, LimitRequest
from jupyter_gpu_quota.backends.local.enforcement.mechanisms import MEMORY
from jupyter_gpu_quota.backends.local.enforcement.read_back import AHEAD_MS, LIMITS_EVERY_MS, ReadBack
from jupyter_gpu_quota.backends.local.host.processes import process, variables_of
from jupyter_gpu_quota.backends.local.host.servers import Servers
from jupyter_gpu_quota.backends.local.sampling.device_shares import MPS
from jupyter_gpu_quota.core.enforcement.levels import DeviceShare
from jupyter_gpu_quota.core.enforcement.over_share import FRESH_MS
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.patience import until

NOW, HOUR_MS = 1_900_000_000_000, 3_600_000
HALF = DeviceShare(workload="J", device="GPU-0", gpu_milli=500, memory_mib=4000)


@pytest.fixture
def client() -> Iterator[int]:
    """A process that was started as a client of MPS."""
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, MEMORY: "0=4000M"})
    until(lambda: MEMORY in (variables_of(child.pid) or {}), what="the process has its variables")
    yield child.pid
    child.kill()
    child.wait()


class Machine:
    """A read-back of one share, whose process is ``pid``, in a folder that stands for its cgroup."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.limit = LimitAnswer(limit_mib=4000, is_known=True)
        found = process(pid)
        assert found is not None
        cgroups = Cgroups(folder, root=folder / "cgroup", within="/service")
        cgroups.path(job_cgroup("J", 0, 0)).mkdir(parents=True)
        (cgroups.path(job_cgroup("J", 0, 0)) / "cgroup.procs").write_text(f"{pid}\n")
        self._read_back = ReadBack(cgroups, Servers(folder), lambda _: (pid, found.started), self._limits)

    def _limits(self, requests: Sequence[LimitRequest]) -> list[LimitAnswer]:
        return [self.limit for _ in requests]

    def memory(self, now: int, age_ms: int = 0, *, mps: bool = False) -> str:
        """The level of the share's memory, with a sample of this age."""
        sample = DeviceSample(
            node="n", device="GPU-0", at=now - age_ms, utilisation_percent=1, memory_used_mib=100, simulated=False,
            coverage_permille=1000, workloads={"J": None if mps else 1}, workload_memory_mib={"J": 100},
            why={"J": MPS} if mps else {},
        )  # fmt: skip
        return label(HALF, self._read_back.read({"a": HALF}, {"a": sample}, policed=False, now=now)["a"]).memory


@pytest.mark.parametrize(
    ("later_ms", "level"),
    [
        pytest.param(LIMITS_EVERY_MS - 1, "driver", id="the answer is recent"),
        pytest.param(LIMITS_EVERY_MS, "none", id="the answer is old"),
        pytest.param(-HOUR_MS, "none", id="the clock was set back"),
    ],
)
def test_a_limit_that_the_driver_no_longer_has_is_noticed(
    tmp_path: Path, client: int, later_ms: int, level: str
) -> None:
    machine = Machine(tmp_path, client)
    assert machine.memory(NOW) == "driver"
    machine.limit = LimitAnswer(why="the driver reports no limit", is_known=True)
    assert machine.memory(NOW + later_ms) == level


@pytest.mark.parametrize(
    ("age_ms", "level"),
    [
        pytest.param(FRESH_MS, "mps", id="a recent reading"),
        pytest.param(FRESH_MS + 1, "none", id="an old reading"),
        pytest.param(-AHEAD_MS - 1, "none", id="a reading of the future"),
    ],
)
def test_a_client_of_mps_is_seen_by_a_recent_reading(tmp_path: Path, client: int, age_ms: int, level: str) -> None:
    machine = Machine(tmp_path, client)
    machine.limit = LimitAnswer(why="the driver reports no limit", is_known=True)
    assert machine.memory(NOW, age_ms, mps=True) == level
