"""The rate limit of each person or notebook: a burst, then one request per interval."""

from __future__ import annotations

from collections.abc import Callable

MOST_KNOWN = 10_000


class RateLimit:
    """``at_once`` requests of one name in a row, then one every ``each_ms``. The number of known names is bounded.

    ``clock`` gives milliseconds. Source: the generic cell rate algorithm, ITU-T I.371.
    """

    def __init__(self, clock: Callable[[], int], *, at_once: int, each_ms: float) -> None:
        self._clock, self._each_ms, self._most_ms = clock, each_ms, at_once * each_ms
        self._rests_at: dict[str, float] = {}

    def takes(self, name: str) -> bool:
        """Whether one more is accepted now; a refused one does not count."""
        now = self._clock()
        rests_at = self._since(name, now)
        if rests_at + self._each_ms > now + self._most_ms:
            return False
        self._rests_at[name] = rests_at + self._each_ms
        if len(self._rests_at) > MOST_KNOWN:
            self._rests_at = {each: at for each, at in self._rests_at.items() if at > now}
        return True

    def wait_ms(self, name: str) -> float:
        """The time until one more is accepted; 0 where it would be now."""
        now = self._clock()
        return max(0.0, self._since(name, now) + self._each_ms - now - self._most_ms)

    def _since(self, name: str, now: int) -> float:
        rests_at = self._rests_at.get(name, now)
        has_rested = not now <= rests_at <= now + self._most_ms  # or the clock was set back
        return now if has_rested else rests_at
