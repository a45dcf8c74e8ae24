"""HTTP to the service: one request, a streamed upload, a stream of events.

It uses the standard library, so that a kernel or a hub image needs no HTTP package beside pydantic.
A repeatable call is retried when the service cannot be reached, and every call after a 429 with Retry-After.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from ..core.amounts import counted
from ..messages.validation import error_text, path_text
from ..wire import ErrorView
from ..wire.status import ReadyView

WireModel = TypeVar("WireModel", bound=BaseModel)
Query = Mapping[str, str | int | bool | None]

PAUSES_S = (0.2, 0.8)
"""Pauses before the second and the third attempt of a repeatable call."""

SERVICE_DOWN = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""Statuses of the hub's proxy while the service does not run."""

UNKNOWN_SERVICE = "/hub/services/"
"""Part of the address to which a hub redirects requests for a service that it does not have."""

MAX_ERROR_BODY = 100_000
STREAM_TIMEOUT_S = 45.0
"""Longest silence on an event stream; the service sends a heartbeat every 5 s."""


class GPUQuotaError(Exception):
    """A call to the service failed; the message is a sentence for people."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def _render_traceback_(self) -> list[str]:
        """IPython prints this instead of a page of this package's frames: the sentence has what a person needs."""
        return [f"{type(self).__name__}: {self.message}"]


class Refused(GPUQuotaError):
    """The service refused: ``status`` of HTTP, ``reason`` a short code.

    ``retry_after_s``: a new attempt makes sense after so many seconds; None if the service named no time.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s

    @property
    def is_temporary(self) -> bool:
        """Whether the service answers, but has no database or cannot ask the hub: it starts, or one of them does."""
        return self.status == HTTPStatus.SERVICE_UNAVAILABLE


class Unreachable(GPUQuotaError):
    """The service cannot be reached, or the answer is not from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``path`` is below api/v1, quoted. ``repeatable``: sending it twice has the effect of once.

    ``on_sent`` is called with the bytes of a file that were sent so far, and with all.
    """

    method: str = "GET"
    path: str
    query: Query = field(default_factory=dict)
    body: BaseModel | Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    on_sent: Callable[[int, int], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event; a broken stream continues after ``id``."""

    name: str
    data: Any
    id: str | None = None


