"""REST calls that are repeated while the API is stopped, starting, or behind a proxy without its route."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.patience import until


@dataclass(frozen=True, slots=True)
class Answer:
    """Status 0: there was no answer."""

    status: int
    body: Any
    text: str

    @property
    def is_unavailable(self) -> bool:
        """Whether there was no answer, or a proxy on the way could not forward the request."""
        return self.status in (0, 500, 502, 503, 504) or (self.status in (403, 404) and self.body is None)


def ask(method: str, url: str, token: str, body: object = None, timeout_s: float = 10.0) -> Answer:
    """Ask once. A body that is not JSON becomes None."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, method=method, headers=headers, data=data)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return _answer(reply.status, reply.read())
    except urllib.error.HTTPError as error:
        return _answer(error.code, error.read())
    except (OSError, ValueError) as error:
        return Answer(0, None, str(error))


def _answer(status: int, raw: bytes) -> Answer:
    text = raw.decode(errors="replace")
    try:
        body = json.loads(text) if text.strip() else {}
    except ValueError:
        body = None
    return Answer(status, body, text)


def request_until_answered(method: str, url: str, token: str, body: object = None, within_s: float = 90.0) -> Answer:
    """Repeat a request until the service answers it. Raises AssertionError if it does not within the time."""
    answer = ask(method, url, token, body)

    def known() -> bool:
        nonlocal answer
        if answer.is_unavailable:
            time.sleep(0.2)
            answer = ask(method, url, token, body)
        return not answer.is_unavailable

    until(known, within_s, lambda: f"{method} {url}: {answer.status} {answer.text[:300]}")
    return answer
