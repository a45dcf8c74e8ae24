"""Jobs as processes of this machine, each rank under a supervisor of its own that outlives this process.

Nothing here is remembered that is not on the disk: a new executor on the same state directory goes on where the last
one was killed. Whatever may have to wait (starting, asking, clearing up) is done beside the caller, never by it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ....core.facts import RankFact
from ...protocol import Inventory, LeaveOrder, StartOrder
from ...rendering.variables import rank_environment, without_ours
from ..enforcement.cgroup import Cgroups
from ..host.background import Background
from ..host.processes import (
    boot_id,
    children,
    descendants,
    is_same_process,
    is_stopped,
    kill_all,
    marked,
    processes,
    send,
)
from ..host.record_files import held_lock, raise_fence, read_fence, read_record, write_record
from ..sampling.machine import open_sampler
from ..sampling.protocol import MachineSampler
from .paths import RankPaths, active_directory, active_marker, bundle_file, fence_file, job_directory, rank_paths
from .prefork import SpareSupervisor
from .rank_enforcement import RankEnforcement
from .rank_facts import rank_fact
from .rank_process import RankOrder
from .rendezvous import meeting_port

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 0.5
ASK_AGAIN_S, ASK_FOR_S = 0.05, 1.0
"""How often, and for how long, a supervisor that cannot be reached is asked to leave before the next tick."""

FORCE_AFTER_S = 3.0
"""How long after its grace a rank whose supervisor still does not answer is killed without it."""

LOST_KILL_S = 1.0
SWEEP_EVERY_S, SWEEP_AGAIN_S = 30.0, 1.0
REMOVE_TIMEOUT_S = 600.0
WORKERS = 8
MIB = 1 << 20

Attempt = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one job may write, in MiB: a rank's log, the outputs, and the work and checkpoint folders together."""

    log_mib: int
    outputs_mib: int
    work_mib: int


@dataclass(slots=True, kw_only=True)
class Leaving:
    """An order to leave: when ranks whose supervisors do not answer are killed (monotonic), and if all have heard."""

    order: LeaveOrder
    force_at: float
    heard: bool = False


