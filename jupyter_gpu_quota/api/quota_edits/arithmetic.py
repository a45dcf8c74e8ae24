"""The quotas of a file against its pools, told with the figures; whether they fit is the core's to say. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from ...core.amounts import gpu_text
from ...core.model import WHOLE_DEVICE, Amounts, Device, Policy, Window
from ...core.quota.calendar_fit import check_calendar
from ...core.quota.fit import ACCEPTABLE, QuotaRefusal, pack, quota_rows
from ...core.quota.in_force import in_force
from ...messages.quota import joined, packing_rows, refusal_sentence
from ...quotafile import QuotaFile
from ...quotafile.document import PoolSection
from ..views.records import instant

LOOKED_AHEAD_DAYS = 2 * 366
"""So far ahead the amounts of a calendar are added up before a file is put in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """``sentences``: two to four for each pool, and one for each window that never opens.

    ``refusals``: what does not fit, and by how much.

    ``acceptable``: all of it is overcommitment, which an admin may accept.
    """

    sentences: tuple[str, ...]
    refusals: tuple[str, ...]
    acceptable: bool


def arithmetic_of_file(
    file: QuotaFile, devices: Sequence[Device], now: int, node_names: Mapping[str, str] | None = None
) -> Arithmetic:
    """The quotas of a file from now on, with its calendar for two years, on devices that are in its pools.

    Before any device was seen none is lacking.
    """
    policy = file.policy(0, now, days=LOOKED_AHEAD_DAYS)
    empty = empty_pools(file, devices, node_names or {}) if devices else {}
    refusals = [each for each in check_calendar(policy, devices) if devices or each.code not in ACCEPTABLE]
    lacking = {each.pool for each in refusals}
    return Arithmetic(
        sentences=(
            *amounts_in_force(policy, devices, now),
            *(why for pool, why in empty.items() if pool not in lacking),
            *_never_open(file, policy.windows, now),
        ),
        refusals=tuple(" ".join(filter(None, [empty.get(each.pool), refusal_text(each)])) for each in refusals),
        acceptable=all(each.code in ACCEPTABLE for each in refusals),
    )


def _never_open(file: QuotaFile, windows: Iterable[Window], now: int) -> Iterator[str]:
    """The entries of the calendar that change nothing any more, or not for long: mostly a year that is over."""
    opens = {window.name for window in windows if window.ends_at > now}
    for entry in file.calendar:
        if entry.name not in opens:
            yield f"Calendar {entry.name}: it does not open within two years from now; look at its dates and days."


def amounts_in_force(policy: Policy, devices: Sequence[Device], now: int) -> tuple[str, ...]:
    """What each pool has promised now, what it has without a window where that differs, and when it next changes."""
    policy = replace(policy, windows=tuple(_next_windows(policy.windows, now)))
    present = in_force(policy, now)
    return tuple(sentence for pool in policy.pools for sentence in _pool(pool, devices, policy, present, now))


def _next_windows(windows: Iterable[Window], now: int) -> Iterator[Window]:
    """Of each entry of the calendar the windows that are open or open next: one more than can be looked at."""
    count = Counter[str]()
    for window in windows:
        if window.ends_at > now and count[window.name] <= MOST_LOOKED_AT:
            count[window.name] += 1
            yield window


def empty_pools(file: QuotaFile, devices: Sequence[Device], node_names: Mapping[str, str]) -> dict[str, str]:
    """Why each pool without a device has none."""
    has = {device.pool for device in devices}
    return {pool.name: _why_empty(pool, devices, node_names) for pool in file.pools if pool.name not in has}


def _why_empty(pool: PoolSection, devices: Sequence[Device], node_names: Mapping[str, str]) -> str:
    taken = {device.pool for device in devices if pool.selector.takes(device, node_names.get(device.node, ""))}
    if taken:
        before = " and ".join(sorted(name for name in taken if name))
        return f"Pool {pool.name} has no device: those that it could have are in {before}, which stands before it."
    models = Counter(device.model for device in devices)
    here = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    on = ""
    if pool.selector.node is not None:
        on = f", on the nodes {', '.join(sorted({node_names.get(one.node, one.node) for one in devices}))}"
    return (
        f"No device matches the selector of pool {pool.name}, {pool.selector.text()}; the devices here are {here}{on}."
    )


