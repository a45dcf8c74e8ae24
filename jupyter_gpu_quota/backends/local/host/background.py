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
        self._lock, self._busy = threading.Lock(), set[Hashable]()
        self._open = True

    def run(self, key: Hashable, do: Callable[[], object]) -> None:
        """Run a task soon, unless one of the same key is queued or runs, or this is closed."""
        with self._lock:
            if key in self._busy or not self._open:
                return
            self._busy.add(key)
            task = self._pool.submit(do)
        task.add_done_callback(lambda future: self._finish(key, future))

    def _finish(self, key: Hashable, future: Future[object]) -> None:
        with self._lock:
            self._busy.discard(key)
        try:
            error = future.exception()
        except CancelledError:
            return
        if error is not None:
            log.error("%s failed and will be tried again: %s", key, error, exc_info=error)

    def close(self) -> None:
        """Accept no more, drop tasks that wait, and let the threads end by themselves."""
        with self._lock:
            self._open = False
        self._pool.shutdown(wait=False, cancel_futures=True)
