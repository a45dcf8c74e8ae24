"""One rank of one attempt, watched over from its first process to its last, whatever happens to the service.

Begun by :mod:`.supervise`, it waits for a ``RankOrder`` as JSON on standard input; at its end without one it goes. It
detaches itself, takes the rank's lock, and writes every fact to ``status.json`` before it acts on it:

    claimed      this rank of this attempt was begun, and is never begun again
    pid          its process exists
    pause_intended, pause_requested   the pause file is about to exist; it exists, and the exit was not seen before
    ended        its process ended, how, and whether the job had said it was complete
    tree_gone    no process of it is left
    refused      the order came from a leader that no longer rules, or cannot be carried out

It takes orders on a unix socket in the control directory, and refuses those of a leader older than the newest seen.
Above it stays its guard (:mod:`.guard`), which ends the rank's processes should the supervisor be killed.
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

from jupyter_gpu_quota.backends.local.enforcement.cgroup_entry import kill
from jupyter_gpu_quota.backends.local.host.processes import (
    ProcessStat,
    boot_id,
    children,
    descendants,
    kill_all,
    new_mark,
    process,
    processes,
    send,
)
from jupyter_gpu_quota.backends.local.host.record_files import (
    held_lock,
    read_fence,
    read_record,
    read_untrusted,
    write_record,
)
from jupyter_gpu_quota.backends.local.jobs.disk_use import Measured, measure
from jupyter_gpu_quota.backends.local.jobs.guard import go_on_below_a_guard
from jupyter_gpu_quota.backends.local.jobs.masking import Mask
from jupyter_gpu_quota.backends.local.jobs.paths import RankPaths, fence_file, rank_paths
from jupyter_gpu_quota.backends.local.jobs.rank_log import RotatingLog
from jupyter_gpu_quota.backends.local.jobs.rank_process import (
    CANNOT_RUN,
    Account,
    NotRunnable,
    RankOrder,
    account_of,
    adopt_orphans,
    launch,
    prepare_directories,
)

LEFTOVER_GRACE_S = 2.0
"""What is left of a tree when its first process has ended may use this long, unless a pause gives it longer."""

OVER_LIMIT_GRACE_S = 5.0
WATCH_EVERY_S = 2.0
WATCH_SHARE = 20
"""A walk that takes t seconds is not repeated within this many times t."""

FINAL_WALK_S = 0.1
KILL_AGAIN_S, KILL_SELDOM_S = 0.1, 2.0
ORDER_TIMEOUT_S = 0.5
LONGEST_ORDER = 1 << 16
SAVE_AGAIN_S = 1.0
PIPE_BYTES = 1 << 20
MOST_HELPINGS = 64
TOO_LARGE = -signal.SIGXFSZ
"""The exit status of a job that wrote more than its limit: the signal of that name."""

SOCKET = "socket"


class Supervisor:
    """The state of one supervised rank; ``run`` is its whole life."""

    def __init__(self, order: RankOrder, paths: RankPaths, guard: ProcessStat | None) -> None:
        self.order, self.paths, self.guard = order, paths, guard
        self.fencing = order["fencing"]
        self.status: dict[str, Any] = {"job": order["job"], "attempt": order["attempt"], "rank": order["rank"]}
        self.log = RotatingLog(paths.log, order["log_limit_bytes"])
        self.mask = Mask(order["secrets"].values())
        self.pid = 0
        self.pipe = -1
        self.run_directory = -1
        self.kill_at: float | None = None
        self.save_again_at: float | None = None
        self.kill_again_s = KILL_AGAIN_S
        self.overrun = False
        self.machine_stops = False
        self.saved_at: int | None = None
        self.walk: Iterator[None] | None = None
        self.walk_due = time.monotonic() + WATCH_EVERY_S
        self.poll = select.poll()

    def run(self) -> None:
        """Begin the rank unless a newer leader rules, and stay until nothing of it is left."""
        supervisor = {**named(process(os.getpid())), "boot": boot_id(), "guard": named(self.guard)}
        self.status.update(claimed_at=now_ms(), supervisor=supervisor, mark=new_mark(), fencing=self.fencing)
        write_record(self.paths.status, self.status)  # what cannot be recorded is not begun
        # The claim is on disk before the fence is read: a new leader, who raises the fence before he looks at claims,
        # either is seen here or sees this claim.
        if self.ruled_by() > self.fencing:
            self.refuse_to_begin()
            return
        try:
            account = account_of(self.order["account"])
            self.begin(account)
        except (NotRunnable, OSError) as error:
            self.end_without_beginning(str(error))
            return
        self.watch_over()

    # --- records --------------------------------------------------------------------------------------------------
    def record(self, **facts: object) -> None:
        """Put facts on the disk, then ring for whoever waits. On a full disk they are kept here and tried again."""
        self.status.update(facts, fencing=self.fencing)
        self.save_again_at = None
        try:
            write_record(self.paths.status, self.status)
        except OSError as error:
            forgotten = isinstance(error, FileNotFoundError) and self.status.get("tree_gone")
            self.save_again_at = None if forgotten else time.monotonic() + SAVE_AGAIN_S
        else:
            ring(self.order["wake"])

    def refuse_to_begin(self) -> None:
        why = f"leader {self.order['fencing']} ordered this start, but leader {self.ruled_by()} rules now"
        write_record(self.paths.status, {"refused": why})
        ring(self.order["wake"])

    def end_without_beginning(self, why: str) -> None:
        self.log.say(f"the command was not run: {why}")
        self.record(refused=why, ended_at=now_ms(), exit_status=CANNOT_RUN, tree_gone=True)

    def ruled_by(self) -> int:
        """The newest leader known: by this job's orders, or by the state directory."""
        return max(self.fencing, read_fence(fence_file(self.order["state_dir"])))

    # --- beginning ------------------------------------------------------------------------------------------------
    def begin(self, account: Account) -> None:
        """Make the folders, open the doors for orders and output, and fork the rank's process."""
        prepare_directories(self.paths, account)
        self.run_directory = os.open(self.paths.run, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.listener = listen()
        self.wakeup = watch_signals(self)
        self.pipe, output = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(output, True)
        with contextlib.suppress(OSError):  # a large pipe, so that a job that writes much is not stopped at every turn
            fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.pid = launch(self.order, self.paths, account, output, self.status["mark"])
        os.close(output)
        self.order["secrets"].clear()
        child = process(self.pid)
        self.record(pid=self.pid, pid_started=child.started if child else None, started_at=now_ms())
        for fd in (self.pipe, self.wakeup, self.listener.fileno()):
            self.poll.register(fd, select.POLLIN)

    # --- the loop -------------------------------------------------------------------------------------------------
    def watch_over(self) -> None:
        """Serve until nothing of the tree is left, and that is on the disk."""
        while not self.status.get("tree_gone") or self.save_again_at is not None:
            for fd, _ in self.poll.poll(self.patience_s() * 1000):
                self.attend(fd)
            self.reap()
            self.kill_if_due()
            self.measure_if_due()
            if self.save_again_at is not None and time.monotonic() >= self.save_again_at:
                self.record()

    def attend(self, fd: int) -> None:
        if fd == self.pipe:
            self.copy_output()
        elif fd == self.wakeup:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 4096)
        else:
            self.take_order()

    def patience_s(self) -> float:
        """How long nothing needs to be done by itself."""
        if self.walk is not None:
            return 0.02
        gone = self.status.get("tree_gone")
        times = (self.save_again_at, None if gone else self.kill_at, None if gone else self.walk_due)
        return max(0.0, min(due for due in times if due is not None) - time.monotonic())

    def copy_output(self) -> bool:
        """Move one helping from the pipe to the log; False when there is none now."""
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

    # --- leaving --------------------------------------------------------------------------------------------------
    def take_order(self) -> None:
        """Answer one order. Only the service can reach the socket; its silence costs half a second at most."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # what is no order changes nothing
            connection, _ = self.listener.accept()
            with connection:
                connection.settimeout(ORDER_TIMEOUT_S)
                order = json.loads(connection.recv(LONGEST_ORDER))
                connection.sendall(json.dumps(self.answer(order)).encode())

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        ruler = self.ruled_by()
        if order["fencing"] < ruler:
            return {"refused": f"leader {order['fencing']} ordered this, but leader {ruler} rules now"}
        self.fencing = order["fencing"]
        if order["order"] == "leave":
            self.leave(order["grace_s"], order["reason"])
        return {"done": True, "status": self.status}

    def leave(self, grace_s: float, reason: str) -> None:
        """Ask for a pause once; a repetition may shorten the grace, never restart it: of what the command left too."""
        self.reap()
        if self.status.get("tree_gone"):
            return
        self.kill_within(grace_s)
        if "ended_at" not in self.status and not self.status.get("pause_requested"):
            self.request_pause(reason)

    def kill_within(self, grace_s: float) -> None:
        """What is left is killed after this grace, or when an earlier one has passed."""
        kill_at = time.monotonic() + grace_s
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    def request_pause(self, reason: str) -> None:
        """The intention on the disk, the pause file, SIGTERM; an exit before the file existed is not of the pause."""
        self.status.update(pause_intended=True, pause_reason=reason, pause_at=now_ms())
        with contextlib.suppress(OSError):  # a full disk keeps nobody from leaving
            write_record(self.paths.status, self.status)
        self.make_pause_file(reason)
        if self.exited():
            return
        self.status["pause_requested"] = True
        self.terminate()
        self.record()

    def make_pause_file(self, reason: str) -> None:
        with contextlib.suppress(OSError):  # it may exist, or its owner may have closed the folder
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(os.path.basename(self.paths.pause), flags, 0o644, dir_fd=self.run_directory)
            os.write(fd, reason.encode())
            os.close(fd)

    def exited(self) -> bool:
        """Whether the rank's process has ended, without taking note of how."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def terminate(self) -> None:
        """SIGTERM to the session of the rank's process, and SIGCONT, lest it be stopped and deaf."""
        world = processes()
        session = {pid for pid in descendants(os.getpid(), children(world)) if world[pid].session == self.pid}
        for number in (signal.SIGTERM, signal.SIGCONT):
            for pid in session | {self.pid}:
                send(pid, number)

    # --- ending ---------------------------------------------------------------------------------------------------
    def reap(self) -> None:
        """Take note of everything that ended: of the rank's process how, of all else that it is gone."""
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
        """Note how the command ended; what it left behind gets a short grace, or the rest of the pause's."""
        self.status.update(ended_at=now_ms(), exit_status=self.judged(exit_status), completed=self.completed())
        if not has_children():
            return
        self.record()
        if not self.status.get("pause_requested"):
            self.kill_within(LEFTOVER_GRACE_S)
            for pid in descendants(os.getpid()):
                send(pid, signal.SIGTERM)
                send(pid, signal.SIGCONT)

    def judged(self, exit_status: int) -> int | None:
        """The status to tell: too large says so itself, and a machine that stops loses its jobs, fails none."""
        if self.overrun:
            return TOO_LARGE
        stopped = self.machine_stops and not self.status.get("pause_requested")
        return None if stopped and exit_status in (-signal.SIGTERM, -signal.SIGKILL) else exit_status

    def completed(self) -> bool:
        """Whether the job said so: ``complete()``, or progress with done = total."""
        progress = read_untrusted(self.paths.progress) or {}
        done, total = progress.get("done"), progress.get("total")
        return progress.get("completed") is True or (isinstance(done, int) and done == total and done > 0)

    def end_of_tree(self) -> None:
        """Nothing is left: the log is read to its end and the last save is noted before the end is told."""
        for _ in range(MOST_HELPINGS):  # somebody outside the tree may hold the other end, and write for ever
            if not self.copy_output():
                break
        self.log.write(self.mask.rest())
        self.note_last_save()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self.record(tree_gone=True, tree_gone_at=now_ms())

    def kill_if_due(self) -> None:
        """After the grace, kill what is left, again and again: a process in the kernel may take its time to die."""
        if self.kill_at is None or time.monotonic() < self.kill_at or self.status.get("tree_gone"):
            return
        if (cgroup := self.order.get("cgroup")) is not None:
            kill(cgroup)
        kill_all(lambda: descendants(os.getpid()))
        self.kill_at = time.monotonic() + self.kill_again_s
        self.kill_again_s = min(2 * self.kill_again_s, KILL_SELDOM_S)
        self.reap()

    # --- what it writes -------------------------------------------------------------------------------------------
    def measure_if_due(self) -> None:
        """Walk what the job may write to, a few milliseconds at a time."""
        now = time.monotonic()
        if self.walk is None and now >= self.walk_due and not self.status.get("tree_gone"):
            self.walk = self.measure_all(now)
        while self.walk is not None and time.monotonic() < now + 0.01:
            if next(self.walk, self) is self:
                self.walk = None

    def measure_all(self, began: float) -> Iterator[None]:
        outputs, kept, work = Measured(), Measured(), Measured()
        for path, into in ((self.paths.outputs, outputs), (self.paths.checkpoint, kept), (self.paths.work, work)):
            yield from measure(path, into)
        self.note_save(kept)
        self.compare("outputs", outputs, self.order["outputs_limit_bytes"])
        work.size_bytes, work.too_deep = work.size_bytes + kept.size_bytes, work.too_deep or kept.too_deep
        self.compare("work and checkpoint", work, self.order["work_limit_bytes"])
        ended = time.monotonic()
        self.walk_due = ended + max(WATCH_EVERY_S, WATCH_SHARE * (ended - began))

    def note_save(self, kept: Measured) -> None:
        if kept.newest_ms is not None and kept.newest_ms != self.saved_at:
            self.saved_at = kept.newest_ms
            with contextlib.suppress(OSError):
                write_record(self.paths.watch, {"saved_at": self.saved_at}, durable=False)

    def note_last_save(self) -> None:
        """The newest change in the checkpoint folder, if that can be found out in a moment."""
        kept, until = Measured(), time.monotonic() + FINAL_WALK_S
        for _ in measure(self.paths.checkpoint, kept):
            if time.monotonic() > until:
                break
        self.note_save(kept)
        self.status["saved_at"] = self.saved_at

    def compare(self, what: str, found: Measured, limit_bytes: int) -> None:
        """End a job that wrote too much: it failed, and its log says why."""
        if self.overrun or (found.size_bytes <= limit_bytes and not found.too_deep):
            return
        size = "folders nested too deeply to be measured" if found.too_deep else f"{found.size_bytes} bytes"
        self.overrun = True
        self.log.say(f"the job is stopped: its {what} hold {size}, and its limit is {limit_bytes} bytes")
        self.kill_within(OVER_LIMIT_GRACE_S)
        self.terminate()


