"""The rank's own process, from fork to exec: its session, the submitter's account, its code and its variables.

Its only input is one order, a JSON object (``RankOrder``). Its exit status is 126 if the command could not be run, 127
if there is no such command; the log has the reason. A failure of the machine that may pass is sent to the supervisor,
and the rank is lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import resource
import signal
from typing import NamedTuple, NoReturn, NotRequired, TypedDict

from ...job_files.folders import PASSABLE, make_folder
from ...job_files.lost_starts import is_temporary
from ...job_files.paths import RankPaths
from ..enforcement.cgroup_entry import join
from ..host.processes import die_with_parent, take_mark
from ..host.provenance import write_provenance

CANNOT_RUN = 126
NO_SUCH_COMMAND = 127


class RankOrder(TypedDict):
    """The order on a supervisor's standard input. ``bundle`` is the path of the code, ``account`` a name.

    ``cgroup`` is the path of the cgroup that the rank starts in, if it has one. ``secrets`` are written to no disk.
    ``ranks`` and ``placements`` (rank, device, milli-GPU, MiB) are those of the whole attempt; the status has them too.
    """

    state_dir: str
    job: str
    attempt: int
    rank: int
    fencing: int
    account: str | None
    command: list[str]
    environment: dict[str, str]
    secrets: dict[str, str]
    directory: str
    live: bool
    bundle: str | None
    wake: str | None
    log_limit_bytes: int
    outputs_limit_bytes: int
    work_limit_bytes: int
    ranks: int
    placements: list[tuple[int, str, int, int]]
    cgroup: NotRequired[str | None]


class Account(NamedTuple):
    """The account that a rank runs under. ``is_other``: it is not the supervisor's own."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    is_other: bool


class NotRunnable(Exception):
    """The command cannot be run; the message is a sentence for its owner."""


class NoCode(NotRunnable):
    """The bundle is gone. It may be restored, and the controllers give the next attempt no start order without it."""


class NoAccount(NotRunnable):
    """The system does not know the account now: a directory service that is down looks the same as no account."""


class Pipes(NamedTuple):
    """The writing ends of a rank's pipes: its output, and the failure of the machine that prevented its command."""

    output: int
    failure: int


def account_of(name: str | None) -> Account:
    """The account a rank runs under: without root always the service's own. Raises NotRunnable."""
    uid = os.getuid()
    if name is None or uid != 0:
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:  # a container may run under a number without an account
            return Account(str(uid), uid, os.getgid(), "/", "/bin/sh", False)
        return Account(entry.pw_name, uid, os.getgid(), entry.pw_dir, entry.pw_shell, False)
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise NoAccount(f"there is no account {name!r} on this machine, so the job cannot run as it") from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir, entry.pw_shell, entry.pw_uid != 0)


def prepare_directories(paths: RankPaths, account: Account) -> None:
    """Make the folders of a rank. Their parents belong to the service, so the account cannot replace them by links."""
    job = os.path.dirname(paths.work)
    for shared in (job, os.path.join(job, "run"), os.path.dirname(paths.run)):
        make_folder(shared, PASSABLE)
    for own in (paths.run, paths.work, paths.checkpoint, paths.outputs):
        make_folder(own, 0o700)
        if account.is_other and os.lstat(own).st_uid != account.uid:  # also after a kill between the two steps
            os.chown(own, account.uid, account.gid, follow_symlinks=False)


