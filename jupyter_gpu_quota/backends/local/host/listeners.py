"""The processes of this machine that listen on a TCP port, from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import Enum, auto
from ipaddress import IPv4Address
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENS = "0A"
"""The kernel's state of a socket that listens."""


class Listener(Enum):
    """The process that listens: none, one of the given processes, another one; unknown if /proc cannot be read."""

    NONE = auto()
    OWN = auto()
    FOREIGN = auto()
    UNKNOWN = auto()


def find_listener(ip: str, port: int, own: Callable[[], set[int]]) -> Listener:
    """Whether one of the processes ``own()`` listens on this port, at this address or at every address."""
    try:
        sockets = set(_listening_sockets(ip, port))
    except OSError:
        return Listener.UNKNOWN
    if not sockets:
        return Listener.NONE
    try:
        return Listener.OWN if any(sockets & _sockets_of(pid) for pid in own()) else Listener.FOREIGN
    except PermissionError:
        return Listener.UNKNOWN


def _listening_sockets(ip: str, port: int) -> Iterator[str]:
    """The sockets as the links of /proc/<pid>/fd show them. Raises OSError without /proc/net."""
    addresses = _addresses(ip)
    for table in TABLES:
        if table.name == "tcp6" and not table.exists():
            continue  # a kernel without IPv6
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            address, _, number = fields[1].rpartition(":")
            if fields[3] == LISTENS and int(number, 16) == port and (addresses is None or address in addresses):
                yield f"socket:[{fields[9]}]"


def _addresses(ip: str) -> frozenset[str] | None:
    """The addresses, as the kernel prints them, that a socket at ``ip`` conflicts with; None for every address."""
    try:
        number = int.from_bytes(IPv4Address(ip).packed, "little")
    except ValueError:
        return None
    mapped = f"0000000000000000FFFF0000{number:08X}"
    return None if number == 0 else frozenset({f"{number:08X}", mapped, "0" * 8, "0" * 32})


def _sockets_of(pid: int) -> set[str]:
    """Raises PermissionError where this process may not read them; a process that ended has none."""
    folder, found = f"/proc/{pid}/fd", set[str]()
    try:
        for name in os.listdir(folder):
            found.add(os.readlink(f"{folder}/{name}"))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found
