"""Ranks on the nodes of a pool: the largest rank that fits beside whatever ranks the guarantees of others allow.

All figures are whole devices. A rank is on one node. Ranks may be moved among the nodes, so only their sizes matter.
Source: docs/scheduling.md, section 1, R3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

MAX_EXACT_DEVICES = 32
"""Up to so many devices every combination of ranks is tried; above, the figure is one that a proof covers."""

Bins = tuple[tuple[int, int], ...]
"""What is packed: the free devices of each node or guarantee, and the largest rank that it takes; the largest first."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Devices that are guaranteed to one owner, and the largest of its ranks."""

    devices: int
    largest: int


def rank_beside(nodes: Counter[int], others: Iterable[Guarantee], at_most: int) -> int:
    """The largest rank, up to ``at_most`` devices, that fits beside every combination of ranks of the others.

    Takes the number of interchangeable nodes by their devices. A combination is any division of each guarantee into
    ranks, as far as all of them fit on the nodes; the ranks may be moved to make room. Up to
    :data:`MAX_EXACT_DEVICES` the answer is exact. In a larger pool it may be too small, and is never too large: a count
    of devices or a packing proves it.
    """
    nodes = Counter({size: count for size, count in nodes.items() if size and count})
    most, devices = max(nodes, default=0), nodes_size(nodes)
    at_most = min(at_most, most)
    others = [Guarantee(one.devices, min(one.largest, most)) for one in others if at_most > 0]
    load = sum(one.devices for one in others)
    sure = rank_by_count(nodes, load, at_most)
    sure = next((rank for rank in range(at_most, sure, -1) if _fits_beside_blocks(nodes, others, rank)), sure)
    if sure == at_most or devices > MAX_EXACT_DEVICES or load >= devices:
        return sure
    return _smallest_gap(tuple(sorted(nodes.elements(), reverse=True)), others, sure, at_most)


def nodes_size(nodes: Counter[int]) -> int:
    """The devices of all nodes."""
    return sum(size * count for size, count in nodes.items())


def rank_by_count(nodes: Counter[int], load: int, at_most: int) -> int:
    """The largest rank that fits wherever the others have their devices, ``load`` in all, without a move.

    A node of n devices has no room for a rank of k once n - k + 1 of them are taken.
    """
    for rank in range(min(at_most, max(nodes, default=0)), 0, -1):
        if load < sum(count * (size - rank + 1) for size, count in nodes.items() if size >= rank):
            return rank
    return 0


# --- proofs by packing --------------------------------------------------------------------------------------------
def _fits_beside_blocks(nodes: Counter[int], others: Iterable[Guarantee], rank: int) -> bool:
    """Whether a packing proves that the rank fits.

    A guarantee that is no larger than a node is packed as one block on one node: all its divisions fit inside. The
    others have the rest of the nodes, if that holds any ranks of theirs. Or all of them share what the rank leaves.
    """
    blocks, spread = list[Guarantee](), list[Guarantee]()
    for one in others:
        (blocks if one.devices <= max(nodes) else spread).append(one)
    return _fits_beside(nodes, blocks, spread, rank) or _fits_beside(nodes, [], [*blocks, *spread], rank)


def hold_any_ranks(nodes: Counter[int], guarantees: Iterable[Guarantee]) -> bool:
    """Whether a packing proves that the nodes have room for the guarantees, in whatever ranks, without a move."""
    return bool(nodes) and _fits_beside_blocks(nodes, guarantees, 0)


def _fits_beside(nodes: Counter[int], blocks: Iterable[Guarantee], spread: Iterable[Guarantee], rank: int) -> bool:
    gaps = _packed(nodes.copy(), Counter([rank, *(one.devices for one in blocks)]))
    return gaps is not None and _hold_any(gaps, sum(one.devices for one in spread), max_rank(spread))


def max_rank(guarantees: Iterable[Guarantee]) -> int:
    """The largest rank of all."""
    return max((one.largest for one in guarantees), default=0)


