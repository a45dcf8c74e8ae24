"""Reads the process table twenty times a second, from outside the product.

It knows the variables of the contract, from ``/proc/*/environ``: a rank has its job, attempt and rank, a kernel has the
path of its server, and both have their devices and share.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

WHOLE_DEVICE = 1000
READS_PER_S = 20

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RankId:
    """A rank of an attempt of a job; all its processes have one share together."""

    job: str
    attempt: int
    rank: int

    def __str__(self) -> str:
        return f"job {self.job} attempt {self.attempt} rank {self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NotebookId:
    """A notebook, by the path of its server: its kernels share one slice."""

    prefix: str

    def __str__(self) -> str:
        return f"notebook {self.prefix}"


Workload = RankId | NotebookId


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A live process with a share. ``started`` is in ticks since boot: with the pid it identifies a process.

    ``milli`` is the sum over ``devices``.
    """

    pid: int
    started: int
    workload: Workload
    devices: tuple[str, ...]
    milli: int
    environ: Environ = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken promise, as a sentence, at an instant of the monotonic clock."""

    at: float
    what: str


@dataclass(slots=True)
class Observation:
    """When the processes of a holder were observed first and last, on which devices, with which variables.

    ``command`` is the first process's command line. ``since``: the begin of the newest stretch of readings in which
    some process was there.
    """

    workload: Workload
    first: float
    last: float
    devices: tuple[str, ...]
    milli: int
    environ: Environ
    command: tuple[str, ...]
    pids: set[int]
    since: float
    present: bool = True


# --- reading the process table ------------------------------------------------------------------------------------
def server_with_device(is_ours: Callable[[Environ], bool], prefix: str) -> int | None:
    """The process id of a notebook server with a device; None before there is one."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        environ = read_environ(int(name), mark=b"JUPYTERHUB_SERVICE_PREFIX=") if name.isdecimal() else None
        if not environ or environ["JUPYTERHUB_SERVICE_PREFIX"] != prefix or "GPU_QUOTA_MILLI" in environ:
            continue
        if environ.get("CUDA_VISIBLE_DEVICES") and is_ours(environ):
            return int(name)
    return None


def read_environ(pid: int, mark: bytes = b"GPU_QUOTA_MILLI=") -> Environ | None:
    """The variables of a process that has this one; None for others, ended ones, and those of other accounts."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  a path object for each costs more than the look
            raw = file.read()
    except OSError:
        return None
    if mark not in raw:
        return None
    pairs = (item.partition("=") for item in os.fsdecode(raw).split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def command_of(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty if it is gone."""
    try:
        return tuple(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1])
    except OSError:
        return ()


def started_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def process_of(pid: int, started: int, environ: Environ) -> Process | None:
    """A process with its share, from its variables; None for one without a device."""
    devices = tuple(name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name)
    milli = environ.get("GPU_QUOTA_MILLI", "")
    workload = _workload_of(environ)
    if workload is None or not devices or not milli.isdecimal():
        return None
    return Process(pid=pid, started=started, workload=workload, devices=devices, milli=int(milli), environ=environ)


def _workload_of(environ: Environ) -> Workload | None:
    job, prefix = environ.get("GPU_QUOTA_JOB_ID"), environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if job:
        return RankId(job=job, attempt=int(environ["GPU_QUOTA_ATTEMPT"]), rank=int(environ.get("RANK", "0")))
    return NotebookId(prefix=prefix) if prefix else None


def read_processes(is_ours: Callable[[Environ], bool]) -> list[Process]:
    """The processes with shares that were all alive at the instant at which this reading ended."""
    read = []
    for name in os.listdir("/proc"):  # noqa: PTH208  the cheap way, twenty times a second
        if name.isdecimal() and (environ := read_environ(int(name))) and is_ours(environ):
            started = started_ticks(int(name))
            found = process_of(int(name), started, environ) if started is not None else None
            read += [found] if found else []
    return [one for one in read if started_ticks(one.pid) == one.started]


# --- the promise P1 -----------------------------------------------------------------------------------------------
def loads(processes: Iterable[Process]) -> dict[str, int]:
    """{device: milli-GPU of the holders on it}; a holder counts once, however many processes it has."""
    total: dict[str, int] = {}
    for held in {one.workload: one for one in processes}.values():
        for device in held.devices:
            total[device] = total.get(device, 0) + held.milli // len(held.devices)
    return total


