"""The enforcement of shares on this machine, as :class:`..protocol.EnforcementBackend` describes it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from ...core.enforcement.levels import DeviceShare, EnforcementLabel, EnforcementOffer
from ...core.model import Device
from ...core.samples import DeviceSample
from ..job_files.paths import fence_file, rank_paths
from ..job_files.record_files import read_fence, read_record
from ..protocol import SIMULATED, Capabilities, StopNotebookOrder
from .enforcement.cgroup import Cgroups, notebook_cgroup
from .enforcement.labels import label, offer
from .enforcement.limiter import Limiter
from .enforcement.limits_client import LimitAnswer, LimitRequest, limits
from .enforcement.mechanisms import Machine
from .enforcement.read_back import Process, ReadBack, server_processes
from .host.processes import descendants, is_same_process, kill_all
from .host.servers import Servers
from .sampling.machine import Probe
from .sampling.reader_client import NoReading
from .sampling.reading import Reading

log = logging.getLogger(__name__)

PROBE_EVERY_S = 600.0
PROBE_AGAIN_MS = 30_000
"""How long after a reading that failed, or lacks the processes, the next one starts; it may wait for the driver."""


class LocalEnforcement:
    """Enforcement on one state folder; it is thread-safe. ``cgroup`` is the group in which those of workloads are made.

    ``mps`` are the pipe directories of MPS daemons by project. ``limits`` reads the driver's limits, ``probe`` the
    devices, at most every ten minutes, or 30 s after a failure; both may wait. ``clock`` is in milliseconds since 1970.
    """

    lends_slices = True

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        *,
        cgroup: str = "",
        mps: Mapping[str, str] | None = None,
        limits: Callable[[Sequence[LimitRequest]], Sequence[LimitAnswer]] = limits,
        probe: Callable[[], Reading | NoReading] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._state_dir, self.mps = os.fspath(state_dir), dict(mps or {})
        self._cgroups, self._servers = Cgroups(self._state_dir, within=cgroup), Servers(state_dir)
        self._read_back = ReadBack(self._cgroups, self._servers, self._first_of_rank, limits)
        self._limiter = Limiter(self._cgroups, limits)
        self._probe, self._clock = probe or Probe(), clock
        self._known: tuple[float, Reading] | None = None
        self._failed: tuple[int, Reading | NoReading] | None = None
        self._read_at = 0
        self._unexpected = set[str]()
        self._lock = threading.Lock()

    # --- capabilities -------------------------------------------------------------------------------------------------
    def capabilities(self, devices: Sequence[Device], *, gpu_milli: int, project: str | None) -> Capabilities:
        """The best enforcement on each device; ``read_at`` is now where nothing had to be read, or could be."""
        reading = self._reading() if any(not device.simulated for device in devices) else None
        offers = tuple(self._offer(device, reading, gpu_milli, project) for device in devices)
        return Capabilities(offers=offers, read_at=self._read_at if isinstance(reading, Reading) else self._clock())

    def _offer(
        self, device: Device, reading: Reading | NoReading | None, gpu_milli: int, project: str | None
    ) -> EnforcementOffer:
        if device.simulated or reading is None:
            return EnforcementOffer(device=device.id, why=SIMULATED)
        if isinstance(reading, NoReading):
            return EnforcementOffer(device=device.id, why=f"its devices cannot be read: {reading.why}", unsure=True)
        found = next((each for each in reading.devices if each.uuid == device.uuid), None)
        if found is None:
            return EnforcementOffer(device=device.id, why=reading.absent or "NVML does not list it", unsure=True)
        why_no_cgroups, root = self._cgroups.why_no_limits, os.geteuid() == 0
        machine = Machine(driver=reading.driver, why_no_cgroups=why_no_cgroups, root=root, mps=self.mps)
        return offer(found, machine, gpu_milli, project or "", notebook=project is None)

    def _reading(self) -> Reading | NoReading:
        with self._lock:
            if self._known is not None and time.monotonic() - self._known[0] < PROBE_EVERY_S:
                return self._known[1]
            if self._failed is not None and 0 <= self._clock() - self._failed[0] < PROBE_AGAIN_MS:
                return self._failed[1]
            reading, now = self._probe(), self._clock()
            if isinstance(reading, Reading):
                self._read_at = now
            if isinstance(reading, NoReading) or any("processes" in each.unprobed for each in reading.devices):
                self._failed = (now, reading)
            else:
                self._known, self._failed = (time.monotonic(), reading), None
            return reading

    # --- shares -------------------------------------------------------------------------------------------------------
    def read_back(
        self, shares: Mapping[str, DeviceShare], samples: Mapping[str, DeviceSample], *, policed: bool, now: int
    ) -> Mapping[str, EnforcementLabel]:
        """A label for each share, from what can be read now."""
        evidence = self._read_back.read(shares, samples, policed=policed, now=now)
        return {name: label(share, evidence[name]) for name, share in shares.items()}

    def stop_notebook(self, order: StopNotebookOrder) -> None:
        """Kill a notebook's server, all below it and all in its cgroup, unless the order is of an older leader."""
        newest = read_fence(fence_file(self._state_dir))
        if order.fencing < newest:
            log.warning("notebook %s is not killed: leader %d is older than %d", order.notebook, order.fencing, newest)
            return
        group = notebook_cgroup(order.notebook)
        is_accepted = self._cgroups.kill(group)
        killed = kill_all(lambda: {*self._cgroups.processes(group), *self._server_processes(order.notebook)})
        if not is_accepted and not killed:
            log.warning(
                "notebook %s is not killed: it has no cgroup, and no server of it is recorded on this machine. What is"
                " left of it keeps its GPU memory: end the processes of its user that nvidia-smi lists",
                order.notebook,
            )  # fmt: skip

    def _server_processes(self, notebook: str) -> set[int]:
        """The notebook's server and all below it; none where no process is certainly its server."""
        found = server_processes([notebook], self._servers).values()
        return set[int]().union(*({pid} | descendants(pid) for pid, start in found if is_same_process(pid, start)))

    def sweep(self, notebooks: Collection[str], devices: Collection[str]) -> None:
        """Remove cgroups and records that a killed hub left, of notebooks that are not among these.

        A cgroup is removed by the second sweep that finds it: ``notebooks`` may be older than a slice that was booked
        meanwhile, whose server is about to start in its cgroup.
        """
        expected = {notebook_cgroup(name) for name in notebooks}
        found = {name for name in self._cgroups.names() if name.startswith("notebook.") and name not in expected}
        for name in sorted(found & self._unexpected):
            self._limiter.release(name, sorted(devices))
        self._unexpected = found
        self._servers.sweep(frozenset(notebooks))

    def _first_of_rank(self, share: DeviceShare) -> Process | None:
        status = read_record(rank_paths(self._state_dir, share.workload, share.attempt, share.rank).status) or {}
        pid = None if "ended_at" in status else status.get("pid")
        return None if pid is None else (pid, status.get("pid_started"))