def _packed(gaps: Counter[int], blocks: Counter[int]) -> Counter[int] | None:
    """What is left of the nodes' free devices beside the blocks: best fit, the largest first; None if one does not fit.

    Both count equal sizes.
    """
    for size, count in sorted(blocks.items(), reverse=True):
        while count:
            gap = min((gap for gap, nodes in gaps.items() if nodes and gap >= size), default=None)
            if gap is None:
                return None
            filled = min(count, gaps[gap])
            gaps[gap] -= filled
            gaps[gap - size] += filled
            count -= filled
    return gaps


def _hold_any(gaps: Counter[int], load: int, largest: int) -> bool:
    """Whether any ranks of ``load`` devices in all fit into these gaps, each of ``largest`` devices at most.

    They are placed from the largest to the smallest. If one of s devices does not fit, all before it have s or more,
    and each gap of s or more has at least one of them and less than s free. So all of them together have at least
    ``taken`` + s devices, which is impossible for a smaller ``load``.
    """
    for size in range(1, min(largest, load) + 1):
        taken = sum(nodes * max(size, gap - size + 1) for gap, nodes in gaps.items() if gap >= size)
        if load >= taken + size:
            return False
    return True


# --- every combination --------------------------------------------------------------------------------------------
def _smallest_gap(nodes: tuple[int, ...], others: Iterable[Guarantee], sure: int, at_most: int) -> int:
    """The largest rank that fits beside every combination of ranks; ``sure`` is known to fit.

    It is enough to try the combinations that use all guaranteed devices, because any other one leaves more room: what a
    guarantee has left can be in single devices, and these fit wherever a device is free.
    """
    homes = tuple((size, size) for size in nodes)
    quotas = tuple(sorted(((one.devices, one.largest) for one in others), reverse=True))
    for ranks in _combinations((), sum(free for free, _ in quotas), max_rank(others), quotas, homes):
        while at_most > sure and not packs(tuple(sorted((*ranks, at_most), reverse=True)), homes):
            at_most -= 1
        if at_most == sure:
            break
    return at_most


def _combinations(
    ranks: tuple[int, ...], left: int, largest: int, quotas: Bins, homes: Bins
) -> Iterator[tuple[int, ...]]:
    """All divisions of the guarantees into ranks, the largest first, that fit on the nodes and begin with ``ranks``.

    ``left`` devices are not divided yet, into ranks of ``largest`` at most.
    """
    for size in range(min(left, largest), 1, -1):
        more = (*ranks, size)
        if packs(more, quotas) and packs(more, homes):
            yield from _combinations(more, left - size, size, quotas, homes)
    yield ranks + (1,) * left


def packs(ranks: tuple[int, ...], bins: Bins) -> bool:
    """Whether ranks, the largest first, fit into bins: first fit where that does, otherwise by trying everything."""
    return _first_fit(ranks, bins) or _packs_exactly(ranks, bins)


def _first_fit(ranks: tuple[int, ...], bins: Bins) -> bool:
    free = [size for size, _ in bins]
    for rank in ranks:
        at = next((at for at, (_, largest) in enumerate(bins) if rank <= free[at] and rank <= largest), None)
        if at is None:
            return False
        free[at] -= rank
    return True


@lru_cache(maxsize=1 << 14)
def _packs_exactly(ranks: tuple[int, ...], bins: Bins) -> bool:
    if not ranks or ranks[0] == 1:
        return len(ranks) <= sum(free for free, _ in bins)
    tried = set[tuple[int, int]]()
    for at, (free, largest) in enumerate(bins):
        if ranks[0] > min(free, largest) or (free, largest) in tried:
            continue
        tried.add((free, largest))
        left = sorted((*bins[:at], (free - ranks[0], largest), *bins[at + 1 :]), reverse=True)
        if _packs_exactly(ranks[1:], tuple(left)):
            return True
    return False
