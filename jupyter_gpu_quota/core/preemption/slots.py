"""Slots: one slot takes one rank. It is a device for requests up to a whole one, and a node for larger requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..placement.ledger import Ledger
from ..placement.node_resources import NOTHING
from ..placement.place import Piece, node_needs
from ..queue.quota_state import Entitlement, Victim
from .rules import Preemptor


def room_after(ledger: Ledger, entitlement: Entitlement, *, can_borrow: bool) -> Callable[..., int]:
    """The room of a device for a preemptor after all drains: for a slice, for a borrower or for firm work."""
    if entitlement is Entitlement.NOTEBOOK:
        return ledger.slice_after
    return ledger.lendable_after if can_borrow else ledger.plain_after


class Slots:
    """The slots of a pool for one preemptor: what victims free there, and which devices have room for a rank."""

    def __init__(self, ledger: Ledger, preemptor: Preemptor, *, can_borrow: bool) -> None:
        self.ledger, self.request, self.only, self.can_borrow = ledger, preemptor.request, preemptor.only, can_borrow
        self.after = room_after(ledger, preemptor.entitlement, can_borrow=can_borrow)
        self.need = self.request.per_device
        self.per_rank = self.request.devices_per_rank
        self.has_device_constraint = bool(self.request.gpu_models) or self.only is not None
        self.freed: dict[int, int] = {}
        """The free amount of each slot when all stopping work and the candidates seen there are gone."""
        self._after_of_node: dict[int, tuple[int, list[tuple[int, int]]]] = {}

    def of(self, device: int) -> int:
        return device if self.per_rank == 1 else self.ledger.node_of[device]

    def changed_since(self, changes: int) -> set[int]:
        """The slots that changed since the ledger had so many changes."""
        if self.ledger.changes == changes:
            return set()
        devices, nodes = self.ledger.changed_since(changes)
        if self.per_rank == 1:
            return devices.union(*(self.ledger.on_node[node] for node in nodes))
        return nodes | {self.ledger.node_of[at] for at in devices}

    def accepts(self, device: int) -> bool:
        """Whether the preemptor may use a device."""
        if not self.has_device_constraint:
            return True
        return self.request.accepts(self.ledger.model[device]) and (self.only is None or device in self.only)

    def freed_by(self, victim: Victim) -> list[tuple[int, int]]:
        """The slots on which a victim frees anything for the preemptor, and how much."""
        slots: dict[int, int] = {}
        frees_all = not self.has_device_constraint and (self.can_borrow or not victim.borrower)
        for piece in victim.pieces:
            if frees_all or self._frees(victim, piece):
                slot = piece.device if self.per_rank == 1 else self.ledger.node_of[piece.device]
                slots[slot] = slots.get(slot, 0) + piece.gpu_milli
                if slot not in self.freed:
                    on_node = self.per_rank > 1
                    after = self.ledger.node_after(slot, borrowed=self.can_borrow) if on_node else self.after(slot)
                    self.freed[slot] = max(0, after)
        return sorted(slots.items()) if len(slots) > 1 else list(slots.items())

    def _frees(self, victim: Victim, piece: Piece) -> bool:
        """Whether a victim frees anything for the preemptor on this device; a borrower may free lendable room only."""
        if not self.accepts(piece.device):
            return False
        if self.can_borrow or not victim.borrower:
            return True
        borrowed = self.ledger.borrowed[piece.device] + self.ledger.reserved_borrowed[piece.device]
        return borrowed > self.ledger.unused_quota[piece.device]

    def room(self, slot: int, leaving: Sequence[Victim]) -> list[int]:
        """The devices of a slot with room for their part of a rank when these victims, too, have left."""
        if self.request.cpu_milli or self.request.memory_mib:
            node = self.ledger.node_of[slot] if self.per_rank == 1 else slot
            freed = node_needs((piece for victim in leaving for piece in victim.pieces), self.ledger)
            if not self.request.ranks_within(self.ledger.node_resources.after(node, freed.get(node, NOTHING))):
                return []
        if self.per_rank == 1:
            return self._room_on_device(slot, leaving)
        if not any(victim.borrower for victim in leaving):
            return self._room_on_node(slot, leaving)
        return [at for at in self.ledger.on_node[slot] if self._room_on_device(at, leaving)]

    def _room_on_device(self, at: int, leaving: Sequence[Victim]) -> list[int]:
        firm = borrowed = 0
        for victim in leaving:
            freed = sum([piece.gpu_milli for piece in victim.pieces if piece.device == at])
            if victim.borrower:
                borrowed += freed
            else:
                firm += freed
        return [at] if self.accepts(at) and self.after(at, firm_gone=firm, borrowed_gone=borrowed) >= self.need else []

    def _room_on_node(self, node: int, leaving: Sequence[Victim]) -> list[int]:
        """The devices of a node with room, without borrowers among the victims; cached until the ledger changes."""
        known = self._after_of_node.get(node)
        if known is None or known[0] != self.ledger.changes:
            rows = [(at, self.after(at)) for at in self.ledger.on_node[node] if self.accepts(at)]
            known = self._after_of_node[node] = self.ledger.changes, rows
        freed = dict[int, int]()
        for victim in leaving:
            for piece in victim.pieces:
                freed[piece.device] = freed.get(piece.device, 0) + piece.gpu_milli
        need = self.need
        return [at for at, milli in known[1] if milli + freed.get(at, 0) >= need]
