"""The simulated backend: jobs, samples, enforcement, logs and outputs without a machine."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar

from ...core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementOffer
from ...core.facts import DeviceFact
from ...core.model import Device
from ...core.samples import DeviceSample
from ..protocol import (
    MAX_OUTPUTS,
    SIMULATED,
    Capabilities,
    DeviceUsers,
    LogPart,
    Output,
    OutputList,
    OutputRefused,
    StopNotebookOrder,
)
from ..simulated_samples import simulated_sample
from .jobs import SimulatedJobs

NOT_SIMULATED = "the simulated backend reads no real device"
UNSEEN = "its use is not simulated"


@dataclass(frozen=True, slots=True)
class SimulatedSamples:
    """Samples of simulated devices. ``use_of`` is the percentage that a workload uses now; None: unknown."""

    use_of: Callable[[str], int | None]

    def samples(self, users: DeviceUsers, *, now: int) -> Sequence[DeviceSample]:
        """One sample per simulated device."""
        return [
            simulated_sample(device, held, {one.workload: self.use_of(one.workload) for one in held}, UNSEEN, now)
            for device, held in users.items()
            if device.simulated
        ]

    def device_facts(self) -> Sequence[DeviceFact]:
        """Nothing: simulated devices do not break, and nothing else uses them."""
        return ()


@dataclass(slots=True)
class SimulatedEnforcement:
    """Enforces nothing, and reports that. ``stopped`` are the notebooks of stop orders that were carried out."""

    lends_slices: ClassVar[bool] = True
    jobs: SimulatedJobs
    stopped: list[str] = field(default_factory=list)

    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        """No enforcement on a simulated device; any other is unknown."""
        offers = tuple(EnforcementOffer(device=each.id, **_unenforced(each.simulated)) for each in devices)
        return Capabilities(offers=offers, read_at=self.jobs.clock())

    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        """The same for shares."""
        return {name: EnforcementLabel(**_unenforced(share.simulated)) for name, share in shares.items()}

    def stop_notebook(self, order: StopNotebookOrder) -> None:
        """Record it, unless the order is of an older leader."""
        if order.fencing >= self.jobs.fencing and order.notebook not in self.stopped:
            self.stopped.append(order.notebook)

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        """Forget the stop orders of other notebooks."""
        self.stopped = [name for name in self.stopped if name in notebooks]


def _unenforced(simulated: bool) -> dict[str, Any]:
    return {"why": SIMULATED if simulated else NOT_SIMULATED, "unsure": not simulated}


@dataclass(frozen=True, slots=True)
class SimulatedOutputs:
    """The logs and files that the behaviour of jobs describes."""

    jobs: SimulatedJobs

    def log(self, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
        """At most ``limit`` bytes from ``offset``."""
        whole = self.jobs.behaviour_of(job).log if self.jobs.has_begun(job, attempt) else b""
        start = max(0, len(whole) + offset) if offset < 0 else offset
        part = whole[start : start + limit]
        return LogPart(start, part, start + len(part))

    def outputs(self, job: str, limit: int = MAX_OUTPUTS) -> OutputList:
        """The files of a job, by path."""
        found = [Output(path, len(content), 0) for path, content in sorted(self._files(job).items())]
        return OutputList(found[:limit], len(found) > limit)

    def open_output(self, job: str, path: str) -> BinaryIO:
        """One output. Raises OutputRefused where there is none."""
        if path not in self._files(job):
            raise OutputRefused(f"{path!r} cannot be read: no such file.")
        return io.BytesIO(self._files(job)[path])

    def provenance(self, job: str, attempt: int) -> None:
        """Nothing is recorded."""

    def _files(self, job: str) -> Mapping[str, bytes]:
        has_files = self.jobs.has_begun(job, 1) and job not in self.jobs.removed_outputs
        return self.jobs.behaviour_of(job).outputs if has_files else {}


class SimulatedBackend:
    """All parts around one set of simulated jobs."""

    def __init__(self, jobs: SimulatedJobs, use_of: Callable[[str], int | None] = lambda workload: None) -> None:
        self.jobs = jobs
        self.samples = SimulatedSamples(use_of)
        self.enforcement = SimulatedEnforcement(jobs)
        self.outputs = SimulatedOutputs(jobs)

    def close(self) -> None:
        """Nothing to release."""
