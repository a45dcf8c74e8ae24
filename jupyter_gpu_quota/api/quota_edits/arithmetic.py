"""The quotas of a file compared with the devices of its pools. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import chain

from ...core.model import OWN_CLUSTER, Device, Node, Policy, Window
from ...core.quota.calendar_fit import check_calendar
from ...core.quota.checked_ranks import CheckedRanks, checked_ranks, pool_shape
from ...core.quota.fit import ACCEPTABLE, quota_rows
from ...core.quota.in_force import in_force
from ...messages.quota.sums import listed_amounts, pool_sentences, refusal_sentence
from ...messages.rendering import instant_text
from ...quotafile import QuotaFile
from ...quotafile.document import PoolSection

LOOKED_AHEAD_DAYS = 2 * 366
"""The amounts of a calendar are added up this far ahead before a file is put in force."""
MAX_BOUNDARIES = 16
"""Openings and closings that are searched for the next one that changes an amount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """``pools``: two to four sentences for each pool.

    ``gaps``: why a pool has no device, and which window never opens.

    ``refusals``: what does not fit, and by how much.

    ``checked``: the checked shapes of each pool, with the amounts that are in force now.

    ``acceptable``: all of it is overcommitment, which an admin may accept.

    ``without_device``: the pools that have quotas and no device.
    """

    pools: Mapping[str, tuple[str, ...]]
    gaps: tuple[str, ...]
    refusals: tuple[str, ...]
    checked: Mapping[str, CheckedRanks]
    acceptable: bool
    without_device: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        return (*chain.from_iterable(self.pools.values()), *self.gaps)


def arithmetic_of_file(
    file: QuotaFile, devices: Sequence[Device], now: int, nodes: Mapping[str, Node] | None = None
) -> Arithmetic:
    """The quotas of a file from now on, with its calendar for two years, on devices that are in its pools.

    Before the first device is reported, no quota is refused for lack of devices.
    """
    policy = file.policy(0, now, days=LOOKED_AHEAD_DAYS)
    policy = replace(policy, windows=tuple(window for window in policy.windows if window.ends_at > now))
    empty = empty_pools(file, devices, nodes or {}) if devices else {}
    refusals = [each for each in check_calendar(policy, devices) if devices or each.code not in ACCEPTABLE]
    lacking = {each.pool for each in refusals}
    opens = {window.name for window in policy.windows}
    checked = _checked(in_force(policy, now), devices)
    return Arithmetic(
        pools=_sentences_by_pool(policy, devices, now, checked),
        gaps=(
            *(why for pool, why in empty.items() if pool not in lacking),
            *(
                f"Calendar {entry.name}: it does not open within two years from now; check its dates and days."
                for entry in file.calendar
                if entry.name not in opens
            ),
        ),
        refusals=tuple(" ".join(filter(None, [empty.get(each.pool), refusal_sentence(each)])) for each in refusals),
        checked=checked,
        acceptable=all(each.code in ACCEPTABLE for each in refusals),
        without_device=tuple(pool for pool in empty if pool in lacking),
    )


def amounts_in_force(policy: Policy, devices: Sequence[Device], now: int) -> tuple[str, ...]:
    """The quotas of each pool now, those without a window where they differ, and when they next change.

    Also how they are packed, and the checked shapes.
    """
    return tuple(chain.from_iterable(amounts_by_pool(policy, devices, now).values()))


def amounts_by_pool(policy: Policy, devices: Sequence[Device], now: int) -> dict[str, tuple[str, ...]]:
    """The same, by pool."""
    return _sentences_by_pool(policy, devices, now, _checked(in_force(policy, now), devices))


def _checked(present: Policy, devices: Iterable[Device]) -> dict[str, CheckedRanks]:
    """The checked shapes of each pool on all its devices, healthy or not; of no owner before the first device."""
    by_pool: dict[str, list[Device]] = {pool: [] for pool in present.pools}
    devices = tuple(devices)
    if not devices:
        return {pool: CheckedRanks(projects={}, departments={}) for pool in by_pool}
    for device in devices:
        if device.pool in by_pool:
            by_pool[device.pool].append(device)
    return {pool: checked_ranks(present, pool, pool_shape(here)) for pool, here in by_pool.items()}


