"""Figures in sentences: amounts of GPU, times, numbers with their noun, and lists of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from string import Formatter
from typing import Any

from ..core.amounts import gpu_text


class _FigureFormatter(Formatter):
    """Writes ``{name:gpu}`` as an amount of GPU, ``{name:time}`` as a time, ``{name:device}`` as "2 devices"."""

    def format_field(self, value: Any, format_spec: str) -> str:
        match format_spec:
            case "":
                return str(value)
            case "gpu":
                return gpu_text(value) if isinstance(value, int) else str(value)
            case "time":
                return time_text(value)
            case _:
                return f"{value} {format_spec}" if value == 1 else f"{value} {format_spec}s"


_FORMATTER = _FigureFormatter()


def rendered(words: str, figures: Mapping[str, object]) -> str:
    """A sentence with its figures, in the formats of :class:`_FigureFormatter`."""
    return _FORMATTER.vformat(words, (), figures)


def time_text(seconds: int | str) -> str:
    """A time to the second: "90 s", "10 minutes", "23 hours 59 minutes 42 s"."""
    if not str(seconds).isdigit():
        return f"{seconds} s"
    parts, rest = [], int(seconds)
    if rest >= 120:
        for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
            count, rest = divmod(rest, size)
            parts += [f"{count} {name}" if count == 1 else f"{count} {name}s"] * (count > 0)
    return " ".join(parts + [f"{rest} s"] * (rest > 0 or not parts))


def instant_text(at: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC, to the second."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def names_text(names: Sequence[str], count: int) -> str:
    """The first of ``count`` projects by name: "b", "b and c", "b, c and 4 other projects"."""
    parts, others = list(names), count - len(names)
    if others > 0:
        parts.append("1 other project" if others == 1 else f"{others} other projects")
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def open_text(windows: Sequence[str]) -> str:
    """Calendar windows by name: "nights is open", "nights and exam are open"."""
    return f"{' and '.join(windows)} {'is' if len(windows) == 1 else 'are'} open"
