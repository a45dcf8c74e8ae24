"""Placement of work that may not be preempted: it stays until it ends, so it should break up no node that is needed.

Source: docs/scheduling.md, section 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model import WHOLE_DEVICE
from .ledger import Ledger
from .place import NOWHERE, Fit, Piece, Refusal, Request, rank_pieces


class WholeNodes:
    """The nodes that could be whole again once all preemptible work has left them.

    ``staying``: the devices with slices and with work that may not be preempted. ``ranks``: the ranks that nodes are
    kept whole for, in devices.
    """

    def __init__(self, ledger: Ledger, staying: Iterable[int], ranks: Iterable[int]) -> None:
        self.ledger, self.staying = ledger, set(staying)
        self.ranks = sorted(set(ranks) - {0, 1})
        self.left = [sum(at not in self.staying for at in on_node) for on_node in ledger.on_node]
        """Of each node, the devices without work that stays."""

    def occupy(self, pieces: Iterable[Piece]) -> None:
        """Count the devices of work that starts."""
        for piece in pieces:
            if piece.device not in self.staying:
                self.staying.add(piece.device)
                self.left[self.ledger.node_of[piece.device]] -= 1

    def place(self, request: Request) -> Fit | Refusal:
        """Free devices for a request of one rank, where fewest of the kept ranks lose their node. Rule R75.

        Then as :func:`.place.place` does: the fullest device that takes a fraction, the node with fewest whole devices.
        """
        slots = self._fractions(request) if request.gpu_milli < WHOLE_DEVICE else self._whole(request)
        best = min(((self._broken_by(slot), *key, slot) for key, slot in slots), default=None)
        return NOWHERE if best is None else Fit(tuple(rank_pieces(0, best[-1], request)))

    def _broken_by(self, slot: Sequence[int]) -> int:
        """The number of kept ranks that the slot's node could hold now, and could not beside work on the slot."""
        left = self.left[self.ledger.node_of[slot[0]]]
        after = left - sum(at not in self.staying for at in slot)
        return sum(after < rank <= left for rank in self.ranks)

    def _fractions(self, request: Request) -> Iterable[tuple[tuple[int, int], list[int]]]:
        for at in range(len(self.ledger.devices)):
            free = self.ledger.plain_now(at)
            if free >= request.gpu_milli and request.accepts(self.ledger.model[at]):
                yield (free, at), [at]

    def _whole(self, request: Request) -> Iterable[tuple[tuple[int, int], list[int]]]:
        free_now, accepts, model = self.ledger.plain_now, request.accepts, self.ledger.model
        for node, on_node in enumerate(self.ledger.on_node):
            free = [at for at in on_node if accepts(model[at]) and free_now(at) == WHOLE_DEVICE]
            if len(free) >= request.devices_per_rank:
                free.sort(key=lambda at: (at not in self.staying, at))
                yield (len(free), node), free[: request.devices_per_rank]
