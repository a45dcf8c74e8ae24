"""The job supervisor: it runs one rank of one attempt until its last process ends, independently of the service.

:mod:`.supervise` starts it. It waits for a ``RankOrder`` as JSON on standard input, and ends if there is none. It
detaches itself, takes the rank's lock, and writes every fact to ``status.json`` before it acts on it:

    claimed          this rank of this attempt was started, and is never started again; with the devices of the attempt
    pid              its process exists
    pause_intended   the pause file will be written
    pause_requested  the pause file existed before the process ended
    ended            its process ended, with its exit status, the cause if there is evidence of one, and whether the
                     job reported that it was complete
    tree_gone        no process of the rank is left
    refused          the order came from an older leader, or cannot be carried out
    why_lost         a failure of the machine that may pass prevented the command

It receives orders on a unix socket in the control directory, and refuses those of older leaders. Its parent is its
guard (:mod:`.guard`), which kills the rank's processes if the supervisor is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from ...job_files.disk_use import Links, Measured, measure
from ...job_files.lost_starts import is_temporary, may_be_lost
from ...job_files.paths import RankPaths, fence_file, rank_paths
from ...job_files.pause_file import make_pause_file
from ...job_files.rank_log import RotatingLog
from ...job_files.record_files import file_lock, read_fence, read_record, read_untrusted, write_record
from ..enforcement.cgroup_entry import had_oom_kill, kill, machine_oom_kills
from ..host.processes import (
    ProcessStat,
    adopt_orphans,
    boot_id,
    can_take,
    children,
    descendants,
    kill_all,
    new_mark,
    process,
    processes,
    send,
)
from .guard import fork_below_guard
from .masking import Mask
from .rank_process import (
    CANNOT_RUN,
    Account,
    NoAccount,
    NotRunnable,
    Pipes,
    RankOrder,
    account_of,
    launch,
    prepare_directories,
)

LEFTOVER_GRACE_S = 2.0
"""How long other processes of a rank may continue after its first one ended, unless a pause allows more."""

OVER_LIMIT_GRACE_S = 5.0
MEASURE_EVERY_S = 2.0
MEASURE_SHARE = 20
"""After a measurement that took t seconds the next one starts this many times t later, or more."""

FINAL_MEASURE_S = 0.1
KILL_AGAIN_S, MAX_KILL_INTERVAL_S = 0.1, 2.0
ORDER_TIMEOUT_S = 0.5
MAX_ORDER_BYTES = 1 << 16
SAVE_AGAIN_S = 1.0
PIPE_BYTES = 1 << 20
MAX_FAILURE_BYTES = 4096
MAX_READS = 64
WROTE_TOO_MUCH = -signal.SIGXFSZ
"""The exit status of a job that wrote more than its limit: the signal of that name."""

SOCKET = "socket"


class Supervisor:
    """One supervised rank; ``run`` returns when it has ended."""

    def __init__(self, order: RankOrder, paths: RankPaths, guard: ProcessStat | None) -> None:
        self.order, self.paths, self.guard = order, paths, guard
        self.fencing = order["fencing"]
        self.status: dict[str, Any] = {"job": order["job"], "attempt": order["attempt"], "rank": order["rank"]}
        self.log = RotatingLog(paths.log, order["log_limit_bytes"])
        self.mask = Mask(order["secrets"].values())
        self.pid = 0
        self.oom_kills = machine_oom_kills()
        self.pipe = self.failure = -1
        self.kill_at: float | None = None
        self.save_again_at: float | None = None
        self.kill_again_s = KILL_AGAIN_S
        self.is_over_limit = False
        self.is_shutting_down = False
        self.saved_at: int | None = None
        self.measurement: Iterator[None] | None = None
        self.measure_at = time.monotonic() + MEASURE_EVERY_S
        self.poll = select.poll()

    def run(self) -> None:
        """Start the rank, unless there is a newer leader, and stay until no process of it is left."""
        supervisor = {**_identity(process(os.getpid())), "boot": boot_id(), "guard": _identity(self.guard)}
        mark = new_mark()
        self.status.update(claimed_at=now_ms(), supervisor=supervisor, mark=mark, marked=can_take(mark))
        self.status.update(fencing=self.fencing)
        self.status.update(ranks=self.order["ranks"], placements=self.order["placements"])
        write_record(self.paths.status, self.status)  # without a record it does not start
        # The claim is on disk before the fence is read. A new leader raises the fence before it reads claims. So either
        # this supervisor reads the new fence, or the leader reads this claim.
        if (newest := self.newest_leader()) > self.fencing:
            why = f"leader {self.fencing} ordered this start, but leader {newest} is newer"
            write_record(self.paths.status, {"refused": why})
            notify(self.order["wake"])
            return
        try:
            self.start(account_of(self.order["account"]))
        except (NotRunnable, OSError) as error:
            self.log.write_notice(f"the command was not run: {error}")
            self.record(**self.end_before_start(error), ended_at=now_ms(), tree_gone=True)
        self.supervise()

    def record(self, **facts: object) -> None:
        """Write facts to the disk, then wake the controller. After a failure the main loop tries again."""
        self.status.update(facts, fencing=self.fencing)
        self.save_again_at = None
        try:
            write_record(self.paths.status, self.status)
        except OSError as error:
            is_forgotten = isinstance(error, FileNotFoundError) and self.status.get("tree_gone")
            self.save_again_at = None if is_forgotten else time.monotonic() + SAVE_AGAIN_S
        else:
            notify(self.order["wake"])

    def newest_leader(self) -> int:
        """The newest leader in this job's orders and in the state directory."""
        return max(self.fencing, read_fence(fence_file(self.order["state_dir"])))

    # --- starting -------------------------------------------------------------------------------------------------
    def start(self, account: Account) -> None:
        """Make the folders, the socket for orders and the pipe for output, and fork the rank's process."""
        prepare_directories(self.paths, account)
        self.listener = listen()
        self.wakeup = handle_signals(self)
        self.pipe, output = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(output, True)
        with contextlib.suppress(OSError):  # with a large pipe a job that writes much seldom waits
            fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.failure, failure = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        pipes = Pipes(output, failure)
        self.pid = launch(self.order, self.paths, account, pipes, self.status["mark"])
        for fd in pipes:
            os.close(fd)
        self.order["secrets"].clear()
        child = process(self.pid)
        self.record(pid=self.pid, pid_started=child.started if child else None, started_at=now_ms())
        for fd in (self.pipe, self.wakeup, self.listener.fileno()):
            self.poll.register(fd, select.POLLIN)

    def end_before_start(self, error: Exception) -> dict[str, object]:
        """How a rank ends that could not be started: lost where another attempt may succeed, else refused."""
        if (is_temporary(error) or isinstance(error, NoAccount)) and self.may_be_lost():
            return {"why_lost": str(error), "exit_status": None}
        return {"refused": str(error), "exit_status": CANNOT_RUN}

    def may_be_lost(self) -> bool:
        """Whether a failure that may pass is a loss."""
        return may_be_lost(self.order["state_dir"], self.order["job"], self.order["attempt"])

    # --- the loop -------------------------------------------------------------------------------------------------
    def supervise(self) -> None:
        """Run the main loop until no process of the tree is left, and that is recorded on the disk."""
        while not self.status.get("tree_gone") or self.save_again_at is not None:
            for fd, _ in self.poll.poll(self.poll_timeout_s() * 1000):
                if fd == self.pipe:
                    self.copy_output()
                elif fd == self.wakeup:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                else:
                    self.receive_order()
            self.reap()
            self.kill_if_due()
            self.measure_if_due()
            if self.save_again_at is not None and time.monotonic() >= self.save_again_at:
                self.record()

    def poll_timeout_s(self) -> float:
        """The time until the next action of the main loop."""
        if self.measurement is not None:
            return 0.02
        is_gone = self.status.get("tree_gone")
        times = (self.save_again_at, None if is_gone else self.kill_at, None if is_gone else self.measure_at)
        return max(0.0, min(due for due in times if due is not None) - time.monotonic())

    def copy_output(self) -> bool:
        """Copy from the pipe to the log once; False when the pipe is empty."""
        try:
            data = os.read(self.pipe, PIPE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            with contextlib.suppress(KeyError):
                self.poll.unregister(self.pipe)
            return False
        self.log.write(self.mask.feed(data))
        return True

    # --- stopping -------------------------------------------------------------------------------------------------
    def receive_order(self) -> None:
        """Answer one order. Only the service can connect; a slow one may delay the main loop by half a second."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # an invalid order changes nothing
            connection, _ = self.listener.accept()
            with connection:
                connection.settimeout(ORDER_TIMEOUT_S)
                order = json.loads(connection.recv(MAX_ORDER_BYTES))
                connection.sendall(json.dumps(self.answer(order)).encode())

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["fencing"] < (newest := self.newest_leader()):
            return {"refused": f"leader {order['fencing']} ordered this, but leader {newest} is newer"}
        self.fencing = order["fencing"]
        if order["order"] == "leave":  # supervisors know a stop order by this name
            self.stop(order["grace_s"], order["reason"])
        return {"done": True, "status": self.status}

    def stop(self, grace_s: float, reason: str) -> None:
        """Request a pause once. A repeated order may shorten the grace, never restart it."""
        self.reap()
        if self.status.get("tree_gone"):
            return
        self.kill_within(grace_s)
        if "ended_at" not in self.status and not self.status.get("pause_requested"):
            self.request_pause(reason)

    def kill_within(self, grace_s: float) -> None:
        """Kill all processes after this grace, or after an earlier one."""
        kill_at = time.monotonic() + grace_s
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    def request_pause(self, reason: str) -> None:
        """Record the intention, write the pause file, send SIGTERM; an exit before the file existed is no pause."""
        self.status.update(pause_intended=True, pause_reason=reason, pause_at=now_ms())
        with contextlib.suppress(OSError):  # a full disk prevents no pause
            write_record(self.paths.status, self.status)
        self.make_pause_file(reason)
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:  # it has exited
            return
        self.status["pause_requested"] = True
        self.terminate()
        self.record()

    def make_pause_file(self, reason: str) -> None:
        """Write the reason, and in the last line the end of the grace period, in milliseconds since 1970."""
        left_ms = int(1000 * ((self.kill_at or time.monotonic()) - time.monotonic()))
        with contextlib.suppress(OSError):  # it may exist, or its owner may have closed the folder
            make_pause_file(self.paths, f"{reason}\n{now_ms() + left_ms}\n")

    def terminate(self) -> None:
        """Send SIGTERM to the session of the rank's process, and SIGCONT, because it may be stopped.

        Its own id is of another process, if of any, once its end was recorded.
        """
        world = processes()
        session = {pid for pid in descendants(os.getpid(), children(world)) if world[pid].session == self.pid}
        own = set[int]() if "ended_at" in self.status else {self.pid}
        for number in (signal.SIGTERM, signal.SIGCONT):
            for pid in session | own:
                send(pid, number)

    # --- ending ---------------------------------------------------------------------------------------------------
    def reap(self) -> None:
        """Reap all processes that ended, and record the end of the rank's own process and of the whole tree."""
        while not self.status.get("tree_gone"):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.end_of_tree()
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.end_of_command(os.waitstatus_to_exitcode(status))

    def end_of_command(self, exit_status: int) -> None:
        """Record how the command ended. Other processes of the rank get a short grace, or the rest of the pause's."""
        progress = read_untrusted(self.paths.progress) or {}
        done, total = progress.get("done"), progress.get("total")
        if (why := self.read_failure()) and self.may_be_lost():
            self.status["why_lost"] = why
        completed = progress.get("completed") is True or (isinstance(done, int) and done == total and done > 0)
        reported = self.reported_status(exit_status)
        self.status.update(ended_at=now_ms(), exit_status=reported, completed=completed, cause=self.cause(reported))
        if not has_children():
            return
        self.record()
        if not self.status.get("pause_requested"):
            self.kill_within(LEFTOVER_GRACE_S)
            for pid in descendants(os.getpid()):
                send(pid, signal.SIGTERM)
                send(pid, signal.SIGCONT)

    def read_failure(self) -> str:
        """The failure of the machine that prevented the command; empty where the command ran."""
        with contextlib.suppress(OSError):
            return os.read(self.failure, MAX_FAILURE_BYTES).decode(errors="replace")
        return ""

    def cause(self, exit_status: int | None) -> str | None:
        """The evidence for the end beside the exit status, by the values of ``core.job_ends.EndCause``."""
        if self.is_over_limit:
            return "storage_limit"
        cgroup = self.order.get("cgroup")
        if cgroup is not None and had_oom_kill(cgroup):
            return "out_of_memory"
        was_killed = exit_status in (-signal.SIGKILL, 128 + signal.SIGKILL)
        return "oom_kill_on_node" if was_killed and machine_oom_kills() > self.oom_kills else None

    def reported_status(self, exit_status: int) -> int | None:
        """WROTE_TOO_MUCH for a job that wrote too much; None (lost, not failed) for one that its machine ended."""
        if self.is_over_limit:
            return WROTE_TOO_MUCH
        if "why_lost" in self.status:
            return None
        is_shut_down = self.is_shutting_down and not self.status.get("pause_requested")
        return None if is_shut_down and exit_status in (-signal.SIGTERM, -signal.SIGKILL) else exit_status

    def end_of_tree(self) -> None:
        """No process is left: copy the rest of the output, and record the last checkpoint before the end."""
        for _ in range(MAX_READS):  # a process outside the tree may have the pipe, and write without end
            if not self.copy_output():
                break
        self.log.write(self.mask.rest())
        found, until = Measured(), time.monotonic() + FINAL_MEASURE_S
        for _ in measure(self.paths.checkpoint, found):
            if time.monotonic() > until:
                break
        self.record_checkpoint(found)
        self.status["saved_at"] = self.saved_at
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self.record(tree_gone=True, tree_gone_at=now_ms())

    def kill_if_due(self) -> None:
        """After the grace kill all processes, and again until none is left: one inside the kernel ends late."""
        if self.kill_at is None or time.monotonic() < self.kill_at or self.status.get("tree_gone"):
            return
        if (cgroup := self.order.get("cgroup")) is not None:
            kill(cgroup)
        kill_all(lambda: descendants(os.getpid()))
        self.kill_at = time.monotonic() + self.kill_again_s
        self.kill_again_s = min(2 * self.kill_again_s, MAX_KILL_INTERVAL_S)
        self.reap()

    # --- limits ---------------------------------------------------------------------------------------------------
    def measure_if_due(self) -> None:
        """Measure the job's folders, a few milliseconds at a time."""
        now = time.monotonic()
        if self.measurement is None and now >= self.measure_at and not self.status.get("tree_gone"):
            self.measurement = self.measure_all(now)
        while self.measurement is not None and time.monotonic() < now + 0.01:
            if next(self.measurement, self) is self:
                self.measurement = None

    def measure_all(self, started: float) -> Iterator[None]:
        links = Links()  # a file in both folders is on the disk once
        outputs, checkpoint, work = Measured(), Measured(links), Measured(links)
        for path, into in (
            (self.paths.outputs, outputs), (self.paths.checkpoint, checkpoint), (self.paths.work, work),
        ):  # fmt: skip
            yield from measure(path, into)
        self.record_checkpoint(checkpoint)
        self.stop_if_over_limit("outputs", outputs, self.order["outputs_limit_bytes"])
        work.size_bytes, work.too_deep = work.size_bytes + checkpoint.size_bytes, work.too_deep or checkpoint.too_deep
        self.stop_if_over_limit("work and checkpoint", work, self.order["work_limit_bytes"])
        ended = time.monotonic()
        self.measure_at = ended + max(MEASURE_EVERY_S, MEASURE_SHARE * (ended - started))

    def record_checkpoint(self, found: Measured) -> None:
        """Record the newest change in the checkpoint folder."""
        if found.newest_ms is not None and found.newest_ms != self.saved_at:
            self.saved_at = found.newest_ms
            with contextlib.suppress(OSError):
                write_record(self.paths.watch, {"saved_at": self.saved_at}, durable=False)

    def stop_if_over_limit(self, folders: str, found: Measured, limit_bytes: int) -> None:
        """Stop a job that wrote more than its limit; its log has the reason."""
        if self.is_over_limit or (found.size_bytes <= limit_bytes and not found.too_deep):
            return
        size = "folders nested too deeply to be measured" if found.too_deep else f"{found.size_bytes} bytes"
        self.is_over_limit = True
        self.log.write_notice(f"the job is stopped: its {folders} hold {size}, and its limit is {limit_bytes} bytes")
        self.kill_within(OVER_LIMIT_GRACE_S)
        self.terminate()


def _identity(one: ProcessStat | None) -> dict[str, int | None]:
    """A process id with its start, because the kernel uses ids again."""
    return {"pid": one.pid if one else None, "started": one.started if one else None}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def has_children() -> bool:
    """Whether any child is left, dead or alive."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def listen() -> socket.socket:
    """The socket for orders, in the current (control) directory: its whole path may be too long for a socket."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    listener.listen(16)
    listener.settimeout(ORDER_TIMEOUT_S)
    return listener


def handle_signals(supervisor: Supervisor) -> int:
    """SIGCHLD wakes the loop, SIGTERM means that the machine shuts down, signals of terminals are ignored.

    Returns the descriptor that a signal makes readable.
    """

    def is_shutting_down(number: int, frame: object) -> None:
        supervisor.is_shutting_down = True

    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGTERM, is_shutting_down)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return reader


def notify(wake: str | None) -> None:
    """Wake the controller, if it listens. A lost wakeup only delays it."""
    if wake is None:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeup:
        wakeup.setblocking(False)
        folder = os.open(os.path.dirname(wake), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            wakeup.sendto(b"r", f"/proc/self/fd/{folder}/{os.path.basename(wake)}")
        finally:
            os.close(folder)


def detach(control: str) -> None:
    """Detach from the service: a session of its own in the control directory, without its terminal and open files."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir(control)
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open("supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (null, 1), (errors, 2)):
        os.dup2(source, target)


def main() -> None:
    """Supervise the rank of the order, unless another supervisor does or did."""
    text = sys.stdin.buffer.read()
    if not text:
        return
    order: RankOrder = json.loads(text)
    paths = rank_paths(order["state_dir"], order["job"], order["attempt"], order["rank"])
    detach(paths.control)
    guard = fork_below_guard()
    with file_lock(paths.lock) as is_locked:
        if is_locked and "claimed_at" not in (read_record(paths.status) or {}):
            adopt_orphans()
            Supervisor(order, paths, guard).run()
    if guard is not None and os.getppid() == guard.pid:
        send(guard.pid, signal.SIGCONT)  # a job under the same account can have stopped it
