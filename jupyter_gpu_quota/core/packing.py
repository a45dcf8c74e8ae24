"""Whether quotas fit their pools, in sum and in shape, with the arithmetic and the packing.

Notebook slices live on named devices, no more than packing needs. A guarantee below one device is one slice; from
one device on it is asked for in whole devices, because nothing says into which fractions it will be cut: 1.2 may be
run as 0.6 and 0.6, on two devices. Source: docs/scheduling.md, section 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .model import WHOLE_DEVICE, Amounts, Device, Policy
from .sentences import gpus

EXACT = 12
"""Up to so many slices every packing is looked at; beyond, the largest go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRefusal:
    """Why quotas cannot be promised. ``packing`` shows each device's content; ``project`` is None for the pool."""

    code: str
    pool: str
    project: str | None
    needed_milli: int
    available_milli: int
    packing: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a quota that must sit on one device."""

    milli: int
    label: str


def check_quotas(policy: Policy, devices: Iterable[Device]) -> list[QuotaRefusal]:
    """Everything that does not fit, first by project, then by pool; empty where all quotas can be kept at once.

    Devices count whether healthy or not: a dead node reduces guarantees, it does not make a configuration wrong.
    """
    count = dict.fromkeys(policy.pools, 0)
    for device in devices:
        if device.pool in count:
            count[device.pool] += 1
    refusals = [
        refusal
        for project in sorted(policy.projects, key=lambda project: project.name)
        for pool, amounts in sorted(project.amounts.items())
        if (refusal := _check_amounts(policy, project.name, pool, amounts)) is not None
    ]
    for pool in policy.pools:
        refusals += _check_pool(policy, pool, count[pool])
    return refusals


def _check_amounts(policy: Policy, name: str, pool: str, amounts: Amounts) -> QuotaRefusal | None:
    quotas = amounts.notebook_milli + amounts.training_milli
    limit = quotas if amounts.limit_milli is None else amounts.limit_milli
    words = None
    if pool not in policy.pools:
        words = f"{name} has quotas in pool {pool}, which does not exist. The pools are: {', '.join(policy.pools)}."
    elif min(amounts.notebook_milli, amounts.training_milli, limit, amounts.weight) < 0:
        words = f"{name} has an amount or weight below 0 in pool {pool}. Use 0 or more."
    elif limit < quotas:
        words = (
            f"The limit of {name} in pool {pool} is {gpus(limit)} and its quotas add up to {gpus(quotas)}: "
            f"{gpus(amounts.notebook_milli)} for notebooks and {gpus(amounts.training_milli)} for training. "
            "A limit is never below the two quotas."
        )
    if words is None:
        return None
    return QuotaRefusal(
        code="amounts",
        pool=pool,
        project=name,
        needed_milli=quotas,
        available_milli=limit,
        packing=(),
        sentence=words,
    )


def _check_pool(policy: Policy, pool: str, devices: int) -> list[QuotaRefusal]:
    rows = {project.name: amounts for project in policy.projects if (amounts := project.amounts.get(pool))}
    needed = sum(row.notebook_milli + row.training_milli for row in rows.values())
    available = devices * WHOLE_DEVICE
    if needed > available:
        return [_too_much(pool, rows, needed, available)]
    packing = pack(rows)
    if len(packing) <= devices:
        return []
    shown = tuple(" + ".join(f"{gpus(part.milli)} {part.label}" for part in row) for row in packing)
    words = (
        f"The quotas of pool {pool} add up to {gpus(needed)} of {gpus(available)} GPU and do not fit in their shapes: "
        f"they need {len(packing)} devices and the pool has {devices}: {'; '.join(shown)}. Notebook slices and "
        "guarantees below one device share devices, larger guarantees are asked for in whole ones."
    )
    return [
        QuotaRefusal(
            code="shape",
            pool=pool,
            project=None,
            needed_milli=len(packing) * WHOLE_DEVICE,
            available_milli=available,
            packing=shown,
            sentence=words,
        )
    ]


def _too_much(pool: str, rows: dict[str, Amounts], needed: int, available: int) -> QuotaRefusal:
    parts = [
        f"{name} {gpus(row.notebook_milli)} for notebooks and {gpus(row.training_milli)} for training"
        for name, row in sorted(rows.items())
        if row.notebook_milli or row.training_milli
    ]
    words = (
        f"The quotas of pool {pool} add up to {gpus(needed)} GPU and it has {gpus(available)}: {', '.join(parts)}. "
        f"Lower them by {gpus(needed - available)}."
    )
    return QuotaRefusal(
        code="sum",
        pool=pool,
        project=None,
        needed_milli=needed,
        available_milli=available,
        packing=(),
        sentence=words,
    )


def pack(rows: dict[str, Amounts]) -> list[list[Slice]]:
    """The content of each device that these quotas need, the fewest devices that were found."""
    whole: list[list[Slice]] = []
    slices: list[Slice] = []
    for name, row in sorted(rows.items()):
        devices, rest = divmod(row.notebook_milli, WHOLE_DEVICE)
        whole += _whole(devices, f"notebooks of {name}")
        slices += _slice(rest, f"notebooks of {name}")
        if row.training_milli < WHOLE_DEVICE:
            slices += _slice(row.training_milli, f"training of {name}")
        else:
            whole += _whole(-(-row.training_milli // WHOLE_DEVICE), f"training of {name}")
    slices.sort(key=lambda part: (-part.milli, part.label))
    return [*_packed(slices), *whole]


def _whole(count: int, label: str) -> list[list[Slice]]:
    return [[Slice(milli=WHOLE_DEVICE, label=label)] for _ in range(count)]


def _slice(milli: int, label: str) -> list[Slice]:
    return [Slice(milli=milli, label=label)] if milli else []


def _packed(slices: Sequence[Slice]) -> list[list[Slice]]:
    found = _largest_first(slices)
    least = -(-sum(part.milli for part in slices) // WHOLE_DEVICE)
    if len(found) == least or len(slices) > EXACT:
        return found
    for count in range(least, len(found)):
        exact = _exactly(slices, [[] for _ in range(count)])
        if exact is not None:
            return exact
    return found


def _largest_first(slices: Sequence[Slice]) -> list[list[Slice]]:
    devices: list[list[Slice]] = []
    for part in slices:
        for device in devices:
            if sum(other.milli for other in device) + part.milli <= WHOLE_DEVICE:
                device.append(part)
                break
        else:
            devices.append([part])
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
