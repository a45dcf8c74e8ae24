"""Free loopback ports for servers that start later.

A port that the kernel picks is in the range of outgoing connections, which may take it before the server starts. These
ports are below that range. The search starts at a seed, so that a deployment usually gets the same ports again.
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
    """``count`` free ports, none of ``taken``; raises OSError if there are fewer."""
    found = list(islice((port for port in _candidates(seed) if port not in taken and _is_free(port)), count))
    if len(found) < count:
        raise OSError(f"no {count} free ports between {FIRST} and {LAST} on the loopback")
    return found


def _candidates(seed: str) -> Iterator[int]:
    last = LAST
    with contextlib.suppress(OSError, ValueError, IndexError):
        last = max(FIRST + 1, min(LAST, int(EPHEMERAL.read_text().split()[0])))
    begin = zlib.crc32(seed.encode()) % (last - FIRST)
    yield from range(FIRST + begin, last)
    yield from range(FIRST, FIRST + begin)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
