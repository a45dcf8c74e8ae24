"""The room of a large pool for a claim and the work that moves for it, tried on the ledger itself.

Work that moves tries the devices that are freed, then the place that the placement would choose; so does a claim that
may use any device. A rank of several devices tries those that are freed together with idle ones of their nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...placement.place import Fit, Piece, Request, place, reserve
from ...queue.pool_state import PoolState
from ...queue.quota_state import Victim
from ..accounting import mark_leaving
from ..rules import Preemptor
from ..slots import room_after
from .node_rooms import Claimant, Place


class LedgerRooms:
    """``devices``: those that the claim may use; None for any that it accepts."""

    def __init__(
        self, pool: PoolState, preemptor: Preemptor, devices: Sequence[int] | None, *, can_borrow: bool
    ) -> None:
        self._pool, self._ledger, self._preemptor, self._devices = pool, pool.ledger, preemptor, devices
        self._after = room_after(pool.ledger, preemptor.entitlement, can_borrow=can_borrow)

    def leave(self, victims: Iterable[Victim]) -> None:
        """Let work leave."""
        for victim in victims:
            mark_leaving(self._pool, victim)

    def take(self, pieces: Iterable[Piece]) -> None:
        """Let pieces come."""
        reserve(self._ledger, tuple(pieces), borrowed=False)

    def mark(self) -> int:
        """A point that :meth:`undo` can go back to."""
        return self._ledger.mark()

    def undo(self, mark: int) -> None:
        self._ledger.undo(mark)

    def places(self, claimant: Claimant) -> list[list[int]]:
        """The distinct places for a rank, those with least room left over first."""
        request, after = claimant.request, self._after if claimant.is_claim else self._ledger.plain_after
        if claimant.is_claim and self._devices is not None:
            return self._distinct(claimant, self._devices, after)
        fit = place(self._ledger, request._replace(ranks=1))
        free = [piece.device for piece in fit.pieces] if isinstance(fit, Fit) else []
        return self._distinct(claimant, list(dict.fromkeys([*self._around_draining(request), *free])), after)

    def _around_draining(self, request: Request) -> list[int]:
        """The devices that work leaves; all of their nodes for a rank of several devices, or with CPU or memory."""
        ledger, draining = self._ledger, self._ledger.draining
        if request.devices_per_rank == 1 and not (request.cpu_milli or request.memory_mib):
            return sorted(draining)
        return [at for node in sorted({ledger.node_of[at] for at in draining}) for at in ledger.on_node[node]]

    def _distinct(self, claimant: Claimant, devices: Sequence[int], after: Callable[[int], int]) -> list[list[int]]:
        request, ledger = claimant.request, self._ledger
        count, distinct = request.devices_per_rank, dict[object, Place]()
        by_node = self._by_node(claimant, devices, after)
        for node, rooms in by_node.items():
            if len(rooms) < count or not ledger.node_resources.after(node).covers(request.cpu_memory):
                continue
            looks = self._looks(node) if len(by_node) > 1 else None
            need = request.per_device
            rooms.sort()
            if count > 1:
                left = sum(room for room, _ in rooms) - count * need
                distinct.setdefault(looks, Place(left, node, [at for _, at in rooms[:count]]))
                continue
            for room, at in rooms:
                distinct.setdefault((looks, room), Place(room - need, len(rooms), [at]))
        return [one.devices for one in sorted(distinct.values())]

    def _by_node(
        self, claimant: Claimant, devices: Sequence[int], after: Callable[[int], int]
    ) -> dict[int, list[tuple[int, int]]]:
        """Room and number of the devices with room for their part of a rank, by node."""
        request, ledger = claimant.request, self._ledger
        only, need = self._preemptor.only if claimant.is_claim else None, request.per_device
        by_node: dict[int, list[tuple[int, int]]] = {}
        for at in devices:
            if request.accepts(ledger.model[at]) and (only is None or at in only) and (room := after(at)) >= need:
                by_node.setdefault(ledger.node_of[at], []).append((room, at))
        return by_node

    def _looks(self, node: int) -> object:
        """Equal for nodes that no rank can tell apart."""
        ledger = self._ledger
        rooms = sorted((ledger.model[at], self._after(at), ledger.plain_after(at)) for at in ledger.on_node[node])
        return tuple(rooms), ledger.node_resources.after(node)
