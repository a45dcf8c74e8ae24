"""The thread of a backend's event loop: the callers of the backend never wait for the API server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

from .api_server import Forbidden, Refused, Replaced, RequestFailed

log = logging.getLogger(__name__)
DISK_THREADS = 16
"""Each waits for the disk or the network most of its time."""
COPY_THREADS = 4

RESTART_S = 5.0
CANCEL_EVERY_S = 0.5

T = TypeVar("T")
Task = Callable[[], Coroutine[Any, Any, object]]


class LoopThread:
    """Runs coroutines. A task that fails is logged; its caller repeats it, or this does: see ``run_forever``.

    The kind of a task is the first element of its key, if that is a tuple.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="kubernetes-disk"))
        self._copiers = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="kubernetes-copies")
        self._asked, self._is_woken = deque[tuple[Hashable, Task, bool]](), False
        self._busy, self._next = set[Hashable](), dict[Hashable, Task]()
        self._tasks = set[asyncio.Task[None]]()
        self._slots = dict[Hashable, asyncio.Semaphore]()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)
        self._thread.start()

    def limit(self, kind: Hashable, number: int) -> None:
        """Run at most so many tasks of a kind at the same time; call this before the first of them.

        The others wait before they begin. Thousands that wait in the middle of their requests need 100 MiB.
        """
        self._slots[kind] = asyncio.Semaphore(number)

    def run(self, key: Hashable, make: Task) -> None:
        """Run a task soon, from any thread, unless one of the same key is running: its caller repeats the order."""
        self._ask(key, make, again=False)

    def run_again(self, key: Hashable, make: Task) -> None:
        """Run a task soon, from any thread; if one of the same key is running, once more after that one.

        This is for a task that looks at everything there is: the one that is running may have looked already.
        """
        self._ask(key, make, again=True)

    def _ask(self, key: Hashable, make: Task, *, again: bool) -> None:
        """Wake the loop once for many tasks.

        With each wakeup this thread waits for the interpreter's lock, so that the orders for thousands of pods would
        take a minute.
        """
        self._asked.append((key, make, again))
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._start_all)

    async def copy(self, function: Callable[[], T]) -> T:
        """Copy folders outside the loop, in threads of their own: a copy may take hours, and nothing else waits."""
        return await self._loop.run_in_executor(self._copiers, function)

    def run_forever(self, key: Hashable, make: Task) -> None:
        """Run a task that is to last until ``close``: after a failure it begins again, with a pause."""
        self.run(key, partial(self._repeated, key, make))

    async def _repeated(self, key: Hashable, make: Task) -> None:
        while True:
            await self._logged(key, make())
            await asyncio.sleep(RESTART_S)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine from another thread, and wait for its result. Raises TimeoutError."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def close(self, last: Coroutine[Any, Any, object] | None = None) -> None:
        """Cancel all tasks, run the last one, and end the thread."""
        self.call(self._cancel(), 5.0)
        if last is not None:
            self.call(last, 5.0)
        self._copiers.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    def _start_all(self) -> None:
        self._is_woken = False  # before the tasks are taken: one that is added now wakes the loop again
        while self._asked:
            self._start(*self._asked.popleft())

    def _start(self, key: Hashable, make: Task, again: bool) -> None:
        if key in self._busy:
            if again:
                self._next[key] = make
            return
        self._busy.add(key)
        task = self._loop.create_task(self._run_limited(key, make))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: Hashable, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._busy.discard(key)
        if (make := self._next.pop(key, None)) is not None:
            self._start(key, make, again=True)

    async def _run_limited(self, key: Hashable, make: Task) -> None:
        slots = self._slots.get(key[0]) if isinstance(key, tuple) else None
        async with slots or nullcontext():
            await self._logged(key, make())

    async def _logged(self, key: Hashable, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await coroutine
        except Replaced as error:
            log.debug("%s was dropped: %s", key, error)
        except Refused as error:
            log.warning("%s was refused by the API server: %s", key, error)
        except Forbidden as error:
            log.warning("%s is forbidden now and will be tried again: %s", key, error)
        except RequestFailed as error:
            log.info("%s failed and will be tried again: %s", key, error)
        except Exception:
            log.exception("%s failed and will be tried again", key)

    async def _cancel(self) -> None:
        """Cancel all tasks, again and again: a library may turn a cancellation into an error, which is tried again."""
        self._next.clear()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=CANCEL_EVERY_S)


async def all_of(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once until all have ended, and then raise the first error.

    The pods of a gang would otherwise wait for each other behind thousands of requests for other jobs.
    """
    found = await asyncio.gather(*coroutines, return_exceptions=True)
    results = []
    for each in found:
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results
