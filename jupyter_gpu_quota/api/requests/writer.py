"""Group commit: all waiting requests are recorded in one transaction, and each sender gets its own result."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...store.records.commands import Recorded, Refusal, Request

log = logging.getLogger(__name__)

MAX_BATCH = 500
Outcome = Recorded | Refusal | Exception


class Records(Protocol):
    """The part of a store that the writer needs."""

    def record(self, requests: Sequence[Request], *, now: int) -> list[Recorded | Refusal]: ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    done: asyncio.Future[Recorded | Refusal]


class Writer:
    """One thread that writes, for one event loop. ``committed`` is called in the loop after each batch that wrote.

    ``store`` may raise StoreUnavailable; then nothing of the batch is written, and every sender gets the exception.
    """

    def __init__(
        self, store: Callable[[], Records], clock: Callable[[], int], committed: Callable[[], None] = lambda: None
    ) -> None:
        self._store, self._clock, self._committed = store, clock, committed
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    async def record(self, request: Request) -> Recorded | Refusal:
        """Record one request; returns once it is on disk. Raises StoreUnavailable."""
        done: asyncio.Future[Recorded | Refusal] = self._loop.create_future()
        self._waiting.put(_Waiting(request, done))
        return await done

    def close(self) -> None:
        """Write the waiting requests, then end the thread."""
        self._waiting.put(None)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, last = self._batch(first)
            outcomes = self._write([waiting.request for waiting in batch])
            self._loop.call_soon_threadsafe(self._deliver, batch, outcomes)
            if last:
                return

    def _batch(self, first: _Waiting) -> tuple[list[_Waiting], bool]:
        """The waiting requests; the flag says that the end was among them."""
        batch = [first]
        while len(batch) < MAX_BATCH:
            try:
                waiting = self._waiting.get_nowait()
            except queue.Empty:
                break
            if waiting is None:
                return batch, True
            batch.append(waiting)
        return batch, False

    def _write(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        try:
            return self._store().record(requests, now=self._clock())
        except Exception as error:  # noqa: BLE001 - the thread must outlive any fault; the senders get it
            return [error] * len(requests)

    def _deliver(self, batch: Sequence[_Waiting], outcomes: Sequence[Outcome]) -> None:
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if waiting.done.cancelled():
                continue
            if isinstance(outcome, Exception):
                waiting.done.set_exception(outcome)
            else:
                waiting.done.set_result(outcome)
        if any(isinstance(outcome, Recorded) for outcome in outcomes):
            self._committed()
