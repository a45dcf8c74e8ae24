"""The hub-managed service: a small process that listens at the API's address and keeps API and controllers running.

It imports very little, so it starts at once. While the API process restarts, connections wait in the socket's backlog;
none is refused. Circus and Supervisor check whether a process exists, not whether it sends heartbeats, and each needs
more memory and configuration than these modules.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlparse

from ..backends.job_files.folders import make_passable
from .child import ChildProcess
from .pid_file import Service, process_of, read_pid_file, remove_pid_file, take_over, write_pid_file

log = logging.getLogger(__name__)

API, CONTROLLER = "api", "controller"
DEFAULT_URL = "http://127.0.0.1:0"
DEFAULT_STATE_DIR = "jupyter_gpu_quota_state"
SETTINGS_VARIABLE = "JUPYTER_GPU_QUOTA_SETTINGS"
"""``settings`` also defines these three, but imports a large library; a test compares the values."""

SET_STATE_DIR = "Set c.GPUQuota.state_dir to a folder that this account may write to."
SET_RUN_DIR = "Set c.GPUQuota.run_dir to a folder of this machine that this account may write to."
BACKLOG = 512
STOP_TIMEOUT_S = 4.0
"""The hub kills its service 5 s after SIGTERM."""

LATE_WAKEUP_S = 1.0
"""A supervisor that wakes up this late was stopped with its machine: it restarts all heartbeat timeouts."""


class CannotServe(Exception):
    """The service cannot be started as it is configured; the message says what to change."""


def main(only: str | None = None) -> int:
    """Run API and controllers, or one of them, until SIGTERM. Settings come from the environment of the service."""
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s supervisor] %(message)s")
    state_dir, run_dir = folders_of(os.environ)
    try:
        make_folders(state_dir, run_dir)
        take_over(run_dir)
        sockets = (
            listening_sockets(os.environ.get("JUPYTERHUB_SERVICE_URL") or DEFAULT_URL) if only != CONTROLLER else []
        )
    except CannotServe as error:
        log.error("%s", error)
        remove_pid_file(run_dir)
        return 1
    try:
        ServiceSupervisor(run_dir, service_children(sockets, only), sockets).run()
    finally:
        remove_pid_file(run_dir)
    return 0


def folders_of(environment: Mapping[str, str]) -> tuple[Path, Path]:
    """The state folder, and that of the pid file; the child processes read and validate all other settings."""
    try:
        settings = json.loads(environment.get(SETTINGS_VARIABLE, "{}"))
        state_dir = Path(settings["state_dir"])
        return state_dir, Path(settings.get("run_dir") or state_dir)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Path(DEFAULT_STATE_DIR), Path(DEFAULT_STATE_DIR)


def make_folders(state_dir: Path, run_dir: Path) -> None:
    """Make the state folder and that of the pid file. Raises CannotServe."""
    try:
        make_passable(state_dir)
    except OSError as error:
        why = f"The state folder {state_dir} cannot be made: {error.strerror}. {SET_STATE_DIR}"
        raise CannotServe(why) from error
    try:
        make_passable(run_dir)
    except OSError as error:
        why = f"The folder {run_dir} of the pid file cannot be made: {error.strerror}. {SET_RUN_DIR}"
        raise CannotServe(why) from error


def listening_sockets(url: str) -> list[socket.socket]:
    """The sockets that listen at the address of a URL. Raises CannotServe where that is not possible."""
    place = urlparse(url)
    try:
        kinds = socket.getaddrinfo(
            place.hostname or None, place.port or 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets = [one for kind in dict.fromkeys(kinds) if (one := _listen_at(kind[0], kind[4]))]
    except (OSError, ValueError) as error:
        raise CannotServe(_address_error(url, error)) from error
    if not sockets:
        raise CannotServe(_address_error(url, OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))))
    log.info("listening at %s", place.netloc)
    return sockets


def _listen_at(family: int, address: tuple[object, ...]) -> socket.socket | None:
    """One listening socket; None for an IPv6 address on a machine without IPv6."""
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        if family == socket.AF_INET6 and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise


def _address_error(url: str, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"Another process listens at {url}, where the GPU quota service should. "
            "Set c.GPUQuota.service_url to a free address such as http://127.0.0.1:10901, or end that process."
        )
    why = error.strerror if isinstance(error, OSError) else error
    return (
        f"The GPU quota service cannot listen at {url}: {why}. "
        "Set c.GPUQuota.service_url to a free address of this machine such as http://127.0.0.1:10901."
    )


def service_children(sockets: Sequence[socket.socket], only: str | None = None) -> list[ChildProcess]:
    """The API process, which inherits the sockets, and the controllers' process; or one of them."""
    command = [sys.executable, "-m", "jupyter_gpu_quota"]
    fds = [each.fileno() for each in sockets]
    listening = ["--listening", ",".join(map(str, fds)), *(["--external-controllers"] if only else [])]
    children = [ChildProcess(API, [*command, API, *listening], fds), ChildProcess(CONTROLLER, [*command, CONTROLLER])]
    return [each for each in children if only in (None, each.name)]


class ServiceSupervisor:
    """Starts children that do not run, kills children without heartbeats, and stops all on SIGTERM or SIGINT."""

    def __init__(
        self, state_dir: Path, children: Sequence[ChildProcess], sockets: Sequence[socket.socket] = ()
    ) -> None:
        self._state_dir, self._children, self._sockets = state_dir, children, sockets
        self._is_stopping, self._recorded = False, True
        self._identity = process_of(os.getpid())
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    def run(self) -> None:
        """Run until a signal comes, then stop all children in bounded time."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._signalled)
        while not self._is_stopping:
            now = time.monotonic()
            for child in self._children:
                child.update(now)
            self._update_pid_file()
            self._wait()
        self._stop_children()

    def _signalled(self, number: int, frame: object) -> None:
        self._is_stopping |= number != signal.SIGCHLD

    def _update_pid_file(self) -> None:
        """Compare the pid file with the running processes, and write it again where they differ."""
        children = {child.name: child.identity for child in self._children if child.identity is not None}
        if read_pid_file(self._state_dir) == Service(self._identity, children):
            self._recorded = True
            return
        before, self._recorded = self._recorded, write_pid_file(self._state_dir, children)
        if before and not self._recorded:
            log.error(
                "the pid file in %s cannot be written: a later service would not find these processes", self._state_dir
            )

    def _wait(self) -> None:
        """Sleep until a heartbeat or a signal arrives, or a child needs an update."""
        before, due_at = time.monotonic(), min(child.due_at() for child in self._children)
        heartbeats = {child.heartbeat: child for child in self._children if child.heartbeat is not None}
        sleep_s = None if due_at == float("inf") else max(0.0, due_at - before)
        readable, _, _ = select.select([self._woken, *heartbeats], [], [], sleep_s)
        now = time.monotonic()
        if self._woken in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        for each in readable:
            if each in heartbeats:
                heartbeats[each].read_heartbeats(now)
        if sleep_s is not None and now - before - sleep_s > LATE_WAKEUP_S:
            for child in self._children:
                child.restart_timeout(now)

    def _stop_children(self) -> None:
        for listening in self._sockets:
            listening.close()
        for child in self._children:
            child.request_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in self._children:
            child.stop_within(deadline - time.monotonic())