def launch(order: RankOrder, paths: RankPaths, account: Account, pipes: Pipes, mark: int) -> int:
    """Fork the rank's process, with its pipes, under a mark. Returns its process id."""
    supervisor = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the child has its own handler
    pid = os.fork()
    if pid == 0:
        take_mark(mark)
        _exec(order, paths, account, pipes, supervisor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return pid


def _exec(order: RankOrder, paths: RankPaths, account: Account, pipes: Pipes, supervisor: int) -> NoReturn:
    program = order["command"][0]
    try:
        _detach(pipes.output)
        if (cgroup := order.get("cgroup")) is not None:
            with contextlib.suppress(OSError):  # then it starts outside the cgroup, and the read-back shows that
                join(cgroup)
        code = _open_code(order, paths)
        provenance = _open_provenance(paths) if order["rank"] == 0 else None
        _drop_to(account)
        if not die_with_parent(supervisor, signal.SIGKILL):  # after the change of account, which clears it
            os._exit(CANNOT_RUN)
        _enter_directory(order, paths, account, code)
        if provenance is not None:
            with contextlib.suppress(Exception):  # the job runs without it
                write_provenance(provenance, order["command"], order["environment"])
        os.closerange(3, pipes.failure)
        os.closerange(pipes.failure + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.execvpe(program, order["command"], _environment(order, account))  # noqa: S606 - it is the purpose
    except FileNotFoundError:
        _exit(f"there is no command {program!r} in PATH or at that path{_advice(program)}", NO_SUCH_COMMAND)
    except BaseException as error:  # noqa: BLE001 - this fork must never run the code of a supervisor
        why = str(error) if isinstance(error, NotRunnable) else f"{program!r}: {error}"
        if is_temporary(error) or isinstance(error, NoCode):
            os.write(pipes.failure, why.encode(errors="replace"))
        _exit(why, CANNOT_RUN)


def _advice(program: str) -> str:
    """Advice for a whole line that was submitted as one word; empty for any other program."""
    if len(program.split()) < 2:
        return ""
    return "; submit its words without quotes around them, or run `sh -c` with this line"


def _exit(why: str, status: int) -> NoReturn:
    os.write(2, f"[jupyter-gpu-quota] the command was not run: {why}\n".encode(errors="replace"))
    os._exit(status)


def _detach(output: int) -> None:
    """Set a session of its own, /dev/null as input, and the signals and limits that a shell would set."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _drop_to(account: Account) -> None:
    """Change to the account and keep none of the supervisor's rights."""
    if not account.is_other:
        return
    os.initgroups(account.name, account.gid)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise NotRunnable(f"the account cannot be changed to {account.name}")


def _open_code(order: RankOrder, paths: RankPaths) -> int | None:
    """The bundle, opened with the service's rights; None without one, or if an earlier attempt unpacked it."""
    if order["bundle"] is None or os.path.lexists(paths.code):
        return None
    # Imported here: the supervisor stays small, and the job's account may not be able to read the package.
    from .... import bundle  # noqa: F401

    try:
        return os.open(order["bundle"], os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        kind = NoCode if isinstance(error, FileNotFoundError) else NotRunnable
        raise kind(f"its code bundle cannot be read: {error.strerror}") from error


def _open_provenance(paths: RankPaths) -> int | None:
    """A new file that the job's account cannot open again; None where it cannot be made."""
    with contextlib.suppress(OSError):
        return os.open(paths.provenance, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    return None


def _enter_directory(order: RankOrder, paths: RankPaths, account: Account, code: int | None) -> None:
    """Change to the directory of the command: in the unpacked code, or in the submitter's home for a live job."""
    if code is not None:
        _unpack(code, order, paths, account)
    top = account.home if order["live"] else paths.work if order["bundle"] is None else paths.code
    directory = os.path.join(top, order["directory"])
    try:
        os.chdir(directory)
    except OSError as error:
        raise NotRunnable(_why_closed(directory, account, error)) from error


def _unpack(code: int, order: RankOrder, paths: RankPaths, account: Account) -> None:
    """Unpack the code for this and later attempts."""
    from ....bundle import BundleLimits, BundleRefused, unpack_whole

    limits = BundleLimits(packed_bytes=order["work_limit_bytes"], unpacked_bytes=order["work_limit_bytes"])
    temporary = os.path.join(paths.work, f".unpack-{order['attempt']}-{order['rank']}")
    try:
        with os.fdopen(code, "rb") as file:
            unpack_whole(file, paths.code, temporary, limits)
    except BundleRefused as error:
        raise NotRunnable(f"its code bundle cannot be unpacked: {error}") from error
    except OSError as error:
        raise NotRunnable(_why_closed(paths.work, account, error)) from error


def _why_closed(path: str, account: Account, error: OSError) -> str:
    closed = closed_ancestor(path)
    if error.errno == errno.EACCES and closed is not None:
        return (
            f"{path} cannot be entered by {account.name}, because {closed} is closed to it; open it, or move state_dir"
        )
    return f"{path}: {error.strerror}"


def closed_ancestor(path: str) -> str | None:
    """The topmost folder on the way to a path that this process may not enter; None if all are open."""
    parts = os.path.abspath(path).split(os.sep)
    prefixes = (os.sep.join(parts[:number]) or os.sep for number in range(1, len(parts) + 1))
    return next((prefix for prefix in prefixes if os.path.isdir(prefix) and not os.access(prefix, os.X_OK)), None)


def _environment(order: RankOrder, account: Account) -> dict[str, str]:
    own = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell or "/bin/sh"}
    return {**own, **order["environment"], **order["secrets"]}
