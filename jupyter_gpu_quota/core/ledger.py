"""What every device of one pool carries, and where there is room, found without scanning the pool.

Devices and nodes go by number (their place in id order). Per device, in milli-GPU: ``firm`` (work that stays),
``lent`` (borrowers of notebook quota), ``leaving`` (asked to go, still there), ``promised`` and ``promised_lent``
(reserved for a waiting workload), ``held`` (notebook quota that nobody has booked: borrowers only).
The columns are filled directly while a pool is read; from the first look at :meth:`Ledger.room` on, only by shift.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from .model import WHOLE_DEVICE, Device, Health, Node

ANY_MODEL = None


class Levels:
    """Items by an integer level; finds the lowest item on the smallest level at or above a bound."""

    __slots__ = ("_filled", "_heaps", "_level")

    def __init__(self, levels: Sequence[int]) -> None:
        self._level = list(levels)
        self._heaps: dict[int, list[int]] = {}
        for item, level in enumerate(levels):
            if level > 0:
                self._heaps.setdefault(level, []).append(item)
        self._filled = sum(1 << level for level in self._heaps)

    def __getitem__(self, item: int) -> int:
        return self._level[item]

    def put(self, item: int, level: int) -> None:
        """Move an item; what the heaps still say about its old level is skipped when it is met."""
        if self._level[item] == level:
            return
        self._level[item] = level
        if level > 0:
            heappush(self._heaps.setdefault(level, []), item)
            self._filled |= 1 << level

    def at_least(self, bound: int) -> int | None:
        """The lowest item on the smallest level that is at least ``bound`` (1 or more), None where there is none."""
        filled = self._filled >> bound
        while filled:
            level = bound + (filled & -filled).bit_length() - 1
            heap = self._heaps[level]
            while heap and self._level[heap[0]] != level:
                heappop(heap)
            if heap:
                return heap[0]
            self._filled &= ~(1 << level)
            filled = self._filled >> bound
        return None


class Room:
    """Where one kind of work finds room: devices by free amount, nodes by how many whole devices are free."""

    __slots__ = ("devices", "nodes")

    def __init__(self, free: Sequence[int], node_of: Sequence[int], nodes: int) -> None:
        whole = [0] * nodes
        for number, amount in enumerate(free):
            whole[node_of[number]] += amount == WHOLE_DEVICE
        self.devices = Levels(free)
        self.nodes = Levels(whole)

    def put(self, device: int, node: int, amount: int) -> None:
        """Note the new free amount of a device."""
        change = (amount == WHOLE_DEVICE) - (self.devices[device] == WHOLE_DEVICE)
        if change:
            self.nodes.put(node, self.nodes[node] + change)
        self.devices.put(device, amount)


class Ledger:
    """The devices of one pool that may be given out, and what each carries."""

    def __init__(self, devices: Iterable[Device], nodes: Iterable[Node]) -> None:
        closed = {node.id for node in nodes if not node.schedulable}
        self.devices = sorted(
            (d for d in devices if d.health is Health.HEALTHY and d.node not in closed), key=lambda d: d.id
        )
        count = len(self.devices)
        names = sorted({device.node for device in self.devices})
        number = {name: at for at, name in enumerate(names)}
        self.nodes = names
        self.number = {device.id: at for at, device in enumerate(self.devices)}
        self.model = [device.model for device in self.devices]
        self.node_of = [number[device.node] for device in self.devices]
        self.on_node: list[list[int]] = [[] for _ in names]
        for at, node in enumerate(self.node_of):
            self.on_node[node].append(at)
        self.capacity = [max(0, WHOLE_DEVICE - device.foreign_milli) for device in self.devices]
        self.firm, self.lent, self.leaving = [0] * count, [0] * count, [0] * count
        self.promised, self.promised_lent, self.held = [0] * count, [0] * count, [0] * count
        self.draining: set[int] = set()
        """Devices that something leaves and on which room, promised to nobody, is left then."""
        self._rooms: dict[str | None, tuple[Room, Room]] | None = None
        self._journal: list[tuple[int, tuple[int, int, int, int, int, int]]] = []
        self._node_after: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def shift(
        self, at: int, *, firm: int = 0, lent: int = 0, leaving: int = 0,
        promised: int = 0, promised_lent: int = 0, held: int = 0,
    ) -> None:  # fmt: skip
        """Change what one device carries, by these amounts."""
        self._journal.append((at, (firm, lent, leaving, promised, promised_lent, held)))
        self._apply(at, firm, lent, leaving, promised, promised_lent, held)

    def mark(self) -> int:
        """A point that :meth:`undo` can go back to."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Take back every shift since the mark."""
        while len(self._journal) > mark:
            at, amounts = self._journal.pop()
            self._apply(at, *(-amount for amount in amounts))

    def _apply(self, at: int, firm: int, lent: int, leaving: int, promised: int, promised_lent: int, held: int) -> None:
        self.firm[at] += firm
        self.lent[at] += lent
        self.promised[at] += promised
        self.promised_lent[at] += promised_lent
        self.held[at] += held
        self.leaving[at] += leaving
        for sums in self._node_after:
            sums.pop(self.node_of[at], None)
        if self._rooms is not None:
            self._refresh(at)

    def _refresh(self, at: int) -> None:
        plain, lendable = self.plain_now(at), self.lendable_now(at)
        node = self.node_of[at]
        drains = self.leaving[at] and self.lendable_after(at) > 0
        (self.draining.add if drains else self.draining.discard)(at)
        for key in self._keys(at):
            rooms = self._rooms_open[key]
            rooms[0].put(at, node, plain)
            rooms[1].put(at, node, lendable)

    @property
    def _rooms_open(self) -> dict[str | None, tuple[Room, Room]]:
        if self._rooms is None:
            self._rooms = self._build_rooms()
        return self._rooms

    def _build_rooms(self) -> dict[str | None, tuple[Room, Room]]:
        numbers = range(len(self.devices))
        self.draining = {at for at in numbers if self.leaving[at] and self.lendable_after(at) > 0}
        plain = [self.plain_now(at) for at in range(len(self.devices))]
        lendable = [self.lendable_now(at) for at in range(len(self.devices))]
        models = set(self.model)
        rooms = {ANY_MODEL: (self._room(plain, None), self._room(lendable, None))}
        if len(models) == 1:
            return rooms | dict.fromkeys(models, rooms[ANY_MODEL])
        return rooms | {model: (self._room(plain, model), self._room(lendable, model)) for model in sorted(models)}

    def _room(self, free: Sequence[int], model: str | None) -> Room:
        seen = free if model is None else [free[at] if self.model[at] == model else 0 for at in range(len(free))]
        return Room(seen, self.node_of, len(self.nodes))

    def _keys(self, at: int) -> tuple[str | None, ...]:
        return (ANY_MODEL,) if len(self._rooms_open) <= 2 else (ANY_MODEL, self.model[at])

    def room(self, model: str | None, *, lent: bool) -> Room | None:
        """Room for firm work or for borrowers on devices of a model (None: any); None for a model that is not there."""
        rooms = self._rooms_open.get(model)
        return rooms[lent] if rooms else None

    def plain_after(self, at: int, *, firm_gone: int = 0, lent_gone: int = 0) -> int:
        """Room for firm work once everything that leaves has left, and these amounts with it. May be below 0."""
        lent = self.lent[at] + self.promised_lent[at] - lent_gone
        return self.capacity[at] - self.firm[at] - self.promised[at] + firm_gone - max(self.held[at], lent)

    def lendable_after(self, at: int, *, firm_gone: int = 0, lent_gone: int = 0) -> int:
        """Room for a borrower or a notebook once everything that leaves has left, and these amounts with it."""
        lent = self.lent[at] + self.promised_lent[at] - lent_gone
        return self.capacity[at] - self.firm[at] - self.promised[at] + firm_gone - lent

    def node_after(self, node: int, *, lent: bool) -> int:
        """The room of all devices of a node once everything that leaves has left, for firm work or for borrowers."""
        sums = self._node_after[lent]
        if node not in sums:
            after = self.lendable_after if lent else self.plain_after
            sums[node] = sum(max(0, after(at)) for at in self.on_node[node])
        return sums[node]

    def free_now(self, at: int) -> int:
        """What nothing occupies at this instant, promised or not. Below 0 where a device carries too much."""
        return self.capacity[at] - self.firm[at] - self.lent[at] - self.leaving[at]

    def plain_now(self, at: int) -> int:
        """Room for firm work at this instant, 0 or more."""
        return max(0, min(self.free_now(at), self.plain_after(at)))

    def lendable_now(self, at: int) -> int:
        """Room for a borrower at this instant, 0 or more."""
        return max(0, min(self.free_now(at), self.lendable_after(at)))
