"""The calendar: which instants a window in local time is open at, on ordinary days and on those when clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.model import Amounts, Change, Policy, Project
from jupyter_gpu_quota.core.quota.in_force import in_force, next_change_at
from jupyter_gpu_quota.quotafile.calendar import Entry, When, expand, region_refusal, zone_refusal

HOUR = 3_600_000
DAY = 24 * HOUR
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def at(text: str) -> int:
    """An instant, written in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def as_text(instant: int) -> str:
    return f"{datetime.fromtimestamp(instant // 1000, UTC):%m-%d %H:%M}"


def minutes(text: str) -> int:
    hours, rest = text.split(":")
    return int(hours) * 60 + int(rest)


def when(times: str = "", zone: str = "UTC", days: str = "", dates: str = "", **regions: str) -> When:
    """``times`` as "20:00-06:00", ``days`` as "mon tue", ``dates`` as "2027-01-11/2027-01-29 2027-02-02"."""
    begins, _, ends = times.partition("-")
    ranges = [(text.partition("/")[0], text.partition("/")[2] or text) for text in dates.split()]
    return When(
        timezone=zone,
        begins=minutes(begins) if times else None,
        ends=minutes(ends) if times else None,
        days=frozenset(map(DAYS.index, days.split())) if days else None,
        dates=tuple((date.fromisoformat(first), date.fromisoformat(last)) for first, last in ranges) or None,
        **regions,
    )


def opened(window: When, first: str, last: str) -> list[str]:
    """The openings between two days, in UTC."""
    entry = Entry(name="w", when=window, changes=())
    return [f"{as_text(w.begins_at)} - {as_text(w.ends_at)}" for w in expand([entry], at(first), at(last))]


@pytest.mark.parametrize(
    ("window", "first", "last", "expected"),
    [
        pytest.param(
            when("09:00-17:00", days="mon fri"), "2027-01-11", "2027-01-18",
            ["01-11 09:00 - 01-11 17:00", "01-15 09:00 - 01-15 17:00"], id="the days that are named",
        ),
        pytest.param(
            when("20:00-06:00", days="fri"), "2027-01-11", "2027-01-18", ["01-15 20:00 - 01-16 06:00"],
            id="a night belongs to the day it starts",
        ),
        pytest.param(
            when("20:00-06:00", days="fri"), "2027-01-16", "2027-01-17", ["01-15 20:00 - 01-16 06:00"],
            id="a night that is open already is complete",
        ),
        pytest.param(
            when("20:00-06:00", dates="2027-01-11"), "2027-01-01", "2027-02-01", ["01-11 20:00 - 01-12 06:00"],
            id="the night after a date, not the one before",
        ),
        pytest.param(
            when(dates="2027-01-11/2027-01-13 2027-02-02"), "2027-01-01", "2027-03-01",
            ["01-11 00:00 - 01-12 00:00", "01-12 00:00 - 01-13 00:00", "01-13 00:00 - 01-14 00:00",
             "02-02 00:00 - 02-03 00:00"],
            id="ranges of dates with both their ends, and single days",
        ),
        pytest.param(
            when(dates="2027-01-11/2027-01-17", days="sat sun"), "2027-01-01", "2027-03-01",
            ["01-16 00:00 - 01-17 00:00", "01-17 00:00 - 01-18 00:00"], id="days and dates must both hold",
        ),
        pytest.param(
            when("00:00-24:00", dates="2027-01-11"), "2027-01-01", "2027-02-01", ["01-11 00:00 - 01-12 00:00"],
            id="24:00 is the end of the day",
        ),
        pytest.param(
            when("08:00-08:00", dates="2027-01-11"), "2027-01-01", "2027-02-01", ["01-11 08:00 - 01-12 08:00"],
            id="from and to alike is a day and a night, not nothing",
        ),
        pytest.param(
            when(zone="Asia/Kathmandu", dates="2027-01-11"), "2027-01-01", "2027-02-01",
            ["01-10 18:15 - 01-11 18:15"], id="a zone of three quarters of an hour",
        ),
        pytest.param(
            when("09:00-17:00", days="mon tue wed thu fri", except_holidays="GB-ENG"), "2026-12-24", "2026-12-31",
            ["12-24 09:00 - 12-24 17:00", "12-29 09:00 - 12-29 17:00", "12-30 09:00 - 12-30 17:00"],
            id="not on Christmas Day, nor on Monday for Boxing Day that fell on a Saturday",
        ),
        pytest.param(
            when(holidays="GB-SCT"), "2026-11-28", "2026-12-03", ["11-30 00:00 - 12-01 00:00"],
            id="Saint Andrew's Day is one in Scotland",
        ),
        pytest.param(when(holidays="GB-ENG"), "2026-11-28", "2026-12-03", [], id="and none in England"),
        pytest.param(
            when("20:00-06:00", except_holidays="DE", dates="2027-12-24/2027-12-25"), "2027-12-01", "2028-01-01",
            ["12-24 20:00 - 12-25 06:00"], id="the night into a holiday belongs to the day before it",
        ),
    ],
)  # fmt: skip
def test_a_window_is_open(window: When, first: str, last: str, expected: list[str]) -> None:
    assert opened(window, first, last) == expected


