"""Background work: a few threads, one task per key at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

log = logging.getLogger(__name__)


class Background:
    """Threads for tasks that may wait. A task that fails is logged; its caller repeats it."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="executor")
        self._lock, self._busy = threading.RLock(), set[Hashable]()
        self._requested: dict[Hashable, Callable[[], object]] = {}
        self._open = True

    def run(self, key: Hashable, task: Callable[[], object]) -> None:
        """Run a task soon, in place of one of the same key that waits, and after one that runs; none once closed."""
        with self._lock:
            if self._open:
                self._requested[key] = task
                if key not in self._busy:
                    self._submit(key)

    def _submit(self, key: Hashable) -> None:
        self._busy.add(key)
        self._pool.submit(self._take, key).add_done_callback(lambda done: self._finish(key, done))

    def _take(self, key: Hashable) -> None:
        with self._lock:
            task = self._requested.pop(key)
        task()

    def _finish(self, key: Hashable, future: Future[None]) -> None:
        with self._lock:
            self._busy.discard(key)
            if self._open and key in self._requested:
                self._submit(key)
        try:
            error = future.exception()
        except CancelledError:
            return
        if error is not None:
            log.error("%s failed and will be tried again: %s", key, error, exc_info=error)

    def close(self) -> None:
        """Accept no more tasks and drop those that wait; the threads end after their present task."""
        with self._lock:
            self._open = False
        self._pool.shutdown(wait=False, cancel_futures=True)
