"""Readings of the node's devices whose processes name the workload of their pod.

The evidence is the cgroup, which a container cannot choose; its variables are none. A process whose pod is not known
yet, or whose cgroup cannot be read, has an unknown workload, and so no workload of its device counts as unused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....core.samples import WORKLOADS
from ...local.host.processes import is_same_process, read_proc
from ...local.sampling.reader_client import NoReading, Reader
from ...local.sampling.reading import DeviceReading, GpuProcess, Reading
from .cgroup_paths import AmbiguousCgroups, pod_of
from .node_pods import PodUnknown

NO_HOST_PID = "the agent has no hostPID, so the use of the device by each workload is unknown while it is used"
HOST_NAMESPACE = "pid:[4026531836]"
"""The pid namespace of the machine: the kernel gives it this number (PROC_PID_INIT_INO)."""


class PodReader(Reader):
    """``workload_of`` returns the job or notebook of a pod by its uid, None for a pod of others, or raises PodUnknown.

    ``sees_host``: whether process ids of the driver are those of /proc. Without that, no process has a known workload.
    """

    def __init__(
        self, workload_of: Callable[[str], str | None], *, sees_host: bool | None = None,
        cgroups_of: Callable[[int], str | None] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(**settings)
        self._workload_of, self._cgroups_of = workload_of, cgroups_of or cgroups_of_process
        self.sees_host = sees_host_processes() if sees_host is None else sees_host

    def take(self) -> Reading | NoReading | None:
        """The next reading, with workloads as the claims of its processes."""
        taken = super().take()
        if not isinstance(taken, Reading):
            return taken
        return replace(taken, devices=tuple(map(self._of_device, taken.devices)))

    def _of_device(self, device: DeviceReading) -> DeviceReading:
        if not self.sees_host:
            device = replace(device, why={WORKLOADS: NO_HOST_PID, **device.why})
        if device.processes is None:
            return device
        return replace(device, processes=tuple(map(self._of_pod, device.processes)))

    def _of_pod(self, process: GpuProcess) -> GpuProcess:
        try:
            claim, is_hidden = self._workload(process), False
        except (AmbiguousCgroups, PodUnknown):
            claim, is_hidden = None, True
        # Its cgroup is no further evidence: in one hierarchy of several, processes of all pods may share one.
        return replace(process, claim=claim, hidden=is_hidden, cgroup=None)

    def _workload(self, process: GpuProcess) -> str | None:
        """The workload of a process; None for one of others. Raises PodUnknown, AmbiguousCgroups."""
        cgroups = self._cgroups_of(process.pid) if self.sees_host and process.lineage else None
        if cgroups is None or not is_same_process(*process.lineage[0]):
            raise PodUnknown(process.pid)
        pod = pod_of(cgroups)
        return None if pod is None else self._workload_of(pod.uid)


def cgroups_of_process(pid: int) -> str | None:
    """The text of /proc/<pid>/cgroup; None where it cannot be read."""
    text = read_proc(pid, "cgroup")
    return None if text is None else text.decode(errors="replace")


def sees_host_processes() -> bool:
    """Whether this process is in the pid namespace of the machine (hostPID)."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == HOST_NAMESPACE
    except OSError:
        return False
