"""Defragmentation: clear a slot by moving work that restarts elsewhere in the same plan, before any job is paused.

Source: docs/scheduling.md, sections 4 and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from heapq import nlargest, nsmallest
from typing import NamedTuple

from ..model import WHOLE_DEVICE
from ..placement.place import Fit, Piece, Request, place, rank_pieces, reserve
from ..queue.pool_state import PoolState
from ..queue.quota_state import Victim
from .accounting import mark_leaving

MAX_CONSIDERED = 64
"""The number of nodes or devices that are considered, those with most room first."""
MAX_SLOTS = 8
"""The number of slots that are tried for one rank, the one that moves least first."""


class Move(NamedTuple):
    """Work that stops and restarts on these pieces."""

    victim: Victim
    pieces: tuple[Piece, ...]


class ClearedSlot(NamedTuple):
    """The devices that one rank may use, and the work that moves away from them."""

    devices: tuple[int, ...]
    moves: tuple[Move, ...]


def defragment(pool: PoolState, request: Request, known: Collection[str]) -> ClearedSlot | None:
    """Find a slot for one rank by moving as little as possible.

    ``known``: the keys of work that moves already. If found, the moves are recorded in the ledger.
    Rule R41.
    """
    room = pool.ledger.free_devices(request.gpu_models, borrowed=False)
    if room is None or room.devices.at_least(1) is None:
        return None
    if sum(pool.ledger.all_now(borrowed=False)) < request.gpu_milli:
        return None
    plans = sorted(_plans(pool, request, known), key=lambda plan: (plan.milli, plan.devices))
    for plan in plans[:MAX_SLOTS]:
        mark = pool.ledger.mark()
        moves = _apply(pool, request, plan)
        if moves is not None:
            return ClearedSlot(plan.devices, moves)
        pool.ledger.undo(mark)
    return None


class _Plan(NamedTuple):
    milli: int
    devices: tuple[int, ...]
    movers: tuple[Victim, ...]


def _plans(pool: PoolState, request: Request, known: Collection[str]) -> Iterator[_Plan]:
    slots, need = list(_with_most_room(pool, request)), min(request.gpu_milli, WHOLE_DEVICE)
    on = _movers_on({at for devices in slots for at in devices}, pool, known)
    for devices in slots:
        options = [
            (plan, at)
            for at in devices
            if request.accepts(pool.ledger.model[at]) and (plan := _clear(pool, at, need, on)) is not None
        ]
        options.sort(key=lambda option: (option[0][0], option[1]))
        if len(options) >= request.devices_per_rank:
            chosen = options[: request.devices_per_rank]
            movers = {victim.key: victim for (_, victims), _ in chosen for victim in victims}
            loss = tuple(sorted(at for _, at in chosen))
            yield _Plan(sum(one.size for one in movers.values()), loss, tuple(movers.values()))


def _with_most_room(pool: PoolState, request: Request) -> Iterator[Sequence[int]]:
    """The nodes, or for requests up to one device the devices, with most room."""
    ledger = pool.ledger
    if request.devices_per_rank > 1:
        numbers = range(len(ledger.on_node))
        best = nlargest(MAX_CONSIDERED, numbers, key=lambda node: (ledger.node_after(node, borrowed=False), -node))
        return (ledger.on_node[node] for node in best)
    rooms = ((-milli, at) for at, milli in enumerate(ledger.all_plain_after()))
    return ([at] for _, at in nsmallest(MAX_CONSIDERED, rooms))


def _movers_on(devices: Container[int], pool: PoolState, known: Collection[str]) -> dict[int, list[Victim]]:
    """The work that may move away from these devices, by device: all of it is here, and none of it is elastic."""
    on: dict[int, list[Victim]] = {}
    for project in pool.projects.values():
        for victim in project.victims if project.known else ():
            here = {piece.device for piece in victim.pieces if piece.device in devices}
            is_part = victim.elastic or victim.above is not None or victim.base is not None
            if not here or is_part or victim.key in known:
                continue
            if victim.size == sum(piece.gpu_milli for piece in victim.pieces):
                for at in here:
                    on.setdefault(at, []).append(victim)
    return on


def _clear(pool: PoolState, at: int, need: int, on: dict[int, list[Victim]]) -> tuple[int, list[Victim]] | None:
    """The least work to move away from one device (its size, and the victims); None if even all of it is too little."""
    short = need - pool.ledger.plain_after(at)
    if short <= 0:
        return 0, []
    parts = sorted(
        (sum(one.gpu_milli for one in victim.pieces if one.device == at), victim.size, victim.key, victim)
        for victim in on.get(at, ())
    )
    enough = next((part for part in parts if part[0] >= short), None)
    if enough is not None:
        return enough[1], [enough[3]]
    chosen: list[Victim] = []
    for milli, _, _, victim in reversed(parts):
        chosen.append(victim)
        short -= milli
        if short <= 0:
            return sum(one.size for one in chosen), chosen
    return None


def _apply(pool: PoolState, request: Request, plan: _Plan) -> tuple[Move, ...] | None:
    for victim in plan.movers:
        mark_leaving(pool, victim)
    slot_pieces = rank_pieces(0, plan.devices, request)
    reserve(pool.ledger, slot_pieces, borrowed=False)
    if pool.ledger.is_overfull(pool.ledger.node_of[plan.devices[0]]):
        return None
    moves: list[Move] = []
    for victim in sorted(plan.movers, key=lambda one: (-one.size, one.key)):
        fit = place(pool.ledger, victim.request)
        if not isinstance(fit, Fit):
            return None
        reserve(pool.ledger, fit.pieces, borrowed=False)
        ranks = sorted({piece.rank for piece in victim.pieces})
        moves.append(Move(victim, tuple(piece._replace(rank=ranks[piece.rank]) for piece in fit.pieces)))
    reserve(pool.ledger, slot_pieces, borrowed=False, sign=-1)
    return tuple(moves)
