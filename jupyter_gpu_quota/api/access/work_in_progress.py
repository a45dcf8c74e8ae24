"""Limits of the work that one person has in progress, so that others find threads that are free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .permissions import Person
from .refusals import Refused

RETRY_AFTER_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most ``most`` pieces of one kind of work of a person at a time.

    ``reason`` is the code of a refusal; ``work`` and ``advice`` are parts of its sentence.
    """

    reason: str
    most: int
    work: str
    advice: str = f"try again in {RETRY_AFTER_S} s"


EVENT_STREAMS = Limit(reason="too_many_streams", most=30, work="open event streams", advice="close some pages")
LOG_READS = Limit(reason="too_many_log_reads", most=4, work="reads of logs in progress")
OUTPUT_READS = Limit(reason="too_many_output_reads", most=4, work="reads of outputs in progress")
DOWNLOADS = Limit(reason="too_many_downloads", most=6, work="downloads in progress")
DIRECTORY_CHECKS = Limit(reason="too_many_directory_checks", most=4, work="checks of directories in progress")
ACCOUNT_CHECKS = Limit(reason="too_many_account_checks", most=20, work="checks of accounts in progress")
DEVICE_CHECKS = Limit(reason="too_many_device_checks", most=20, work="checks of devices in progress")
SLOW_WORK = Limit(
    reason="too_many_computations", most=6, work="dry runs, explanations, previews or sums of usage in progress"
)


class LimitReached(Refused):
    """A person has as much work of one kind in progress as one may have."""


class WorkInProgress:
    """Counts the work in progress of each person and kind."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def one(self, person: Person, limit: Limit) -> Iterator[None]:
        """One piece of work, from its beginning to its end. Raises LimitReached."""
        self.begin(person, limit)
        try:
            yield
        finally:
            self.end(person, limit)

    def begin(self, person: Person, limit: Limit) -> None:
        """Count one more. Raises LimitReached."""
        key = (limit.reason, person.id)
        if self._counts[key] >= limit.most:
            sentence = f"{person.name} has {limit.most} {limit.work}, the limit; {limit.advice}."
            raise LimitReached(429, limit.reason, sentence, {"Retry-After": str(RETRY_AFTER_S)})
        self._counts[key] += 1

    def end(self, person: Person, limit: Limit) -> None:
        """Count one less."""
        key = (limit.reason, person.id)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