LONDON, LORD_HOWE = "Europe/London", "Australia/Lord_Howe"
SPRING, AUTUMN = "2027-03-28", "2027-10-31"
"""London: from 01:00 to 02:00 there is no time on the one, and every time twice on the other."""


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        pytest.param(when("20:00-06:00", LONDON, dates="2027-03-27"), "03-27 20:00 - 03-28 05:00", id="a short night"),
        pytest.param(when("20:00-06:00", LONDON, dates="2027-10-30"), "10-30 19:00 - 10-31 06:00", id="a long night"),
        pytest.param(when("", LONDON, dates=SPRING), "03-28 00:00 - 03-28 23:00", id="a day of 23 hours"),
        pytest.param(when("", LONDON, dates=AUTUMN), "10-30 23:00 - 11-01 00:00", id="a day of 25 hours"),
        pytest.param(
            when("01:30-06:00", LONDON, dates=SPRING), "03-28 01:00 - 03-28 05:00",
            id="a start that does not exist is the first instant after the gap",
        ),
        pytest.param(
            when("22:00-01:30", LONDON, dates="2027-03-27"), "03-27 22:00 - 03-28 01:00",
            id="an end that does not exist is the first instant after the gap",
        ),
        pytest.param(
            when("01:15-01:45", LONDON, dates=SPRING), "03-28 01:00 - 03-28 01:30",
            id="half an hour that does not exist begins after the gap, and is not empty",
        ),
        pytest.param(
            when("01:15-01:45", LONDON, dates=AUTUMN), "10-31 00:15 - 10-31 00:45",
            id="half an hour that occurs twice opens once",
        ),
        pytest.param(
            when("01:30-06:00", LONDON, dates=AUTUMN), "10-31 00:30 - 10-31 06:00", id="from the first of two"
        ),
        pytest.param(
            when("22:00-01:30", LONDON, dates="2027-10-30"), "10-30 21:00 - 10-31 00:30", id="to the first of two"
        ),
        pytest.param(
            when("02:10-03:00", LORD_HOWE, dates="2027-10-03"), "10-02 15:30 - 10-02 16:00", id="a gap of half an hour"
        ),
        pytest.param(
            when("", "Africa/Cairo", dates="2027-04-30"), "04-29 22:00 - 04-30 21:00", id="a day without its midnight"
        ),
        pytest.param(
            when("23:30-06:00", "America/Santiago", dates="2027-04-03"), "04-04 02:30 - 04-04 10:00",
            id="an hour before midnight that occurs twice",
        ),
    ],
)  # fmt: skip
def test_the_nights_on_which_clocks_change(window: When, expected: str) -> None:
    assert opened(window, "2027-01-01", "2028-01-01") == [expected]


def test_a_day_that_a_time_zone_skipped_has_no_window() -> None:
    samoa = [when(times, "Pacific/Apia", dates="2011-12-29/2011-12-31") for times in ("", "08:00-17:00")]
    assert [len(opened(window, "2011-12-01", "2012-01-31")) for window in samoa] == [2, 2]


