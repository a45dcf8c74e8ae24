"""Which process of this machine is a notebook's server, as the hub saw it begin; what processes say is held against it.

    <state_dir>/servers/<notebook>.json     {"pid", "started", "boot", "uid", "user_namespace"}

The folder is the hub's and the service's alone: what stands in it nobody else can have written.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from .processes import boot_id, is_same_process, process
from .record_files import read_record, write_record

_ID = re.compile(r"[0-9A-Za-z_-]{1,128}\Z")

OVERFLOW = Path("/proc/sys/kernel/overflowuid")
"""Who a process seems to be whose user has no number here: anybody."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whose a process is: the number of its user as it is known here, and the user namespace that it is in."""

    uid: int
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The first process of a notebook's server, with its start in clock ticks, and whose it is."""

    pid: int
    started: int
    account: Account


class Servers:
    """The records of one state folder."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        self._state_dir = Path(state_dir)
        self._folder = self._state_dir / "servers"

    @property
    def are_all(self) -> bool:
        """Whether a server that is not recorded is none: a hub that gives accounts runs as root, and records each."""
        return os.geteuid() == 0

    def note(self, notebook: str, pid: int) -> str:
        """Record the process of a server that has begun. Returns why it could not be; empty where it is recorded."""
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
                durable=False,  # no process outlives a machine that goes down
            )  # fmt: skip
        except OSError as error:
            return str(error)
        return ""

    def forget(self, notebook: str) -> None:
        """Remove the record of a server that ended; one that is not there is fine."""
        with contextlib.suppress(OSError):
            self._path(notebook).unlink(missing_ok=True)

    def of(self, notebook: str) -> Server | None:
        """The server that was recorded for a notebook; None where none was since the machine started."""
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
        """Remove the records of notebooks that are over and whose server is gone: a hub that was killed left them."""
        for name in self._names():
            server = None if name in kept else self.of(name)
            if name not in kept and (server is None or not is_same_process(server.pid, server.started)):
                self.forget(name)

    def _names(self) -> list[str]:
        try:
            return [path.stem for path in self._folder.iterdir() if path.suffix == ".json"]
        except OSError:
            return []

    def _path(self, notebook: str) -> Path:
        return self._folder / f"{notebook}.json"


def account_of(pid: int) -> Account | None:
    """Whose a process is; None where that is not told, or where its user has no number here."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
        uid = next(int(line.split()[2]) for line in lines if line.startswith(b"Uid:"))
        nameless = int(OVERFLOW.read_text())
        namespace = os.readlink(f"/proc/{pid}/ns/user")
    except (OSError, StopIteration, ValueError):
        return None
    return None if uid == nameless else Account(uid, namespace)
