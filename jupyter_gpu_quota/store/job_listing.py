"""The jobs of a listing, and their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.model import JobState
from .database.tables import JOBS, USERS, Scope, Where
from .records.calls import JobFilter, JobOrder

COLUMNS = ("id", "submitted_at", "user", "project", "state", "priority", "first_started_at", "ended_at")
STATES = {state.value: at for at, state in enumerate(JobState)}
Columns = Mapping[str, Any]

MIN_ID_PART = 4
"""The fewest characters that are searched anywhere in an id; fewer would be in many ids by chance."""


def jobs_where(which: JobFilter) -> Where:
    """The conditions of a filter."""
    among: dict[str, Sequence[str]] = {}
    if which.projects is not None:
        among["project"] = which.projects
    if which.user is not None:
        among["user"] = [which.user]
    if which.states:
        among["state"] = [state.value for state in which.states]
    return Where(
        among=among,
        either=_visible_to(which),
        live=which.live,
        at_least={} if which.since is None else {"submitted_at": which.since},
        text={}
        if not which.search
        else {"id": (which.search.upper(), len(which.search) < MIN_ID_PART), "searched": (which.search.lower(), False)},
    )


def _visible_to(which: JobFilter) -> list[Mapping[str, Sequence[str]]]:
    """Conditions on the jobs that a reader sees: their own in any project; private ones of others only as a lead."""
    if which.reader is None:
        return []
    conditions: list[Mapping[str, Sequence[str]]] = [{"private_to": ["", which.reader], "project": which.led}]
    if which.member_of is not None:
        conditions.append({"user": [which.reader], "project": which.member_of})
    return conditions


def ordered_jobs(scope: Scope, where: Where, order: JobOrder) -> list[str]:
    """The ids of the jobs that match the conditions, in order. It reads a few columns of each of them."""
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in scope.pick(JOBS, COLUMNS, where)]
    rows.sort(key=lambda row: (row["submitted_at"], row["id"]), reverse=True)
    value = _value_of(scope, order, rows)
    known = [(found, row["id"]) for row in rows if (found := value(row)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=order.descending)
    return [id for _, id in known] + [row["id"] for row in rows if value(row) is None]


def _value_of(scope: Scope, order: JobOrder, rows: Sequence[Columns]) -> Callable[[Columns], Any]:
    """The function that returns the value by which a job is ordered; a job with None is last."""
    match order.by:
        case "state":
            return lambda row: STATES[row["state"]]
        case "user":
            people = scope.get_many(USERS, list({(row["user"],): None for row in rows}))
            names = {person.id: (person.name or person.id).casefold() for person in people.values()}
            return lambda row: names.get(row["user"], row["user"])
        case "duration":
            return lambda row: _duration_ms(row, order.now)
        case column:
            return lambda row: row[column]


def _duration_ms(row: Columns, now: int) -> int | None:
    started_at, ended_at = row["first_started_at"], row["ended_at"]
    return None if started_at is None else (now if ended_at is None else ended_at) - started_at
