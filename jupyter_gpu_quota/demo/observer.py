"""The witness: what the process table shows, looked at from outside, twenty times a second.

It asks the product nothing. It reads ``/proc/*/environ`` and knows the four variables of the contract: a rank says
which job, attempt and rank it is, a kernel says whose notebook it belongs to, and both say what they hold.
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
LOOKS_PER_S = 20

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RankOf:
    """A rank of an attempt of a job: however many processes it has, it holds its share once."""

    job: str
    attempt: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NotebookOf:
    """A notebook, by the path of its server: its kernels share one slice."""

    prefix: str


Holder = RankOf | NotebookOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A live process that holds a share. ``started`` is in ticks since boot: with the pid it names a process for ever.

    ``milli`` is the sum over ``devices``.
    """

    pid: int
    started: int
    holder: Holder
    devices: tuple[str, ...]
    milli: int
    environ: Environ = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise that was seen broken, as a sentence, at an instant of the monotonic clock."""

    at: float
    what: str


@dataclass(slots=True)
class Sighting:
    """When a holder's processes were seen first and last, on which devices, and what they were told.

    ``command`` is the first process's command line. ``since``: from when on some were there at every look; while none
    is, of the last time that some were.
    """

    holder: Holder
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
def server_with_device(ours: Callable[[Environ], bool], prefix: str) -> int | None:
    """The process of a notebook server that was given a device, kernels aside; None before there is one."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        environ = read_environ(int(name), mark=b"JUPYTERHUB_SERVICE_PREFIX=") if name.isdecimal() else None
        if not environ or environ["JUPYTERHUB_SERVICE_PREFIX"] != prefix or "GPU_QUOTA_MILLI" in environ:
            continue
        if environ.get("CUDA_VISIBLE_DEVICES") and ours(environ):
            return int(name)
    return None


def read_environ(pid: int, mark: bytes = b"GPU_QUOTA_MILLI=") -> Environ | None:
    """The variables of a process that was told this one; None for others, what is gone, and other accounts'."""
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
    """What a process holds, read from its variables alone; None for one that holds nothing of a device."""
    devices = tuple(name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name)
    milli = environ.get("GPU_QUOTA_MILLI", "")
    holder = _holder_of(environ)
    if holder is None or not devices or not milli.isdecimal():
        return None
    return Process(pid=pid, started=started, holder=holder, devices=devices, milli=int(milli), environ=environ)


def _holder_of(environ: Environ) -> Holder | None:
    job, prefix = environ.get("GPU_QUOTA_JOB_ID"), environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if job:
        return RankOf(job=job, attempt=int(environ["GPU_QUOTA_ATTEMPT"]), rank=int(environ.get("RANK", "0")))
    return NotebookOf(prefix=prefix) if prefix else None


def look(ours: Callable[[Environ], bool]) -> list[Process]:
    """The processes that hold shares and were all alive at the one instant at which this look ended.

    Each was alive when it was read and is still alive at the end, so all of them were alive together then.
    """
    read = []
    for name in os.listdir("/proc"):  # noqa: PTH208  the cheap way, twenty times a second
        if name.isdecimal() and (environ := read_environ(int(name))) and ours(environ):
            started = started_ticks(int(name))
            found = process_of(int(name), started, environ) if started is not None else None
            read += [found] if found else []
    return [one for one in read if started_ticks(one.pid) == one.started]


# --- the promise P1 -----------------------------------------------------------------------------------------------
def loads(processes: Iterable[Process]) -> dict[str, int]:
    """{device: milli-GPU that the holders on it were given}; a holder counts once, whatever processes it has."""
    total: dict[str, int] = {}
    for held in {one.holder: one for one in processes}.values():
        for device in held.devices:
            total[device] = total.get(device, 0) + held.milli // len(held.devices)
    return total


def broken(processes: Iterable[Process]) -> list[str]:
    """Every way in which one instant breaks P1 or P12, a sentence each."""
    seen = list(processes)
    over = [
        f"device {device} carried {milli} milli: {_holders(seen, device)}"
        for device, milli in sorted(loads(seen).items())
        if milli > WHOLE_DEVICE
    ]
    attempts: dict[str, set[int]] = {}
    for one in seen:
        if isinstance(one.holder, RankOf):
            attempts.setdefault(one.holder.job, set()).add(one.holder.attempt)
    return over + [f"job {job} ran twice at once: attempts {sorted(n)}" for job, n in attempts.items() if len(n) > 1]