def named(one: ProcessStat | None) -> dict[str, int | None]:
    """A process as it is told apart on disk: ids are used again, an id with its start is not."""
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
    """The socket for orders, in the control directory we stand in: its whole path may be too long for a socket."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    listener.listen(16)
    listener.settimeout(ORDER_TIMEOUT_S)
    return listener


def watch_signals(supervisor: Supervisor) -> int:
    """End of children wakes the loop; a terminal's signals are not for us; SIGTERM means that the machine stops."""

    def machine_stops(number: int, frame: object) -> None:
        supervisor.machine_stops = True

    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGTERM, machine_stops)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return reader


def ring(wake: str | None) -> None:
    """Wake the controller, if it listens; nothing depends on it."""
    if wake is None:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.setblocking(False)
        folder = os.open(os.path.dirname(wake), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            bell.sendto(b"r", f"/proc/self/fd/{folder}/{os.path.basename(wake)}")
        finally:
            os.close(folder)


def detach(control: str) -> None:
    """Become a child of nobody, in the control directory, with no terminal and no open file of the service."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir(control)
    null = os.open(os.devnull, os.O_RDWR)
    trouble = os.open("trouble", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (null, 1), (trouble, 2)):
        os.dup2(source, target)


def main() -> None:
    """Supervise the rank that is ordered, unless it is, or was, supervised already."""
    text = sys.stdin.buffer.read()
    if not text:
        return
    order: RankOrder = json.loads(text)
    paths = rank_paths(order["state_dir"], order["job"], order["attempt"], order["rank"])
    detach(paths.control)
    guard = go_on_below_a_guard()
    with held_lock(paths.lock) as ours:
        if ours and "claimed_at" not in (read_record(paths.status) or {}):
            adopt_orphans()
            Supervisor(order, paths, guard).run()
    if guard is not None and os.getppid() == guard.pid:
        send(guard.pid, signal.SIGCONT)  # a job under our own account can have stopped it
