"""The clusters of a term of leadership: those that could be read when it began. The others get no orders in it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeVar

from ..protocol import ControllersBackend
from .names import Names

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_WITHIN_S, TAKE_OVER_WITHIN_S = 5.0, 40.0
"""How long a new leader waits for the first answer of a cluster, and for all that a take-over reads and writes there.

One that takes longer is left out, so that the others go on. A take-over of thousands of pods needs the second time.
"""

PROBE_AFTER_S, MAX_PROBE_AFTER_S = 2.0, 60.0
"""The interval of attempts to take over a cluster that was left out; it doubles with each one that fails."""


@dataclass(frozen=True, slots=True)
class Member:
    """One cluster with its backend."""

    name: str
    backend: ControllersBackend

    @property
    def names(self) -> Names:
        return Names(self.name)


@dataclass(slots=True)
class _Absent:
    """A cluster that was left out. ``taken_over``: an attempt to raise its fencing number, while one is made."""

    why: str
    probe_at: float
    pause_s: float = PROBE_AFTER_S
    taken_over: Future[None] | None = None
    is_back: bool = False


class Members:
    """All clusters, the hub's own first, and which of them are left out in this term.

    ``clock`` is in seconds; ``answer_within_s`` is for the first answer of each cluster.
    """

    def __init__(
        self, members: Sequence[Member], *, clock: Callable[[], float] = time.monotonic,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:  # fmt: skip
        self.all, self._clock, self._answer_within_s = tuple(members), clock, answer_within_s
        self._by_name = {each.name: each for each in members}
        self._absent: dict[str, _Absent] = {}
        self._begun, self._fencing = False, 0

    @property
    def own(self) -> Member:
        """The hub's own cluster."""
        return self.all[0]

    def named(self, name: str) -> Member | None:
        """The member of this name, unless it is left out, or no longer configured."""
        return None if name in self._absent else self._by_name.get(name)

    def present(self) -> Iterator[Member]:
        """The clusters that take part in this term."""
        return (each for each in self.all if each.name not in self._absent)

    # --- terms ----------------------------------------------------------------------------------------------------
    def begin_term(self) -> int:
        """Begin a term with all clusters that answer; returns the highest number. Raises OSError where none does."""
        self._absent, self._begun = {}, True
        return max(self._asked(lambda member: member.backend.attempts.newest_fence(), self._answer_within_s).values())

    def fence(self, fencing: int) -> None:
        """Raise the number of all clusters that can be read; the others are left out. Raises OSError where all are."""
        if not self._begun:
            self._absent, self._begun = {}, True
        self.ask(lambda member: member.backend.jobs.fence(fencing))
        self._begun, self._fencing = False, fencing

    def ask(self, question: Callable[[Member], T]) -> dict[str, T]:
        """The answers of all clusters at once, by name. One that fails, or is late, is left out from now on.

        Raises OSError where none is left; the term ends.
        """
        return self._asked(question, TAKE_OVER_WITHIN_S)

    def _asked(self, question: Callable[[Member], T], within_s: float) -> dict[str, T]:
        asked = {member.name: _in_thread(question, member) for member in self.present()}
        wait(asked.values(), within_s)
        failed = {name: why for name, future in asked.items() if (why := _failure(future))}
        for name, why in failed.items():
            log.warning("cluster %s is left out, its work is unknown until it can be read: %s", name, why)
            self._absent[name] = _Absent(why, self._clock() + PROBE_AFTER_S)
        if len(failed) == len(asked):
            why_none = "; ".join(f"cluster {name}: {each.why}" for name, each in self._absent.items())
            self._absent, self._begun = {}, False
            raise OSError(why_none)
        return {name: future.result() for name, future in asked.items() if name not in failed}

    def left_out(self) -> Mapping[str, bool]:
        """The clusters that are left out; True: this leader's number is in force there, so a new term has them."""
        for name, absent in self._absent.items():
            self._probe(self._by_name[name], absent)
        return {name: absent.is_back for name, absent in self._absent.items()}

    def _probe(self, member: Member, absent: _Absent) -> None:
        """Try to raise the number of a cluster that can be read again, in a thread of its own."""
        if absent.taken_over is not None and absent.taken_over.done():
            absent.is_back = not (why := _failure(absent.taken_over))
            absent.taken_over, absent.why = None, why or absent.why
            absent.pause_s = min(MAX_PROBE_AFTER_S, 2 * absent.pause_s)
            absent.probe_at = self._clock() + absent.pause_s
        is_due = not absent.is_back and absent.taken_over is None and self._clock() >= absent.probe_at
        if is_due and member.backend.jobs.inventory() is not None:
            fencing = self._fencing
            absent.taken_over = _in_thread(lambda one: one.backend.jobs.fence(fencing), member)


def _in_thread(question: Callable[[Member], T], member: Member) -> Future[T]:
    """Ask one cluster in a thread that the end of this process does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(question(member))
        except BaseException as error:  # noqa: BLE001 - the asking thread handles it
            future.set_exception(error)

    threading.Thread(target=run, name=f"cluster {member.name}", daemon=True).start()
    return future


def _failure(future: Future[T]) -> str:
    """Why a cluster gave no answer; empty where it did. A defect is raised."""
    if not future.done():
        return "it does not answer in time"
    error = future.exception()
    if error is None:
        return ""
    if isinstance(error, OSError):
        return str(error) or "it does not answer in time"
    raise error
