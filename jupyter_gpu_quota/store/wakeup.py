"""Bells between processes of one machine: a datagram that wakes whoever waits at a path, and asks for nothing back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Self

LONGEST_ADDRESS = 100
"""Bytes that surely fit the kernel's socket address (108 on Linux); longer paths go through their open folder."""

LARGEST_PAYLOAD = 4096
MOST_AT_ONCE = 1000
"""Datagrams taken in one drain, so that a flood cannot hold the reader."""


class Bell:
    """The hearing end: a Unix datagram socket bound at a path that only this account may write to."""

    def __init__(self, path: Path, ear: socket.socket) -> None:
        self.path, self._ear = path, ear

    @classmethod
    def bind(cls, path: str | os.PathLike[str]) -> Self:
        """Take the path over from whoever bound it before. Raises OSError if the folder is missing or not ours."""
        place = Path(path)
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with _address(place) as address:
                place.unlink(missing_ok=True)
                ear.bind(address)
            place.chmod(0o600)
        except OSError:
            ear.close()
            raise
        return cls(place, ear)

    def fileno(self) -> int:
        """The descriptor that becomes readable when somebody rings."""
        return self._ear.fileno()

    def wait(self, timeout_s: float) -> bool:
        """Block until somebody rings or the time is over; takes all rings at once. Returns whether any came."""
        waiting = select.poll()
        waiting.register(self._ear, select.POLLIN)
        waiting.poll(max(0.0, timeout_s) * 1000)
        return bool(self.drain())

    async def heard(self) -> list[bytes]:
        """Wait for the next rings, without a time-out; returns their payloads, oldest first."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._ear, ready.set)
        try:
            while not (payloads := self.drain()):
                ready.clear()
                await ready.wait()
            return payloads
        finally:
            loop.remove_reader(self._ear)

    def drain(self) -> list[bytes]:
        """Every payload that has arrived, without waiting."""
        payloads: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while len(payloads) < MOST_AT_ONCE:
                payloads.append(self._ear.recv(LARGEST_PAYLOAD))
        return payloads

    def close(self) -> None:
        """Stop hearing. The path stays: a successor may have bound it already."""
        self._ear.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ring(path: str | os.PathLike[str], payload: bytes = b"") -> bool:
    """Wake whoever is bound at the path; never blocks, never raises. Returns whether it was delivered."""
    with contextlib.suppress(OSError), _address(Path(path)) as address, _mouth() as mouth:
        mouth.sendto(payload[:LARGEST_PAYLOAD], address)
        return True
    return False


def _mouth() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """A spelling of the path that is short enough for the kernel, good while the context is open."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
