"""Whether the quotas of a file fit their pools, in sum and in shape, told with the figures. Pure.

Source: design/fairness.md, section 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..amount import gpu_text
from ..core.model import WHOLE_DEVICE, Device, Health, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """``sentences``: one or two for each pool. ``refusals``: what does not fit, and by how much."""

    sentences: tuple[str, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quotas:
    """The quotas of one pool: (project, milli-GPU)."""

    notebook: tuple[tuple[str, int], ...]
    training: tuple[tuple[str, int], ...]


def arithmetic_of(devices: Sequence[Device], policy: Policy) -> Arithmetic:
    """Every pool of the policy on these devices (each with its pool set)."""
    told = [_pool(pool, [d for d in devices if d.pool == pool], _quotas(pool, policy)) for pool in policy.pools]
    return Arithmetic(
        sentences=tuple(sentence for one in told for sentence in one.sentences),
        refusals=tuple(refusal for one in told for refusal in one.refusals),
    )


def _quotas(pool: str, policy: Policy) -> _Quotas:
    amounts = [(project.name, project.amounts[pool]) for project in policy.projects if pool in project.amounts]
    return _Quotas(
        notebook=tuple((name, each.notebook_milli) for name, each in amounts if each.notebook_milli),
        training=tuple((name, each.training_milli) for name, each in amounts if each.training_milli),
    )


def _pool(pool: str, devices: Sequence[Device], quotas: _Quotas) -> Arithmetic:
    healthy = [device for device in devices if device.health is Health.HEALTHY]
    capacity = len(healthy) * WHOLE_DEVICE
    notebook, training = _sum(quotas.notebook), _sum(quotas.training)
    left = capacity - notebook - training
    sentences = [
        f"Pool {pool}: {_count(len(healthy))} of {gpu_text(capacity)} GPU; notebook quotas {_added(quotas.notebook)}, "
        f"training quotas {_added(quotas.training)}; "
        + (f"{gpu_text(left)} GPU is left over." if left >= 0 else f"{gpu_text(-left)} GPU too many."),
    ]
    if left < 0:
        refusal = f"The quotas of pool {pool} add to {gpu_text(notebook + training)} GPU and it has {gpu_text(capacity)}."
        return Arithmetic(sentences=tuple(sentences), refusals=(refusal,))
    slices, whole, parts = _packed(notebook, quotas.training)
    sentences.append(_packing(pool, slices, whole, parts))
    if slices + whole + parts > len(healthy):
        refusal = (
            f"The quotas of pool {pool} fit in sum but not in shape: {slices + whole + parts} devices are needed and "
            f"there are {len(healthy)}."
        )
        return Arithmetic(sentences=tuple(sentences), refusals=(refusal,))
    return Arithmetic(sentences=tuple(sentences), refusals=())


def _packed(notebook: int, training: Sequence[tuple[str, int]]) -> tuple[int, int, int]:
    """Devices for slices, for whole-device guarantees, and for the fractions beside them, first fit decreasing."""
    slices = -(-notebook // WHOLE_DEVICE)
    whole = sum(milli // WHOLE_DEVICE for _, milli in training)
    room = [slices * WHOLE_DEVICE - notebook] if slices else []
    shared = 0
    for part in sorted((milli % WHOLE_DEVICE for _, milli in training if milli % WHOLE_DEVICE), reverse=True):
        place = next((at for at, free in enumerate(room) if free >= part), None)
        if place is None:
            room.append(WHOLE_DEVICE - part)
            shared += 1
        else:
            room[place] -= part
    return slices, whole, shared


def _packing(pool: str, slices: int, whole: int, shared: int) -> str:
    parts = [(slices, "for notebook slices"), (whole, "for whole-device guarantees"), (shared, "for fractions of guarantees")]
    told = ", ".join(f"{_count(number)} {what}" for number, what in parts if number)
    return f"Pool {pool}, packed: {told or 'nothing to place'}."


def _sum(quotas: Iterable[tuple[str, int]]) -> int:
    return sum(milli for _, milli in quotas)


def _added(quotas: Sequence[tuple[str, int]]) -> str:
    if not quotas:
        return "none"
    total = gpu_text(_sum(quotas))
    if len(quotas) == 1:
        return f"{total} ({quotas[0][0]})"
    return " + ".join(f"{gpu_text(milli)} ({name})" for name, milli in quotas) + f" = {total}"


def _count(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"
