"""The running jobs of one pool, from one decision to the next.

Only jobs whose row or allocations changed, that were left out, or that have no start yet are read again. The content
follows from the snapshot alone: built anew, it is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from ..model import Job
from ..placement.ledger import Ledger
from ..placement.node_resources import NOTHING, CpuMemory
from ..placement.place import Piece, node_needs, with_cpu_memory
from .quota_state import Running, by_end

_use_fields = attrgetter(
    "project", "user", "preemptible", "borrower", "priority", "gpu_milli", "ranks", "held_ranks", "min_ranks"
)
"""The fields of a running job that the use and demand of its project depend on."""


@dataclass(slots=True, eq=False)
class UseGroup:
    """Running jobs whose use and demand count in the same way; ``job`` is one of them.

    ``size``: of one; ``non_preemptible_on_devices``: of all on schedulable devices, 0 where they are preemptible; in
    milli-GPU.
    """

    job: Job
    size: int
    non_preemptible_on_devices: int = 0
    count: int = 0


class RunningJobs:
    """The running jobs of one pool, and sums over them. ``devices``: a ledger with the numbers of the devices."""

    def __init__(self, devices: Ledger) -> None:
        self._devices, count = devices, len(devices.devices)
        self.jobs: dict[str, Running] = {}
        """By their ends after :meth:`sort`."""
        self.preemptible: dict[str, dict[str, Running]] = defaultdict(dict)
        """The preemptible ones without borrowers, by project and id."""
        self.borrowers: dict[str, Running] = {}
        self.firm, self.borrowed = [0] * count, [0] * count
        """The use of each device by the jobs that are no borrowers, and by the borrowers, in milli-GPU."""
        self.on_nodes: dict[int, CpuMemory] = {}
        """The CPU and memory of those that requested any, by node."""
        self.use_groups: dict[object, UseGroup] = {}
        self.starting: set[str] = set()
        """Those without a start yet."""
        self._preemptible_on: list[int] | None = None

    def put(self, job: Job, pieces: tuple[Piece, ...], now: int) -> None:
        """Add a running job, which is not there yet. One without a start ends as if it began now."""
        if job.cpu_milli or job.memory_mib:
            pieces = tuple(with_cpu_memory(pieces, job.cpu_milli, job.memory_mib))
        if job.started_at is None:
            self.starting.add(job.id)
        ends_at = job.ends_at(now if job.started_at is None else job.started_at)
        running = Running.of(job, pieces, job.held_milli, ends_at, borrower=job.borrower)
        self.jobs[job.id] = running
        if job.preemptible:
            (self.borrowers if job.borrower else self.preemptible[job.project])[job.id] = running
        self._count(running, 1)

    def drop(self, name: str) -> None:
        """Remove a job, if it is there."""
        running = self.jobs.pop(name, None)
        if running is None:
            return
        self._count(running, -1)
        self.starting.discard(name)
        if running.borrower:
            self.borrowers.pop(name, None)
        elif running.job.preemptible:
            rows = self.preemptible[running.project]
            del rows[name]
            if not rows:
                del self.preemptible[running.project]

    def sort(self) -> None:
        """Order the jobs by their ends: later searches that sort them so take one pass."""
        self.jobs = {one.id: one for one in sorted(self.jobs.values(), key=by_end)}

    def preemptible_job(self, name: str) -> Running | None:
        """A preemptible job, no borrower; None for other work."""
        running = self.jobs.get(name)
        return running if running is not None and running.job.preemptible and not running.borrower else None

    @property
    def preemptible_on(self) -> Sequence[int]:
        """The use of each device by preemptible jobs, in milli-GPU; counted from the first call on."""
        if self._preemptible_on is None:
            self._preemptible_on = [0] * len(self.firm)
            for running in self.jobs.values():
                self._count_preemptible(running, 1)
        return self._preemptible_on

    def _count(self, running: Running, sign: int) -> None:
        """Add a job to the sums; ``sign`` -1: subtract it."""
        job, pieces, column = running.job, running.pieces, self.borrowed if running.borrower else self.firm
        for piece in pieces:
            column[piece.device] += sign * piece.gpu_milli
        if job.cpu_milli or job.memory_mib:
            for node, (cpu, memory) in node_needs(pieces, self._devices).items():
                before = self.on_nodes.get(node, NOTHING)
                self.on_nodes[node] = CpuMemory(before.cpu_milli + sign * cpu, before.memory_mib + sign * memory)
        if self._preemptible_on is not None:
            self._count_preemptible(running, sign)
        group = self.use_groups.get(key := _use_fields(job))
        if group is None:
            group = self.use_groups[key] = UseGroup(job, running.size)
        group.count += sign
        if not job.preemptible:
            group.non_preemptible_on_devices += sign * sum([piece.gpu_milli for piece in pieces])
        if not group.count:
            del self.use_groups[key]

    def _count_preemptible(self, running: Running, sign: int) -> None:
        assert self._preemptible_on is not None, "it is counted"
        for piece in running.pieces if running.job.preemptible else ():
            self._preemptible_on[piece.device] += sign * piece.gpu_milli
