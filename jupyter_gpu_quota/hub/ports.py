"""Ports of the loopback that will still be free in a moment.

A port that the kernel picks lies in the range from which every outgoing connection takes its own, and a server that
starts later may get the same one. So ours lie below that range, and start where a seed says: stable between starts,
different for different deployments.
"""

from __future__ import annotations

import contextlib
import socket
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

FIRST = 20_000
LAST = 32_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(seed: str, count: int = 1, *, taken: frozenset[int] = frozenset()) -> list[int]:
    """``count`` ports on which nothing listens now, none of ``taken``; raises OSError where there are not so many."""
    found = list(islice((port for port in _from(seed) if port not in taken and _is_free(port)), count))
    if len(found) < count:
        raise OSError(f"no {count} free ports between {FIRST} and {LAST} on the loopback")
    return found


def _from(seed: str) -> Iterator[int]:
    last = max(FIRST + 1, min(LAST, _first_ephemeral()))
    begin = zlib.crc32(seed.encode()) % (last - FIRST)
    yield from range(FIRST + begin, last)
    yield from range(FIRST, FIRST + begin)


def _first_ephemeral() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(EPHEMERAL.read_text().split()[0])
    return LAST


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