class Connection:
    """The service's address and the caller's token. ``url`` is its root, such as http://hub/services/gpu-quota."""

    def __init__(
        self, url: str, token: str | None, timeout_s: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.url, self.timeout_s, self.sleep = url.rstrip("/"), timeout_s, sleep
        self._headers = {"Accept": "application/json", "User-Agent": "jupyter-gpu-quota"}
        if token:
            self._headers["Authorization"] = f"token {token}"
        proxies = [urllib.request.ProxyHandler({})] if _is_loopback(url) else []
        self._opener = urllib.request.build_opener(_Handler(), *proxies)

    def send(self, call: Call, timeout_s: float | None = None) -> http.client.HTTPResponse:
        """The answer of a call, open for reading; raises Refused, or Unreachable after the last attempt.

        After a 429 the call waits for the time in Retry-After, in total for ``timeout_s`` of the connection.
        """
        pauses, budget_s = iter(PAUSES_S if call.repeatable else ()), self.timeout_s
        while True:
            try:
                return self._send_once(call, timeout_s or self.timeout_s)
            except Refused as refusal:
                wait_s = refusal.retry_after_s
                if refusal.status != HTTPStatus.TOO_MANY_REQUESTS or wait_s is None or wait_s > budget_s:
                    raise
                budget_s -= max(1, wait_s)
                self.sleep(wait_s)
            except Unreachable:
                pause = next(pauses, None)
                if pause is None:
                    raise
                self.sleep(pause)

    def bytes_of(self, call: Call) -> tuple[bytes, Message]:
        """The whole body of the answer, and its headers."""
        with self.send(call) as answer, _translated_errors(self.url):
            return answer.read(), answer.headers

    def save(self, call: Call, file: IO[bytes]) -> None:
        """Copy the body of the answer into an open file. Raises OSError where the file cannot be written.

        Raises Unreachable for a part of the body: ``read`` of a size returns nothing where the connection ended early.
        """
        with self.send(call) as answer:
            while True:
                with _translated_errors(self.url):
                    part = answer.read(PART_BYTES)
                if not part:
                    break
                file.write(part)
            if answer.length:
                raise Unreachable(
                    f"The gpu-quota service at {self.url} closed the connection {counted(answer.length, 'byte')} before"
                    " the end of the file; try again."
                )

    def json_of(self, call: Call) -> Any:
        """The JSON of the answer."""
        body, _ = self.bytes_of(call)
        try:
            return json.loads(body)
        except ValueError:
            raise Unreachable(f"The server at {self.url} is not the gpu-quota service: it sent no JSON.") from None

    def ask(self, model: type[WireModel], call: Call) -> WireModel:
        """The answer of a call as a message."""
        return self.as_model(model, self.json_of(call))

    def as_model(self, model: type[WireModel], found: Any) -> WireModel:
        """JSON as a message, without the keys that only a newer service knows."""
        try:
            return model.model_validate(found)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            if {fault["type"] for fault in faults} != {"extra_forbidden"}:
                first = f"{path_text(faults[0]['loc']) or 'the answer'}: {error_text(faults[0])}"
                raise Unreachable(f"The service at {self.url} is of another version: {first}.") from None
        for fault in faults:
            *path, key = fault["loc"]
            parent = found
            for step in path:
                parent = parent[step]
            parent.pop(key, None)
        return model.model_validate(found)

    def events(self, call: Call) -> Iterator[Event]:
        """The events of one stream until it ends; raises Unreachable when it breaks or stays silent."""
        with self.send(call, STREAM_TIMEOUT_S) as answer, _translated_errors(self.url):
            yield from _events(answer)

    def _send_once(self, call: Call, timeout_s: float) -> http.client.HTTPResponse:
        query = urlencode(
            {
                key: int(value) if isinstance(value, bool) else value
                for key, value in call.query.items()
                if value is not None
            }
        )
        address = f"{self.url}/api/v1/{call.path}" + (f"?{query}" if query else "")
        with _content(call.body, call.on_sent) as (data, headers), _translated_errors(self.url):
            request = urllib.request.Request(  # noqa: S310 - service_root checked the scheme
                address, data=data, method=call.method, headers={**self._headers, **headers, **call.headers}
            )
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=timeout_s)
            return answer


class _EarlyAnswer(http.client.HTTPConnection):
    """Reads the answer of a service that closed the connection before the whole body was sent; it has the reason."""

    def request(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().request(*args, **kwargs)
        except (BrokenPipeError, ConnectionResetError):
            if self.sock is None:
                raise


class _EarlyAnswerTls(_EarlyAnswer, http.client.HTTPSConnection):
    """The same over TLS."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler, urllib.request.HTTPRedirectHandler):
    """Opens both kinds of connection. It follows no redirect, since that could send the token to a login page."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_EarlyAnswer, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_EarlyAnswerTls, req)

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _parts(file: IO[bytes], size: int, on_sent: Callable[[int, int], object] | None) -> Iterator[bytes]:
    sent = 0
    while part := file.read(PART_BYTES):
        yield part
        sent += len(part)
        if on_sent is not None:
            on_sent(sent, size)


PART_BYTES = 1 << 16


@contextlib.contextmanager
def _content(
    body: BaseModel | Path | None, on_sent: Callable[[int, int], object] | None
) -> Iterator[tuple[bytes | Iterable[bytes] | None, dict[str, str]]]:
    """The body and its headers: a message as JSON, or a file that is streamed from disk."""
    if body is None:
        yield None, {}
    elif isinstance(body, Path):
        with body.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield _parts(file, size, on_sent), {"Content-Type": "application/gzip", "Content-Length": str(size)}
    else:
        yield body.model_dump_json(exclude_unset=True).encode(), {"Content-Type": "application/json"}


@contextlib.contextmanager
def _translated_errors(url: str) -> Iterator[None]:
    """Raises Refused or Unreachable in place of the library's errors."""
    try:
        yield
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error, url) from None
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        why = "no answer in time" if isinstance(cause, TimeoutError) else str(cause) or type(cause).__name__
        raise Unreachable(
            f"The gpu-quota service at {url} cannot be reached: {why}. Check the address, and that the hub runs."
        ) from None