ZONES = ["UTC", LONDON, LORD_HOWE, "America/New_York", "America/Santiago", "Africa/Cairo", "Asia/Kathmandu"]
times_of_day = st.integers(0, 1439)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(ZONES), times_of_day, times_of_day, st.dates(date(2026, 1, 1), date(2030, 1, 1)))
def test_adjacent_windows_cover_every_instant_and_are_never_empty(zone: str, one: int, other: int, day: date) -> None:
    """Day and night between the same two times of day fill the time, whatever the clocks do."""
    begins, ends = sorted((one, other))
    begins, ends = (begins, ends + 1) if begins == ends else (begins, ends)
    entries = [
        Entry(name=name, when=When(timezone=zone, begins=first, ends=last % 1440 or 1440), changes=())
        for name, first, last in (("day", begins, ends), ("night", ends % 1440, begins or 1440))
    ]
    middle = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()) * 1000
    windows = sorted(expand(entries, middle - 3 * DAY, middle + 3 * DAY), key=lambda window: window.begins_at)
    assert all(window.begins_at < window.ends_at for window in windows)
    assert windows[0].begins_at <= middle - 3 * DAY and max(w.ends_at for w in windows) >= middle + 3 * DAY
    for before, after in pairwise(windows):
        assert after.begins_at <= before.ends_at, "no instant is left out"


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(ZONES), times_of_day, times_of_day, st.integers(0, 3 * 365 * 24 * 12))
def test_a_window_is_open_at_the_times_that_the_clocks_show(zone: str, begins: int, ends: int, fives: int) -> None:
    """On a day without a change of clocks; the other days are rows above."""
    instant = at("2026-01-01") + fives * 300_000
    local = datetime.fromtimestamp(instant // 1000, ZoneInfo(zone))
    if any((local + timedelta(days=n)).utcoffset() != local.utcoffset() for n in (-2, -1, 1, 2)):
        return
    shown = local.hour * 60 + local.minute
    is_open = begins <= shown < ends if begins < ends else shown >= begins or shown < ends
    entry = Entry(name="w", when=When(timezone=zone, begins=begins, ends=ends), changes=())
    assert bool(expand([entry], instant, instant + 1)) is is_open


def test_the_last_of_the_calendar_wins_whatever_opened_first() -> None:
    def change(milli: int) -> tuple[Change, ...]:
        return (Change(owner="p", pool="a", training_milli=milli),)

    calendar = [
        Entry(name="weekend", when=when(days="sat sun"), changes=change(2000)),
        Entry(name="nights", when=when("20:00-06:00"), changes=change(3000)),
    ]
    windows = expand(calendar, at("2027-01-11"), at("2027-01-18"))
    project = Project(name="p", amounts={"a": Amounts(training_milli=1000)})
    policy = Policy(revision=1, pools=("a",), projects=(project,), windows=windows)

    def training(text: str) -> int:
        return in_force(policy, at(text)).projects[0].amounts["a"].training_milli

    assert [training(f"2027-01-16T{hour}") for hour in ("05:59", "06:00", "19:59", "20:00")] == [3000, 2000, 2000, 3000]
    assert training("2027-01-15T12:00") == 1000
    assert next_change_at(policy, at("2027-01-15T12:00")) == at("2027-01-15T20:00")


@pytest.mark.parametrize("name", ["Europe/London", "UTC", "America/Argentina/Buenos_Aires"])
def test_a_time_zone_that_is_known(name: str) -> None:
    assert zone_refusal(name) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Europe/Londn", "Europe/London"),
        ("europe/paris", "Europe/Paris"),
        ("../etc/passwd", "named like"),
        ("", "like"),
        ("localtime", "another time zone on every machine; name the zone itself"),
    ],
)
def test_a_time_zone_that_is_not_known_names_the_nearest(name: str, words: str) -> None:
    assert words in (zone_refusal(name) or "")


@pytest.mark.parametrize("name", ["DE", "GB-ENG", "US-CA", "NO"])
def test_a_region_that_is_known(name: str) -> None:
    assert region_refusal(name) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("GB-EN", "GB-ENG?"), ("de", "mean DE?"), ("XX", "named like"), ("GB-", "ENG, NIR"), ("", "like")],
)
def test_a_region_that_is_not_known_names_the_nearest(name: str, words: str) -> None:
    assert words in (region_refusal(name) or "")
