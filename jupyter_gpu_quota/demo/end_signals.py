"""The signals that end the demo, and the scenario that they cancel."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They end the demo and all that it started. A shell without a terminal starts background jobs with SIGINT ignored."""


class EndSignals:
    """The first signal raises KeyboardInterrupt, or cancels the scenario while that runs; later ones are ignored.

    So no signal interrupts the end of the demo. Outside the main thread no signal is handled.
    """

    def __init__(self) -> None:
        self.ignored = False
        self._cancel: Callable[[], None] | None = None

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in this block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in END_SIGNALS}
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    @contextlib.contextmanager
    def ignored_after(self) -> Iterator[None]:
        """Ignore the signals from the end of this block on."""
        try:
            yield
        finally:
            self.ignored = True

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine to its end. Raises KeyboardInterrupt where a signal cancelled it, after its cleanup."""
        try:
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                task = loop.create_task(work())

                def cancel() -> None:
                    if not loop.is_closed():
                        loop.call_soon_threadsafe(task.cancel)

                self._cancel = cancel
                loop.run_until_complete(task)
        finally:
            self._cancel = None
            if self.ignored:
                raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.ignored:
            return
        self.ignored = True
        if self._cancel is None:
            raise KeyboardInterrupt
        self._cancel()
