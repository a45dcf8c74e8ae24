"""The quotas of a file against its pools, told with the figures; whether they fit is the core's to say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..amount import gpu_text
from ..core.model import WHOLE_DEVICE, Amounts, Device, Policy
from ..core.packing import ACCEPTABLE, QuotaRefusal, check_calendar, pack, quota_rows
from ..quotafile import QuotaFile
from .views import instant

LOOKED_AHEAD_DAYS = 2 * 366
"""So far ahead the amounts of a calendar are added up before a file is put in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """``sentences``: two for each pool. ``refusals``: what does not fit, and by how much.

    ``acceptable``: all of it is overcommitment, which an admin may accept.
    """

    sentences: tuple[str, ...]
    refusals: tuple[str, ...]
    acceptable: bool


def arithmetic_of_file(file: QuotaFile, devices: Sequence[Device], now: int) -> Arithmetic:
    """The quotas of a file from now on, with its calendar for two years."""
    return arithmetic_of(devices, file.policy(0, now, days=LOOKED_AHEAD_DAYS))


def arithmetic_of(devices: Sequence[Device], policy: Policy) -> Arithmetic:
    """Every pool of the policy on these devices, each with its pool set, at every instant that its windows know.

    Before any device was seen none is lacking.
    """
    refusals = [each for each in check_calendar(policy, devices) if devices or each.code not in ACCEPTABLE]
    return Arithmetic(
        sentences=tuple(sentence for pool in policy.pools for sentence in _pool(pool, devices, policy)),
        refusals=tuple(map(refusal_text, refusals)),
        acceptable=all(each.code in ACCEPTABLE for each in refusals),
    )


def refusal_text(refusal: QuotaRefusal) -> str:
    """Why quotas cannot be promised; what is so in a window only begins with the first instant of it."""
    if refusal.begins_at is None:
        return refusal.sentence
    at = f"{instant(refusal.begins_at):%Y-%m-%dT%H:%M:%SZ}"
    windows = f"{' and '.join(refusal.windows)} {'is' if len(refusal.windows) == 1 else 'are'} open"
    return f"From {at}, while {windows}: {refusal.sentence}"


def _pool(pool: str, devices: Sequence[Device], policy: Policy) -> list[str]:
    rows = quota_rows(policy, pool)
    count = sum(device.pool == pool for device in devices)
    left = count * WHOLE_DEVICE - sum(row.notebook_milli + row.training_milli for row in rows.values())
    rest = f"{gpu_text(left)} GPU is left over" if left >= 0 else f"{gpu_text(-left)} GPU too many"
    notebooks = _added((name, row.notebook_milli) for name, row in sorted(rows.items()))
    training = _added((name, row.training_milli) for name, row in sorted(rows.items()))
    return [
        f"Pool {pool}: {_devices(count)}; notebook quotas {notebooks}, training quotas {training}; {rest}.",
        f"Pool {pool}, packed: {_packing(rows)}.",
    ]


def _packing(rows: dict[str, Amounts]) -> str:
    packed = pack(rows)
    if not packed:
        return "no quota needs a device"
    told = ["; ".join(" + ".join(f"{gpu_text(part.milli)} {part.label}" for part in device) for device in packed)]
    return f"{_devices(len(packed))} needed: {told[0]}"


def _added(quotas: Iterable[tuple[str, int]]) -> str:
    some = [(name, milli) for name, milli in quotas if milli]
    if not some:
        return "none"
    total = gpu_text(sum(milli for _, milli in some))
    if len(some) == 1:
        return f"{total} ({some[0][0]})"
    return " + ".join(f"{gpu_text(milli)} ({name})" for name, milli in some) + f" = {total}"


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"
