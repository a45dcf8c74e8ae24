"""The room that work leaves and that nothing has reserved yet: which requests it may be enough for."""

from __future__ import annotations

from ..model import WHOLE_DEVICE
from .ledger import Ledger
from .place import Request

DrainSize = tuple[int, int]
"""The most room on one device, and on one of the nodes with such devices, in milli-GPU."""


class DrainRoom:
    """An upper bound, computed once."""

    def __init__(self, ledger: Ledger) -> None:
        rooms = {at: ledger.lendable_after(at) for at in ledger.draining}
        self.is_empty = not rooms
        self._known: dict[Request, bool] = {}
        nodes = {ledger.node_of[at] for at in rooms}
        on_node = max((ledger.node_after(node, borrowed=True) for node in nodes), default=0)
        self.size: DrainSize = max(rooms.values(), default=0), on_node

    def may_fit(self, request: Request) -> bool:
        """Whether one rank may fit where work leaves, beside what is free on its node."""
        if request not in self._known:
            milli = request.gpu_milli
            on_device, on_node = self.size
            beside = on_node if milli > WHOLE_DEVICE else on_device
            self._known[request] = on_device >= min(milli, WHOLE_DEVICE) and beside >= milli
        return self._known[request]
