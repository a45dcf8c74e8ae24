"""One request to the service, and its answer in parts as they arrive.

tornado's AsyncHTTPClient cannot end a request before its answer, and continues to read while a slow browser has unsent
data. So this uses the connection below it. Leaving the context closes the connection at once.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self
from urllib.parse import urlsplit

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError
from tornado.log import app_log
from tornado.tcpclient import TCPClient

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 90.0
"""Time-out for the beginning of an answer; an explanation in a large pool takes half a minute."""

READ_TIMEOUT_S = 45.0
"""Time-out for the next part of an answer; the service sends a heartbeat every 5 s on a stream."""

MAX_HEADER_BYTES, MAX_BODY_BYTES = 1 << 16, 1 << 60
PART_BYTES = 1 << 16
HTTPS_PORT, HTTP_PORT = 443, 80


class ServiceUnavailable(Exception):
    """The service cannot be reached, or its answer is incomplete. ``may_be_processed``: it may have got the request."""

    def __init__(self, why: str, *, may_be_processed: bool) -> None:
        super().__init__(why)
        self.why, self.may_be_processed = why, may_be_processed


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for an absolute address; ``headers`` are all that is sent, without Host and Content-Length."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def start_line(self) -> RequestStartLine:
        parts = urlsplit(self.url)
        return RequestStartLine(self.method, parts.path + (f"?{parts.query}" if parts.query else ""), "HTTP/1.1")

    @property
    def all_headers(self) -> HTTPHeaders:
        host = urlsplit(self.url).netloc.rpartition("@")[2]
        sized = {"Content-Length": str(len(self.body))} if self.body or self.method in ("POST", "PUT") else {}
        return HTTPHeaders({**self.headers, **sized, "Host": host, "Connection": "close"})


class Exchange(HTTPMessageDelegate):
    """One request and its answer, as a context. ``status`` and ``headers`` are those of the answer.

    Entering it sends the request and waits for the beginning of the answer. Raises ServiceUnavailable.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.status, self.headers = 0, HTTPHeaders()
        self._answered = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._complete = False
        self._stream: IOStream | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._stream = await _connect(self.request.url)
            self._reading = asyncio.create_task(self._exchange(self._stream))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._answered.wait()
        except TimeoutError:
            self.close()
            raise ServiceUnavailable(
                f"it did not answer within {ANSWER_TIMEOUT_S:.0f} s", may_be_processed=True
            ) from None
        except BaseException:
            self.close()
            raise
        if not self.status:
            self.close()
            raise ServiceUnavailable("it closed the connection without an answer", may_be_processed=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the body, each read when the one before was taken. Raises ServiceUnavailable."""
        while True:
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    part = await self._parts.get()
            except TimeoutError:
                raise ServiceUnavailable(f"it sent nothing for {READ_TIMEOUT_S:.0f} s", may_be_processed=True) from None
            if part is None:
                break
            yield part
        if not self._complete:
            raise ServiceUnavailable("its answer is incomplete", may_be_processed=True)

    def close(self) -> None:
        """Close the connection; a repeated call has no effect."""
        if self._reading is not None:
            self._reading.cancel()
        if self._stream is not None:
            self._stream.close()

    async def _exchange(self, stream: IOStream) -> None:
        parameters = HTTP1ConnectionParameters(
            no_keep_alive=True, chunk_size=PART_BYTES, max_header_size=MAX_HEADER_BYTES, max_body_size=MAX_BODY_BYTES
        )
        connection = HTTP1Connection(stream, is_client=True, params=parameters)
        try:
            await connection.write_headers(self.request.start_line, self.request.all_headers, self.request.body)
            connection.finish()
            await connection.read_response(self)
        except StreamClosedError:
            pass  # parts() reports the incomplete answer
        except Exception:  # noqa: BLE001 - the reader must not wait for parts that do not arrive
            app_log.exception("jupyter_gpu_quota: an answer of the service cannot be read")
        finally:
            self._answered.set()
            stream.close()
        await self._parts.put(None)

    # --- what the connection reports ----------------------------------------------------------------------------------
    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, ResponseStartLine)
        if start_line.code >= 200:
            self.status, self.headers = start_line.code, headers
            self._answered.set()

    async def data_received(self, chunk: bytes) -> None:
        await self._parts.put(chunk)

    def finish(self) -> None:
        self._complete = True


async def _connect(url: str) -> IOStream:
    try:
        address = urlsplit(url)
        is_tls = address.scheme == "https"
        host, port = address.hostname or "", address.port or (HTTPS_PORT if is_tls else HTTP_PORT)
        options = _tls_options() if is_tls else None
        return await TCPClient().connect(host, port, ssl_options=options, timeout=timedelta(seconds=CONNECT_TIMEOUT_S))
    except (OSError, ValueError) as error:  # a time-out is an OSError, a bad port a ValueError
        raise ServiceUnavailable("there is no connection", may_be_processed=False) from error


@functools.cache
def _tls_options() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