def service_root(url: str) -> str:
    """The root of the service for an address: the service's own, or the hub's public one.

    Raises Unreachable if it is not an http address.
    """
    if re.match(r"[^/]*//[^/]*@", url):  # an address is repeated in messages, a password must not be
        raise Unreachable("The address has a user or a password; give the address alone, and a token beside it.")
    parts = None
    with contextlib.suppress(ValueError):  # of unclosed brackets, a port that is no number, or an empty part of a name
        if re.fullmatch(r"[!-~]+", url) and urlsplit(url).port != 0:
            (urlsplit(url).hostname or "").encode("idna")
            parts = urlsplit(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unreachable(f"{url[:200]!a} is not an address; write the hub's, such as https://hub.example.org.")
    path = parts.path.rstrip("/").removesuffix("/hub")
    if "/services/" not in f"{path}/":
        path += "/services/gpu-quota"
    return f"{parts.scheme}://{parts.netloc}{path}"


def token_of(text: str | None) -> str | None:
    """A token without the line end that files have. Raises Refused if it has characters that no token has."""
    token = (text or "").strip()
    if not re.fullmatch(r"[!-~]*", token):
        sentence = "The token has a space or another character that no token has; copy it again."
        raise Refused(HTTPStatus.FORBIDDEN, "not_authenticated", sentence)
    return token or None


def _is_loopback(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _refusal(error: urllib.error.HTTPError, url: str) -> GPUQuotaError:
    """The error for a refusal of the service, or for an answer of a proxy or the hub."""
    try:
        body = error.read(MAX_ERROR_BODY)
    except (OSError, http.client.HTTPException):
        body = b""
    after = error.headers.get("Retry-After") or ""
    after_s = int(after) if after.isascii() and after.isdigit() and len(after) < 6 else None  # a proxy may send a date
    with contextlib.suppress(ValidationError):
        view = ErrorView.model_validate_json(body)
        return Refused(view.status, view.reason, view.message, after_s)
    with contextlib.suppress(ValidationError):  # ``GET ready`` answers 503 with the missing parts
        message = ReadyView.model_validate_json(body).message
        return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", message, after_s)
    return _foreign_answer_error(error, url, is_page=bool(body))


def _foreign_answer_error(error: urllib.error.HTTPError, url: str, *, is_page: bool) -> GPUQuotaError:
    """The error for an answer of a proxy or the hub; ``is_page``: the answer has a body, as the hub's pages have."""
    if error.code in SERVICE_DOWN:
        return Unreachable(
            f"The gpu-quota service at {url} is not available (HTTP {error.code}). Jobs continue to run; try again."
        )
    if is_page and error.code == HTTPStatus.NOT_FOUND:
        return Unreachable(
            f"No gpu-quota service answers at {url} (HTTP 404). The hub may be starting: try again in a minute, "
            "or give the right address with --url."
        )
    if not HTTPStatus.MULTIPLE_CHOICES <= error.code < HTTPStatus.BAD_REQUEST:
        return Refused(error.code, "http", f"{url} answered HTTP {error.code}: {error.reason}.")
    if UNKNOWN_SERVICE in urlsplit(error.headers.get("Location", "")).path:
        return Unreachable(
            f"This hub has no gpu-quota service: nothing answers at {url}. An admin adds it with "
            "setup_gpu_quota(c) in jupyterhub_config.py; or give another hub's address with --url."
        )
    sentence = f"{url} requires a login; give a token of the hub with --token or JUPYTERHUB_API_TOKEN."
    return Refused(error.code, "not_authenticated", sentence)


def _events(lines: IO[bytes]) -> Iterator[Event]:
    """Server-sent events of a byte stream, without comments (heartbeats)."""
    name, data, id_ = "message", list[str](), None
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\r\n")
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match key:
            case "event":
                name = value
            case "data":
                data.append(value)
            case "id":
                id_ = value
        if not line:
            if data:
                found: Any = "\n".join(data)
                with contextlib.suppress(ValueError):
                    found = json.loads(found)
                yield Event(name=name, data=found, id=id_)
            name, data = "message", []
