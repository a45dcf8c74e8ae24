"""The calendar: windows in local time to instants. Only this module knows time zones and holidays.

A window belongs to the day it starts. Its ``to`` is the first such time of day after its ``from``, so one whose ``to``
is not later than its ``from`` ends on the next day. On the nights on which clocks change:

* a local time that does not exist is the first instant after the gap; a window that lies in the gap altogether begins
  there and lasts as long as it is written;
* a local time that occurs twice is its first occurrence, for ``from`` and for ``to``: a window opens once, and one that
  begins where another ends neither overlaps it nor leaves an hour between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

from ..core.model import Change, Window
from ..messages.validation import nearest_name

if TYPE_CHECKING:
    from holidays import HolidayBase

DAY = timedelta(days=1)
MINUTES_A_DAY = 1440
MAX_DAYS = 3
"""No opening lasts longer, whatever the clocks do, so a window of an earlier day is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """The days on which a window opens, and from when to when. Every condition that is given must hold.

    ``begins`` and ``ends`` are minutes after midnight, up to 1440, both None for whole days; ``days`` counts from
    Monday 0; ``dates`` are first and last days; ``holidays`` and ``except_holidays`` name a country ("DE") or a part of
    one ("GB-ENG").
    """

    timezone: str
    begins: int | None = None
    ends: int | None = None
    days: frozenset[int] | None = None
    dates: tuple[tuple[date, date], ...] | None = None
    holidays: str | None = None
    except_holidays: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the calendar: what changes while it is open."""

    name: str
    when: When
    changes: tuple[Change, ...]


def expand(calendar: Iterable[Entry], from_ms: int, to_ms: int) -> tuple[Window, ...]:
    """The openings that are open at some instant from ``from_ms`` up to, not including, ``to_ms``, in full length.

    They are in the order of the calendar, so that the last match wins, those of one entry in the order of time.
    Raises ZoneInfoNotFoundError or NotImplementedError for a zone or region that :func:`zone_refusal` or
    :func:`region_refusal` refuses.
    """
    return tuple(
        Window(name=entry.name, begins_at=begins_at, ends_at=ends_at, changes=entry.changes)
        for entry in calendar
        for begins_at, ends_at in _openings(entry.when, from_ms, to_ms)
        if ends_at > from_ms and begins_at < to_ms
    )


def _openings(when: When, from_ms: int, to_ms: int) -> Iterator[tuple[int, int]]:
    zone = ZoneInfo(when.timezone)
    first, last = (datetime.fromtimestamp(at // 1000, zone).date() for at in (from_ms, to_ms))
    first -= MAX_DAYS * DAY
    for number in range((last - first).days + 1):
        day = first + number * DAY
        if _opens_on(when, day) and (opening := _opening(when, day, zone)) is not None:
            yield opening


def _opens_on(when: When, day: date) -> bool:
    return (
        (when.days is None or day.weekday() in when.days)
        and (when.dates is None or any(first <= day <= last for first, last in when.dates))
        and (when.holidays is None or day in _holidays_of(when.holidays))
        and (when.except_holidays is None or day not in _holidays_of(when.except_holidays))
    )


@cache
def _holidays_of(region: str) -> HolidayBase:
    """The public holidays of a region; the library computes each year at its first use."""
    import holidays

    country, _, part = region.partition("-")
    return holidays.country_holidays(country, subdiv=part or None)


# --- times of a day -------------------------------------------------------------------------------------------------
def _opening(when: When, day: date, zone: ZoneInfo) -> tuple[int, int] | None:
    """When the window that belongs to a day begins and ends; None on a day that the zone left out."""
    begins = 0 if when.begins is None else when.begins
    ends = MINUTES_A_DAY if when.ends is None else when.ends
    ends += MINUTES_A_DAY if ends <= begins else 0
    begins_at, ends_at = _instant(day, begins, zone), _instant(day, ends, zone)
    if ends_at > begins_at:
        return begins_at, ends_at
    there = _instant(day, 0, zone) < _instant(day, MINUTES_A_DAY, zone)
    return (begins_at, begins_at + (ends - begins) * 60_000) if there else None


def _instant(day: date, minutes: int, zone: ZoneInfo) -> int:
    """The first instant at which the clocks of a zone show this time of a day, in minutes, or a later one."""
    midnight = _usual_midnight(day, zone)
    if midnight is not None:
        return midnight + minutes * 60_000
    days, minutes = divmod(minutes, MINUTES_A_DAY)
    local = datetime.combine(day + days * DAY, time(minutes // 60, minutes % 60))
    first, second = (_milliseconds(local.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    return first if first <= second else _change(second, first, zone)


@lru_cache(10_000)
def _usual_midnight(day: date, zone: ZoneInfo) -> int | None:
    """The begin of a day after which the clocks do not change for as long as a window may last; None where they do.

    No zone changes its clocks there and back within so few days.
    """
    local = datetime.combine(day, time(0), tzinfo=zone)
    offsets = {(local + number * DAY).replace(fold=fold).utcoffset() for number in (0, MAX_DAYS) for fold in (0, 1)}
    return _milliseconds(local) if len(offsets) == 1 else None


def _change(before: int, after: int, zone: ZoneInfo) -> int:
    """The instant between two others from which on the zone has the offset of the later one."""
    offset = datetime.fromtimestamp(after // 1000, zone).utcoffset()
    low, high = before // 1000, after // 1000
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return high * 1000


def _milliseconds(local: datetime) -> int:
    return (local.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# --- names ----------------------------------------------------------------------------------------------------------
def zone_refusal(name: str) -> str | None:
    """Why a time zone cannot be used, with the nearest known one; None for a known one."""
    zones = _zones()
    if name in zones:
        return None
    if name == LOCALTIME:
        return f"{name!r} is another time zone on every machine; name the zone itself, such as Europe/London"
    near = nearest_name(name, zones)
    advice = f"did you mean {near}?" if near else "the zones are named like Europe/London"
    return f"there is no time zone {name[:60]!r}; {advice}"


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - {LOCALTIME}


LOCALTIME = "localtime"
"""Some systems list it among the zones; it is the setting of that machine."""


def region_refusal(name: str) -> str | None:
    """Why the holidays of a region are not known, with the nearest known region; None where they are known."""
    countries = _countries()
    country, dash, part = name.partition("-")
    near, advice = None, "regions are named like DE or GB-ENG"
    if country not in countries:
        upper = name.upper()
        near = upper if upper != name and region_refusal(upper) is None else nearest_name(country, countries)
    elif dash and part not in (parts := countries[country]):
        near = f"{country}-{found}" if (found := nearest_name(part, parts)) else None
        advice = f"{country} has the parts {', '.join(parts[:30]) or 'none'}"
    else:
        return None
    return f"the holidays of {name[:60]!r} are not known; {f'did you mean {near}?' if near else advice}"


@cache
def _countries() -> dict[str, Sequence[str]]:
    """The countries by their codes of two letters, with the codes of their parts."""
    import holidays

    known = holidays.list_supported_countries(include_aliases=True)
    return {name: tuple(parts) for name, parts in known.items() if len(name) == 2}
