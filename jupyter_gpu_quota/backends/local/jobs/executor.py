"""Jobs as processes of this machine. Each rank has a job supervisor, which does not end with this process.

All state is on the disk: a new executor on the same state directory continues where the last one was killed. Work that
may wait (starting, stopping, cleaning up) runs in the background: the ends of ranks have threads of their own, since a
start may wait for the driver.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ....core.facts import RankFact
from ....core.job_ends import EndCause
from ....core.model import Placement
from ...job_files.attempt_records import attempts_of, paths_of_ranks, unsettled_attempts
from ...job_files.disk_use import OutputSizes
from ...job_files.folders import PASSABLE, make_folder, make_passable
from ...job_files.job_code import has_code
from ...job_files.lost_starts import may_start
from ...job_files.paths import RankPaths, active_marker, bundle_file, fence_file, job_directory, rank_paths
from ...job_files.rank_facts import rank_fact
from ...job_files.record_files import file_lock, raise_fence, read_fence, read_record, write_record
from ...job_files.trash import empty_trash
from ...protocol import Inventory, StartOrder, StopOrder
from ...rendering.variables import rank_environment, without_ours
from ..enforcement.cgroup import Cgroups
from ..host.background import Background
from ..host.processes import (
    boot_id,
    children,
    descendants,
    find_marked,
    is_same_process,
    is_stopped,
    kill_all,
    members_of_session,
    process,
    processes,
    send,
)
from ..sampling.machine import MachineSampler, open_sampler
from .prefork import PreforkedSupervisor
from .rank_enforcement import RankEnforcement
from .rank_process import RankOrder
from .rendezvous import rendezvous_port

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 0.5
SEND_AGAIN_S, SEND_FOR_S = 0.05, 1.0
"""A stop order is sent again to a supervisor that does not answer: at this interval, for this long in one tick."""

FORCE_AFTER_S = 3.0
"""A rank whose supervisor does not answer is killed with it this long after its grace."""

LOST_KILL_S = 1.0
SWEEP_EVERY_S, SWEEP_AGAIN_S = 30.0, 1.0
WORKERS = 8
MIB = 1 << 20

DAMAGED = (ValueError, LookupError, TypeError, AttributeError)
"""The errors of a record that lacks a key or has a value of another type."""

NOT_RECORDED = "its supervisor has not recorded the start; supervisor.log in {control} may have the cause"

Attempt = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class Stopping:
    """A stop order. ``is_received``: every supervisor has it.

    ``kill_at`` (monotonic): when ranks whose supervisors do not answer are killed. ``ordered_at``: ms since 1970.
    """

    order: StopOrder
    kill_at: float
    ordered_at: int
    is_received: bool = False


class LocalJobs:
    """The job backend of one machine. Close it when done; jobs continue.

    ``state_dir`` has all files (see :mod:`...job_files.paths`); ``wake`` is the path of a unix datagram socket that
    receives a byte after each change. ``simulated_devices``: ``[{"model", "memory_mib", "count"}]``, else the real
    ones.
    ``log_limit_mib`` is for a rank's log, ``work_limit_mib`` for the work and checkpoint folders together.
    ``python_home`` is the environment whose ``bin`` is first in PATH. ``mps`` are the pipe directories of MPS daemons
    by project, ``cgroup`` the group in which the cgroups of ranks are made.
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
        self._log_limit_mib, self._outputs_limit_mib = log_limit_mib, outputs_limit_mib
        self._work_limit_mib = work_limit_mib
        self.bundles_dir = str(Path(bundles_dir or Path(self.state_dir, "bundles")).absolute())
        self.node, self.python_home, self.boot = node or socket.gethostname(), python_home, boot_id()
        make_layout(self.state_dir)
        self._active: dict[Attempt, None] = self._marked()
        self._stopping: dict[Attempt, Stopping] = {}
        self._troubles: dict[Attempt, tuple[int, str]] = {}
        self._handed_over: set[Attempt] = set()
        self._damaged: set[str] = set()
        self._enforcement = RankEnforcement(Cgroups(self.state_dir, within=cgroup), mps=mps)
        self._sweep_at = time.monotonic()
        self._preforked = PreforkedSupervisor()
        self._background, self._stops = Background(WORKERS), Background(WORKERS)
        self._outputs = OutputSizes(self.state_dir)
        self._background.run(("trash",), self._empty_trash)

    def close(self) -> None:
        """Release the threads and the sampler; every job continues."""
        self._background.close()
        self._stops.close()
        self._preforked.close()
        self._sampler.close()

    # --- the job backend ------------------------------------------------------------------------------------
    def inventory(self) -> Inventory | None:
        """This machine and its devices; None where they cannot be read now."""
        return self._sampler.inventory(self.node)

    def start(self, order: StartOrder) -> None:
        """Start every rank that was never started; its first fact reports it."""
        attempt = (order.job, order.attempt)
        job_directory(self.state_dir, order.job)
        self._active[attempt] = None
        self._background.run(("start", *attempt), partial(self._start, order))

    def has_code(self, job: str, bundle: str) -> bool:
        """Whether a job has its bundle, or unpacked code."""
        return has_code(self.state_dir, self.bundles_dir, job, bundle)

    def stop(self, order: StopOrder) -> None:
        """Send the order to every rank, now and on later ticks until each has received it or was killed."""
        attempt = (order.job, order.attempt)
        job_directory(self.state_dir, order.job)
        self._active[attempt] = None
        kill_at, ordered_at = time.monotonic() + order.grace_s + FORCE_AFTER_S, time.time_ns() // 1_000_000
        if (earlier := self._stopping.get(attempt)) is not None:
            kill_at, ordered_at = min(kill_at, earlier.kill_at), earlier.ordered_at
        self._stopping[attempt] = stopping = Stopping(order=order, kill_at=kill_at, ordered_at=ordered_at)
        self._stops.run(("stop", *attempt), partial(self._stop, stopping))

    def stop_ordered_at(self, job: str, attempt: int) -> int | None:
        """Since the first order: ranks that did not receive it are killed at the same time."""
        stopping = self._stopping.get((job, attempt))
        return None if stopping is None else stopping.ordered_at

    def observe(self) -> Sequence[RankFact]:
        """The facts of every attempt that is not settled, and of ranks that cannot be started, with their trouble.

        Ranks with a lost supervisor are cleaned up.
        """
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY_S
            self._background.run(("cgroups",), self._sweep)
        for attempt, stopping in list(self._stopping.items()):
            if not stopping.is_received or now >= stopping.kill_at:
                self._stops.run(("stop", *attempt), partial(self._stop, stopping))
        facts = []
        for paths, status in self._statuses():
            try:
                facts.append(self._observe_rank(paths, status))
                self._damaged.discard(paths.control)
            except (OSError, *DAMAGED) as error:  # the facts of other jobs are returned
                self._log_damaged(paths.control, error)
        return [*facts, *self._not_started(facts)]

    def _not_started(self, facts: Sequence[RankFact]) -> Iterator[RankFact]:
        """The facts of the ranks that cannot be started now, beside these facts of the others."""
        for (job, attempt), (ranks, trouble) in list(self._troubles.items()):
            started = {fact.rank for fact in facts if (fact.job, fact.attempt) == (job, attempt)}
            for rank in range(ranks if (job, attempt) in self._active else 0):
                if rank not in started:
                    yield RankFact(job=job, attempt=attempt, rank=rank, handle=None, started_at=None, trouble=trouble)

    def _observe_rank(self, paths: RankPaths, status: Mapping[str, Any]) -> RankFact:
        """The fact of one rank. Cleans it up if its supervisor is lost, and continues a supervisor that is stopped."""
        if self._is_lost(status):
            self._stops.run(("lost", paths.control), partial(self._clean_up, paths))
        elif not status.get("tree_gone") and is_stopped(status["supervisor"]["pid"]):
            send(status["supervisor"]["pid"], signal.SIGCONT)  # a job under the same account can stop it
        return rank_fact(paths, status)

    def settled(self, job: str, attempt: int) -> None:
        """Stop reporting an attempt whose ranks have all ended; its files stay until ``forget``."""
        if self._has_ended((job, attempt)):
            self._active.pop((job, attempt), None)
            self._sweep_at = time.monotonic()
            self._stopping.pop((job, attempt), None)
            self._troubles.pop((job, attempt), None)
            self._handed_over.discard((job, attempt))
            Path(active_marker(self.state_dir, job, attempt)).unlink(missing_ok=True)

    def forget(self, job: str) -> None:
        """Move a job's files to the trash, which is emptied in the background. Raises OSError while it may run."""
        self._check_ended(job)
        home = Path(job_directory(self.state_dir, job))
        for attempt in attempts_of(self.state_dir, job):
            self.settled(job, attempt)
        with contextlib.suppress(FileNotFoundError):
            home.rename(Path(self.state_dir, "trash", f"{job}.{time.time_ns()}"))
        self._background.run(("trash",), self._empty_trash)

    def output_sizes(self, jobs: Collection[str]) -> Mapping[str, int | None]:
        """The sizes that were measured; the others are measured in the background."""
        found = self._outputs.sizes(jobs)
        if missing := [job for job in jobs if job not in found]:
            self._background.run(("measure outputs",), lambda: self._outputs.measure(missing))
        return found

    def remove_outputs(self, job: str) -> None:
        """Move a job's outputs to the trash. Raises OSError while it may run."""
        self._check_ended(job)
        self._outputs.move_to_trash(job)
        self._background.run(("trash",), self._empty_trash)

    def _check_ended(self, job: str) -> None:
        """Raise OSError where an attempt may still have processes, so that no file of the job is removed."""
        for attempt in attempts_of(self.state_dir, job):
            if not self._has_ended((job, attempt)):
                raise OSError(f"attempt {attempt} of job {job} may still have processes")

    def pids(self) -> Mapping[str, frozenset[int]]:
        """Live process ids by job: below its supervisors, and in its cgroups."""
        by_parent = children(processes())
        found: dict[str, frozenset[int]] = {}
        for _, status in self._statuses():
            with contextlib.suppress(*DAMAGED):  # observe logs it
                if not status.get("tree_gone"):
                    own = self._enforcement.processes(status["job"], status["attempt"], status["rank"])
                    if not self._is_lost(status):
                        own |= descendants(status["supervisor"]["pid"], by_parent)
                    found[status["job"]] = found.get(status["job"], frozenset()) | own
        return found

    def fence(self, fencing: int) -> None:
        """Refuse leaders older than this one, after a restart too; then report what they started."""
        raise_fence(fence_file(self.state_dir), fencing)
        self._troubles.clear()
        self._handed_over.clear()
        self._active |= self._marked()

    def _marked(self) -> dict[Attempt, None]:
        """The attempts that any leader started or stopped, and that are not settled, from their markers on the disk."""
        return dict.fromkeys(unsettled_attempts(self.state_dir))

    # --- starting -------------------------------------------------------------------------------------------------
    def _start(self, order: StartOrder) -> None:
        """Start the ranks of an attempt. Where that fails, the cause is the trouble of those that were not started."""
        attempt = order.job, order.attempt
        try:
            unrecorded = self._start_ranks(order)
        except Exception as error:
            self._troubles[attempt] = order.ranks, str(error) or type(error).__name__
            raise
        if unrecorded is None or attempt not in self._handed_over:
            self._troubles.pop(attempt, None)
        else:
            self._troubles[attempt] = order.ranks, NOT_RECORDED.format(control=unrecorded.control)
        if unrecorded is not None:
            self._handed_over.add(attempt)

    def _start_ranks(self, order: StartOrder) -> RankPaths | None:
        """Start each rank that has recorded no start. Returns the first one, if there was any."""
        Path(active_marker(self.state_dir, order.job, order.attempt)).touch()
        if not may_start(self.state_dir, order.job, order.attempt, _now_ms()):
            return None
        port = unrecorded = None
        for rank in range(order.ranks):
            paths = rank_paths(self.state_dir, order.job, order.attempt, rank)
            if "claimed_at" not in (read_record(paths.status) or {}):
                unrecorded = unrecorded or paths
                make_control(paths)
                if order.ranks > 1 and port is None:
                    port = rendezvous_port(self.state_dir, order.job, order.attempt)
                self._preforked.start(self._rank_order(order, rank, paths, port))
        self._background.run(("prefork",), self._preforked.refill)
        return unrecorded

    def _rank_order(self, order: StartOrder, rank: int, paths: RankPaths, port: int | None) -> RankOrder:
        settings = self._enforcement.prepare(order, rank)
        environment = rank_environment(
            job=order.job, attempt=order.attempt, rank=rank, ranks=order.ranks, placements=order.placements,
            devices=order.devices, paths=paths, variables=order.variables,
            data={each.variable: each.path for each in order.data if each.path is not None},
            path_first=str(Path(self.python_home, "bin")), port=port, limited=settings.limited, mps=settings.mps,
        )  # fmt: skip
        return RankOrder(
            state_dir=self.state_dir, job=order.job, attempt=order.attempt, rank=rank, fencing=order.fencing,
            account=order.run_as, command=list(order.command), environment=environment,
            secrets=without_ours(order.secrets), directory=order.directory, live=order.live,
            bundle=None if order.bundle is None else bundle_file(self.bundles_dir, order.bundle), wake=self.wake,
            log_limit_bytes=self._log_limit_mib * MIB, work_limit_bytes=self._work_limit_mib * MIB,
            outputs_limit_bytes=(order.outputs_limit_mib or self._outputs_limit_mib) * MIB, cgroup=settings.cgroup,
            ranks=order.ranks, placements=[_fields(part) for part in order.placements],
        )  # fmt: skip

    def _sweep(self) -> None:
        """Release the cgroups of ranks that ended, once the devices with their limits are known."""
        if not self._enforcement.cgroups.names():
            return
        found = self._sampler.inventory(self.node)
        if found is None:
            self._sweep_at = time.monotonic() + SWEEP_AGAIN_S
            return
        self._enforcement.sweep(self._is_live, [each.uuid for each in found[1] if each.uuid and not each.simulated])

    def _is_live(self, job: str, attempt: int, rank: int) -> bool:
        """Whether a rank may still start, or runs. The marker is on the disk, so a newer leader's ranks count too."""
        status = read_record(rank_paths(self.state_dir, job, attempt, rank).status) or {}
        return Path(active_marker(self.state_dir, job, attempt)).exists() and not status.get("tree_gone")

    # --- stopping -------------------------------------------------------------------------------------------------
    def _stop(self, stopping: Stopping) -> None:
        """Send the order to each rank, for a second. Ranks that do not answer get it at the next tick, or are killed.

        A rank without a supervisor is ended under its lock.
        """
        if stopping.is_received and time.monotonic() < stopping.kill_at:
            return
        order = stopping.order
        ordered = [rank_paths(self.state_dir, order.job, order.attempt, rank) for rank in range(order.ranks)]
        waiting = list({*ordered, *self._paths_of(order.job, order.attempt)})
        until = time.monotonic() + SEND_FOR_S
        while waiting := [paths for paths in waiting if not self._has_received(paths, order)]:
            if self._stopping.get((order.job, order.attempt)) is not stopping:  # it was settled, or has a new order
                return
            if time.monotonic() >= until:
                break
            time.sleep(SEND_AGAIN_S)
        if time.monotonic() >= stopping.kill_at:
            for paths in waiting:
                self._kill_with_supervisor(paths, order)
        stopping.is_received = not waiting

    def _has_received(self, paths: RankPaths, order: StopOrder) -> bool:
        """Whether a rank needs no more orders: it received or refused one, ended, or will never start."""
        status = read_record(paths.status) or {}
        if "claimed_at" not in status:
            return self._end_unstarted(paths, order)
        if status.get("tree_gone") or self._is_lost(status):
            return True
        answer = _send_order(paths, {"order": "leave", **asdict(order)})  # supervisors know a stop order by this name
        if answer is not None and "refused" in answer:
            log.warning("job %s was not stopped: %s", order.job, answer["refused"])
        return answer is not None

    def _kill_with_supervisor(self, paths: RankPaths, order: StopOrder) -> None:
        """Record the kill, then kill a rank together with its supervisor, which does not answer."""
        status = read_record(paths.status) or {}
        newest = max(read_fence(fence_file(self.state_dir)), status.get("fencing", 0))
        has_ended = status.get("tree_gone") or self._is_lost(status)
        if "supervisor" not in status or order.fencing < newest or has_ended:
            return
        write_record(paths.forced, {"at": _now_ms(), "reason": order.reason, "fencing": order.fencing})
        supervisor: int = status["supervisor"]["pid"]
        kill_all(lambda: {supervisor} | descendants(supervisor) | self._leftover_processes(status))
        log.warning("killed job %s, attempt %d, with its supervisor, which did not answer", order.job, order.attempt)

    def _end_unstarted(self, paths: RankPaths, order: StopOrder) -> bool:
        """End a rank that never started, under its lock, so that no late supervisor starts it."""
        if order.fencing < read_fence(fence_file(self.state_dir)):
            log.warning("job %s was not stopped: there is a newer leader than %d", order.job, order.fencing)
            return True
        Path(active_marker(self.state_dir, order.job, order.attempt)).touch()
        make_control(paths)
        with file_lock(paths.lock) as is_locked:
            if not is_locked or "claimed_at" in (read_record(paths.status) or {}):
                return False
            rank = {"job": order.job, "attempt": order.attempt, "rank": int(Path(paths.control).name[len("rank-") :])}
            ended = {"claimed_at": _now_ms(), "ended_at": _now_ms(), "exit_status": -15, "tree_gone": True}
            why = {"pause_requested": True, "pause_reason": order.reason}
            write_record(paths.status, {**rank, **ended, **why, "fencing": order.fencing})
        return True

    # --- lost supervisors -----------------------------------------------------------------------------------------
    def _is_lost(self, status: Mapping[str, Any]) -> bool:
        """Whether a rank's supervisor died before it recorded the end. A damaged record does not name a supervisor."""
        if status.get("tree_gone") or "claimed_at" not in status or "supervisor" not in status:
            return False
        supervisor = status["supervisor"]
        return supervisor["boot"] != self.boot or not is_same_process(supervisor["pid"], supervisor["started"])

    def _clean_up(self, paths: RankPaths) -> None:
        """Kill the remaining processes of a rank whose supervisor died, and record the end of the rank.

        The kernel kills a command with its supervisor. The exit status of a rank that was lost with its machine, or had
        not started, is unknown. A lost machine uses up no retry; a job that kills its supervisor uses up one.
        """
        with file_lock(paths.lock) as is_locked:
            status = read_record(paths.status) or {}
            if not is_locked or not self._is_lost(status):
                return
            if _is_guarded(status["supervisor"]):
                send(status["supervisor"]["guard"]["pid"], signal.SIGCONT)  # it may be stopped like its supervisor
            until = time.monotonic() + LOST_KILL_S
            while kill_all(partial(self._leftover_processes, status)) and time.monotonic() < until:
                time.sleep(SEND_AGAIN_S)
            if "ended_at" not in status:
                is_killed = status["supervisor"]["boot"] == self.boot and status.get("pid") is not None
                status |= {"ended_at": _now_ms(), "exit_status": -signal.SIGKILL if is_killed else None}
                status["cause"] = EndCause.SUPERVISOR_LOST
                is_pausing = status.get("pause_intended") and Path(paths.pause).exists()
                is_forced = Path(paths.forced).exists()
                status["pause_requested"] = bool(status.get("pause_requested") or is_pausing or is_forced)
            write_record(paths.status, {**status, "lost": True, "tree_gone": not self._leftover_processes(status)})
        log.warning("the supervisor of job %s, attempt %s, was lost", status["job"], status["attempt"])

    def _leftover_processes(self, status: Mapping[str, Any]) -> set[int]:
        """Processes of a rank whose supervisor died: below its guard, or with its mark or variables.

        Its session is evidence only where its processes may have no mark: another process can have its number later.
        """
        supervisor = status["supervisor"]
        if supervisor["boot"] != self.boot:
            return set()
        # The pause file has the state directory in its path: a restored copy of a service has the same ids of jobs.
        pause_file = rank_paths(self.state_dir, status["job"], status["attempt"], status["rank"]).pause
        marks = (f"GPU_QUOTA_JOB_ID={status['job']}", f"GPU_QUOTA_PAUSE_FILE={pause_file}")
        supervised = [
            descendants(other["supervisor"]["pid"])
            for _, other in self._started_ranks((status["job"], status["attempt"]))
            if not other.get("tree_gone") and not self._is_lost(other)
        ]
        found = find_marked(marks, mark=status.get("mark"))
        if not status.get("marked"):
            found |= self._session_of(status)
        found = found.difference(*supervised)
        found |= self._enforcement.processes(status["job"], status["attempt"], status["rank"])
        return found | (descendants(supervisor["guard"]["pid"]) if _is_guarded(supervisor) else set())

    def _session_of(self, status: Mapping[str, Any]) -> set[int]:
        """Processes of the account in the session of a rank, unless the kernel used the number of its leader again."""
        pid, started = status.get("pid"), status.get("pid_started")
        leader = None if pid is None else process(pid)
        if pid is None or started is None or (leader is not None and leader.started != started):
            return set()
        try:
            folder = os.lstat(rank_paths(self.state_dir, status["job"], status["attempt"], status["rank"]).run)
        except OSError:  # without it the account is unknown
            return set()
        return members_of_session(pid, started=started, uid=folder.st_uid)

    # --- records --------------------------------------------------------------------------------------------------
    def _statuses(self) -> Iterator[tuple[RankPaths, dict[str, Any]]]:
        """The records of every rank that was started and is not settled; none of an attempt that cannot be read."""
        for attempt in list(self._active):
            yield from self._readable_ranks(attempt) or ()

    def _has_ended(self, attempt: Attempt) -> bool:
        """Whether no rank of an attempt has a process, by its records."""
        ranks = self._readable_ranks(attempt)
        return ranks is not None and all(status.get("tree_gone") for _, status in ranks)

    def _readable_ranks(self, attempt: Attempt) -> list[tuple[RankPaths, dict[str, Any]]] | None:
        """The records of the ranks of one attempt that were started; None where the disk does not return them."""
        try:
            return list(self._started_ranks(attempt))
        except OSError as error:
            self._log_damaged(rank_paths(self.state_dir, *attempt, 0).control, error)
            return None

    def _log_damaged(self, control: str, error: Exception) -> None:
        """Log once that the records of a rank are damaged: their job keeps its state, and other jobs continue."""
        if control not in self._damaged:
            self._damaged.add(control)
            log.error(
                "the records in %s cannot be read (%s: %s), so their job keeps its state and its GPUs: end the"
                " processes of that job, remove status.json there and cancel the job",
                control, type(error).__name__, error,
            )  # fmt: skip

    def _started_ranks(self, attempt: Attempt) -> Iterator[tuple[RankPaths, dict[str, Any]]]:
        """The records of the ranks of one attempt that were started."""
        for paths in self._paths_of(*attempt):
            status = read_record(paths.status) or {}
            if "claimed_at" in status:
                yield paths, status

    def _paths_of(self, job: str, attempt: int) -> list[RankPaths]:
        return paths_of_ranks(self.state_dir, job, attempt)

    def _empty_trash(self) -> None:
        """Remove the folders of forgotten jobs. What cannot be removed is tried again with the next one."""
        for path, why in empty_trash(self.state_dir).items():
            log.warning("%s cannot be removed: %s", path, why)


