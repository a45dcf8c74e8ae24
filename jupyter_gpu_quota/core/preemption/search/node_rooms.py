"""The room of a few nodes as values: what every device has left when all drains have ended, and work leaves or comes.

The states of a node form a graph: each knows the states that it had after a piece of work left or came, and the places
it offers to a rank. A search that places the same work thousands of times computes each state once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from ...placement.ledger import Ledger
from ...placement.node_resources import UNLIMITED, CpuMemory
from ...placement.place import Piece, Request
from ...queue.quota_state import Entitlement, Victim
from ..rules import Preemptor


class DeviceRoom(NamedTuple):
    """Capacity less firm and reserved work, and what borrowers have or will have, in milli-GPU."""

    free: int
    borrowed: int


class Place(NamedTuple):
    """A place for one rank. ``room_left`` and ``choices`` order the places of a pool, the tightest first."""

    room_left: int
    choices: int
    devices: list[int]


Offer = tuple[object, Place]
"""A place, and what it looks like: equal for places that no rank can tell apart."""


class Claimant(NamedTuple):
    """What decides which places suit a rank: its request, and whether it is one of the claim's own."""

    request: Request
    is_claim: bool


class NodeState:
    """A node's room in one situation; see the module's docstring."""

    __slots__ = ("_cpu_memory", "_fitting", "_next", "_node", "_offers", "_rooms", "_slots")

    def __init__(self, node: _Node, rooms: tuple[DeviceRoom, ...], cpu_memory: CpuMemory) -> None:
        self._node, self._rooms, self._cpu_memory = node, rooms, cpu_memory
        self._next: dict[tuple[Piece, bool, int], NodeState] = {}
        self._offers: dict[Claimant, list[Offer]] = {}
        self._slots: dict[Claimant, int] = {}
        self._fitting: dict[Claimant, list[tuple[int, int]]] = {}

    def with_piece(self, piece: Piece, *, borrowed: bool, sign: int) -> NodeState:
        """The state after a piece has come (``sign`` 1), or left (-1)."""
        key = piece, borrowed, sign
        known = self._next.get(key)
        if known is None:
            rooms, at = list(self._rooms), self._node.devices.index(piece.device)
            room, milli = rooms[at], sign * piece.gpu_milli
            rooms[at] = (
                DeviceRoom(room.free, room.borrowed + milli) if borrowed else room._replace(free=room.free - milli)
            )
            cpu, memory = self._cpu_memory
            left = CpuMemory(_less(cpu, sign * piece.cpu_milli), _less(memory, sign * piece.memory_mib))
            known = self._next[key] = self._node.state(tuple(rooms), left)
        return known

    def release_references(self) -> None:
        """Forget the states that follow."""
        self._next.clear()

    def offers(self, claimant: Claimant) -> list[Offer]:
        """The distinct places for a rank."""
        if claimant not in self._offers:
            self._offers[claimant] = list(self._offers_of(claimant))
        return self._offers[claimant]

    def _fitting_for(self, claimant: Claimant) -> list[tuple[int, int]]:
        """Room and number of each device with room for its part of a rank, those with least room first."""
        known = self._fitting.get(claimant)
        if known is None:
            known = self._fitting[claimant] = self._node.fitting(claimant, self._rooms, self._cpu_memory)
        return known

    def _offers_of(self, claimant: Claimant) -> Iterator[Offer]:
        fitting, request = self._fitting_for(claimant), claimant.request
        need, count = request.per_device, request.devices_per_rank
        if len(fitting) < count:
            return
        looks = self._node.looks(self._rooms, self._cpu_memory)
        if count > 1:
            chosen = [at for _, at in fitting[:count]]
            yield looks, Place(sum(room for room, _ in fitting) - count * need, self._node.number, chosen)
            return
        for room, rows in groupby(fitting, key=itemgetter(0)):
            yield (looks, room), Place(room - need, len(fitting), [next(rows)[1]])

    def slots(self, claimant: Claimant) -> int:
        """The number of such ranks that fit at once."""
        if claimant not in self._slots:
            request, fitting = claimant.request, self._fitting_for(claimant)
            if request.devices_per_rank > 1:
                slots = len(fitting) // request.devices_per_rank
            else:
                slots = sum(room // request.gpu_milli for room, _ in fitting)
            self._slots[claimant] = min(slots, request.ranks_within(self._cpu_memory))
        return self._slots[claimant]


class _Node:
    """What stays the same of one node: ``usable`` are the devices that the claim may use."""

    def __init__(
        self, ledger: Ledger, number: int, preemptor: Preemptor, usable: Sequence[int], *, can_borrow: bool
    ) -> None:
        self.number, self.devices = number, ledger.on_node[number]
        self._usable = frozenset(usable)
        self._models = [ledger.model[at] for at in self.devices]
        self._unused_quota = [ledger.unused_quota[at] for at in self.devices]
        self._lent = [ledger.lent[at] for at in self.devices]
        self._kept = self._kept_by(preemptor.entitlement, can_borrow=can_borrow)
        self._known: dict[tuple[tuple[DeviceRoom, ...], CpuMemory], NodeState] = {}

    def _kept_by(self, entitlement: Entitlement, *, can_borrow: bool) -> list[int]:
        """What the claim may not use of a device, less what borrowers have there."""
        if entitlement is Entitlement.NOTEBOOK:
            return self._lent
        return [0] * len(self.devices) if can_borrow else self._unused_quota

    def state(self, rooms: tuple[DeviceRoom, ...], cpu_memory: CpuMemory) -> NodeState:
        known = self._known.get((rooms, cpu_memory))
        if known is None:
            known = self._known[rooms, cpu_memory] = NodeState(self, rooms, cpu_memory)
        return known

    def release_references(self) -> None:
        for state in self._known.values():
            state.release_references()
        self._known.clear()

    def rooms_for(self, rooms: Sequence[DeviceRoom], *, is_claim: bool) -> list[int]:
        """The room of each device, for the claim or for other firm work."""
        kept = self._kept if is_claim else self._unused_quota
        return [room.free - max(aside, room.borrowed) for room, aside in zip(rooms, kept, strict=True)]

    def looks(self, rooms: Sequence[DeviceRoom], cpu_memory: CpuMemory) -> object:
        claim, firm = self.rooms_for(rooms, is_claim=True), self.rooms_for(rooms, is_claim=False)
        return tuple(sorted(zip(self._models, claim, firm, strict=True))), cpu_memory

    def fitting(self, claimant: Claimant, rooms: Sequence[DeviceRoom], cpu_memory: CpuMemory) -> list[tuple[int, int]]:
        """Room and number of each device with room for its part of a rank, those with least room first."""
        request, need = claimant.request, claimant.request.per_device
        if not cpu_memory.covers(request.cpu_memory):
            return []
        return sorted(row for row in self.usable(request, rooms, is_claim=claimant.is_claim) if row[0] >= need)

    def usable(self, request: Request, rooms: Sequence[DeviceRoom], *, is_claim: bool) -> Iterator[tuple[int, int]]:
        """Room and number of each device that a rank may use."""
        free = self.rooms_for(rooms, is_claim=is_claim)
        for room, at, model in zip(free, self.devices, self._models, strict=True):
            if request.accepts(model) and (not is_claim or at in self._usable):
                yield room, at


def _less(amount: int, change: int) -> int:
    """An amount of CPU or memory less a change; one that the node does not state stays unlimited."""
    return amount if amount == UNLIMITED else amount - change


class NodeRooms:
    """The nodes that a claim may use, and for work that moves all nodes of a small pool.

    ``usable``: the devices that the claim may use. Nothing here changes the ledger.
    """

    def __init__(self, ledger: Ledger, preemptor: Preemptor, usable: Sequence[int], nodes: Iterable[int], *,
                 can_borrow: bool) -> None:  # fmt: skip
        self._ledger, only = ledger, preemptor.only
        usable = usable if only is None else [at for at in usable if at in only]
        self.states: dict[int, NodeState] = {}
        self._nodes = [_Node(ledger, number, preemptor, usable, can_borrow=can_borrow) for number in nodes]
        for node in self._nodes:
            rooms, cpu_memory = _rooms_now(ledger, node.number), ledger.node_resources.after(node.number)
            self.states[node.number] = node.state(rooms, cpu_memory)

    def release_references(self) -> None:
        """Break reference cycles at the end of a search."""
        for node in self._nodes:
            node.release_references()

    def leave(self, victims: Iterable[Victim], *, sign: int = -1) -> None:
        """Let work leave, or (``sign`` 1) stay; parts on other nodes do not count."""
        for victim in victims:
            self._change(victim.pieces, borrowed=victim.borrower, sign=sign)

    def take(self, pieces: Iterable[Piece]) -> None:
        """Let pieces come."""
        self._change(pieces, borrowed=False, sign=1)

    def _change(self, pieces: Iterable[Piece], *, borrowed: bool, sign: int) -> None:
        states, node_of = self.states, self._ledger.node_of
        for piece in pieces:
            node = node_of[piece.device]
            if node in states:
                states[node] = states[node].with_piece(piece, borrowed=borrowed, sign=sign)

    def mark(self) -> dict[int, NodeState]:
        """A point that :meth:`undo` can go back to."""
        return dict(self.states)

    def undo(self, mark: dict[int, NodeState]) -> None:
        self.states = dict(mark)

    def slots(self, claimant: Claimant) -> int:
        """The number of such ranks that fit at once."""
        return sum(state.slots(claimant) for state in self.states.values())

    def slots_around(self, devices: Iterable[int], claimant: Claimant) -> int:
        """The number of such ranks that fit at once on the nodes of these devices."""
        nodes = {self._ledger.node_of[at] for at in devices}
        return sum(self.states[node].slots(claimant) for node in nodes if node in self.states)

    def places(self, claimant: Claimant) -> list[list[int]]:
        """The distinct places for a rank, those with least room left over first."""
        distinct: dict[object, Place] = {}
        for state in self.states.values():
            for looks, found in state.offers(claimant):
                distinct.setdefault(looks, found)
        return [one.devices for one in sorted(distinct.values())]


def _rooms_now(ledger: Ledger, node: int) -> tuple[DeviceRoom, ...]:
    return tuple(
        DeviceRoom(
            ledger.capacity[at] - ledger.firm[at] - ledger.reserved[at],
            ledger.borrowed[at] + ledger.reserved_borrowed[at],
        )
        for at in ledger.on_node[node]
    )
