"""The calendar of the quota file: entries in local time, and what they change while they are open."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from ..core.model import Change
from . import calendar
from .fields import ChangedAmount, ChangedWeight, ItemName, Section, refuse

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOST_ENTRIES = 100
"""Entries of one calendar; each is looked at for every day of two years when a file is applied."""
MOST_DATES = 1_000
"""Dates of all of them together, a first and a last day counted once."""
MOST_CHANGES = 2_000
"""Amounts of projects and departments in a pool that all of them together change."""

TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00", re.ASCII)
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise refuse(f"{value!s:.40} is not text; put quotes around it")


def _time(value: object) -> str:
    text = _text(value)
    if not TIME.fullmatch(text):
        raise refuse(f'{text[:40]!r} is no time of day; write hours and minutes in quotes, such as "06:00" or "20:30"')
    return text


def _days(value: object) -> str:
    """A day, or the first and the last of several."""
    text = _text(value)
    first, slash, last = text.partition("/")
    if not (DATE.fullmatch(first) and (DATE.fullmatch(last) or not slash)):
        raise refuse(
            f'{text[:40]!r} is no date; write "2027-01-11", or "2027-01-11/2027-01-29" for the first to the last'
        )
    begins, ends = _date(first), _date(last or first)
    if ends < begins:
        raise refuse(f"{text} ends before it begins; write the first day first")
    return text


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise refuse(f"there is no day {text} in the calendar") from None


def _known(refusal: Callable[[str], str | None]) -> Callable[[object], str]:
    def checked(value: object) -> str:
        text = _text(value)
        why = refusal(text)
        if why is not None:
            raise refuse(why)
        return text

    return checked


TimeOfDay = Annotated[
    str,
    BeforeValidator(_time),
    WithJsonSchema(
        {"type": "string", "pattern": f"^({TIME.pattern})$", "description": 'a time of day such as "20:00"'}
    ),
]
DateRange = Annotated[
    str,
    BeforeValidator(_days),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^{DATE.pattern}(/{DATE.pattern})?$",
            "description": 'a day ("2027-01-11"), or a first and a last one ("2027-01-11/2027-01-29")',
        }
    ),
]
ZoneName = Annotated[
    str,
    BeforeValidator(_known(calendar.zone_refusal)),
    WithJsonSchema({"type": "string", "description": "a time zone such as `Europe/London`"}),
]
RegionName = Annotated[
    str,
    BeforeValidator(_known(calendar.region_refusal)),
    WithJsonSchema(
        {"type": "string", "description": "a country (`DE`) or a part of one (`GB-ENG`), whose public holidays count"}
    ),
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
            begins=None if self.begins is None else _minutes(self.begins),
            ends=None if self.ends is None else _minutes(self.ends),
            days=None if self.days is None else frozenset(map(DAYS.index, self.days)),
            dates=None if self.dates is None else tuple(map(_first_and_last, self.dates)),
            holidays=self.holidays,
            except_holidays=self.except_holidays,
        )


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def _first_and_last(text: str) -> tuple[date, date]:
    first, _, last = text.partition("/")
    return date.fromisoformat(first), date.fromisoformat(last or first)


class ChangedPerUser(Section):
    """Ceilings for one user of a project while a window is open."""

    notebook: ChangedAmount = None
    jobs: ChangedAmount = None


class DepartmentChange(Section):
    """Amounts of one department in one pool while a window is open; what is left out stays as it is."""

    notebook: ChangedAmount = None
    training: ChangedAmount = None
    limit: ChangedAmount = None
    weight: ChangedWeight = None
    per_user: ChangedPerUser = ChangedPerUser()

    def change(self, owner: str, pool: str, *, department: bool = True) -> Change:
        return Change(
            owner=owner,
            pool=pool,
            department=department,
            notebook_milli=self.notebook,
            training_milli=self.training,
            limit_milli=self.limit,
            weight=self.weight,
            user_notebook_milli=self.per_user.notebook,
            user_jobs_milli=self.per_user.jobs,
        )


class ProjectChange(DepartmentChange):
    """Amounts of one project in one pool while a window is open; what is left out stays as it is."""

    def change(self, owner: str, pool: str, *, department: bool = False) -> Change:
        return super().change(owner, pool, department=department)


class CalendarSection(Section):
    """A window: when it is open, and the amounts in force meanwhile. Of several that are open the last one wins."""

    name: ItemName
    when: WhenSection
    projects: dict[ItemName, dict[ItemName, ProjectChange]] = {}
    departments: dict[ItemName, dict[ItemName, DepartmentChange]] = {}

    def entry(self) -> calendar.Entry:
        changes = (*_changes(self.departments), *_changes(self.projects))
        return calendar.Entry(name=self.name, when=self.when.when(), changes=changes)


def _changes(owners: Mapping[str, Mapping[str, DepartmentChange]]) -> tuple[Change, ...]:
    return tuple(section.change(owner, pool) for owner, pools in owners.items() for pool, section in pools.items())
