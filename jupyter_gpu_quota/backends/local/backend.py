"""The backend of one machine: its jobs, samples, enforcement, logs and outputs, on one state folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.facts import DeviceFact
from ...core.samples import DeviceSample
from ..job_files.attempt_records import JobAttempts
from ..job_files.outputs import JobOutputs
from ..protocol import DeviceUsers
from .enforcement_backend import LocalEnforcement
from .jobs.executor import LocalJobs
from .sampling.machine import MachineSampler, open_sampler


class LocalSamples:
    """Samples of this machine's devices. The job backend knows the processes of jobs."""

    def __init__(self, sampler: MachineSampler, jobs: LocalJobs) -> None:
        self._sampler, self._jobs = sampler, jobs

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample] | None:
        """One sample per device; None: they are being read."""
        return self._sampler.sample(users, self._jobs.pids(), now=now)

    def device_facts(self) -> Sequence[DeviceFact]:
        """Changes of health and foreign use."""
        return self._sampler.facts()


class LocalBackend:
    """All parts of one machine. ``simulated_devices``: ``[{"model", "memory_mib", "count"}]``, else the real ones.

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
        self.outputs = JobOutputs(state_dir)
        self.attempts = JobAttempts(state_dir)

    def close(self) -> None:
        """Release threads and the device reader; jobs continue."""
        self.jobs.close()
