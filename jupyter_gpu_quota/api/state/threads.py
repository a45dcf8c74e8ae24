"""The threads of an API process: each kind of work has its own, so that no kind waits for a slower one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from ...store.records.calls import StoreUnavailable

P = ParamSpec("P")
R = TypeVar("R")

READERS = 2
LONG_READERS = 2
"""Threads of reads that may take seconds, so that a lookup never waits for one."""
FILE_READERS = 16
"""A node that does not answer holds a thread for 15 s."""
BUNDLE_CHECKERS = 2
BUNDLE_WRITERS = 4
SAMPLE_WRITERS = 2
"""A write waits for up to 2 s while another process has the database's lock."""
SLOW_THREADS = 2
"""An explanation of a huge pool takes half a minute; an edit is previewed at the same time."""


class Threads:
    """Runs functions outside the event loop. After ``end`` each call raises StoreUnavailable."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._long_readers = ThreadPoolExecutor(LONG_READERS, thread_name_prefix="store-long-reader")
        self._file_readers = ThreadPoolExecutor(FILE_READERS, thread_name_prefix="file-reader")
        self._bundle_checkers = ThreadPoolExecutor(BUNDLE_CHECKERS, thread_name_prefix="bundle-checker")
        self._bundle_writers = ThreadPoolExecutor(BUNDLE_WRITERS, thread_name_prefix="bundle-writer")
        self._sample_writers = ThreadPoolExecutor(SAMPLE_WRITERS, thread_name_prefix="sample-writer")
        self._computer = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="compute-slow")
        self._has_ended = False

    async def read(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Read the store; may raise StoreUnavailable."""
        return await self._run(self._readers, lambda: function(*args, **kwargs))

    async def read_long(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for a read of many rows."""
        return await self._run(self._long_readers, lambda: function(*args, **kwargs))

    async def read_files(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Read the logs or outputs of a job, which may wait for its node or for a disk."""
        return await self._run(self._file_readers, lambda: function(*args, **kwargs))

    async def check_bundle(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Check a bundle that has arrived, which takes seconds for a large one."""
        return await self._run(self._bundle_checkers, lambda: function(*args, **kwargs))

    async def write_bundle(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Write a part of a bundle that arrives, which waits for the state volume."""
        return await self._run(self._bundle_writers, lambda: function(*args, **kwargs))

    def drop_bundle(self, remove: Callable[[], None]) -> None:
        """Remove an unfinished bundle later; after ``end``, or if that fails, the next sweep removes it."""
        if not self._has_ended:
            self._bundle_writers.submit(remove)

    async def write_samples(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Write the readings of a node; may raise StoreUnavailable."""
        return await self._run(self._sample_writers, lambda: function(*args, **kwargs))

    async def compute(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute what every page shows, one call after the other."""
        return await self._run(self._computer, lambda: function(*args, **kwargs))

    async def compute_slow(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute for seconds for one request: a preview, or an explanation of one job."""
        return await self._run(self._slow, lambda: function(*args, **kwargs))

    async def _run(self, threads: ThreadPoolExecutor, function: Callable[[], R]) -> R:
        if self._has_ended:
            raise StoreUnavailable("The service is ending.")
        return await asyncio.get_running_loop().run_in_executor(threads, function)

    def end(self) -> None:
        """Begin no more work; what runs goes on."""
        self._has_ended = True
        readers = self._readers, self._long_readers, self._file_readers
        bundles = self._bundle_checkers, self._bundle_writers
        for threads in (*readers, *bundles, self._sample_writers, self._computer, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)