class LocalJobs:
    """Executor of one machine.

    ``state_dir`` holds everything (see :mod:`.layout`); ``wake`` is the path of a unix datagram socket that is rung
    when something changed. ``simulated_devices``: ``[{"model", "memory_mib", "count"}]``, else the real ones.
    ``python_home`` is the environment whose ``bin`` leads PATH. ``mps`` are the pipe directories of MPS daemons by
    project, ``cgroup`` the control group in which those of ranks are made. Close it when done; what runs, runs on.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        *,
        wake: str | os.PathLike[str] | None = None,
        simulated_devices: Sequence[Mapping[str, Any]] = (),
        log_limit_mib: int = 64,
        outputs_limit_mib: int = 10_240,
        work_limit_mib: int = 102_400,
        bundles_dir: str | os.PathLike[str] | None = None,
        node: str | None = None,
        python_home: str = sys.prefix,
        sampler: MachineSampler | None = None,
        mps: Mapping[str, str] | None = None,
        cgroup: str = "",
    ) -> None:
        self.state_dir = str(Path(state_dir).absolute())
        self.wake = None if wake is None else str(Path(wake).absolute())
        self._sampler = sampler or open_sampler(tuple(dict(device) for device in simulated_devices))
        self.limits = Limits(log_mib=log_limit_mib, outputs_mib=outputs_limit_mib, work_mib=work_limit_mib)
        self.bundles_dir = str(Path(bundles_dir or Path(self.state_dir, "bundles")).absolute())
        self.node, self.python_home, self.boot = node or socket.gethostname(), python_home, boot_id()
        make_layout(self.state_dir)
        self._active: dict[Attempt, None] = dict.fromkeys(_marked_attempts(self.state_dir))
        self._leaving: dict[Attempt, Leaving] = {}
        self._enforcement = RankEnforcement(Cgroups(self.state_dir, within=cgroup), mps=mps)
        self._sweep_at = time.monotonic()
        self._spare = SpareSupervisor()
        self._background = Background(WORKERS)
        self._background.run(("trash",), self._empty_trash)

    def close(self) -> None:
        """Let go of the threads; every job runs on."""
        self._background.close()
        self._spare.close()
        self._sampler.close()

    # --- the executor protocol ------------------------------------------------------------------------------------
    def inventory(self) -> Inventory | None:
        """This machine and its devices; None where they cannot be read now."""
        return self._sampler.inventory(self.node)

    def start(self, order: StartOrder) -> None:
        """Begin every rank that was never begun; told by the first fact of it."""
        attempt = (order.job, order.attempt)
        job_directory(self.state_dir, order.job)
        self._active[attempt] = None
        self._background.run(("start", *attempt), partial(self._start, order))

    def leave(self, order: LeaveOrder) -> None:
        """Ask every rank to leave, now and on later ticks until each has heard it, or was killed for not listening."""
        attempt = (order.job, order.attempt)
        job_directory(self.state_dir, order.job)
        self._active[attempt] = None
        force_at = time.monotonic() + order.grace_s + FORCE_AFTER_S
        if (earlier := self._leaving.get(attempt)) is not None:
            force_at = min(force_at, earlier.force_at)
        self._leaving[attempt] = leaving = Leaving(order=order, force_at=force_at)
        self._background.run(("leave", *attempt), partial(self._leave, leaving))

    def observe(self) -> Sequence[RankFact]:
        """What every attempt that is not settled has told; lost supervisors are found and cleared up after."""
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY_S
            self._background.run(("cgroups",), self._sweep)
        for attempt, leaving in list(self._leaving.items()):
            if not leaving.heard or now >= leaving.force_at:
                self._background.run(("leave", *attempt), partial(self._leave, leaving))
        facts = []
        for paths, status in self._statuses():
            if self._is_lost(status):
                self._background.run(("lost", paths.control), partial(self._clear_up, paths))
            elif not status.get("tree_gone") and is_stopped(status["supervisor"]["pid"]):
                send(status["supervisor"]["pid"], signal.SIGCONT)  # a job under our own account can stop it
            if (fact := _told(paths, status)) is not None:
                facts.append(fact)
        return facts

    def settled(self, job: str, attempt: int) -> None:
        """Stop telling an attempt whose ranks have all ended; its files stay until ``forget``."""
        if all(status.get("tree_gone") for _, status in self._begun((job, attempt))):
            self._active.pop((job, attempt), None)
            self._sweep_at = time.monotonic()
            self._leaving.pop((job, attempt), None)
            Path(active_marker(self.state_dir, job, attempt)).unlink(missing_ok=True)

    def forget(self, job: str) -> None:
        """Move everything of a job out of sight, and remove it beside. A job that still runs is not forgotten."""
        home = Path(job_directory(self.state_dir, job))
        attempts = sorted(int(path.name) for path in home.glob("attempts/*"))
        live = [n for n in attempts for _, status in self._begun((job, n)) if not status.get("tree_gone")]
        if live:
            log.warning("job %s is not forgotten: processes of its attempt %d are still there", job, live[0])
            return
        for attempt in attempts:
            self.settled(job, attempt)
        with contextlib.suppress(FileNotFoundError):
            home.rename(Path(self.state_dir, "trash", f"{job}.{time.time_ns()}"))
        self._background.run(("trash",), self._empty_trash)

    def pids(self) -> Mapping[str, frozenset[int]]:
        """Live process ids by job."""
        born = children(processes())
        held: dict[str, frozenset[int]] = {}
        for _, status in self._statuses():
            if not status.get("tree_gone") and status["supervisor"]["boot"] == self.boot:
                found = descendants(status["supervisor"]["pid"], born)
                found |= self._enforcement.processes(status["job"], status["attempt"], status["rank"])
                held[status["job"]] = held.get(status["job"], frozenset()) | found
        return held

    def fence(self, fencing: int) -> None:
        """From now on, and after every restart, refuse leaders older than this one."""
        raise_fence(fence_file(self.state_dir), fencing)

    # --- starting -------------------------------------------------------------------------------------------------
    def _start(self, order: StartOrder) -> None:
        Path(active_marker(self.state_dir, order.job, order.attempt)).touch()
        port = None
        for rank in range(order.ranks):
            paths = rank_paths(self.state_dir, order.job, order.attempt, rank)
            if "claimed_at" not in (read_record(paths.status) or {}):
                make_control(paths)
                if order.ranks > 1 and port is None:
                    port = meeting_port(self.state_dir, order.job, order.attempt)
                self._spare.begin(self._rank_order(order, rank, paths, port))
        self._background.run(("spare",), self._spare.refill)

    def _rank_order(self, order: StartOrder, rank: int, paths: RankPaths, port: int | None) -> RankOrder:
        held = self._enforcement.hold(order, rank)
        environment = rank_environment(
            job=order.job, attempt=order.attempt, rank=rank, ranks=order.ranks, placements=order.placements,
            devices=order.devices, places=paths, variables=order.variables,
            path_first=str(Path(self.python_home, "bin")), port=port, limited=held.limited, mps=held.mps,
        )  # fmt: skip
        outputs_mib = order.outputs_limit_mib or self.limits.outputs_mib
        return RankOrder(
            state_dir=self.state_dir, job=order.job, attempt=order.attempt, rank=rank, fencing=order.fencing,
            account=order.run_as, command=command_of(order), environment=environment,
            secrets=without_ours(order.secrets), directory=order.directory, live=order.live,
            bundle=None if order.bundle is None else bundle_file(self.bundles_dir, order.bundle), wake=self.wake,
            log_limit_bytes=self.limits.log_mib * MIB, outputs_limit_bytes=outputs_mib * MIB,
            work_limit_bytes=self.limits.work_mib * MIB, cgroup=held.cgroup,
        )  # fmt: skip

    def _sweep(self) -> None:
        """Release the control groups of ranks that are over, once it is known on which devices they may be limited."""
        if not self._enforcement.cgroups.names():
            return
        found = self._sampler.inventory(self.node)
        if found is None:
            self._sweep_at = time.monotonic() + SWEEP_AGAIN_S
            return
        self._enforcement.sweep(self._is_live, [each.uuid for each in found[1] if each.uuid and not each.simulated])

    def _is_live(self, job: str, attempt: int, rank: int) -> bool:
        """Whether a rank may still begin, or run."""
        status = read_record(rank_paths(self.state_dir, job, attempt, rank).status) or {}
        return (job, attempt) in self._active and not status.get("tree_gone")

    # --- leaving --------------------------------------------------------------------------------------------------
    def _leave(self, leaving: Leaving) -> None:
        """Ask each rank, again and again for a second; who does not answer is asked on the next tick, or killed."""
        order = leaving.order
        first = rank_paths(self.state_dir, order.job, order.attempt, 0)
        waiting = _paths_of(self.state_dir, order.job, order.attempt) or [first]
        until = time.monotonic() + ASK_FOR_S
        while waiting := [paths for paths in waiting if not self._has_heard(paths, order)]:
            if self._leaving.get((order.job, order.attempt)) is not leaving:  # settled, or ordered anew, meanwhile
                return
            if time.monotonic() >= until:
                break
            time.sleep(ASK_AGAIN_S)
        if time.monotonic() >= leaving.force_at:
            for paths in waiting:
                self._force(paths, order)
        leaving.heard = not waiting

    def _has_heard(self, paths: RankPaths, order: LeaveOrder) -> bool:
        """Whether this rank needs no more asking: it was told, refused, is gone, or will never begin."""
        status = read_record(paths.status) or {}
        if "claimed_at" not in status:
            return self._never_begins(paths, order)
        if status.get("tree_gone") or self._is_lost(status):
            return True
        answer = ask(paths, {"order": "leave", **asdict(order)})
        if answer is not None and "refused" in answer:
            log.warning("job %s was not asked to leave: %s", order.job, answer["refused"])
        return answer is not None

    def _force(self, paths: RankPaths, order: LeaveOrder) -> None:
        """Kill a rank together with its supervisor, which does not listen; that we did is on the disk before."""
        status = read_record(paths.status) or {}
        ruler = max(read_fence(fence_file(self.state_dir)), status.get("fencing", 0))
        told_or_lost = status.get("tree_gone") or self._is_lost(status)
        if "supervisor" not in status or order.fencing < ruler or told_or_lost:
            return
        write_record(paths.forced, {"at": _now(), "reason": order.reason, "fencing": order.fencing})
        watcher: int = status["supervisor"]["pid"]
        kill_all(lambda: {watcher} | descendants(watcher) | self._left_of(status))
        log.warning("the supervisor of job %s, attempt %d, did not listen; all was killed", order.job, order.attempt)

    def _never_begins(self, paths: RankPaths, order: LeaveOrder) -> bool:
        """End a rank that was never begun, under its lock, so that no late supervisor begins it."""
        if order.fencing < read_fence(fence_file(self.state_dir)):
            log.warning("job %s was not asked to leave: a newer leader than %d rules", order.job, order.fencing)
            return True
        Path(active_marker(self.state_dir, order.job, order.attempt)).touch()
        make_control(paths)
        with held_lock(paths.lock) as ours:
            if not ours or "claimed_at" in (read_record(paths.status) or {}):
                return False
            name = {"job": order.job, "attempt": order.attempt, "rank": int(Path(paths.control).name[len("rank-") :])}
            ended = {"claimed_at": _now(), "ended_at": _now(), "exit_status": -15, "tree_gone": True}
            write_record(paths.status, {**name, **ended, "pause_requested": True, "fencing": order.fencing})
        return True

    # --- lost supervisors -----------------------------------------------------------------------------------------
    def _is_lost(self, status: Mapping[str, Any]) -> bool:
        """Whether its supervisor died before it could tell the end."""
        if status.get("tree_gone") or "claimed_at" not in status:
            return False
        watcher = status["supervisor"]
        return watcher["boot"] != self.boot or not is_same_process(watcher["pid"], watcher["started"])

    def _clear_up(self, paths: RankPaths) -> None:
        """Kill what a dead supervisor left, and tell the end in its place."""
        with held_lock(paths.lock) as ours:
            status = read_record(paths.status) or {}
            if not ours or not self._is_lost(status):
                return
            if _is_guarded(status["supervisor"]):
                send(status["supervisor"]["guard"]["pid"], signal.SIGCONT)  # it may have been stopped with the other
            until = time.monotonic() + LOST_KILL_S
            while kill_all(partial(self._left_of, status)) and time.monotonic() < until:
                time.sleep(ASK_AGAIN_S)
            if "ended_at" not in status:
                status |= {"ended_at": _now(), "exit_status": self._lost_status(status)}
                status["pause_requested"] = _was_asked(paths, status)
            write_record(paths.status, {**status, "lost": True, "tree_gone": not self._left_of(status)})
        log.warning("the supervisor of job %s, attempt %s, was lost", status["job"], status["attempt"])

    def _lost_status(self, status: Mapping[str, Any]) -> int | None:
        """A command dies with its supervisor, by SIGKILL. What was lost with its machine, or not begun, is unknown.

        The difference matters: a lost machine uses up no retry, and a job that kills its supervisor must end some day.
        """
        begun_here = status["supervisor"]["boot"] == self.boot and status.get("pid") is not None
        return -signal.SIGKILL if begun_here else None

    def _left_of(self, status: Mapping[str, Any]) -> set[int]:
        """Processes of a rank without its supervisor: below its guard, or by mark, variables or session."""
        watcher = status["supervisor"]
        if watcher["boot"] != self.boot:
            return set()
        marks = (f"GPU_QUOTA_JOB_ID={status['job']}", f"GPU_QUOTA_ATTEMPT={status['attempt']}")
        others = self._begun((status["job"], status["attempt"]))
        watched = [descendants(other["supervisor"]["pid"]) for _, other in others if self._is_watched(other)]
        found = marked(marks, status.get("pid"), status.get("mark")).difference(*watched)
        found |= self._enforcement.processes(status["job"], status["attempt"], status["rank"])
        return found | (descendants(watcher["guard"]["pid"]) if _is_guarded(watcher) else set())

    def _is_watched(self, status: Mapping[str, Any]) -> bool:
        return not status.get("tree_gone") and not self._is_lost(status)

    # --- what is on the disk --------------------------------------------------------------------------------------
    def _statuses(self) -> Iterator[tuple[RankPaths, dict[str, Any]]]:
        """The records of every rank that was begun and is not settled."""
        for attempt in list(self._active):
            yield from self._begun(attempt)

    def _begun(self, attempt: Attempt) -> Iterator[tuple[RankPaths, dict[str, Any]]]:
        """The records of the ranks of one attempt that were begun."""
        for paths in _paths_of(self.state_dir, *attempt):
            status = read_record(paths.status) or {}
            if "claimed_at" in status:
                yield paths, status

    def _empty_trash(self) -> None:
        """Remove what was forgotten; folders that their owner closed are opened first."""
        for path in Path(self.state_dir, "trash").iterdir():
            for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf", "--one-file-system"]):
                subprocess.run([*command, "--", str(path)], check=False, capture_output=True, timeout=REMOVE_TIMEOUT_S)


def make_layout(state_dir: str) -> None:
    """Make the folders of a state directory. Other accounts may pass through to their own jobs, and list nothing."""
    Path(state_dir).mkdir(mode=0o711, parents=True, exist_ok=True)
    for name, mode in (("jobs", 0o711), ("active", 0o700), ("trash", 0o700)):
        folder = Path(state_dir, name)
        if not folder.exists():
            folder.mkdir(mode=mode, exist_ok=True)
            folder.chmod(mode)


def make_control(paths: RankPaths) -> None:
    """Make the service's own folder of a rank; the job's folder above it lets its submitter pass."""
    control = Path(paths.control)
    home = control.parents[2]
    if not home.exists():
        home.mkdir(mode=0o711, exist_ok=True)
        home.chmod(0o711)
    for folder in (control.parents[1], control.parents[0], control):
        folder.mkdir(mode=0o700, exist_ok=True)


def command_of(order: StartOrder) -> list[str]:
    """The command; where an environment names its interpreter, a leading python or python3 is that one."""
    first, *rest = order.command
    return [order.python if order.python and first in ("python", "python3") else first, *rest]


def ask(paths: RankPaths, order: Mapping[str, Any]) -> dict[str, Any] | None:
    """Give a supervisor an order. Returns its answer; None if it cannot be reached, or does not answer in time."""
    folder = None
    try:
        folder = os.open(paths.control, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ASK_TIMEOUT_S)
            connection.connect(f"/proc/self/fd/{folder}/socket")  # the whole path may be too long for a socket
            connection.sendall(json.dumps(order).encode())
            answer = json.loads(connection.recv(MIB))
    except (OSError, ValueError):
        return None
    finally:
        if folder is not None:
            os.close(folder)
    return answer if isinstance(answer, dict) else None


def _marked_attempts(state_dir: str) -> Iterator[Attempt]:
    for path in sorted(Path(active_directory(state_dir)).iterdir()):
        job, _, attempt = path.name.rpartition(".")
        yield job, int(attempt)


def _paths_of(state_dir: str, job: str, attempt: int) -> list[RankPaths]:
    """The ranks of an attempt that have a control folder."""
    try:
        names = os.listdir(os.path.join(job_directory(state_dir, job), "attempts", str(attempt)))
    except FileNotFoundError:
        return []
    ranks = sorted(int(name[len("rank-") :]) for name in names if name.startswith("rank-"))
    return [rank_paths(state_dir, job, attempt, rank) for rank in ranks]


def _told(paths: RankPaths, status: Mapping[str, Any]) -> RankFact | None:
    """A rank's fact; what cannot be read of one job is told next time, and hides no other job."""
    try:
        return rank_fact(paths, status)
    except (OSError, ValueError, LookupError, TypeError):
        log.exception("the records of %s cannot be read", paths.control)
        return None


def _is_guarded(watcher: Mapping[str, Any]) -> bool:
    """Whether a supervisor's guard is there: of those begun by an earlier release there is none."""
    guard = watcher.get("guard")
    return guard is not None and is_same_process(guard["pid"], guard["started"])


def _was_asked(paths: RankPaths, status: Mapping[str, Any]) -> bool:
    """Whether a lost rank had been asked to leave: noted so, or about to be with its pause file there, or by force."""
    began_to_ask = status.get("pause_intended") and Path(paths.pause).exists()
    return bool(status.get("pause_requested") or began_to_ask or Path(paths.forced).exists())


def _now() -> int:
    return time.time_ns() // 1_000_000
