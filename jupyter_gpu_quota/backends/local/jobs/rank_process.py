"""The rank's own process, from fork to exec: a session of its own, the submitter's rights, and nothing of the service.

It is told everything by one order, a JSON object (``RankOrder``), and answers only by its exit status: 126 if the
command could not be run, 127 if there is no such command; the sentence that says why stands in the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pwd
import resource
import signal
from typing import NamedTuple, NoReturn, NotRequired, TypedDict

from ..enforcement.cgroup_entry import join
from ..host.processes import take_mark
from .paths import CODE_DIRECTORY, RankPaths

CANNOT_RUN = 126
NO_SUCH_COMMAND = 127

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class RankOrder(TypedDict):
    """What a supervisor is told on its standard input. ``bundle`` is the path of the code, ``account`` a name.

    ``cgroup`` is the control group that the rank begins in, if it has one. Sizes are bytes.
    ``secrets`` are never written to a disk by us.
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
    cgroup: NotRequired[str | None]


class Account(NamedTuple):
    """Whose rights a rank runs with. ``drops``: they are not the supervisor's own."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    drops: bool


class NotRunnable(Exception):
    """The command cannot be run; the message is a sentence for its owner."""


def account_of(name: str | None) -> Account:
    """The account a rank runs under. Where we are not root there is only our own. Raises NotRunnable."""
    if name is None or os.getuid() != 0:
        return _own_account()
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise NotRunnable(f"there is no account {name!r} on this machine, so the job cannot run as it") from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir, entry.pw_shell, entry.pw_uid != 0)


def _own_account() -> Account:
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # a container may run under a bare number
        return Account(str(uid), uid, os.getgid(), "/", "/bin/sh", False)
    return Account(entry.pw_name, uid, os.getgid(), entry.pw_dir, entry.pw_shell, False)


def prepare_directories(paths: RankPaths, account: Account) -> None:
    """Make what the rank needs. Parents stay ours, so that the account cannot replace its folders by links."""
    job = os.path.dirname(paths.work)
    for shared in (job, os.path.join(job, "run"), os.path.dirname(paths.run)):
        _make(shared, 0o711)
    for own in (paths.run, paths.work, paths.checkpoint, paths.outputs):
        if _make(own, 0o700) and account.drops:
            os.chown(own, account.uid, account.gid, follow_symlinks=False)


def _make(path: str, mode: int) -> bool:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    os.chmod(path, mode)
    return True


def adopt_orphans() -> None:
    """Become the process that descendants are handed to when their parents die, so that none gets away."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel does not let a process adopt orphans")


def launch(order: RankOrder, paths: RankPaths, account: Account, output: int, mark: int) -> int:
    """Fork the rank's process, its output going to ``output``, under a mark. Returns its process id."""
    supervisor = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the child has its own answer to it
    pid = os.fork()
    if pid == 0:
        take_mark(mark)
        _become_the_command(order, paths, account, output, supervisor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return pid


def _become_the_command(order: RankOrder, paths: RankPaths, account: Account, output: int, supervisor: int) -> NoReturn:
    try:
        _stand_alone(output)
        _join(order.get("cgroup"))
        code = _open_code(order, paths)
        _drop_to(account)
        _die_with(supervisor)
        _enter(order, paths, account, code)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.execvpe(order["command"][0], order["command"], _environment(order, account))  # noqa: S606 - it is the purpose
    except FileNotFoundError:
        _give_up(f"there is no command {order['command'][0]!r} in PATH or at that path", NO_SUCH_COMMAND)
    except BaseException as error:  # noqa: BLE001 - a forked copy of the supervisor must never go on as one
        _give_up(str(error) if isinstance(error, NotRunnable) else f"{order['command'][0]!r}: {error}", CANNOT_RUN)


def _give_up(why: str, status: int) -> NoReturn:
    os.write(2, f"[jupyter-gpu-quota] the command was not run: {why}\n".encode(errors="replace"))
    os._exit(status)


def _stand_alone(output: int) -> None:
    """A session of its own, /dev/null as input, signals and limits as a shell would give them."""
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


def _join(cgroup: str | None) -> None:
    """Enter the rank's control group; who cannot begins outside, and is seen to be there."""
    if cgroup is not None:
        with contextlib.suppress(OSError):
            join(cgroup)


def _drop_to(account: Account) -> None:
    """Give every right of the supervisor away for good."""
    if not account.drops:
        return
    os.initgroups(account.name, account.gid)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise NotRunnable(f"the rights of {account.name} could not be taken on")


def _die_with(supervisor: int) -> None:
    """Be killed when the supervisor dies. Set after the drop, which clears it; the parent is checked for the gap."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(CANNOT_RUN)


def _open_code(order: RankOrder, paths: RankPaths) -> int | None:
    """The bundle, opened with the service's rights; None if there is none or an earlier attempt unpacked it."""
    if order["bundle"] is None or os.path.lexists(os.path.join(paths.work, CODE_DIRECTORY)):
        return None
    # Imported here: the supervisor stays small, and the account may not be able to read the library.
    from .... import bundle  # noqa: F401

    try:
        return os.open(order["bundle"], os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotRunnable(f"its code bundle cannot be read: {error.strerror}") from error


def _enter(order: RankOrder, paths: RankPaths, account: Account, code: int | None) -> None:
    """Go where the command runs: the unpacked code, or a folder of the submitter's home for a live job."""
    if code is not None:
        _unpack(code, order, paths, account)
    if order["live"]:
        place = os.path.join(account.home, order["directory"])
    elif order["bundle"] is not None:
        place = os.path.join(paths.work, CODE_DIRECTORY, order["directory"])
    else:
        place = os.path.join(paths.work, order["directory"])
    try:
        os.chdir(place)
    except OSError as error:
        raise NotRunnable(_why_closed(place, account, error)) from error


def _unpack(code: int, order: RankOrder, paths: RankPaths, account: Account) -> None:
    """Unpack the code where this and later attempts find it."""
    from ....bundle import BundleLimits, BundleRefused, unpack_whole

    limits = BundleLimits(packed_bytes=order["work_limit_bytes"], unpacked_bytes=order["work_limit_bytes"])
    temporary = os.path.join(paths.work, f".unpack-{order['attempt']}-{order['rank']}")
    try:
        with os.fdopen(code, "rb") as file:
            unpack_whole(file, os.path.join(paths.work, CODE_DIRECTORY), temporary, limits)
    except BundleRefused as error:
        raise NotRunnable(f"its code bundle cannot be unpacked: {error}") from error
    except OSError as error:
        raise NotRunnable(_why_closed(paths.work, account, error)) from error


def _why_closed(place: str, account: Account, error: OSError) -> str:
    closed = closed_ancestor(place)
    if error.errno == errno.EACCES and closed is not None:
        return (
            f"{place} cannot be entered by {account.name}, because {closed} is closed to it; open it, or move state_dir"
        )
    return f"{place}: {error.strerror}"


def closed_ancestor(place: str) -> str | None:
    """The topmost folder on the way to ``place`` that this process may not pass through; None if all are open."""
    parts = os.path.abspath(place).split(os.sep)
    prefixes = (os.sep.join(parts[:number]) or os.sep for number in range(1, len(parts) + 1))
    return next((prefix for prefix in prefixes if os.path.isdir(prefix) and not os.access(prefix, os.X_OK)), None)


def _environment(order: RankOrder, account: Account) -> dict[str, str]:
    who = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell or "/bin/sh"}
    return {**who, **order["environment"], **order["secrets"]}
