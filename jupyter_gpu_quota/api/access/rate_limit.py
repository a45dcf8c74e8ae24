"""The rate limit of each person or notebook: a burst, then one request per interval."""

from __future__ import annotations

from collections.abc import Callable

MAX_NAMES = 10_000


class RateLimit:
    """``burst`` requests of one name in a row, then one every ``interval_ms``. The number of known names is bounded.

    ``clock`` gives milliseconds. ``_arrivals`` are the theoretical arrival times. Source: the generic
    cell rate algorithm, ITU-T I.371.
    """

    def __init__(self, clock: Callable[[], int], *, burst: int, interval_ms: float) -> None:
        self._clock, self._interval_ms, self._burst_ms = clock, interval_ms, burst * interval_ms
        self._arrivals: dict[str, float] = {}

    def allows(self, name: str) -> bool:
        """Whether one more is accepted now; a refused one does not count."""
        now = self._clock()
        arrival = self._next_arrival(name, now)
        if arrival + self._interval_ms > now + self._burst_ms:
            return False
        self._arrivals[name] = arrival + self._interval_ms
        if len(self._arrivals) > MAX_NAMES:
            self._arrivals = {each: at for each, at in self._arrivals.items() if at > now}
        return True

    def wait_ms(self, name: str) -> float:
        """The time until one more is accepted; 0 if it would be accepted now."""
        now = self._clock()
        return max(0.0, self._next_arrival(name, now) + self._interval_ms - now - self._burst_ms)

    def _next_arrival(self, name: str, now: int) -> float:
        arrival = self._arrivals.get(name, now)
        is_idle = not now <= arrival <= now + self._burst_ms  # or the clock was set back
        return now if is_idle else arrival