def _holders(seen: Iterable[Process], device: str) -> str:
    return ", ".join(sorted({_words(one.holder) for one in seen if device in one.devices}))


def _words(holder: Holder) -> str:
    match holder:
        case RankOf(job=job, attempt=attempt, rank=rank):
            return f"job {job} attempt {attempt} rank {rank}"
        case NotebookOf(prefix=prefix):
            return f"notebook {prefix}"


# --- the witness --------------------------------------------------------------------------------------------------
class Witness(threading.Thread):
    """Looks on in a thread of its own until ``leave()``; what it saw may be read at any time.

    ``ours`` says which processes belong to the hub that is watched: several hubs may run on one machine.
    """

    def __init__(self, ours: Callable[[Environ], bool]) -> None:
        super().__init__(name="witness", daemon=True)
        self.ours = ours
        self.looks, self.highest = 0, 0
        self.sightings: dict[Holder, Sighting] = {}
        self.violations: list[Violation] = []
        self._leaving, self._lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        while not self._leaving.is_set():
            begun = time.monotonic()
            self.note(look(self.ours), begun)
            self._leaving.wait(max(0.0, begun + 1 / LOOKS_PER_S - time.monotonic()))

    def leave(self) -> None:
        self._leaving.set()
        self.join(5)

    def note(self, processes: list[Process], at: float) -> None:
        """Write down one look."""
        with self._lock:
            self.looks += 1
            self.highest = max(self.highest, *loads(processes).values(), 0)
            known = {violation.what for violation in self.violations}
            self.violations += [Violation(at=at, what=what) for what in broken(processes) if what not in known]
            before = {holder for holder, sighting in self.sightings.items() if sighting.present}
            for sighting in self.sightings.values():
                sighting.present = False
            for process in processes:
                self._see(process, at, back=process.holder not in before)

    def _see(self, process: Process, at: float, *, back: bool) -> None:
        sighting = self.sightings.get(process.holder)
        if sighting is None:
            self.sightings[process.holder] = Sighting(
                process.holder,
                at,
                at,
                process.devices,
                process.milli,
                process.environ,
                command_of(process.pid),
                {process.pid},
                at,
            )
            return
        sighting.since = at if back else sighting.since
        sighting.last, sighting.present = at, True
        sighting.pids.add(process.pid)

    def ranks(self) -> list[Sighting]:
        """Every rank seen so far, in order of their first sight."""
        with self._lock:
            return [s for s in self.sightings.values() if isinstance(s.holder, RankOf)]

    def notebooks(self) -> dict[str, Sighting]:
        """Every notebook's kernel seen so far, by the path of its server."""
        with self._lock:
            return {s.holder.prefix: s for s in self.sightings.values() if isinstance(s.holder, NotebookOf)}


def belongs_to(folder: Path, url: str) -> Callable[[Environ], bool]:
    """The processes of one stage: jobs by the folder of their checkpoints, kernels by their home or their hub."""
    place = os.fspath(folder)

    def ours(environ: Environ) -> bool:
        if "GPU_QUOTA_JOB_ID" in environ:
            return environ.get("GPU_QUOTA_CHECKPOINT_DIR", "").startswith(place)
        return environ.get("HOME", "").startswith(place) or environ.get("JUPYTERHUB_API_URL", "").startswith(url)

    return ours


def log_of(sighting: Sighting) -> str:
    """The log of a rank's attempt, from the disk; empty before its first line."""
    assert isinstance(sighting.holder, RankOf)
    home = Path(sighting.environ["GPU_QUOTA_CHECKPOINT_DIR"]).parent
    folder = home / "attempts" / str(sighting.holder.attempt) / f"rank-{sighting.holder.rank}" / "log"
    with contextlib.suppress(OSError):
        return "".join(part.read_text(errors="replace") for part in sorted(folder.iterdir()))
    return ""