def broken_promises(processes: Iterable[Process]) -> list[str]:
    """Every violation of P1 or P12 at one instant, a sentence each."""
    seen = list(processes)
    over = [
        f"device {device} carried {milli} milli: "
        + ", ".join(sorted({str(one.workload) for one in seen if device in one.devices}))
        for device, milli in sorted(loads(seen).items())
        if milli > WHOLE_DEVICE
    ]
    attempts: dict[str, set[int]] = {}
    for one in seen:
        if isinstance(one.workload, RankId):
            attempts.setdefault(one.workload.job, set()).add(one.workload.attempt)
    return over + [f"job {job} ran twice at once: attempts {sorted(n)}" for job, n in attempts.items() if len(n) > 1]


# --- the observer -------------------------------------------------------------------------------------------------
class ProcessObserver(threading.Thread):
    """Reads in a thread of its own until ``stop()``; the observations may be read at any time.

    ``ours`` selects the processes of one hub: several may run on one machine.
    """

    def __init__(self, is_ours: Callable[[Environ], bool]) -> None:
        super().__init__(name="observer", daemon=True)
        self.is_ours = is_ours
        self.reads, self.highest = 0, 0
        self.observations: dict[Workload, Observation] = {}
        self.violations: list[Violation] = []
        self._stopping, self._lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        while not self._stopping.is_set():
            begun = time.monotonic()
            self.note(read_processes(self.is_ours), begun)
            self._stopping.wait(max(0.0, begun + 1 / READS_PER_S - time.monotonic()))

    def stop(self) -> None:
        self._stopping.set()
        self.join(5)

    def note(self, processes: list[Process], at: float) -> None:
        """Note one reading."""
        with self._lock:
            self.reads += 1
            self.highest = max(self.highest, *loads(processes).values(), 0)
            known = {violation.what for violation in self.violations}
            self.violations += [Violation(at=at, what=what) for what in broken_promises(processes) if what not in known]
            before = {workload for workload, observation in self.observations.items() if observation.present}
            for observation in self.observations.values():
                observation.present = False
            for process in processes:
                self._note_process(process, at, back=process.workload not in before)

    def _note_process(self, process: Process, at: float, *, back: bool) -> None:
        observation = self.observations.get(process.workload)
        if observation is None:
            self.observations[process.workload] = Observation(
                process.workload, at, at, process.devices, process.milli, process.environ, command_of(process.pid),
                {process.pid}, at,
            )  # fmt: skip
            return
        observation.since = at if back else observation.since
        observation.last, observation.present = at, True
        observation.pids.add(process.pid)

    def ranks(self) -> list[Observation]:
        """Every rank observed so far, in the order of their first observation."""
        with self._lock:
            return [s for s in self.observations.values() if isinstance(s.workload, RankId)]

    def notebooks(self) -> dict[str, Observation]:
        """Every notebook with a kernel observed so far, by the path of its server."""
        with self._lock:
            return {s.workload.prefix: s for s in self.observations.values() if isinstance(s.workload, NotebookId)}


def belongs_to(folder: Path, url: str) -> Callable[[Environ], bool]:
    """Selects the processes of one hub: jobs by the folder of their checkpoints, kernels by their home or hub."""
    place = os.fspath(folder)

    def is_ours(environ: Environ) -> bool:
        if "GPU_QUOTA_JOB_ID" in environ:
            return environ.get("GPU_QUOTA_CHECKPOINT_DIR", "").startswith(place)
        return environ.get("HOME", "").startswith(place) or environ.get("JUPYTERHUB_API_URL", "").startswith(url)

    return is_ours


def log_of(observation: Observation) -> str:
    """The log of a rank's attempt, from the disk; empty before its first line."""
    assert isinstance(observation.workload, RankId)
    home = Path(observation.environ["GPU_QUOTA_CHECKPOINT_DIR"]).parent
    folder = home / "attempts" / str(observation.workload.attempt) / f"rank-{observation.workload.rank}" / "log"
    with contextlib.suppress(OSError):
        return "".join(part.read_text(errors="replace") for part in sorted(folder.iterdir()))
    return ""
