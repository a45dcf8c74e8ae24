"""Wakeups between processes of one machine: a datagram to the socket at a path, without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Self

MAX_ADDRESS = 100
"""Bytes that fit every kernel's socket address (108 on Linux); longer paths go through their open folder."""

MAX_PAYLOAD = 4096
MAX_AT_ONCE = 1000
"""Datagrams read in one call, so that a flood cannot occupy the reader."""


class WakeupSocket:
    """A Unix datagram socket at a path; only this account may write to it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Bind the path, also where another process has bound it. Raises OSError for a missing or foreign folder."""
        self.path, self._socket = Path(path), _datagram_socket()
        try:
            with _address(self.path) as address:
                self.path.unlink(missing_ok=True)
                self._socket.bind(address)
            self.path.chmod(0o600)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The descriptor that becomes readable with a wakeup."""
        return self._socket.fileno()

    def wait(self, timeout_s: float) -> bool:
        """Block until a wakeup arrives or the time is over; reads all. Returns whether any arrived."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        waiting.poll(max(0.0, timeout_s) * 1000)
        return bool(self.read())

    async def received(self) -> list[bytes]:
        """Wait for the next wakeups, without a time-out; returns their payloads, oldest first."""
        first = await asyncio.get_running_loop().sock_recv(self._socket, MAX_PAYLOAD)
        return [first, *self.read()]

    def read(self) -> list[bytes]:
        """Every payload that has arrived, without waiting."""
        payloads: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while len(payloads) < MAX_AT_ONCE:
                payloads.append(self._socket.recv(MAX_PAYLOAD))
        return payloads

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. The path stays: another process may have bound it already."""
        self._socket.close()


def notify(path: str | os.PathLike[str], payload: bytes = b"") -> bool:
    """Wake the process at a path; never blocks, never raises. Returns whether it was delivered."""
    with contextlib.suppress(OSError), _address(Path(path)) as address, _datagram_socket() as sender:
        sender.sendto(payload[:MAX_PAYLOAD], address)
        return True
    return False


def _datagram_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """A form of the path that is short enough for the kernel, valid while the context is open."""
    if len(os.fsencode(path)) <= MAX_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
