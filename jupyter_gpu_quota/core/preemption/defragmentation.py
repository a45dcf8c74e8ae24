"""Making a place whole by moving work that restarts elsewhere in the same plan, before anybody is paused for it.

Source: docs/scheduling.md, sections 4 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Sequence
from heapq import nlargest, nsmallest
from typing import NamedTuple

from ..model import WHOLE_DEVICE
from ..placement.place import Fit, Piece, Request, place, promise, rank_pieces
from ..queue.pool_state import Pool
from ..queue.quota_state import Holder

MOST_LOOKED_AT = 64
"""So many nodes or devices are looked at, those with most room first."""
MOST_SPOTS = 8
"""Up to so many places are tried for one rank, the one that moves least first."""


Leaves = Callable[[Pool, Holder], object]
"""Notes in the ledger that somebody leaves."""


class Moved(NamedTuple):
    """Work that leaves its place and starts again on these pieces."""

    holder: Holder
    pieces: tuple[Piece, ...]


class Cleared(NamedTuple):
    """The devices on which one rank finds room, and what moves away from them."""

    devices: tuple[int, ...]
    moved: tuple[Moved, ...]


def clear_a_place(pool: Pool, request: Request, leave: Leaves, known: Collection[str]) -> Cleared | None:
    """Find a place for one rank by moving the least; changes the ledger when it finds: all of it left or promised.

    ``known``: what was moved for the claim already, by key.
    """
    if not _is_idle_enough(pool, request):
        return None
    plans = sorted(_plans(pool, request, known), key=lambda plan: (plan.milli, plan.devices))
    for plan in plans[:MOST_SPOTS]:
        mark = pool.ledger.mark()
        moved = _carry_out(pool, request, plan, leave)
        if moved is not None:
            return Cleared(plan.devices, moved)
        pool.ledger.undo(mark)
    return None


class _Plan(NamedTuple):
    milli: int
    devices: tuple[int, ...]
    movers: tuple[Holder, ...]


def _is_idle_enough(pool: Pool, request: Request) -> bool:
    room = pool.ledger.room(request.gpu_models, lent=False)
    if room is None or room.devices.at_least(1) is None:
        return False
    return sum(pool.ledger.all_now(lent=False)) >= request.gpu_milli


def _plans(pool: Pool, request: Request, known: Collection[str]) -> Iterator[_Plan]:
    spots, need = list(_roomiest(pool, request)), min(request.gpu_milli, WHOLE_DEVICE)
    on = _movers_on({at for devices in spots for at in devices}, pool, known)
    for devices in spots:
        options = [
            (plan, at)
            for at in devices
            if request.takes(pool.ledger.model[at]) and (plan := _clear(pool, at, need, on)) is not None
        ]
        options.sort(key=lambda option: (option[0][0], option[1]))
        if len(options) >= request.devices_per_rank:
            chosen = options[: request.devices_per_rank]
            movers = {holder.key: holder for (_, holders), _ in chosen for holder in holders}
            taken = tuple(sorted(at for _, at in chosen))
            yield _Plan(sum(one.size for one in movers.values()), taken, tuple(movers.values()))


def _roomiest(pool: Pool, request: Request) -> Iterator[Sequence[int]]:
    """The nodes, or for one device the devices, on which most is free already."""
    ledger = pool.ledger
    if request.devices_per_rank > 1:
        numbers = range(len(ledger.on_node))
        best = nlargest(MOST_LOOKED_AT, numbers, key=lambda node: (ledger.node_after(node, lent=False), -node))
        return (ledger.on_node[node] for node in best)
    rooms = ((-milli, at) for at, milli in enumerate(ledger.all_plain_after()))
    return ([at] for _, at in nsmallest(MOST_LOOKED_AT, rooms))


def _movers_on(devices: Container[int], pool: Pool, known: Collection[str]) -> dict[int, list[Holder]]:
    """What may be moved away from these devices, by device."""
    on: dict[int, list[Holder]] = {}
    for standing in pool.standings.values():
        for holder in standing.holders if standing.known else ():
            here = {piece.device for piece in holder.pieces if piece.device in devices}
            if here and _may_move(holder) and holder.key not in known:
                for at in here:
                    on.setdefault(at, []).append(holder)
    return on


def _may_move(holder: Holder) -> bool:
    """Whether it is one whole that does not change its size."""
    if holder.elastic or holder.above is not None or holder.base is not None:
        return False
    return holder.size == sum(piece.gpu_milli for piece in holder.pieces)


def _clear(pool: Pool, at: int, need: int, on: dict[int, list[Holder]]) -> tuple[int, list[Holder]] | None:
    """The least that must move away from one device, None where even all of it is not enough."""
    short = need - pool.ledger.plain_after(at)
    if short <= 0:
        return 0, []
    parts = sorted((_on_device(holder, at), holder.size, holder.key, holder) for holder in on.get(at, ()))
    enough = next((part for part in parts if part[0] >= short), None)
    if enough is not None:
        return enough[1], [enough[3]]
    chosen: list[Holder] = []
    for milli, _, _, holder in reversed(parts):
        chosen.append(holder)
        short -= milli
        if short <= 0:
            return sum(one.size for one in chosen), chosen
    return None


def _on_device(holder: Holder, at: int) -> int:
    return sum(piece.gpu_milli for piece in holder.pieces if piece.device == at)


def _carry_out(pool: Pool, request: Request, plan: _Plan, leave: Leaves) -> tuple[Moved, ...] | None:
    for holder in plan.movers:
        leave(pool, holder)
    claimed = rank_pieces(0, plan.devices, request)
    promise(pool.ledger, claimed, lent=False)
    if pool.ledger.is_overfull(pool.ledger.node_of[plan.devices[0]]):
        return None
    moved: list[Moved] = []
    for holder in sorted(plan.movers, key=lambda one: (-one.size, one.key)):
        fit = place(pool.ledger, holder.request)
        if not isinstance(fit, Fit):
            return None
        promise(pool.ledger, fit.pieces, lent=False)
        moved.append(Moved(holder, _renumbered(holder.pieces, fit.pieces)))
    promise(pool.ledger, claimed, lent=False, sign=-1)
    return tuple(moved)


def _renumbered(before: Sequence[Piece], after: Sequence[Piece]) -> tuple[Piece, ...]:
    """The new pieces with the ranks that the work has."""
    ranks = sorted({piece.rank for piece in before})
    return tuple(piece._replace(rank=ranks[piece.rank]) for piece in after)
