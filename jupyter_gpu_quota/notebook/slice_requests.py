"""Requests for this server's slice: a kernel that starts waits until the slice is its own.

While a notebook is idle its slice may be lent. Once the service has reported that it lends slices, no kernel with a GPU
starts before the service confirms the slice, even while the service does not answer. Kernels without a GPU always
start. Before that report the slice cannot be lent, and kernels do not wait for the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tornado.httpclient import HTTPClientError
from tornado.web import HTTPError

from ..backends.rendering.variables import SHARE_VARIABLE
from .service import Service, monotonic_ms

POLL_S = 5
"""Longest wait of one request; then the reason is reported again."""

ANSWER_MARGIN_S = 5.0
"""Additional time before the service counts as unavailable."""

RETRY_S = 1.0
NO_SLICE = 409
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", SHARE_VARIABLE)
"""Variables that the answer replaces: the slice may come back on another device."""

NOT_THERE = (403, 404)
"""The hub answers so where the service was removed, and where it does not know the token of this server."""

RESTART = "; restart this server if the service was removed"

ADVICE = 'Try again, or start a kernel whose kernelspec has "gpu": false: it needs no GPU and starts at once.'

T = TypeVar("T")
Post = Callable[[str, object, float], Awaitable[Any]]


class NoGpuNow(HTTPError):
    """The kernel was not started, for the reason ``why``: a sentence that a Jupyter server shows."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(503, f"The kernel was not started. {why} {ADVICE}", reason="No GPU now")


class ServiceUnreachable(Exception):
    """The service does not answer; the message has the cause."""


class WaitCancelled(Exception):
    """The user cancelled the wait."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A kernel that waits for the GPU: since when (monotonic milliseconds), and the reason.

    ``state`` is waiting, then ready, refused or given_up.
    """

    kernel: str
    since: int
    message: str = ""
    state: str = "waiting"
    given_up: asyncio.Event = field(default_factory=asyncio.Event)


class SliceRequester:
    """Requests the slice of one server. ``variables`` are the server's; ``listeners`` are called with each change.

    ``may_be_lent``: the service lends slices. It stays true for the life of this server. ``requested``: the requests
    that have not ended; ``waiting``: those of them that the service answered with a wait.
    """

    def __init__(
        self, variables: Mapping[str, str], post: Post | None = None, clock: Callable[[], int] = monotonic_ms
    ) -> None:
        self.service = Service(variables)
        self.post, self.clock = post or self._post, clock
        self.may_be_lent = False
        self.waiting: dict[str, Waiting] = {}
        self.requested: set[Waiting] = set()
        self.listeners: list[Callable[[Waiting], object]] = []

    async def request(self, kernel: str, within_s: float, *, starts: bool = True) -> dict[str, str]:
        """The variables of the slice's devices, once it is this server's own; {} if they are unchanged.

        ``starts``: the kernel will be started; otherwise it was suspended. Raises NoGpuNow.
        """
        if not self.service.has_slice:
            return {}
        wait = Waiting(kernel, self.clock())
        self.requested.add(wait)
        try:
            found = await self._wait(wait, within_s)
        except NoGpuNow as error:
            self._end(wait, "refused", str(error.log_message) if starts else error.why)
            raise
        except WaitCancelled:
            self._end(wait, "given_up", "The user cancelled it.")
            raise NoGpuNow("The user cancelled its wait for the GPU.") from None
        except BaseException:
            self._end(wait, "given_up", "It was cancelled.")
            raise
        finally:
            self.requested.discard(wait)
        self._end(wait, "ready", "The GPU is available.")
        return found

    def give_up(self, kernel: str | None = None) -> list[str]:
        """End the wait of one kernel, or of all; returns their ids."""
        waits = [wait for wait in self.requested if kernel in (None, wait.kernel)]
        for wait in waits:
            wait.given_up.set()
        return [wait.kernel for wait in waits]

    async def _wait(self, wait: Waiting, within_s: float) -> dict[str, str]:
        poll_s = 0
        while True:
            try:
                answer = await _unless_cancelled(wait, self._answer(wait.kernel, poll_s))
            except ServiceUnreachable as error:
                if not self.may_be_lent:
                    return {}
                why, pause_s = f"The GPU service cannot be reached ({error}), and the slice may be lent.", RETRY_S
            else:
                if answer["state"] == "ready":
                    return {name: text for name, text in answer["variables"].items() if name in DEVICE_VARIABLES}
                if answer["state"] != "waiting":
                    raise NoGpuNow(str(answer["message"]))
                why, pause_s = str(answer["message"]), 0.0
            self.waiting[wait.kernel] = wait
            if wait.message != why:
                wait.message = why
                self._notify(wait)
            left_s = within_s - (self.clock() - wait.since) / 1000
            if left_s <= 0:
                raise NoGpuNow(f"It waited {within_s:.0f} s for the GPU. {why}")
            poll_s = max(1, min(POLL_S, round(left_s)))
            await _unless_cancelled(wait, asyncio.sleep(pause_s))

    async def _answer(self, kernel: str, wait_s: int) -> Any:
        """The service's answer. Raises ServiceUnreachable, and NoGpuNow if this server has no slice any more."""
        try:
            body = {"kernel": kernel, "wait_s": wait_s}
            answer = await self.post(self.service.path("actions/wake"), body, wait_s + ANSWER_MARGIN_S)
            return {"state": str(answer["state"]), "message": answer["message"], "variables": answer["variables"]}
        except HTTPClientError as error:
            message = str(error)
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                message = str(json.loads(error.response.body)["message"])  # type: ignore[union-attr]
            message += RESTART if error.code in NOT_THERE else ""
            raise (NoGpuNow if error.code == NO_SLICE else ServiceUnreachable)(message) from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ServiceUnreachable(str(error) or type(error).__name__) from error

    async def _post(self, path: str, body: object, within_s: float) -> Any:
        return json.loads(await self.service.post(path, json.dumps(body), within_s))

    def _end(self, wait: Waiting, state: str, why: str) -> None:
        """Notify of the end of a wait that was reported, and of every refusal."""
        if self.waiting.pop(wait.kernel, None) is not None or state == "refused":
            wait.state, wait.message = state, why
            self._notify(wait)

    def _notify(self, wait: Waiting) -> None:
        for listener in self.listeners:
            listener(wait)


async def _unless_cancelled(wait: Waiting, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work; raises WaitCancelled as soon as the user cancels the wait."""
    task, cancelled = asyncio.ensure_future(work), asyncio.ensure_future(wait.given_up.wait())
    try:
        await asyncio.wait({task, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        if wait.given_up.is_set():
            raise WaitCancelled
        return task.result()
    finally:
        task.cancel()
        cancelled.cancel()


@functools.cache
def requester() -> SliceRequester:
    """The requester of this server, shared by its kernels and its reports."""
    return SliceRequester(os.environ)
