"""The backend of one machine: its jobs, samples, enforcement, logs and outputs, on one state folder."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, BinaryIO

from ...core.enforcement import DeviceShare, EnforcementLabel
from ...core.facts import DeviceFact
from ...core.model import Device
from ...core.samples import DeviceSample
from ..protocol import MOST_OUTPUTS, Capabilities, DeviceUsers, LogPart, Output, StopOrder
from .enforcement.capabilities import CapabilityProbe
from .enforcement.cgroup import Cgroups, notebook_cgroup
from .enforcement.labels import label
from .enforcement.limits_client import Ask, Told, limits
from .enforcement.read_back import Process, ReadBack
from .host.record_files import read_fence, read_record
from .host.servers import Servers
from .jobs.executor import LocalJobs
from .jobs.log_reader import read_log
from .jobs.outputs import list_outputs, open_output
from .jobs.paths import fence_file, rank_paths
from .sampling.machine import open_sampler, probe
from .sampling.protocol import MachineSampler
from .sampling.reader_client import Silence
from .sampling.reading import Reading

log = logging.getLogger(__name__)


class LocalSamples:
    """Samples of this machine's devices; the processes of jobs are those that the machine's job backend knows."""

    def __init__(self, sampler: MachineSampler, jobs: LocalJobs) -> None:
        self._sampler, self._jobs = sampler, jobs

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample] | None:
        """One sample per device; None: they are being read."""
        return self._sampler.sample(users, self._jobs.pids(), now=now)

    def device_facts(self) -> Sequence[DeviceFact]:
        """Health and foreign use, where that is something new."""
        return self._sampler.facts()


class LocalEnforcement:
    """Enforcement of shares on this machine. ``cgroup`` is the group in which those of workloads are made.

    ``mps`` are the pipe directories of MPS daemons by project. ``ask`` reads the driver's limits, ``reading`` the
    devices; both may wait.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        *,
        cgroup: str = "",
        mps: Mapping[str, str] | None = None,
        ask: Callable[[Sequence[Ask]], Sequence[Told]] = limits,
        reading: Callable[[], Reading | Silence] = probe,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._state_dir = os.fspath(state_dir)
        self._cgroups = Cgroups(self._state_dir, within=cgroup)
        self.probe = CapabilityProbe(self._cgroups, dict(mps or {}), reading, now=clock)
        self.back = ReadBack(self._cgroups, Servers(self._state_dir), self._first_of_rank, ask)

    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        """What a share of so many milli-GPU can have on each device."""
        return self.probe.of(devices, gpu_milli=gpu_milli, project=project)

    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        """A label for each share, from what can be read now."""
        seen = self.back.read(shares, samples, policed=policed, now=now)
        return {name: label(share, seen[name]) for name, share in shares.items()}

    def stop_notebook(self, order: StopOrder) -> None:
        """Kill all processes in a notebook's cgroup; nothing where it has none, or a newer leader rules."""
        newest = read_fence(fence_file(self._state_dir))
        if order.fencing < newest:
            log.warning("notebook %s is not killed: leader %d is older than %d", order.notebook, order.fencing, newest)
            return
        self._cgroups.kill(notebook_cgroup(order.notebook))

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        """Release what is left of notebooks that are not among these."""
        self.back.sweep(notebooks, devices)

    def _first_of_rank(self, share: DeviceShare) -> Process | None:
        status = read_record(rank_paths(self._state_dir, share.workload, share.attempt, share.rank).status) or {}
        pid = None if "ended_at" in status else status.get("pid")
        return None if pid is None else (pid, status.get("pid_started"))


class LocalOutputs:
    """Reads the logs and outputs of a state folder; the only code that opens such files for readers."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self._state_dir = os.fspath(state_dir)

    def log(self, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
        """At most ``limit`` bytes from ``offset``."""
        return read_log(self._state_dir, job, attempt, rank, offset, limit)

    def outputs(self, job: str, most: int = MOST_OUTPUTS) -> Sequence[Output]:
        """The files of a job's outputs folder, by path."""
        return list_outputs(self._state_dir, job, most)

    def open_output(self, job: str, path: str) -> BinaryIO:
        """One output, open for reading. Raises OutputRefused where it cannot be given."""
        return open_output(self._state_dir, job, path)


class LocalBackend:
    """All of one machine. ``simulated_devices``: ``[{"model", "memory_mib", "count"}]``, else the real ones.

    ``jobs`` are further settings of :class:`.LocalJobs`.
    """

    def __init__(
        self, state_dir: str | os.PathLike[str], *, simulated_devices: Sequence[Mapping[str, Any]] = (),
        cgroup: str = "", mps: Mapping[str, str] | None = None, **jobs: Any,
    ) -> None:  # fmt: skip
        sampler = open_sampler([dict(device) for device in simulated_devices], state_dir)
        self.jobs = LocalJobs(state_dir, sampler=sampler, cgroup=cgroup, mps=mps, **jobs)
        self.samples = LocalSamples(sampler, self.jobs)
        self.enforcement = LocalEnforcement(state_dir, cgroup=cgroup, mps=mps)
        self.outputs = LocalOutputs(state_dir)

    def close(self) -> None:
        """Release threads and the device reader; every job runs on."""
        self.jobs.close()