def _sentences_by_pool(
    policy: Policy, devices: Sequence[Device], now: int, checked: Mapping[str, CheckedRanks]
) -> dict[str, tuple[str, ...]]:
    policy = replace(policy, windows=tuple(_next_windows(policy.windows, now)))
    present = in_force(policy, now)
    return {pool: tuple(_pool(pool, devices, policy, present, now, checked[pool])) for pool in policy.pools}


def _next_windows(windows: Iterable[Window], now: int) -> Iterator[Window]:
    """The windows of each calendar entry that are open or open next: one more than :data:`MAX_BOUNDARIES`."""
    count = Counter[str]()
    for window in windows:
        if window.ends_at > now and count[window.name] <= MAX_BOUNDARIES:
            count[window.name] += 1
            yield window


def _pool(
    pool: str, devices: Sequence[Device], policy: Policy, present: Policy, now: int, checked: CheckedRanks
) -> list[str]:
    """The sentences of one pool; ``present`` has the amounts of now."""
    windows = tuple(one for one in policy.windows if any(change.pool == pool for change in one.changes))
    policy = replace(policy, windows=windows)
    names = list(dict.fromkeys(one.name for one in windows if one.begins_at <= now < one.ends_at))
    rows, count = quota_rows(present, pool), sum(device.pool == pool for device in devices) if devices else None
    found = pool_sentences(pool, count, rows, quota_rows(policy, pool), names, checked)
    boundaries = nsmallest(MAX_BOUNDARIES, {at for one in windows for at in (one.begins_at, one.ends_at) if at > now})
    if not boundaries:
        return found
    listed = listed_amounts(rows)
    changes_at = next(
        (at for at in boundaries if listed_amounts(quota_rows(in_force(policy, at), pool)) != listed), None
    )
    until = f"stay until {instant_text(boundaries[-1])} at least"
    if changes_at is not None:
        until = f"change at {instant_text(changes_at)}"
    return [*found, f"Pool {pool}: these amounts {until}."]


def empty_pools(file: QuotaFile, devices: Sequence[Device], nodes: Mapping[str, Node]) -> dict[str, str]:
    """Why each pool without a device has none."""
    has = {device.pool for device in devices}
    return {pool.name: _why_empty(pool, devices, nodes) for pool in file.pools if pool.name not in has}


def _why_empty(pool: PoolSection, devices: Sequence[Device], nodes: Mapping[str, Node]) -> str:
    taken = {device.pool for device in devices if pool.selector.takes(device, nodes.get(device.node))}
    if taken:
        before = " and ".join(sorted(name for name in taken if name))
        return f"Pool {pool.name} has no device: the devices that match it are in {before}, which is listed before it."
    clusters = {_cluster(device, nodes) for device in devices}
    if pool.selector.cluster is None and OWN_CLUSTER not in clusters:
        return _none_in_own_cluster(pool, clusters)
    models = Counter(device.model for device in devices)
    here = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    on = ""
    if pool.selector.node is not None:
        names = {nodes[one.node].name if one.node in nodes else one.node for one in devices}
        on = f", on the nodes {', '.join(sorted(names))}"
    if pool.selector.cluster is not None or clusters != {OWN_CLUSTER}:
        on += f", in the clusters {', '.join(sorted({node.cluster for node in nodes.values()}))}"
    return (
        f"No device matches the selector of pool {pool.name}, {pool.selector.text()}; the devices here are {here}{on}."
    )


def _cluster(device: Device, nodes: Mapping[str, Node]) -> str:
    return nodes[device.node].cluster if device.node in nodes else OWN_CLUSTER


def _none_in_own_cluster(pool: PoolSection, clusters: Collection[str]) -> str:
    """A pool whose selector names no cluster, where all devices are in other clusters than the hub's own."""
    first, *more = sorted(clusters)
    there = f"clusters {', '.join([first, *more])}" if more else f"cluster {first}"
    advice = f"add `cluster: {first}` to its selector"
    if not pool.selector.text():
        advice = f"add `selector: {{cluster: {first}}}`"
    return (
        f"Pool {pool.name} takes devices of the hub's own cluster, and none is there; those here are in {there}: "
        f"{advice}{', or another of them' if more else ''}."
    )
