"""A machine with devices, its sampler, and work on the devices as real child processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from jupyter_gpu_quota.backends.local.host.processes import read_proc
from jupyter_gpu_quota.backends.local.host.servers import Servers
from jupyter_gpu_quota.backends.local.sampling.nvml_sampler import NvmlSampler
from jupyter_gpu_quota.backends.local.sampling.reader_client import Reader
from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE
from jupyter_gpu_quota.core.model import Allocation, Device
from jupyter_gpu_quota.core.samples import DeviceSample
from tests.gpu import real_library
from tests.gpu.fake_library import Script
from tests.patience import PATIENCE_S, until

T = TypeVar("T")


def _if_any(found: T | None) -> list[T]:
    """A true value for a result that may be empty; None without a result."""
    return [] if found is None else [found]


def share_of(notebook: str) -> dict[str, str]:
    """The variables that identify a notebook's server."""
    return {SHARE_VARIABLE: f'{{"notebook": "{notebook}", "gpu_milli": 500, "memory_mib": 1}}'}


class Gpu:
    """The sampler of this machine, polled without waiting, as by the controller."""

    def __init__(self, reader: Reader | None = None, servers: Servers | None = None) -> None:
        self.sampler = NvmlSampler(reader or Reader(timeout_s=PATIENCE_S), servers)
        self.children: list[subprocess.Popen[bytes]] = []
        self.now = 1_000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sampler.close()
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            child.wait(PATIENCE_S)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    def devices(self) -> tuple[Device, ...]:
        found = until(lambda: self.sampler.inventory("here"), what="an inventory")
        return found[1]

    def sample(
        self, held: Mapping[Device, Sequence[str]], pids: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, DeviceSample]:
        """The rows of the next reading, by device. ``held`` are workloads by device, ``pids`` processes by job."""
        holders = {device: [_part(name, device) for name in names] for device, names in held.items()}
        known = {job: frozenset(found) for job, found in (pids or {}).items()}
        self.now += 1
        [rows] = until(lambda: _if_any(self.sampler.sample(holders, known, now=self.now)), what="a sample")
        return {row.device: row for row in rows}

    def row(self, *names: str, pids: Mapping[str, Sequence[int]] | None = None) -> DeviceSample:
        """The row of the first device, which these workloads hold."""
        device = self.devices()[0]
        return self.sample({device: names}, pids)[device.id]

    def child(
        self, *command: str, variables: Mapping[str, str] | None = None, user: int | None = None
    ) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(variables or {})},
            start_new_session=True, user=user,
        )  # fmt: skip
        self.children.append(child)
        until(lambda: read_proc(child.pid, "environ") != b"", what="the process has its variables, or ended")
        return child

    def start(self, mib: int, *, busy: bool = False, variables: Mapping[str, str] | None = None) -> int:
        """A process that uses the first device; returns its number."""
        raise NotImplementedError

    def end(self, pid: int) -> None:
        """End a process, and wait until the device no longer lists it."""
        for child in self.children:
            if child.pid == pid:
                child.kill()
                child.wait(PATIENCE_S)


class FakeGpu(Gpu):
    """The fake library: the script has the use of each process."""

    def __init__(self, script: Script, reader: Reader | None = None, servers: Servers | None = None) -> None:
        super().__init__(reader, servers)
        self.script = script

    def start(self, mib: int, *, busy: bool = False, variables: Mapping[str, str] | None = None) -> int:
        pid = self.child("sleep", "600", variables=variables).pid
        self.uses(pid, mib, 60 if busy else None)
        return pid

    def uses(self, pid: int, mib: int | None, percent: int | None, scope: str = "0") -> None:
        """Add a process to a device, with its memory and use."""
        self.script.add(f"{scope} process {pid} {'-' if mib is None else mib} {'-' if percent is None else percent}")
        total, used = (int(part) for part in self.line(scope, "memory"))
        self.script.put(f"{scope} memory {total} {used + (mib or 0)}")
        if percent and "/" not in scope:
            self.script.put(f"{scope} percent {percent}")

    def line(self, scope: str, key: str) -> list[str]:
        return next(line.split()[2:] for line in self.script.lines if line.startswith(f"{scope} {key} "))

    def end(self, pid: int) -> None:
        super().end(pid)
        gone = next(line for line in self.script.lines if line.startswith(f"0 process {pid} "))
        total, used = (int(part) for part in self.line("0", "memory"))
        self.script.drop(f"0 process {pid}")
        self.script.put(f"0 memory {total} {used - int(gone.split()[3])}", "0 percent 0")


class RealGpu(Gpu):
    """The machine's own device, worked on through the driver."""

    def start(self, mib: int, *, busy: bool = False, variables: Mapping[str, str] | None = None) -> int:
        work = str(Path(__file__).with_name("work.py"))
        child = self.child(sys.executable, work, str(mib), "1" if busy else "0", variables=variables)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n", "the work on the GPU did not start"
        return child.pid

    def models(self) -> list[tuple[str, ...]]:
        return real_library.query("uuid", "name", "memory.total")


def _part(workload: str, device: Device) -> Allocation:
    return Allocation(
        id=f"{workload}@{device.id}", workload=workload, rank=0, device=device.id, gpu_milli=100, memory_mib=1
    )
