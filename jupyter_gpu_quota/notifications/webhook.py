"""The webhook: one POST of JSON per message, signed as in Standard Webhooks, to one address."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Callable
from contextlib import suppress

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.httputil import HTTPInputError, parse_response_start_line
from tornado.iostream import UnsatisfiableReadError

from .channel import Failed, Outcome, Sent
from .document import body
from .job_message import JobMessage
from .message import Message
from .settings import SecretUnreadable, WebhookSettings, tls_context

CONNECT_S, ANSWER_S = 5.0, 10.0
MAX_ANSWER = 64 << 10
WIDTH = 4
"""Concurrent requests."""

FINAL = frozenset({400, 410, 413, 422})
"""4xx answers after which a new attempt makes no sense: about the message, or an address that is gone for good."""


def signature(key: bytes, id: str, timestamp: int, content: bytes) -> str:
    """The header webhook-signature. Source: Standard Webhooks, scheme v1: HMAC-SHA256 over id.timestamp.body."""
    signed = hmac.digest(key, f"{id}.{timestamp}.".encode() + content, hashlib.sha256)
    return f"v1,{base64.b64encode(signed).decode()}"


class Webhook:
    """The receiver is ``settings.url``; redirects are not followed, and only the status of an answer is used.

    ``clock`` gives milliseconds since 1970. Needs a running event loop.
    """

    name = "webhook"
    width = WIDTH

    def __init__(self, settings: WebhookSettings, clock: Callable[[], int]) -> None:
        self.settings, self._clock = settings, clock
        self._client = AsyncHTTPClient(force_instance=True, max_clients=WIDTH, max_body_size=MAX_ANSWER)
        self._tls_context: ssl.SSLContext | None = None

    @property
    def where(self) -> str:
        return self.settings.where

    async def send(self, message: Message | JobMessage) -> Outcome:
        content, timestamp = body(message), self._clock() // 1000
        headers = {"Content-Type": "application/json", "webhook-id": message.id, "webhook-timestamp": str(timestamp)}
        try:
            key = self.settings.secret()
        except SecretUnreadable as error:
            return Failed(why=str(error))
        if key is not None:
            headers["webhook-signature"] = signature(key, message.id, timestamp, content)
        answer = await self._request(method="POST", headers=headers, body=content)
        return answer if isinstance(answer, Failed) else self._outcome_of(answer)

    async def probe(self) -> Outcome:
        """A HEAD request; every status except 3xx and 5xx means that the receiver answers."""
        try:
            self.settings.secret()
        except SecretUnreadable as error:
            return Failed(why=str(error), final=True)
        answer = await self._request(method="HEAD")
        if isinstance(answer, Failed):
            return answer
        if answer >= 500 or 300 <= answer < 400:
            return self._outcome_of(answer)
        return Sent(answer=f"answers {answer} to HEAD")

    async def _request(self, **options: object) -> int | Failed:
        """The status of the answer; errors after it are ignored."""
        codes = list[int]()

        def note_status(line: str) -> None:
            with suppress(HTTPInputError):  # only the first line of an answer has a status
                codes.append(parse_response_start_line(line.strip()).code)

        try:
            request = HTTPRequest(
                self.settings.url,
                connect_timeout=CONNECT_S,
                request_timeout=ANSWER_S,
                follow_redirects=False,
                ssl_options=self._tls(),
                user_agent="jupyter-gpu-quota",
                decompress_response=False,  # a small compressed body may be large
                header_callback=note_status,
                **options,  # type: ignore[arg-type]
            )
            answer = await self._client.fetch(request, raise_error=False)
        except (HTTPClientError, HTTPInputError, OSError, UnsatisfiableReadError, ValueError) as error:
            return codes[-1] if codes else Failed(why=f"{self.where} cannot be reached: {_cause(error)}")
        return answer.code

    def _tls(self) -> ssl.SSLContext | None:
        """Read once, since the system has many certificates."""
        if self._tls_context is None and self.settings.url.startswith("https:"):
            self._tls_context = tls_context(self.settings.ca_file)
        return self._tls_context

    def _outcome_of(self, code: int) -> Outcome:
        if 200 <= code < 300:
            return Sent(answer=f"answered {code}")
        if 300 <= code < 400:
            why = f"{self.where} answered {code}; redirects are not followed, so configure the target address"
            return Failed(why=why, final=True)
        return Failed(why=f"{self.where} answered {code}", final=code in FINAL)

    def close(self) -> None:
        self._client.close()


def _cause(error: Exception) -> str:
    """An error in a few words, without the address that a library adds."""
    return (error.strerror if isinstance(error, OSError) else None) or (
        error.message if isinstance(error, HTTPClientError) else type(error).__name__
    )
