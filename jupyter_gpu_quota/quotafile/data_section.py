"""The data of the quota file: folders that the jobs of some groups may use, up to a day."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, StringConstraints, WithJsonSchema

from .calendar_section import DATE, read_date
from .fields import FIRST_YEAR, FORM, LAST_YEAR, ClaimName, ItemName, PersonName, Section, refuse

FolderPath = Annotated[str, StringConstraints(strict=True, max_length=4096, pattern=r"^/[^\x00-\x1f\x7f]*$")]


def _below_the_volume(path: str) -> str:
    if ".." in path.split("/"):
        raise refuse(f"{path!s:.40} leaves the volume; write a path below its top, without ..")
    return path


def _without_dots(path: str) -> str:
    if {".", ".."} & set(path.split("/")):
        raise refuse(f"{path!s:.40} has dots; write the path without . and ..")
    return path


def _not_none(name: str) -> str:
    if name == "none":
        raise refuse("a submission with --data none has no data; write another name")
    return name


def _last_day(value: object) -> date:
    if not isinstance(value, str) or not DATE.fullmatch(value):
        raise refuse(f"{value!s:.40} is not a date; write the last day, such as 2027-01-31")
    found = read_date(value)
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise refuse(f"{value} is in the year {found.year:04}; write a day from {FIRST_YEAR} to {LAST_YEAR}")
    return found


SubPath = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=4096, pattern=r"^[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"),
    AfterValidator(_below_the_volume),
]
LastDay = Annotated[
    date,
    BeforeValidator(_last_day),
    PlainSerializer(date.isoformat),
    WithJsonSchema({"type": "string", "pattern": f"^{DATE.pattern}$", FORM: "a day such as 2027-01-31, in UTC"}),
]


class DataSection(Section):
    """A folder of data: ``path`` on one machine, and ``sub_path`` of the volume of a claim in pods.

    On one machine nothing is mounted, and file permissions decide. Pods have it at ``mount``, or else at ``path``.
    """

    name: Annotated[ItemName, AfterValidator(_not_none)]
    path: FolderPath | None = None
    claim: ClaimName | None = None
    sub_path: SubPath | None = None
    mount: Annotated[FolderPath, AfterValidator(_without_dots)] | None = None
    read_only: Annotated[bool, Field(strict=True)] = True
    groups: Annotated[list[PersonName], Field(min_length=1)]
    until: LastDay | None = None

    @property
    def ends_at(self) -> int | None:
        """The first instant (ms) at which no job may start with it; None: there is none."""
        if self.until is None:
            return None
        after = datetime.combine(self.until + timedelta(days=1), datetime.min.time(), UTC)
        return int(after.timestamp()) * 1000

    def has_ended(self, now: int) -> bool:
        return self.ends_at is not None and now >= self.ends_at

    def is_for(self, groups: Collection[str]) -> bool:
        """Whether a user in these groups of the hub may use it."""
        return not set(self.groups).isdisjoint(groups)

    @property
    def mounted_at(self) -> str:
        """The path in pods."""
        return self.mount or self.path or f"/data/{self.name}"

    def path_of_job(self, *, in_pods: bool) -> str | None:
        """The path of a job, in a pod or on one machine; None where it has none there."""
        return self.path if not in_pods else self.mounted_at if self.claim else None

    @property
    def variable(self) -> str:
        """The variable of a job with its path."""
        return data_variable(self.name)


def data_variable(name: str) -> str:
    return "GPU_QUOTA_DATA_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
