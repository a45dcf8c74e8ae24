"""A reason as its code and figures: how it is stored, and how stored rows of every version are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import get_type_hints

from .reason_codes import ReasonCode
from .reasons import RECORDS, AboveLimit, AboveTrainingQuota, AboveUserCeiling, Figure, OtherReason, Pairs, Reason

OLD_CODES: Mapping[str, ReasonCode] = {
    "held_too_weakly": ReasonCode.ENFORCEMENT_TOO_WEAK,
    "nothing_holds_it": ReasonCode.ENFORCEMENT_UNAVAILABLE,
    "place_kept": ReasonCode.BACKFILL_RESERVED,
    "devices_out": ReasonCode.DEVICE_UNAVAILABLE,
    "over_its_share": ReasonCode.OVER_SHARE,
    "held_by_person": ReasonCode.HELD_BY_USER,
    "cancelled_by_person": ReasonCode.CANCELLED_BY_USER,
    "behind_patient_job": ReasonCode.BEHIND_OVERDUE_JOB,
}
"""Codes of earlier development versions, by which stored rows are read; they are never written."""

OLD_FIGURES: Mapping[str, str] = {
    "holder": "workload",
    "claimer": "preemptor",
    "claimer_project": "preemptor_project",
    "claimer_used_milli": "preemptor_used_milli",
    "claimer_guarantee_milli": "preemptor_guarantee_milli",
    "claimer_fair_milli": "preemptor_fair_milli",
    "claimer_priority": "preemptor_priority",
}
"""Names of figures in those rows."""


def code_of(reason: Reason) -> str:
    """The public code; for an :class:`OtherReason` the stored one."""
    return str(reason.code)


def figures_of(reason: Reason) -> dict[str, Figure]:
    """The figures that are known, in the order of their declaration. Several values of one name are joined."""
    found: dict[str, Figure] = {}
    for name, value in figure_pairs(reason):
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def figure_pairs(reason: Reason) -> Pairs:
    """The figures as they are stored: pairs of name and value, one for each value."""
    if isinstance(reason, OtherReason):
        return reason.figures
    found: list[tuple[str, Figure]] = []
    for name in FIGURES[type(reason)]:
        value = getattr(reason, name)
        if isinstance(value, tuple):
            found += [(name, each) for each in value]
        elif value is not None:
            found.append((name, value))
    return tuple(found)


def present_code(code: str) -> str:
    """The code of a stored reason by its present name; any other text as it is."""
    return OLD_CODES.get(code, code)


def reason_from(code: str, figures: Iterable[tuple[str, Figure]] = ()) -> Reason:
    """The record of a stored reason; an :class:`OtherReason` where its code or figures are not those of a record."""
    pairs = tuple((OLD_FIGURES.get(name, name), value) for name, value in figures)
    known = present_code(code)
    if known not in RECORDS:
        return OtherReason(code=known, figures=pairs)
    new = ReasonCode(known)
    return _recorded(RECORDS[new], pairs) or OtherReason(code=new, figures=pairs)


def _recorded(kind: type, pairs: Pairs) -> Reason | None:
    """The record with these figures; None where one is missing, unknown or of another type."""
    types, values = figure_types(kind), dict[str, Figure | tuple[Figure, ...]]()
    for name, value in pairs:
        if types.get(name) is tuple:
            before = values.get(name)
            values[name] = (*before, value) if isinstance(before, tuple) else (value,)
        elif name in values or types.get(name) is not type(value):
            return None
        else:
            values[name] = value
    if not values.keys() >= needed_figures(kind):
        return None
    made: Reason = kind(**values)
    return made


@cache
def figure_types(kind: type) -> Mapping[str, type]:
    """The type of each figure of a record: int, str, or tuple for several texts."""
    hints = get_type_hints(kind)
    return {
        name: next((one for one in (int, str) if hints[name] in (one, one | None)), tuple) for name in FIGURES[kind]
    }


@cache
def needed_figures(kind: type) -> frozenset[str]:
    """The figures without which there is no such record."""
    found = {field.name: field.default for field in fields(kind)}
    return frozenset(name for name, default in found.items() if default is not None and default != ())


FIGURES: Mapping[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind)) for kind in RECORDS.values()
}
"""The names of the figures of each record, in order."""


def max_use_milli(reason: Reason) -> int | None:
    """The upper bound on jobs that a reason names (limit, training quota or ceiling); None for any other reason."""
    match reason:
        case AboveLimit(limit_milli=int() as limit):
            return limit - (reason.notebook_milli or 0)
        case AboveTrainingQuota():
            return reason.quota_milli
        case AboveUserCeiling():
            return reason.ceiling_milli
        case _:
            return None


def exceeds_bound_alone(reason: Reason) -> bool:
    """Whether a job alone requests more than its project, department or user may use in total."""
    match reason:
        case AboveLimit() | AboveTrainingQuota() | AboveUserCeiling():
            most = max_use_milli(reason)
            return most is not None and reason.asked_milli > most
        case _:
            return False
