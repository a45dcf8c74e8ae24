"""A kernel that is about to start asks the service for this server's GPU, and waits for it where its person can see.

While a notebook is idle its slice may be lent. A server that was told so starts no kernel with a GPU before the service
says that the slice is its own again, not even while the service is away: kernels without a GPU start all the same. One
that was never told so has a slice that nobody else can have, and waits for nobody.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.web import HTTPError

from ..backends.rendering.variables import SHARE_VARIABLE

ROUND_S = 5
"""How long one question waits for the slice; then the reason is told anew."""

SPARE_S = 5.0
"""What the service is given beyond that before it counts as away."""

AWAY_REST_S = 1.0
ENDED = 409
FROM_ANSWER = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", SHARE_VARIABLE)
"""What the answer says anew: a slice that was asked for again may be on another device."""

WAY_OUT = 'Try again, or start a kernel whose kernelspec says "gpu": false: it needs no GPU and starts at once.'

T = TypeVar("T")
Post = Callable[[str, object, float], Awaitable[Any]]


class NoGpuNow(HTTPError):
    """The kernel was not started, and ``why``: a sentence that a Jupyter server shows to its person."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(503, f"The kernel was not started. {why} {WAY_OUT}", reason="No GPU now")


class Away(Exception):
    """The service cannot be asked; the message says why."""


class GivenUp(Exception):
    """The person does not want to wait any longer."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A kernel that waits for the GPU: since when (milliseconds of a steady clock), and why now.

    ``state`` is waiting, then ready, refused or given_up.
    """

    kernel: str
    since: int
    message: str = ""
    state: str = "waiting"
    given_up: asyncio.Event = field(default_factory=asyncio.Event)


class Asker:
    """Asks for the slice of one server. ``variables`` are the server's own; ``listeners`` hear of each change.

    ``may_be_lent``: the service said that slices are lent. It stays so for the life of this server.
    """

    def __init__(
        self, variables: Mapping[str, str], post: Post | None = None, clock: Callable[[], int] | None = None
    ) -> None:
        self.notebook = notebook_of(variables)
        self.api = variables.get("JUPYTER_GPU_QUOTA_URL", "").rstrip("/") + "/api/v1"
        self.token = variables.get("JUPYTERHUB_API_TOKEN", "")
        self.post, self.clock = post or self._post, clock or steady_ms
        self.may_be_lent = False
        self.waiting: dict[str, Waiting] = {}
        self.listeners: list[Callable[[Waiting], object]] = []

    async def ask(self, kernel: str, within_s: float, *, starts: bool = True) -> dict[str, str]:
        """The variables that name the devices of the slice, once it is this server's own; {} for those it has.

        ``starts``: the kernel is to be started, and not one that lives already and was suspended. Raises NoGpuNow.
        """
        if not self.notebook or not self.token:
            return {}
        wait = Waiting(kernel, self.clock())
        try:
            found = await self._wait(wait, within_s)
        except NoGpuNow as error:
            self._end(wait, "refused", str(error.log_message) if starts else error.why)
            raise
        except GivenUp:
            self._end(wait, "given_up", "Its person gave it up.")
            raise NoGpuNow("It was given up while it waited for the GPU.") from None
        except BaseException:
            self._end(wait, "given_up", "It was cancelled.")
            raise
        self._end(wait, "ready", "The GPU is there.")
        return found

    def give_up(self, kernel: str | None = None) -> list[str]:
        """Let one kernel, or every one, wait no longer; which did."""
        waits = [wait for name, wait in self.waiting.items() if kernel in (None, name)]
        for wait in waits:
            wait.given_up.set()
        return [wait.kernel for wait in waits]

    # --- waiting --------------------------------------------------------------------------------------------------
    async def _wait(self, wait: Waiting, within_s: float) -> dict[str, str]:
        round_s = 0
        while True:
            try:
                answer = await _unless_given_up(wait, self._asked(wait.kernel, round_s))
            except Away as error:
                if not self.may_be_lent:
                    return {}
                why, rest_s = f"The GPU service cannot be reached ({error}), and the slice may be lent.", AWAY_REST_S
            else:
                if answer["state"] == "ready":
                    return {name: text for name, text in answer["variables"].items() if name in FROM_ANSWER}
                if answer["state"] != "waiting":
                    raise NoGpuNow(str(answer["message"]))
                why, rest_s = str(answer["message"]), 0.0
            self._tell(wait, why)
            left_s = within_s - (self.clock() - wait.since) / 1000
            if left_s <= 0:
                raise NoGpuNow(f"It waited {within_s:.0f} s for the GPU. {why}")
            round_s = max(1, min(ROUND_S, round(left_s)))
            await _unless_given_up(wait, asyncio.sleep(rest_s))

    async def _asked(self, kernel: str, wait_s: int) -> Any:
        """The service's answer. Raises Away, and NoGpuNow where it says that this server has no slice any more."""
        path = f"notebooks/{quote(str(self.notebook), safe='')}/actions/wake"
        try:
            answer = await self.post(path, {"kernel": kernel, "wait_s": wait_s}, wait_s + SPARE_S)
            return {"state": str(answer["state"]), "message": answer["message"], "variables": answer["variables"]}
        except HTTPClientError as error:
            if error.code == ENDED:
                raise NoGpuNow(_message_of(error)) from error
            raise Away(_message_of(error) if error.response is not None else str(error)) from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise Away(str(error) or type(error).__name__) from error

    async def _post(self, path: str, body: object, within_s: float) -> Any:
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = HTTPRequest(
            f"{self.api}/{path}",
            method="POST",
            headers=headers,
            body=json.dumps(body),
            connect_timeout=SPARE_S,
            request_timeout=within_s,
            follow_redirects=False,
        )
        return json.loads((await AsyncHTTPClient().fetch(request)).body)

    # --- telling --------------------------------------------------------------------------------------------------
    def _tell(self, wait: Waiting, why: str) -> None:
        """Only who really waits is told of."""
        self.waiting[wait.kernel] = wait
        if wait.message != why:
            wait.message = why
            self._heard(wait)

    def _end(self, wait: Waiting, state: str, why: str) -> None:
        if self.waiting.pop(wait.kernel, None) is not None or state == "refused":
            wait.state, wait.message = state, why
            self._heard(wait)

    def _heard(self, wait: Waiting) -> None:
        for listener in self.listeners:
            listener(wait)


async def _unless_given_up(wait: Waiting, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of some work; raises GivenUp as soon as its person does not want it any more."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(wait.given_up.wait())
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if wait.given_up.is_set():
            raise GivenUp
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()


def _message_of(error: HTTPClientError) -> str:
    """What the service said with a refusal."""
    try:
        return str(json.loads(error.response.body)["message"])  # type: ignore[union-attr]
    except (ValueError, LookupError, TypeError, AttributeError):
        return str(error)


def notebook_of(variables: Mapping[str, str]) -> str | None:
    """The slice of this server, as the hub's spawner rendered it; None for a server without one."""
    try:
        return str(json.loads(variables.get(SHARE_VARIABLE, ""))["notebook"])
    except (ValueError, KeyError, TypeError):
        return None


def steady_ms() -> int:
    """A clock that nobody sets."""
    return time.monotonic_ns() // 1_000_000


@functools.cache
def asker() -> Asker:
    """The one of this server, which its kernels and its reports share."""
    return Asker(os.environ)
