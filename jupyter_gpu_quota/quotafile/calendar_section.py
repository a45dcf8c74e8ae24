"""The calendar of the quota file: entries in local time, and what they change while they are open."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from ..core.model import Change
from . import calendar
from .fields import FORM, ChangedAmount, ChangedWeight, ItemName, Section, refuse

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_ENTRIES = 100
"""Entries of one calendar; each is expanded for every day of two years when a file is applied."""
MAX_DATES = 1_000
"""Dates of all entries together; a first and a last day count once."""
MAX_CHANGES = 2_000
"""Rows of amounts, of a project or department in a pool, that all entries together change."""

TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00", re.ASCII)
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise refuse(f"{value!s:.40} is not text; put quotes around it")


def _minutes(value: object) -> int:
    text = _text(value)
    if not TIME.fullmatch(text):
        raise refuse(
            f'{text[:40]!r} is not a time of day; write hours and minutes in quotes, such as "06:00" or "20:30"'
        )
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def _first_and_last(value: object) -> tuple[date, date]:
    """A day, or the first and the last of several."""
    text = _text(value)
    first, slash, last = text.partition("/")
    if not (DATE.fullmatch(first) and (DATE.fullmatch(last) or not slash)):
        raise refuse(
            f'{text[:40]!r} is not a date; write "2027-01-11", or "2027-01-11/2027-01-29" for the first to the last'
        )
    begins, ends = read_date(first), read_date(last or first)
    if ends < begins:
        raise refuse(f"{text} ends before it begins; write the first day first")
    return begins, ends


def read_date(text: str) -> date:
    """A day that has the form of one; refuses one that no calendar has."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise refuse(f"there is no day {text} in the calendar") from None


def dates_text(dates: tuple[date, date]) -> str:
    """A first and a last day as they stand in the file."""
    first, last = dates
    return f"{first}" if first == last else f"{first}/{last}"


def _checked_name(refusal: Callable[[str], str | None]) -> Callable[[object], str]:
    def checked(value: object) -> str:
        text = _text(value)
        why = refusal(text)
        if why is not None:
            raise refuse(why)
        return text

    return checked


def _schema(form: str, **more: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", FORM: form, **more})


TimeOfDay = Annotated[
    int,
    BeforeValidator(_minutes),
    PlainSerializer(lambda minutes: f"{minutes // 60:02}:{minutes % 60:02}"),
    _schema('a time of day such as "20:00"', pattern=f"^({TIME.pattern})$"),
]
"""Minutes after midnight inside."""
DateRange = Annotated[
    tuple[date, date],
    BeforeValidator(_first_and_last),
    PlainSerializer(dates_text),
    _schema(
        'a day ("2027-01-11"), or a first and a last one ("2027-01-11/2027-01-29")',
        pattern=f"^{DATE.pattern}(/{DATE.pattern})?$",
    ),
]
ZoneName = Annotated[
    str, BeforeValidator(_checked_name(calendar.zone_refusal)), _schema("a time zone such as `Europe/London`")
]
RegionName = Annotated[
    str,
    BeforeValidator(_checked_name(calendar.region_refusal)),
    _schema("a country (`DE`) or a part of one (`GB-ENG`), whose public holidays count"),
]


class WhenSection(Section):
    """When a window is open. ``from`` and ``to`` go together; without them it is open for whole days."""

    begins: Annotated[TimeOfDay | None, Field(alias="from")] = None
    ends: Annotated[TimeOfDay | None, Field(alias="to")] = None
    days: Annotated[list[Day], Field(min_length=1)] | None = None
    dates: Annotated[list[DateRange], Field(min_length=1)] | None = None
    timezone: ZoneName
    holidays: RegionName | None = None
    except_holidays: RegionName | None = None

    def when(self) -> calendar.When:
        return calendar.When(
            timezone=self.timezone,
            begins=self.begins,
            ends=self.ends,
            days=None if self.days is None else frozenset(map(DAYS.index, self.days)),
            dates=None if self.dates is None else tuple(self.dates),
            holidays=self.holidays,
            except_holidays=self.except_holidays,
        )


class ChangedPerUser(Section):
    """Ceilings for one user of a project while a window is open."""

    notebook: ChangedAmount = None
    jobs: ChangedAmount = None


class AmountsChange(Section):
    """Amounts of a project or department in one pool while a window is open; what is left out stays as it is."""

    notebook: ChangedAmount = None
    training: ChangedAmount = None
    limit: ChangedAmount = None
    weight: ChangedWeight = None
    per_user: ChangedPerUser = ChangedPerUser()


class CalendarSection(Section):
    """A window: when it is open, and the amounts in force meanwhile. Of several that are open the last one wins."""

    name: ItemName
    when: WhenSection
    projects: dict[ItemName, dict[ItemName, AmountsChange]] = {}
    departments: dict[ItemName, dict[ItemName, AmountsChange]] = {}

    def entry(self) -> calendar.Entry:
        changes = tuple(
            Change(owner=owner, pool=pool, department=department, **core_amounts(section))
            for department, owners in ((True, self.departments), (False, self.projects))
            for owner, pools in owners.items()
            for pool, section in pools.items()
        )
        return calendar.Entry(name=self.name, when=self.when.when(), changes=changes)


def core_amounts(section: Any) -> dict[str, Any]:
    """The amounts of a section by their names in the core."""
    return {
        "notebook_milli": section.notebook,
        "training_milli": section.training,
        "limit_milli": section.limit,
        "weight": section.weight,
        "user_notebook_milli": section.per_user.notebook,
        "user_jobs_milli": section.per_user.jobs,
    }
