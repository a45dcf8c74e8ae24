"""HTTP to the service, on the standard library: one request, a body streamed up, events streamed down.

A kernel or a hub image needs nothing for it but pydantic. Calls that may be repeated are tried again, a few times,
when the service cannot be reached; and any call that came too often, after the rest that the service asks for.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from ..messages.validation import place_of, words_of
from ..wire import ErrorView
from ..wire.status import ReadyView

WireModel = TypeVar("WireModel", bound=BaseModel)
Query = Mapping[str, str | int | bool | None]

PAUSES_S = (0.2, 0.8)
"""Rests before the second and the third try of a call that may be repeated."""

AWAY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""What the hub's proxy answers while the service is away."""

OF_NO_SERVICE = "/hub/services/"
"""In the address to which a hub sends on whoever asks for a service that it does not have."""

LARGEST_ERROR = 100_000
SILENCE_S = 45.0
"""Longest silence on an event stream; the service sends a heartbeat every 15 s."""


class GPUQuotaError(Exception):
    """What a call to the service may end with; the message is a sentence for people."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Refused(GPUQuotaError):
    """The service said no: ``status`` of HTTP, ``reason`` a short word for programs.

    ``retry_after_s``: after so many seconds it may say something else; None where it did not tell.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s


class Unreachable(GPUQuotaError):
    """The service cannot be reached, or what answers is not it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. ``path`` is below api/v1, quoted. ``repeatable``: doing it twice does no more than doing it once."""

    method: str
    path: str
    query: Query = field(default_factory=dict)
    body: BaseModel | Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event; ``id`` is where a stream that broke is taken up again."""

    name: str
    data: Any
    id: str | None = None


class Connection:
    """The service's address and the caller's token. ``url`` is its root, such as http://hub/services/gpu-quota."""

    def __init__(
        self, url: str, token: str | None, timeout_s: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.url, self.token, self.timeout_s, self.sleep = url.rstrip("/"), token, timeout_s, sleep
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), _Http(), _Https()]
        if _is_loopback(url):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def send(self, call: Call, timeout_s: float | None = None) -> http.client.HTTPResponse:
        """The answer of a call, open for reading; raises Refused, or Unreachable after the last try.

        Who asks too often rests as long as the service says, all in all for the time-out; then it is Refused.
        """
        pauses, rest_s = iter(PAUSES_S if call.repeatable else ()), self.timeout_s
        while True:
            try:
                return self._once(call, timeout_s or self.timeout_s)
            except Refused as refusal:
                wait_s = refusal.retry_after_s
                if refusal.status != HTTPStatus.TOO_MANY_REQUESTS or wait_s is None or wait_s > rest_s:
                    raise
                rest_s -= max(1, wait_s)
                self.sleep(wait_s)
            except Unreachable:
                pause = next(pauses, None)
                if pause is None:
                    raise
                self.sleep(pause)

    def bytes_of(self, call: Call) -> tuple[bytes, Message]:
        """The whole body of the answer, and its headers."""
        with self.send(call) as answer, _wire_broken(self.url):
            return answer.read(), answer.headers

    def save(self, call: Call, file: IO[bytes]) -> None:
        """Copy the body of the answer into an open file."""
        with self.send(call) as answer, _wire_broken(self.url):
            shutil.copyfileobj(answer, file)

    def json_of(self, call: Call) -> Any:
        """The JSON of the answer."""
        body, _ = self.bytes_of(call)
        try:
            return json.loads(body)
        except ValueError:
            raise Unreachable(f"What answers at {self.url} is not the gpu-quota service: no JSON came.") from None

    def get(self, model: type[WireModel], path: str, query: Query | None = None) -> WireModel:
        return self.as_model(model, self.json_of(Call(method="GET", path=path, query=query or {})))

    def as_model(self, model: type[WireModel], found: object) -> WireModel:
        """JSON as a message; keys that only a newer service knows are left out."""
        try:
            return model.model_validate(found)
        except ValidationError as error:
            if {each["type"] for each in error.errors()} != {"extra_forbidden"}:
                why = error.errors()[0]
                told = f"{place_of(why['loc']) or 'its answer'}: {words_of(why)}"
                raise Unreachable(f"What answers at {self.url} is not this version's service: {told}.") from None
            for each in error.errors():
                _leave_out(found, each["loc"])
            return model.model_validate(found)

    def events(self, call: Call) -> Iterator[Event]:
        """The events of one stream until it ends; raises Unreachable when the wire breaks or stays silent."""
        with self.send(call, SILENCE_S) as answer, _wire_broken(self.url):
            yield from _events(answer)

    def _once(self, call: Call, timeout_s: float) -> http.client.HTTPResponse:
        with _Body(call.body) as (data, headers):
            request = urllib.request.Request(  # noqa: S310 - the scheme was checked when the address was taken
                self._address(call),
                data=data,
                method=call.method,
                headers={**self._headers(), **headers, **call.headers},
            )
            try:
                answer: http.client.HTTPResponse = self._opener.open(request, timeout=timeout_s)
            except urllib.error.HTTPError as error:
                with error:
                    raise _refusal(error, self.url) from None
            except (OSError, http.client.HTTPException) as error:
                raise _unreachable(error, self.url) from None
            return answer

    def _address(self, call: Call) -> str:
        query = {key: _query_text(value) for key, value in call.query.items() if value is not None}
        return f"{self.url}/api/v1/{call.path}" + (f"?{urlencode(query)}" if query else "")

    def _headers(self) -> dict[str, str]:
        token = {"Authorization": f"token {self.token}"} if self.token else {}
        return {"Accept": "application/json", "User-Agent": "jupyter-gpu-quota", **token}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is a page that wants a login: it is an answer, never followed with a token in hand."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _HearsEarly(http.client.HTTPConnection):
    """Reads the answer of a service that closed the wire while a large body was still on its way: it says why."""

    def request(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().request(*args, **kwargs)
        except (BrokenPipeError, ConnectionResetError):
            if self.sock is None:
                raise


class _HearsEarlySafely(_HearsEarly, http.client.HTTPSConnection):
    """The same over TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HearsEarly, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HearsEarlySafely, req, context=ssl.create_default_context())


class _Body:
    """A message as JSON, or a file streamed from disk."""

    def __init__(self, body: BaseModel | Path | None) -> None:
        self.body, self.file = body, None if not isinstance(body, Path) else body.open("rb")

    def __enter__(self) -> tuple[bytes | IO[bytes] | None, dict[str, str]]:
        match self.body:
            case None:
                return None, {}
            case Path():
                size = str(self.body.stat().st_size)
                return self.file, {"Content-Type": "application/gzip", "Content-Length": size}
            case message:
                return message.model_dump_json(exclude_unset=True).encode(), {"Content-Type": "application/json"}

    def __exit__(self, *error: object) -> None:
        if self.file:
            self.file.close()


class _wire_broken:
    """Turns a wire that breaks while an answer is read into Unreachable."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, http.client.HTTPException)):
            raise _unreachable(error, self.url) from None


def service_root(url: str) -> str:
    """The root of the service behind an address a person gave: the service's own, or the hub's public one.

    Raises ValueError for what is no http address.
    """
    parts = _parts_of(url)
    if parts is None:
        raise ValueError(f"{url[:200]!a} is no address; write the hub's, such as https://hub.example.org")
    path = parts.path.rstrip("/").removesuffix("/hub")
    if "/services/" not in f"{path}/":
        path += "/services/gpu-quota"
    return f"{parts.scheme}://{parts.netloc}{path}"


def _parts_of(url: str) -> SplitResult | None:
    """The parts of an http address; None for what is none."""
    if not re.fullmatch(r"[!-~]+", url):
        return None
    with contextlib.suppress(ValueError):  # of brackets that are not closed, of a port that is no number
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    return None


def token_of(text: str | None) -> str | None:
    """A token as a person or a file gave it, without the line end that files have. Raises Refused for what is none."""
    token = (text or "").strip()
    if not re.fullmatch(r"[!-~]*", token):
        sentence = "The token has a space or another character in it that no token has; copy it again."
        raise Refused(HTTPStatus.FORBIDDEN, "not_authenticated", sentence)
    return token or None


def _is_loopback(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _query_text(value: str | int | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _refusal(error: urllib.error.HTTPError, url: str) -> GPUQuotaError:
    """The service's own sentence; a proxy's answer while the service is away; or a page of the hub's."""
    try:
        body = error.read(LARGEST_ERROR)
    except (OSError, http.client.HTTPException):
        body = b""
    for read in (_error_of, _unready_of):
        with contextlib.suppress(ValidationError):
            refused = read(body)
            refused.retry_after_s = _seconds(error.headers.get("Retry-After"))
            return refused
    return _no_answer_of_ours(error, url, page=bool(body))


def _seconds(text: str | None) -> int | None:
    """Retry-After as this service sends it; a proxy's may be a date, which is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None


def _error_of(body: bytes) -> Refused:
    view = ErrorView.model_validate_json(body)
    return Refused(view.status, view.reason, view.message)


def _unready_of(body: bytes) -> Refused:
    """``GET ready`` says with 503 what lacks."""
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", ReadyView.model_validate_json(body).message)


def _no_answer_of_ours(error: urllib.error.HTTPError, url: str, *, page: bool) -> GPUQuotaError:
    """What an answer without a sentence of the service means; ``page``: it has a body, as the hub's own pages have."""
    if error.code in AWAY:
        return Unreachable(f"The gpu-quota service behind {url} is away (HTTP {error.code}); jobs run on, try again.")
    if page and error.code == HTTPStatus.NOT_FOUND:
        return Unreachable(
            f"No gpu-quota service answers at {url} (HTTP 404): the hub may be just starting, so try again in a "
            "minute; or give the right address with --url."
        )
    if not HTTPStatus.MULTIPLE_CHOICES <= error.code < HTTPStatus.BAD_REQUEST:
        return Refused(error.code, "http", f"{url} answered HTTP {error.code}: {error.reason}.")
    if OF_NO_SERVICE in urlsplit(error.headers.get("Location", "")).path:
        return Unreachable(
            f"There is no gpu-quota service at this hub: nothing answers at {url}. Its admin adds it with "
            "setup_gpu_quota(c) in jupyterhub_config.py; or give another hub's address with --url."
        )
    sentence = f"{url} wants a login; give a token of the hub with --token or JUPYTERHUB_API_TOKEN."
    return Refused(error.code, "not_authenticated", sentence)


def _unreachable(error: BaseException, url: str) -> Unreachable:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    why = "no answer in time" if isinstance(cause, TimeoutError) else str(cause) or type(cause).__name__
    return Unreachable(f"The gpu-quota service at {url} cannot be reached: {why}.")


def _leave_out(found: Any, path: tuple[int | str, ...]) -> None:
    for step in path[:-1]:
        found = found[step]
    found.pop(path[-1], None)


def _events(lines: IO[bytes]) -> Iterator[Event]:
    """Server-sent events of a byte stream; comments (heartbeats) are passed over."""
    name, data, id_ = "message", list[str](), None
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\r\n")
        if not line:
            if data:
                yield Event(name=name, data=_json_or_text("\n".join(data)), id=id_)
            name, data = "message", []
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match key:
            case "event":
                name = value
            case "data":
                data.append(value)
            case "id":
                id_ = value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
