"""A server that answers as a test says, byte by byte: for answers that the real service gives only when it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.patience import PATIENCE_S

HANG = b""
"""At the end of an answer: the connection stays open."""


@dataclass
class RawService:
    """``answers`` by path, as the parts that are sent; after the last one the connection is closed, or kept open.

    ``requests`` has the head of each request, ``closed`` the paths whose connection the other side closed.
    """

    answers: dict[str, list[bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    port: int = 0

    def paths(self) -> list[str]:
        return [head.split()[1].partition("/api/v1/")[2] for head in self.requests]

    def head_of(self, path: str) -> str:
        return next(head for head in self.requests if f"/api/v1/{path} " in head)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            path = head.split()[1].partition("/api/v1/")[2]
            for part in self.answers.get(path, [HANG]):
                if part:
                    writer.write(part)
                    await writer.drain()
                else:
                    while await reader.read(1 << 16):
                        pass
                    self.closed.append(path)
        writer.close()


def answer(status: str, kind: str, body: bytes, *headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def beginning(kind: str, body: bytes, length: int | None = None) -> bytes:
    """The beginning of an answer, whose end is its length or the end of the connection."""
    sized = b"" if length is None else b"Content-Length: %d\r\n" % length
    return b"HTTP/1.1 200 OK\r\nContent-Type: " + kind.encode() + b"\r\n" + sized + b"\r\n" + body


@contextmanager
def raw_service() -> Iterator[RawService]:
    """The server on the loopback, in a thread."""
    service, ready, loop = RawService(), threading.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        server = await asyncio.start_server(service.connected, "127.0.0.1")
        service.port = server.sockets[0].getsockname()[1]
        ready.set()

    loop.create_task(serve())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
