"""Which single quota is enough to lower where the quotas of a pool do not fit. Pure.

Source: docs/scheduling.md, section 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import nsmallest

from ..model import WHOLE_DEVICE, Amounts
from .fit import BEYOND, OwnerQuota, pack

MIN_LOWERED, MAX_LOWERED, MAX_LOWERED_ROWS = 5, 40, 5_000
"""Quotas that are tried in one pool, those with the smallest part above whole devices; fewer where more are packed."""
MAX_EXACT_LOWERED = 8
"""As :data:`.fit.MAX_EXACT`, which is too slow for the many packings that are tried here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerQuota:
    """One quota of a project or a department, and a lower one with which all quotas fit, in milli-GPU."""

    owner: str
    is_department: bool
    kind: str
    quota_milli: int
    lower_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowerable:
    """A quota of ``kind``, and how much of it can be lowered: of a department, what it has beyond its projects.

    ``row``: its label among the packed quotas; ``to_row``: that of the quota which grows by as much, which is its
    department's beyond its projects.
    """

    owner: OwnerQuota
    kind: str
    milli: int
    row: str
    to_row: str | None = None

    def lowered(self, rows: Mapping[str, Amounts], milli: int) -> dict[str, Amounts]:
        """The rows to pack with so much less of it."""
        found = dict(rows)
        for name, change in ((self.row, -milli), (self.to_row, milli)):
            if name is not None:
                before = found.get(name, Amounts())
                found[name] = replace(before, **{f"{self.kind}_milli": _milli(before, self.kind) + change})
        return found


def least_lowered(quotas: Iterable[OwnerQuota], devices: int, *, departments_only: bool = False) -> LowerQuota | None:
    """The quota that has to be lowered least for all to fit on so many devices; None where no single one is found.

    Takes quotas that do not fit. ``departments_only``: only what departments have beyond their projects is lowered.
    """
    rows, lowerable = _rows_to_pack(quotas)
    excess = pack(rows, max_exact=MAX_EXACT_LOWERED).devices - devices
    lowerable = [
        one
        for one in lowerable
        if -(-one.milli // WHOLE_DEVICE) >= excess and (one.owner.projects is not None or not departments_only)
    ]
    tried = max(MIN_LOWERED, min(MAX_LOWERED, MAX_LOWERED_ROWS // max(1, len(rows))))
    found: tuple[int, _Lowerable] | None = None
    for one in nsmallest(tried, lowerable, key=_rounding):
        least = _least(rows, one, devices, one.milli if found is None else found[0] - 1)
        found = found if least is None else (least, one)
    if found is None:
        return None
    least, one = found
    quota = _milli(one.owner, one.kind)
    return LowerQuota(
        owner=one.owner.name,
        is_department=one.owner.projects is not None,
        kind=one.kind,
        quota_milli=quota,
        lower_milli=quota - least,
    )


def _rows_to_pack(quotas: Iterable[OwnerQuota]) -> tuple[dict[str, Amounts], list[_Lowerable]]:
    """The quotas of projects, and what each department has beyond them; and each as one that can be lowered."""
    rows, lowerable = dict[str, Amounts](), list[_Lowerable]()
    for quota in quotas:
        beyond = None if quota.projects is None else BEYOND.format(quota.name)
        for project in (quota,) if quota.projects is None else quota.projects:
            rows[project.name] = _amounts(project)
            lowerable += _lowerable(project, rows[project.name], project.name, beyond)
        if beyond is not None and quota.projects is not None:
            rows[beyond] = _amounts(quota, less=quota.projects)
            lowerable += _lowerable(quota, rows[beyond], beyond)
    return rows, lowerable


def _amounts(quota: OwnerQuota, less: Iterable[OwnerQuota] = ()) -> Amounts:
    less = tuple(less)
    return Amounts(
        notebook_milli=quota.notebook_milli - sum(one.notebook_milli for one in less),
        training_milli=quota.training_milli - sum(one.training_milli for one in less),
    )


def _lowerable(owner: OwnerQuota, amounts: Amounts, row: str, to_row: str | None = None) -> Iterator[_Lowerable]:
    for kind in ("notebook", "training"):
        if milli := _milli(amounts, kind):
            yield _Lowerable(owner=owner, kind=kind, milli=milli, row=row, to_row=to_row)


def _milli(amounts: Amounts | OwnerQuota, kind: str) -> int:
    return amounts.notebook_milli if kind == "notebook" else amounts.training_milli


def _rounding(one: _Lowerable) -> tuple[int, bool, str, str]:
    """First those that are lowered least by rounding down to whole devices, then departments; ties go by name."""
    return one.milli % WHOLE_DEVICE or WHOLE_DEVICE, one.owner.projects is None, one.row, one.kind


def _least(rows: Mapping[str, Amounts], one: _Lowerable, devices: int, most: int) -> int | None:
    """The smallest amount up to ``most`` by which a quota has to be lowered; None where that is not enough."""

    def fits(milli: int) -> bool:
        return pack(one.lowered(rows, milli), max_exact=MAX_EXACT_LOWERED).devices <= devices

    for milli in (one.milli % WHOLE_DEVICE, one.milli):  # what a project loses, its department may need as a slice
        milli = min(milli, most)
        if milli > 0 and fits(milli):
            return bisect_left(range(1, milli + 1), True, key=fits) + 1
    return None
