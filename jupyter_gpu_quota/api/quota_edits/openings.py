"""Which windows of a calendar, as it is and as it becomes, are open together, and from when on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...core.model import Window
from ...core.quota.in_force import Toggle, together

Moment = tuple[int, tuple[Window, ...], tuple[Window, ...]]
"""An instant, and what is open then without an edit and with it, in the order of each calendar."""


def moments(before: Sequence[Window], after: Sequence[Window], now: int) -> Iterator[Moment]:
    """Now, and the first instant of each other combination of windows, of both calendars, that are open together.

    An entry of a calendar is told as one of its windows; it has a name of its own.
    """
    entries = {(side, window.name): window for side, windows in enumerate((before, after)) for window in windows}
    numbers = {key: number for number, key in enumerate(entries)}
    toggles = sorted((*_toggles(before, 0, numbers, now), *_toggles(after, 1, numbers, now)))
    for at, is_open in together([(now, 0, 0), *toggles]):
        found = [(side, entries[side, name]) for (side, name), number in numbers.items() if is_open >> number & 1]
        was_open, opens = (tuple(window for its, window in found if its == side) for side in (0, 1))
        yield at, was_open, opens


def _toggles(windows: Iterable[Window], side: int, numbers: dict[tuple[int, str], int], now: int) -> Iterator[Toggle]:
    """Each opening and closing from now on. What is open already opens now."""
    for window in windows:
        if window.begins_at < window.ends_at and window.ends_at > now:
            number = numbers[side, window.name]
            yield from ((max(window.begins_at, now), number, 1), (window.ends_at, number, -1))
