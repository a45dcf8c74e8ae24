"""Loopback ports for servers that start later. Two programs of this package never get the same port.

A port that the kernel picks is in the range of outgoing connections, which may take it before the server starts. These
ports are below that range. The search starts at a seed, so that a deployment usually gets the same ports again.

A reservation is a socket in Linux's abstract namespace, named for the port: it is exclusive on the machine, it does not
touch the port itself, and the kernel removes it when its process ends in any way.
"""

from __future__ import annotations

import contextlib
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

FIRST = 20_000
LAST = 32_000
MIN_CANDIDATES = 1_000
"""With fewer ports than this below the range of outgoing connections, that range is not respected."""

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ReservedPort:
    """A free port that no other reservation has, until ``release`` or the end of this process."""

    def __init__(self, port: int, holder: socket.socket) -> None:
        self.port, self._holder = port, holder

    def release(self) -> None:
        """Release the port; a repeated call has no effect."""
        self._holder.close()


def reserve_ports(seed: str, count: int = 1, *, taken: frozenset[int] = frozenset()) -> list[ReservedPort]:
    """Reserve ``count`` free ports, none of ``taken``; raises OSError if there are fewer."""
    found: list[ReservedPort] = []
    for port in _candidates(seed):
        if len(found) == count:
            break
        if port not in taken and (reserved := _reserve(port)):
            found.append(reserved)
    if len(found) < count:
        for each in found:
            each.release()
        raise OSError(f"no {count} free ports between {FIRST} and {LAST} on the loopback")
    return found


def free_ports(seed: str, count: int = 1, *, taken: frozenset[int] = frozenset()) -> list[int]:
    """``count`` ports that are free and not reserved now; raises OSError if there are fewer."""
    reserved = reserve_ports(seed, count, taken=taken)
    for each in reserved:
        each.release()
    return [each.port for each in reserved]


def _candidates(seed: str) -> Iterator[int]:
    last = LAST
    with contextlib.suppress(OSError, ValueError, IndexError):
        first_ephemeral = int(EPHEMERAL.read_text().split()[0])
        last = min(LAST, first_ephemeral) if first_ephemeral >= FIRST + MIN_CANDIDATES else LAST
    begin = zlib.crc32(seed.encode()) % (last - FIRST)
    yield from range(FIRST + begin, last)
    yield from range(FIRST, FIRST + begin)


def _reserve(port: int) -> ReservedPort | None:
    """Reserve a port if it is free. It is reserved before the check, so that no other server of ours takes it then."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0jupyter-gpu-quota-port-{port}")
    except OSError:
        holder.close()
        return None
    if not _is_free(port):
        holder.close()
        return None
    return ReservedPort(port, holder)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