def refusal_text(refusal: QuotaRefusal) -> str:
    """Why quotas cannot be promised; what is so in a window only begins with the first instant of it."""
    sentence = refusal_sentence(refusal)
    if refusal.begins_at is None:
        return sentence
    return f"From {_instant(refusal.begins_at)}, while {_open(refusal.windows)}: {sentence}"


def _pool(pool: str, devices: Sequence[Device], policy: Policy, present: Policy, now: int) -> list[str]:
    """What is told of one pool; ``present`` has the amounts of now."""
    count = sum(device.pool == pool for device in devices)
    policy = replace(policy, windows=tuple(one for one in policy.windows if _changes(one, pool)))
    names = list(dict.fromkeys(one.name for one in policy.windows if one.begins_at <= now < one.ends_at))
    rows, base = quota_rows(present, pool), quota_rows(policy, pool)
    when = f"now, while {_open(names)}: " if names else ""
    said = [f"Pool {pool}: {_devices(count)}; {when}{_quotas(rows, count)}.", f"Pool {pool}, packed: {_packing(rows)}."]
    if rows != base:
        said.insert(1, f"Pool {pool}, while no window is open: {_quotas(base, count)}.")
    until = _until(pool, policy, now)
    return [*said, f"Pool {pool}: {until}."] if until else said


def _changes(window: Window, pool: str) -> bool:
    return any(change.pool == pool for change in window.changes)


MOST_LOOKED_AT = 16
"""Openings and closings that are looked at for the next one that changes an amount."""


def _until(pool: str, policy: Policy, now: int) -> str:
    """When the present amounts of a pool end, as far as its next windows tell; empty where it has none ahead."""
    ahead = {at for one in policy.windows for at in (one.begins_at, one.ends_at) if at > now}
    boundaries = nsmallest(MOST_LOOKED_AT, ahead)
    if not boundaries:
        return ""
    rows = quota_rows(in_force(policy, now), pool)
    changes = (at for at in boundaries if quota_rows(in_force(policy, at), pool) != rows)
    changes_at = next(changes, None)
    if changes_at is None:
        return f"these amounts stay until {_instant(boundaries[-1])} at least"
    return f"these amounts change at {_instant(changes_at)}"


def _quotas(rows: Mapping[str, Amounts], devices: int) -> str:
    left = devices * WHOLE_DEVICE - sum(row.notebook_milli + row.training_milli for row in rows.values())
    rest = _left(left) if left >= 0 else f"{gpu_text(-left)} GPU too many"
    notebooks = _added((name, row.notebook_milli) for name, row in sorted(rows.items()))
    training = _added((name, row.training_milli) for name, row in sorted(rows.items()))
    return f"notebook quotas {notebooks}, training quotas {training}; {rest}"


def _left(milli: int) -> str:
    return (
        f"{gpu_text(milli)} GPU {'are' if milli > WHOLE_DEVICE else 'is'} left over" if milli else "none is left over"
    )


def _open(windows: Sequence[str]) -> str:
    return f"{' and '.join(windows)} {'is' if len(windows) == 1 else 'are'} open"


def _instant(at: int) -> str:
    return f"{instant(at):%Y-%m-%dT%H:%M:%SZ}"


def _packing(rows: dict[str, Amounts]) -> str:
    packed = pack(rows)
    if not packed.devices:
        return "no quota needs a device"
    return f"{_devices(packed.devices)} needed: {joined(packing_rows(packed, gpu_text), '; ')}"


def _added(quotas: Iterable[tuple[str, int]]) -> str:
    some = [(name, milli) for name, milli in quotas if milli]
    if not some:
        return "none"
    total = gpu_text(sum(milli for _, milli in some))
    if len(some) == 1:
        return f"{total} ({some[0][0]})"
    return joined([f"{gpu_text(milli)} ({name})" for name, milli in some], " + ") + f" = {total}"


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"
