"""The process of each notebook's server on this machine, as the hub recorded it when it started.

    <state_dir>/servers/<notebook>.json     {"pid", "started", "boot", "uid", "user_namespace"}

Only the hub and the service can write to this folder, so its records are evidence against forged variables.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ...job_files.record_files import read_record, write_record
from ...rendering.variables import SHARE_VARIABLE
from .processes import boot_id, is_same_process, process, user_of, variables_of

_ID = re.compile(r"[0-9A-Za-z_-]{1,128}\Z")

OVERFLOW = Path("/proc/sys/kernel/overflowuid")
"""The uid that the kernel shows for a user without a uid in this namespace."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user of a process: the uid in this namespace, and the user namespace of the process."""

    uid: int
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The first process of a notebook's server, with its start in clock ticks, and its account."""

    pid: int
    started: int
    account: Account


class Servers:
    """The recorded servers of one state folder."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self._state_dir = Path(state_dir)
        self._folder = self._state_dir / "servers"

    @property
    def is_complete(self) -> bool:
        """Whether every server is recorded: a hub that uses accounts runs as root, and records each."""
        return os.geteuid() == 0

    def record_start(self, notebook: str, pid: int) -> str:
        """Record the process of a server that started. Returns why that failed; empty where it is recorded."""
        found, account = process(pid), account_of(pid)
        if found is None or account is None or not _ID.match(notebook):
            return f"process {pid} is not there"
        try:
            self._state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_record(
                str(self._path(notebook)),
                {
                    "pid": pid, "started": found.started, "boot": boot_id(), "uid": account.uid,
                    "user_namespace": account.namespace,
                },
                durable=False,  # no process survives a reboot
            )  # fmt: skip
        except OSError as error:
            return str(error)
        return ""

    def record_running(self, notebook: str, pid: int) -> None:
        """Record a server that is older than the hub, unless it is recorded or is of another notebook."""
        if self.of(notebook) is None and f'"{notebook}"' in (variables_of(pid) or {}).get(SHARE_VARIABLE, ""):
            self.record_start(notebook, pid)

    def forget(self, notebook: str) -> None:
        """Remove the record of a server that ended, if there is one."""
        with contextlib.suppress(OSError):
            self._path(notebook).unlink(missing_ok=True)

    def of(self, notebook: str) -> Server | None:
        """The server that was recorded for a notebook since the machine started."""
        if not _ID.match(notebook):
            return None
        try:
            record = read_record(str(self._path(notebook))) or {}
            account = Account(int(record["uid"]), str(record["user_namespace"]))
            server = Server(pid=int(record["pid"]), started=int(record["started"]), account=account)
        except (OSError, LookupError, TypeError, ValueError):
            return None
        return server if record.get("boot") == boot_id() else None

    def sweep(self, kept: frozenset[str]) -> None:
        """Remove the records, other than ``kept``, whose server is gone: a hub that was killed leaves such records."""
        try:
            names = {path.stem for path in self._folder.iterdir() if path.suffix == ".json"}
        except OSError:
            return
        for name in names - kept:
            server = self.of(name)
            if server is None or not is_same_process(server.pid, server.started):
                self.forget(name)

    def _path(self, notebook: str) -> Path:
        return self._folder / f"{notebook}.json"


def account_of(pid: int) -> Account | None:
    """The account of a process; None where it cannot be read, or where its user has no uid in this namespace."""
    uid = user_of(pid)
    try:
        overflow_uid = int(OVERFLOW.read_text())
        namespace = os.readlink(f"/proc/{pid}/ns/user")
    except (OSError, ValueError):
        return None
    return None if uid is None or uid == overflow_uid else Account(uid, namespace)