def make_layout(state_dir: str) -> None:
    """Make the folders of a state directory. Other accounts can reach their own jobs, and list nothing."""
    make_passable(Path(state_dir))
    for name, mode in (("jobs", PASSABLE), ("active", 0o700), ("trash", 0o700)):
        make_folder(Path(state_dir, name), mode)


def make_control(paths: RankPaths) -> None:
    """Make the service's own folder of a rank; the submitter can enter the job's folder above it."""
    control = Path(paths.control)
    make_folder(control.parents[2], PASSABLE)
    for folder in (control.parents[1], control.parents[0], control):
        folder.mkdir(mode=0o700, exist_ok=True)


def _fields(part: Placement) -> tuple[int, str, int, int]:
    return part.rank, part.device, part.gpu_milli, part.memory_mib


def _send_order(paths: RankPaths, order: Mapping[str, Any]) -> dict[str, Any] | None:
    """Send an order to a supervisor. Returns its answer; None if it does not answer in time."""
    folder = None
    try:
        folder = os.open(paths.control, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(SEND_TIMEOUT_S)
            connection.connect(f"/proc/self/fd/{folder}/socket")  # the whole path may be too long for a socket
            connection.sendall(json.dumps(order).encode())
            answer = json.loads(connection.recv(MIB))
    except (OSError, ValueError):
        return None
    finally:
        if folder is not None:
            os.close(folder)
    return answer if isinstance(answer, dict) else None


def _is_guarded(supervisor: Mapping[str, Any]) -> bool:
    """Whether a supervisor's guard is alive; older supervisors have none."""
    guard = supervisor.get("guard")
    return guard is not None and is_same_process(guard["pid"], guard["started"])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
