"""Whether quotas fit their pools and departments, by sum and by shape.

A quota below one device is one slice of a device. A training quota of one device or more needs whole devices: its jobs
may use any fraction, and 1.2 GPU may run as 0.6 and 0.6 on two devices. Notebook slices stay on as few devices as
packing allows. A department is packed as the quotas of its projects plus what it has beyond them.
Source: docs/scheduling.md, section 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..model import WHOLE_DEVICE, Amounts, Department, Device, Policy, Project

Owner = TypeVar("Owner", Project, Department)
Subject = tuple[str, str, str, str]
"""Code, pool, department and project of a refusal; "" for none."""
Members = Mapping[str | None, Sequence[Project]]
"""The projects of each department."""
BEYOND = "department {} (beyond its projects)"
"""The label of the quota that a department has beyond the quotas of its projects."""
MAX_EXACT = 12
"""Up to this many slices every packing is tried; above, the largest slices are placed first."""
ACCEPTABLE = frozenset({"sum", "shape"})
"""Codes that an admin may accept by name: the pool is overcommitted, but the quotas do not contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a quota that must be on one device."""

    milli: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The content of each ``shared`` device, and the number of ``whole`` devices of each label."""

    shared: tuple[tuple[Slice, ...], ...]
    whole: tuple[tuple[int, str], ...]

    @property
    def devices(self) -> int:
        return len(self.shared) + sum(count for count, _ in self.whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerQuota:
    """One term of a sum of quotas, in milli-GPU. ``projects``: those in a department; None for a project."""

    name: str
    notebook_milli: int
    training_milli: int
    projects: tuple[OwnerQuota, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """One owner's amounts name an unknown pool, are below 0, or have a limit below the quotas. ``pools``: all known."""

    amounts: Amounts
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSum:
    """These quotas add up to more than their pool or department has."""

    quotas: tuple[OwnerQuota, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpackable:
    """The quotas fit by sum (``quotas_milli``), but need more devices than the pool has."""

    packing: Packing
    quotas_milli: int
    quotas: tuple[OwnerQuota, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyCombinations:
    """The calendar was not checked to its end: only so many sets of open windows, ``most_quotas`` quotas in all."""

    checked: int
    most_quotas: int


Finding = Contradiction | QuotaSum | Unpackable | TooManyCombinations


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRefusal:
    """Why quotas are refused; ``messages.quota.sums`` renders the sentence.

    ``code``: sum, shape (see :data:`ACCEPTABLE`), amounts, department_notebook, department_training, calendar.
    ``project`` and ``department`` are both None for a whole pool. ``windows``: the calendar windows under whose amounts
    it holds, from ``begins_at`` on; empty and None for the amounts without a window.
    """

    code: str
    pool: str
    finding: Finding
    project: str | None = None
    department: str | None = None
    needed_milli: int = 0
    available_milli: int = 0
    windows: tuple[str, ...] = ()
    begins_at: int | None = None

    @property
    def subject(self) -> Subject:
        """The subject of the refusal, without the figures."""
        return self.code, self.pool, self.department or "", self.project or ""

    @property
    def missing_milli(self) -> int:
        """The missing amount, in milli-GPU."""
        return self.needed_milli - self.available_milli


def check_quotas(policy: Policy, devices: Iterable[Device]) -> list[QuotaRefusal]:
    """Everything that does not fit, by owner, then by pool; empty where all quotas can be used at once.

    Checks the policy's amounts without its windows. Unhealthy devices count: a failed node reduces guarantees, but the
    configuration stays valid.
    Rule R2.
    """
    count = dict.fromkeys(policy.pools, 0)
    for device in devices:
        if device.pool in count:
            count[device.pool] += 1
    owners: list[Project | Department] = [*_by_name(policy.departments), *_by_name(policy.projects)]
    refusals = [refusal for owner in owners for refusal in _contradictions(policy, owner)]
    members = _by_department(policy)
    for pool in policy.pools:
        refusals += _check_departments(policy, pool, members)
        refusals += _check_pool(policy, pool, count[pool], members)
    return refusals


def _by_name(owners: Iterable[Owner]) -> list[Owner]:
    return sorted(owners, key=lambda owner: owner.name)


def _contradictions(policy: Policy, owner: Project | Department) -> Iterator[QuotaRefusal]:
    """Amounts of one owner that are impossible by themselves."""
    for pool, amounts in sorted(owner.amounts.items()):
        quotas = amounts.notebook_milli + amounts.training_milli
        limit = quotas if amounts.limit_milli is None else amounts.limit_milli
        is_negative = min(amounts.notebook_milli, amounts.training_milli, limit, amounts.weight) < 0
        if pool not in policy.pools or is_negative or limit < quotas:
            yield QuotaRefusal(
                code="amounts",
                pool=pool,
                finding=Contradiction(amounts=amounts, pools=tuple(policy.pools)),
                project=owner.name if isinstance(owner, Project) else None,
                department=owner.name if isinstance(owner, Department) else None,
                needed_milli=quotas,
                available_milli=limit,
            )


# --- departments --------------------------------------------------------------------------------------------------
def _check_departments(policy: Policy, pool: str, members: Members) -> Iterator[QuotaRefusal]:
    """Whether the quotas of its projects fit each department; notebook and training quotas are checked separately.

    Rule R4.
    """
    for department in _by_name(policy.departments):
        own, rows = department.amounts.get(pool) or Amounts(), _rows(members, department.name, pool)
        quotas = _owner_quotas(rows)
        notebooks, training = sum(one.notebook_milli for one in quotas), sum(one.training_milli for one in quotas)
        for kind, needed, available in (
            ("notebook", notebooks, own.notebook_milli),
            ("training", training, own.training_milli),
        ):
            if needed > available:
                yield QuotaRefusal(
                    code=f"department_{kind}",
                    pool=pool,
                    finding=QuotaSum(quotas=quotas),
                    department=department.name,
                    needed_milli=needed,
                    available_milli=available,
                )


def _owner_quotas(rows: Mapping[str, Amounts]) -> tuple[OwnerQuota, ...]:
    return tuple(
        OwnerQuota(name=name, notebook_milli=row.notebook_milli, training_milli=row.training_milli)
        for name, row in sorted(rows.items())
    )


def _by_department(policy: Policy) -> Members:
    found: dict[str | None, list[Project]] = {}
    for project in policy.projects:
        found.setdefault(project.department, []).append(project)
    return found


def _rows(members: Members, department: str, pool: str) -> dict[str, Amounts]:
    return {row.name: amounts for row in members.get(department, ()) if (amounts := row.amounts.get(pool))}


def quota_rows(policy: Policy, pool: str) -> dict[str, Amounts]:
    """The quotas that a pool must hold: those of every project, and what each department has beyond its projects."""
    return _quota_rows(policy, pool, _by_department(policy))


def _quota_rows(policy: Policy, pool: str, members: Members) -> dict[str, Amounts]:
    rows = {project.name: amounts for project in policy.projects if (amounts := project.amounts.get(pool))}
    for department in policy.departments:
        own, inside = department.amounts.get(pool), _rows(members, department.name, pool).values()
        if own is None:
            continue
        beyond = Amounts(
            notebook_milli=max(0, own.notebook_milli - sum(row.notebook_milli for row in inside)),
            training_milli=max(0, own.training_milli - sum(row.training_milli for row in inside)),
        )
        if beyond.notebook_milli or beyond.training_milli:
            rows[BEYOND.format(department.name)] = beyond
    return rows


# --- pools --------------------------------------------------------------------------------------------------------
def _check_pool(policy: Policy, pool: str, devices: int, members: Members) -> Iterator[QuotaRefusal]:
    rows, available = _quota_rows(policy, pool, members), devices * WHOLE_DEVICE
    needed = sum(row.notebook_milli + row.training_milli for row in rows.values())
    if needed > available:
        finding = QuotaSum(quotas=_by_owner(policy, pool, rows, members))
        yield QuotaRefusal(code="sum", pool=pool, finding=finding, needed_milli=needed, available_milli=available)
    elif (packing := pack(rows)).devices > devices:
        yield QuotaRefusal(
            code="shape",
            pool=pool,
            finding=Unpackable(packing=packing, quotas_milli=needed, quotas=_by_owner(policy, pool, rows, members)),
            needed_milli=packing.devices * WHOLE_DEVICE,
            available_milli=available,
        )


def _by_owner(policy: Policy, pool: str, rows: Mapping[str, Amounts], members: Members) -> tuple[OwnerQuota, ...]:
    """The quotas with those of each department as one: its own, or the sum of its projects where that is more."""
    left, found = dict(rows), list[OwnerQuota]()
    for department in policy.departments:
        inside = {name: left.pop(name) for name in _rows(members, department.name, pool)}
        beyond = left.pop(BEYOND.format(department.name), None)
        parts = [*inside.values(), *([beyond] if beyond else [])]
        if parts:
            total = OwnerQuota(
                name=department.name,
                notebook_milli=sum(part.notebook_milli for part in parts),
                training_milli=sum(part.training_milli for part in parts),
                projects=_owner_quotas(inside),
            )
            found.append(total)
    return tuple(sorted([*_owner_quotas(left), *found], key=lambda one: (one.name, one.projects is not None)))


def pack(rows: dict[str, Amounts], *, max_exact: int = MAX_EXACT) -> Packing:
    """Pack quotas on the fewest devices that are found; every packing of up to ``max_exact`` slices is tried."""
    whole, fractions = list[tuple[int, str]](), list[tuple[int, str]]()
    for name, row in sorted(rows.items()):
        devices, rest = divmod(row.notebook_milli, WHOLE_DEVICE)
        whole.append((devices, f"notebooks of {name}"))
        fractions.append((rest, f"notebooks of {name}"))
        if row.training_milli < WHOLE_DEVICE:
            fractions.append((row.training_milli, f"training of {name}"))
        else:
            whole.append((-(-row.training_milli // WHOLE_DEVICE), f"training of {name}"))
    slices = [Slice(milli=milli, label=label) for milli, label in fractions if milli]
    slices.sort(key=lambda part: (-part.milli, part.label))
    shared = tuple(map(tuple, _pack_slices(slices, max_exact)))
    return Packing(shared=shared, whole=tuple(each for each in whole if each[0] > 0))


def _pack_slices(slices: Sequence[Slice], max_exact: int) -> list[list[Slice]]:
    found = _largest_first(slices)
    if len(slices) <= max_exact:
        least = -(-sum(part.milli for part in slices) // WHOLE_DEVICE)
        for count in range(least, len(found)):
            if (exact := _exactly(slices, [[] for _ in range(count)])) is not None:
                return exact
    return found


def _largest_first(slices: Sequence[Slice]) -> list[list[Slice]]:
    """First fit, largest slice first. ``free`` is a binary tree over the devices: the most that each half has free."""
    leaves = 1 << max(0, len(slices) - 1).bit_length()
    free, devices = [WHOLE_DEVICE] * (2 * leaves), list[list[Slice]]()
    for part in slices:
        node = 1
        while node < leaves:
            node = 2 * node if free[2 * node] >= part.milli else 2 * node + 1
        if node - leaves == len(devices):
            devices.append([])
        devices[node - leaves].append(part)
        free[node] -= part.milli
        while node > 1:
            node //= 2
            free[node] = max(free[2 * node], free[2 * node + 1])
    return devices


def _exactly(slices: Sequence[Slice], devices: list[list[Slice]]) -> list[list[Slice]] | None:
    if not slices:
        return devices
    tried = set[int]()
    for at, device in enumerate(devices):
        used = sum(other.milli for other in device)
        if used in tried or used + slices[0].milli > WHOLE_DEVICE:
            continue
        tried.add(used)
        found = _exactly(slices[1:], [*devices[:at], [*device, slices[0]], *devices[at + 1 :]])
        if found is not None:
            return found
    return None
