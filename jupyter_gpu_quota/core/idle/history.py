"""Activity history: the evidence for as long as the classification needs it; in memory only.

After a restart nothing earlier is known, so no notebook is idle before it was observed for long enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from .activity import GpuSample, IdlePolicy, KernelRecord, NotebookActivity, ProgramKind, ProgramRecord
from .process_owners import ProcessOwners, Roots, stray_name

MAX_SAMPLES = 20_000
"""Readings stored for one notebook, whatever the policy says: over two days of them, ten seconds apart."""

MAX_USERS = 400
"""Kernels and programs of one notebook whose last use of the GPU is stored."""

MAX_ENDED_INSTANCES = 100
"""Ended instances of one server that are stored, so that their late reports are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of a notebook's server. ``at``: its arrival. ``sequence`` grows within one ``instance`` of the server.

    ``cpu_ms`` is the CPU time of each kernel that may use the GPU and each program, None where it is not known.
    ``roots`` are the processes that identify those on the GPU.
    ``asks_first``: the server requests its slice before it starts a kernel, so that the slice may be lent meanwhile.
    ``server_used_at``: when a user last sent it a request, or used a terminal or a proxied program of it.
    ``suspends``: it can suspend a kernel; ``why_not``: why it cannot though it should. ``suspended``: how many are.
    """

    instance: str
    sequence: int
    at: int
    started_at: int
    kernels: tuple[KernelRecord, ...]
    programs: tuple[ProgramRecord, ...]
    cpu_ms: Mapping[str, int | None] = field(default_factory=dict)
    asks_first: bool = False
    server_used_at: int | None = None
    suspends: bool = False
    why_not: str = ""
    suspended: int = 0
    roots: Roots = field(default_factory=Roots)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """The first reading of a notebook, and the last in which its GPU was in use; None: there was none."""

    first_at: int
    last_at: int | None


@dataclass(slots=True)
class _NotebookHistory:
    samples: deque[GpuSample] = field(default_factory=deque)
    reports: deque[int] = field(default_factory=deque)
    newest: Report | None = None
    gone: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_ENDED_INSTANCES))
    used: dict[str, int] = field(default_factory=dict)
    use: GpuUse | None = None

    def note_use(self, sample: GpuSample) -> None:
        """Note the last use of the GPU, and of each user; none is later than the reading, even if the clock was set."""
        before = self.use or GpuUse(first_at=sample.at, last_at=None)
        last = sample.used_at or sample.at if sample.percent else before.last_at
        first_at = min(before.first_at, sample.at)
        self.use = GpuUse(first_at=first_at, last_at=None if last is None else min(last, sample.at))
        for name in sample.users:
            self.used.pop(name, None)
            self.used[name] = sample.used_at or sample.at
        self.used = {name: min(at, sample.at) for name, at in [*self.used.items()][-MAX_USERS:]}


class ActivityHistories:
    """Readings and reports of every notebook, in the order of arrival."""

    def __init__(self) -> None:
        self._histories: dict[str, _NotebookHistory] = {}

    def keep_only(self, notebooks: Set[str]) -> None:
        for name in self._histories.keys() - notebooks:
            del self._histories[name]

    def add_sample(self, notebook: str, sample: GpuSample, policy: IdlePolicy) -> bool:
        """Add a reading; False for one that was added before."""
        history = self._of(notebook)
        samples = history.samples
        history.note_use(sample)
        if samples and (samples[-1].at, samples[-1].percent) == (sample.at, sample.percent):
            samples[-1] = sample  # with a later report its users may be known
            return False
        samples.append(sample)
        _shorten(samples, _most_entries(policy, policy.sample_every_s))
        return True

    def add_report(self, notebook: str, report: Report, policy: IdlePolicy) -> bool:
        """Add a report; False for a late one: older than the newest, or of a server that has ended."""
        history = self._of(notebook)
        newest = history.newest
        if report.instance in history.gone:
            return False
        if newest is not None and newest.instance != report.instance:
            history.gone.append(newest.instance)
            history.reports.clear()
        elif newest is not None and report.sequence <= newest.sequence:
            return False
        history.newest = report
        if not history.reports or history.reports[-1] != report.at:  # two within a millisecond are no jump of the clock
            history.reports.append(report.at)
        _shorten(history.reports, _most_entries(policy, 1))
        return True

    def activity(
        self,
        notebook: str,
        *,
        kept_at: int | None,
        holding: Iterable[str] | None,
        empty: bool = False,
        process_owners: ProcessOwners | None = None,
        asked_at: int | None = None,
    ) -> NotebookActivity:
        """The evidence about a notebook. ``holding``: the kernels with memory on the GPU, None where that is not known.

        ``empty``: a reading shows that nothing of the notebook is on its device. ``process_owners``: of the processes
        on it, None where they are not known; a kernel that may not use the GPU and does is then seen.
        """
        history = self._of(notebook)
        newest = history.newest
        known = None if holding is None else frozenset(holding)
        names = frozenset[str]() if process_owners is None else process_owners.holders
        kernels = None if newest is None else tuple(_with_hold(kernel, known, names) for kernel in newest.kernels)
        programs = () if newest is None else newest.programs
        if empty:
            programs = tuple(replace(program, holds_gpu=False) for program in programs)
        return NotebookActivity(
            notebook=notebook,
            started_at=None if newest is None else newest.started_at,
            samples=tuple(history.samples),
            reports=tuple(history.reports),
            kernels=kernels,
            programs=programs if process_owners is None else tuple(_with_use(programs, process_owners, history.used)),
            kept_at=kept_at,
            asked_at=asked_at,
            server_used_at=None if newest is None else newest.server_used_at,
        )

    def newest(self, notebook: str) -> Report | None:
        return self._of(notebook).newest

    def newest_sample(self, notebook: str) -> GpuSample | None:
        samples = self._of(notebook).samples
        return samples[-1] if samples else None

    def used_at(self, notebook: str) -> int | None:
        """When its GPU was last seen in use, or its readings began where it never was; None where that is not known."""
        sample, use = self.newest_sample(notebook), self.use(notebook)
        if sample is None or sample.percent is None or use is None:
            return None
        return use.first_at if use.last_at is None else use.last_at

    def use(self, notebook: str) -> GpuUse | None:
        """Its use of the GPU since its first reading, also that of readings which are not stored any more."""
        return self._of(notebook).use

    def restore_use(self, notebook: str, use: GpuUse) -> None:
        """Continue from the use that a previous controller noted."""
        self._of(notebook).use = use

    def _of(self, notebook: str) -> _NotebookHistory:
        return self._histories.setdefault(notebook, _NotebookHistory())


def _with_hold(kernel: KernelRecord, holding: frozenset[str] | None, seen: frozenset[str]) -> KernelRecord:
    """A kernel with ``holds_gpu`` by the readings, else as reported: a kernel without a share reports none."""
    if kernel.id in seen:
        return replace(kernel, holds_gpu=True)
    if kernel.holds_gpu is not None:
        return kernel
    return replace(kernel, holds_gpu=None if holding is None else kernel.id in holding)


def _with_use(
    programs: Iterable[ProgramRecord], process_owners: ProcessOwners, used: Mapping[str, int]
) -> Iterator[ProgramRecord]:
    """The programs with their memory on the GPU and last use of it, and the stray processes there."""
    for program in programs:
        yield replace(program, holds_gpu=program.name in process_owners.holders, used_gpu_at=used.get(program.name))
    for name in sorted({stray_name(process) for process in process_owners.strays}):
        yield ProgramRecord(name=name, kind=ProgramKind.STRAY, holds_gpu=True, used_gpu_at=used.get(name))


def _most_entries(policy: IdlePolicy, every_s: int) -> int:
    longest_s = max(
        policy.gpu_after_s(waiting=False), policy.kernel_after_s(waiting=False), policy.busy_notify_after_s or 0
    )
    return min(MAX_SAMPLES, longest_s * 5 // (4 * every_s) + 10)


def _shorten(entries: deque[GpuSample] | deque[int], most: int) -> None:
    while len(entries) > most:
        entries.popleft()


MIN_SAMPLE_MS = 2_000
"""CPU time is counted in steps of ten milliseconds, so a shorter interval gives no figure."""


def simulated_sample(before: Report, after: Report) -> GpuSample | None:
    """The use of a simulated device by a notebook between two reports: one busy core is a busy device.

    None: they are too close to each other. A process that is new counts from its start; one whose time is not known,
    or a server that started between them, makes the reading unknown.
    """
    passed_ms = after.at - before.at
    if before.instance == after.instance and 0 <= passed_ms < MIN_SAMPLE_MS:
        return None
    times = [None if ms is None else ms - (before.cpu_ms.get(name) or 0) for name, ms in after.cpu_ms.items()]
    known = [each for each in times if each is not None]
    if before.instance != after.instance or passed_ms <= 0 or len(known) != len(times):
        return GpuSample(at=after.at, percent=None, why="its processes were not all seen twice")
    return GpuSample(at=after.at, percent=min(100, sum(max(0, each) for each in known) * 100 // passed_ms))
