"""The ledger: the use of every device of one pool, and an index of free room.

Devices and nodes go by number (their place in id order). Per device, in milli-GPU: ``firm`` (work that stays),
``borrowed`` (borrowers of notebook quota), ``leaving`` (work that is stopping, still there), ``reserved`` and
``reserved_borrowed`` (for waiting work), ``unused_quota`` (notebook quota without a slice on it: for borrowers only),
``lent`` (of that, what belongs to lent slices: other slices do not use it), ``owed`` (the lent slices, those that wake
included), ``leaving_borrowed`` (the borrowers among the work that is stopping).
Reading a pool fills the columns directly; after the first call of :meth:`Ledger.free_devices` only shift changes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import compress
from typing import Any, NamedTuple, Protocol

from ..model import WHOLE_DEVICE, Demand, Device, Health, Node
from .fragmentation import CPU_STEPS, MEMORY_STEPS, NodeKind, NodeState, score_for
from .locality import groups_of_nodes
from .node_classes import NodeClasses
from .node_resources import NOTHING, CpuMemory, NodeResources, node_sizes
from .scarcity import ScarcityPrices
from .workload_profile import needs_score

Models = tuple[str, ...]
ANY_MODEL: Models = ()
Column = list[int]
"""One amount of every device: ``ledger.firm``, ``ledger.borrowed`` and so on."""
NodeBit = tuple[int, int]
"""The position of a device: its node, and its bit among the devices of the node."""


class OnDevice(Protocol):
    """A part of a device: its number, and an amount in milli-GPU."""

    @property
    def device(self) -> int: ...
    @property
    def gpu_milli(self) -> int: ...


class _Amount(NamedTuple):
    """An amount on one device."""

    device: int
    gpu_milli: int


class _ResourceChange(NamedTuple):
    """A change of the CPU and memory use of one node: used, leaving and reserved."""

    node: int
    amounts: tuple[CpuMemory, CpuMemory, CpuMemory]


class BestFitIndex:
    """Items by an integer level; finds the lowest item on the smallest level that is at least a bound."""

    __slots__ = ("_filled", "_heaps", "_level")

    def __init__(self, levels: Sequence[int]) -> None:
        self._level = list(levels)
        self._heaps: dict[int, list[int]] = {}
        for item, level in enumerate(levels):
            if level > 0:
                if level in self._heaps:
                    self._heaps[level].append(item)
                else:
                    self._heaps[level] = [item]
        self._filled = sum(1 << level for level in self._heaps)

    def __getitem__(self, item: int) -> int:
        return self._level[item]

    def put(self, item: int, level: int) -> int:
        """Move an item to a level, and return the one before; its entry in that heap is skipped when it is met."""
        before = self._level[item]
        if before != level:
            self._level[item] = level
            if level > 0:
                heappush(self._heaps.setdefault(level, []), item)
                self._filled |= 1 << level
        return before

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


class FreeDevices:
    """Free room for one kind of work: devices by free amount, nodes by the number of whole free devices.

    The whole free devices of a node are the bits of one number, in the order of its devices.
    """

    __slots__ = ("_node_bit", "_on_node", "_whole", "devices", "nodes", "total")

    def __init__(self, free: Sequence[int], node_bits: Sequence[NodeBit], on_node: Sequence[Sequence[int]]) -> None:
        self._on_node, self._node_bit = on_node, node_bits
        self._whole = [0] * len(on_node)
        for node, bit in compress(node_bits, map(WHOLE_DEVICE.__eq__, free)):
            self._whole[node] |= bit
        self.devices = BestFitIndex(free)
        self.total = sum(free)
        self.nodes = BestFitIndex([whole.bit_count() for whole in self._whole])

    def first_whole(self, node: int, count: int) -> list[int]:
        """The first ``count`` whole free devices of a node."""
        whole, on, found = self._whole[node], self._on_node[node], list[int]()
        for _ in range(count):
            lowest = whole & -whole
            found.append(on[lowest.bit_length() - 1])
            whole ^= lowest
        return found

    def put(self, changed: Iterable[int], free: Callable[[int], int]) -> None:
        """Read the free amounts of devices that changed."""
        moved, put = set[int](), self.devices.put
        for device in changed:
            amount = free(device)
            if (before := put(device, amount)) == amount:
                continue
            self.total += amount - before
            if amount == WHOLE_DEVICE or before == WHOLE_DEVICE:
                node, bit = self._node_bit[device]
                self._whole[node] ^= bit
                moved.add(node)
        for node in moved:
            self.nodes.put(node, self._whole[node].bit_count())


class _Totals:
    """The room on every node and in all; negative room of a device counts as 0.

    ``read``: the number of entries of the ledger's log that are included.
    """

    __slots__ = ("_on", "_ranks", "all", "of", "read")

    def __init__(self, on_device: Sequence[int], node_of: Sequence[int], nodes: int, read: int) -> None:
        self._on = [milli if milli > 0 else 0 for milli in on_device]
        self.of = [0] * nodes
        for node, milli in zip(node_of, self._on, strict=True):
            self.of[node] += milli
        self.all, self.read = sum(self.of), read
        self._ranks: dict[int, int] = {}

    def put(self, device: int, node: int, milli: int) -> None:
        change = max(0, milli) - self._on[device]
        if change:
            before = self.of[node]
            self._on[device] += change
            self.of[node] += change
            self.all += change
            for size in self._ranks:
                self._ranks[size] += (before + change) // size - before // size

    def ranks(self, milli: int) -> int:
        """The number of ranks of this size that the rooms of the nodes sum up to, each on one node."""
        if milli not in self._ranks:
            self._ranks[milli] = sum(room // milli for room in self.of)
        return self._ranks[milli]


class Ledger:
    """The schedulable devices of one pool, and what each carries. Foreign use lowers a device's capacity. Rule R13."""

    def __init__(
        self, devices: Iterable[Device], nodes: Iterable[Node], *,
        demand: tuple[Demand, ...] = (), parts: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        """``demand``: the requests so far; ``parts``: for nodes in several pools, (devices here, all)."""
        nodes = tuple(nodes)
        closed = {node.id for node in nodes if not node.is_open}
        self.devices = sorted(
            (d for d in devices if d.health is Health.HEALTHY and d.node not in closed), key=lambda d: d.id
        )
        names = sorted({device.node for device in self.devices})
        number = {name: at for at, name in enumerate(names)}
        self.nodes = names
        groups = {node.id: node.topology for node in nodes}
        self.groups = groups_of_nodes([groups.get(name, ()) for name in names])
        """The groups of close nodes by level (:mod:`.locality`)."""
        self.number = {device.id: at for at, device in enumerate(self.devices)}
        self.model = [device.model for device in self.devices]
        self._models = sorted(set(self.model))
        self.node_of = [number[device.node] for device in self.devices]
        self.on_node: list[list[int]] = [[] for _ in names]
        self.node_bits: list[NodeBit] = []
        for at, node in enumerate(self.node_of):
            self.node_bits.append((node, 1 << len(self.on_node[node])))
            self.on_node[node].append(at)
        self.capacity = [max(0, WHOLE_DEVICE - device.foreign_milli) for device in self.devices]
        self.whole_devices = self.capacity.count(WHOLE_DEVICE)
        self._sizes = node_sizes(nodes, names, parts or {})
        self._empty()
        self.set_demand(demand)

    def _empty(self) -> None:
        count = len(self.devices)
        self.firm, self.borrowed, self.leaving = [0] * count, [0] * count, [0] * count
        self.reserved, self.reserved_borrowed = [0] * count, [0] * count
        self.unused_quota, self.lent, self.owed = [0] * count, [0] * count, [0] * count
        self.leaving_borrowed = [0] * count
        self._draining: set[int] | None = None
        self.node_resources = NodeResources(self._sizes)
        self._node_classes: dict[bool, NodeClasses] = {}
        self.prices: ScarcityPrices | None = None
        """The prices by the room at the first look at node classes."""
        self._rooms: dict[Models, tuple[FreeDevices, FreeDevices]] | None = None
        self._has_unused_quota: bool | None = None
        self._journal: list[tuple[Column, Sequence[OnDevice], int] | _ResourceChange] = []
        self._log: list[int] = []
        """Each device that changed, in order, and the complement of each node that did. An index that follows from the
        columns remembers how much of the log it has read."""
        self._rooms_read = self._node_classes_read = self._draining_read = 0
        self.gains = self._all_gains = 0
        """The number of the last change that may have freed room; put back where its room was taken again."""
        self.refused: dict[tuple[object, bool], int] = {}
        """The value of ``gains`` when a request for one rank, as a borrower or not, found no room."""
        self.found: dict[tuple[object, bool], tuple[int, tuple[Any, ...]]] = {}
        """The number of changes when it was placed on these pieces."""
        self._totals: dict[bool, _Totals] = {}

    def emptied(self) -> Ledger:
        """A ledger of the same devices and demand, without any use."""
        other = Ledger.__new__(Ledger)
        other.__dict__.update(self.__dict__)
        other._empty()
        return other

    def with_use(self, firm: Column, borrowed: Column) -> Ledger:
        """:meth:`emptied`, with these amounts on its devices."""
        other = self.emptied()
        other.firm, other.borrowed = firm.copy(), borrowed.copy()
        return other

    def set_demand(self, demand: tuple[Demand, ...]) -> None:
        """Place by this demand, and by the room now, from now on; by GPU amounts alone where it has nothing else."""
        self.score = score_for(demand) if needs_score(demand) else None
        self.prices = None
        self._node_classes.clear()

    @property
    def changes(self) -> int:
        return len(self._log)

    def changed_since(self, changes: int) -> tuple[set[int], set[int]]:
        """The devices, and the nodes in CPU or memory, that changed since there were so many changes."""
        log = set(self._log[changes:])
        return {at for at in log if at >= 0}, {~at for at in log if at < 0}

    def shift(self, column: Column, at: int, milli: int) -> None:
        """Change one of the amounts that a device carries."""
        self.shift_each(column, (_Amount(at, abs(milli)),), 1 if milli >= 0 else -1)

    def shift_each(self, column: Column, pieces: Iterable[OnDevice], sign: int) -> None:
        """Add each of these pieces to what its device carries; ``sign`` -1: subtract them."""
        if pieces := tuple(pieces):
            self._journal.append((column, pieces, sign))
            self._apply(column, pieces, sign)

    def shift_resources(
        self, node: int, *, used: CpuMemory = NOTHING, leaving: CpuMemory = NOTHING, reserved: CpuMemory = NOTHING
    ) -> None:
        """Change the CPU and memory use of one node by these amounts."""
        self._journal.append(change := _ResourceChange(node, (used, leaving, reserved)))
        self._apply_resources(change, 1)

    def is_overfull(self, node: int) -> bool:
        """Whether a node's CPU or memory is overcommitted after all drains."""
        return min(self.node_resources.after(node)) < 0

    def mark(self) -> int:
        """A point that :meth:`undo` can go back to."""
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Undo every change since the mark."""
        while len(self._journal) > mark:
            change = self._journal.pop()
            if isinstance(change, _ResourceChange):
                self._apply_resources(change, -1)
            else:
                column, pieces, sign = change
                self._apply(column, pieces, -sign)

    def _apply_resources(self, change: _ResourceChange, sign: int) -> None:
        self._log.append(~change.node)
        self._note_gain()
        amounts = (CpuMemory(sign * cpu, sign * memory) for cpu, memory in change.amounts)
        self.node_resources.add(change.node, *amounts)

    def _apply(self, column: Column, pieces: Sequence[OnDevice], sign: int) -> None:
        log = self._log
        for piece in pieces:
            at = piece.device
            column[at] += sign * piece.gpu_milli
            log.append(at)
        if sign < 0:
            self._note_gain()

    def _note_gain(self) -> None:
        self._all_gains += 1
        self.gains = self._all_gains

    @property
    def has_unused_quota(self) -> bool:
        """Whether any notebook quota was unused at the first call: if not, a borrower has the room of firm work."""
        if self._has_unused_quota is None:
            self._has_unused_quota = any(self.unused_quota)
        return self._has_unused_quota

    @property
    def draining(self) -> set[int]:
        """Devices that work is leaving and that then have unreserved room."""
        found = self._draining
        if found is None:
            leaves = filter(self.leaving.__getitem__, range(len(self.devices)))
            found = self._draining = {at for at in leaves if self.lendable_after(at) > 0}
        elif self._draining_read < len(self._log):
            for at in {at for at in self._log[self._draining_read :] if at >= 0}:
                drains = self.leaving[at] and self.lendable_after(at) > 0
                (found.add if drains else found.discard)(at)
        self._draining_read = len(self._log)
        return found

    @property
    def _rooms_open(self) -> dict[Models, tuple[FreeDevices, FreeDevices]]:
        if self._rooms is None:
            self._rooms = {ANY_MODEL: self._rooms_for(ANY_MODEL)}
        elif self._rooms_read < len(self._log):
            self._refresh({at for at in self._log[self._rooms_read :] if at >= 0}, self._rooms)
        self._rooms_read = len(self._log)
        return self._rooms

    def _refresh(self, moved: Collection[int], rooms: dict[Models, tuple[FreeDevices, FreeDevices]]) -> None:
        for models, (firm, borrowed) in rooms.items():
            of_models = [at for at in moved if self.model[at] in models] if models else moved
            firm.put(of_models, self.plain_now)
            if borrowed is not firm:
                borrowed.put(of_models, self.lendable_now)

    def _rooms_for(self, models: Models) -> tuple[FreeDevices, FreeDevices]:
        """For firm work and for borrowers; the same where no notebook quota is unused, which a plan only lowers."""
        rooms = []
        for borrowed in (False, True) if self.has_unused_quota else (False,):
            free = self.all_now(borrowed=borrowed)
            if models:
                free = [milli if model in models else 0 for milli, model in zip(free, self.model, strict=True)]
            rooms.append(FreeDevices(free, self.node_bits, self.on_node))
        return rooms[0], rooms[-1]

    def all_now(self, *, borrowed: bool) -> list[int]:
        """:meth:`lendable_now` or :meth:`plain_now` of every device."""
        beside = self.borrowed, self.leaving, self.reserved, self.reserved_borrowed, self.unused_quota
        if not any(map(any, beside)):
            return [whole - firm if whole > firm else 0 for whole, firm in zip(self.capacity, self.firm, strict=True)]
        after = zip(self.reserved, self.borrowed, self.reserved_borrowed, self.unused_quota, strict=True)
        if borrowed:
            dues = [due + here + soon for due, here, soon, _ in after]
        else:
            dues = [
                due + (unused_quota if unused_quota > here + soon else here + soon)
                for due, here, soon, unused_quota in after
            ]
        rows = zip(self.capacity, self.firm, self.borrowed, self.leaving, dues, strict=True)
        found = [
            free if (free := whole - firm - (due if due > here + goes else here + goes)) > 0 else 0
            for whole, firm, here, goes, due in rows
        ]
        for at in () if borrowed else (at for at, milli in enumerate(self.owed) if milli):
            found[at] = self.plain_now(at)
        return found

    def free_devices(self, models: Models, *, borrowed: bool) -> FreeDevices | None:
        """Room for firm work or for borrowers on devices of these models (none named: any); None where none is here.

        It is kept up to date from the first call on.
        """
        rooms = self._rooms_open
        if not models:
            return rooms[ANY_MODEL][borrowed]
        here = tuple(name for name in self._models if name in models)
        if not here:
            return None
        key = ANY_MODEL if len(here) == len(self._models) else here
        if key not in rooms:
            rooms[key] = self._rooms_for(key)
        return rooms[key][borrowed]

    def node_classes(self, *, borrowed: bool) -> NodeClasses:
        """The nodes by what is free on them for firm work or for borrowers, kept up to date from the first call on."""
        if borrowed not in self._node_classes:
            free = self.lendable_now if borrowed else self.plain_now
            kinds = [self._kind(node) for node in range(len(self.nodes))]
            if self.score and not self.prices:
                states = Counter(self._state(node, kind, free) for node, kind in enumerate(kinds))
                self.prices = ScarcityPrices(self.score.rows, states)
            self._node_classes[borrowed] = NodeClasses(
                len(kinds), lambda node: self._state(node, kinds[node], free), self.score, self.prices
            )
        for at in self._log[self._node_classes_read :]:
            for classes in self._node_classes.values():
                classes.note(self.node_of[at] if at >= 0 else ~at)
        self._node_classes_read = len(self._log)
        return self._node_classes[borrowed]

    def _kind(self, node: int) -> NodeKind:
        models, (cpu, memory) = tuple(self.model[at] for at in self.on_node[node]), self.node_resources.sizes[node]
        cpu_step, memory_step = max(1, cpu // CPU_STEPS), max(1, memory // MEMORY_STEPS)
        names = models if len(set(models)) > 1 else models[:1]
        return NodeKind(names, cpu_step, memory_step, len(models), *self.node_resources.size(node))

    def _state(self, node: int, kind: NodeKind, free: Callable[[int], int]) -> NodeState:
        amounts = [free(at) for at in self.on_node[node]]
        if len(kind.models) == 1:
            amounts.sort()
        cpu, memory = self.node_resources.now(node)
        return NodeState(kind, max(0, cpu), max(0, memory), tuple(amounts))

    def plain_after(self, at: int, *, firm_gone: int = 0, borrowed_gone: int = 0) -> int:
        """Room for firm work after all drains and after these amounts have left; may be below 0."""
        borrowed, unused = self.borrowed[at] + self.reserved_borrowed[at] - borrowed_gone, self.unused_quota[at]
        due = self.reserved[at] + (unused if unused > borrowed else borrowed)
        return self.capacity[at] - self.firm[at] - due + firm_gone

    def lendable_after(self, at: int, *, firm_gone: int = 0, borrowed_gone: int = 0) -> int:
        """Room for a borrower after all drains and after these amounts have left."""
        borrowed = self.borrowed[at] + self.reserved_borrowed[at] - borrowed_gone
        return self.capacity[at] - self.firm[at] - self.reserved[at] + firm_gone - borrowed

    def slice_after(self, at: int, *, firm_gone: int = 0, borrowed_gone: int = 0) -> int:
        """Room for a notebook slice, beside lent ones, after all drains and after these amounts have left."""
        borrowed = self.borrowed[at] + self.reserved_borrowed[at] - borrowed_gone
        return self.capacity[at] - self.firm[at] - self.reserved[at] + firm_gone - max(self.lent[at], borrowed)

    def node_after(self, node: int, *, borrowed: bool) -> int:
        """The room of a node after all drains, for firm work or for borrowers."""
        return self._totals_after(borrowed).of[node]

    def nodes_after(self, *, borrowed: bool) -> Sequence[int]:
        """The room of every node after all drains."""
        return self._totals_after(borrowed).of

    def ranks_after(self, milli: int, *, borrowed: bool) -> int:
        """An upper bound of the ranks of this size that fit after all drains."""
        return self._totals_after(borrowed).ranks(milli)

    def _totals_after(self, borrowed: bool) -> _Totals:
        totals = self._totals.get(borrowed)
        if totals is None:
            everywhere = self._all_after(borrowed=borrowed)
            totals = self._totals[borrowed] = _Totals(everywhere, self.node_of, len(self.nodes), len(self._log))
        elif totals.read < len(self._log):
            after = self.lendable_after if borrowed else self.plain_after
            for at in {at for at in self._log[totals.read :] if at >= 0}:
                totals.put(at, self.node_of[at], after(at))
            totals.read = len(self._log)
        return totals

    def _all_after(self, *, borrowed: bool) -> list[int]:
        """:meth:`lendable_after` or :meth:`plain_after` of every device."""
        columns = (self.capacity, self.firm, self.reserved, self.borrowed, self.reserved_borrowed, self.unused_quota)
        if not any(map(any, columns[3:])):
            return [whole - firm - due for whole, firm, due in zip(*columns[:3], strict=True)]
        rows = zip(*columns, strict=True)
        if borrowed:
            return [whole - firm - due - here - soon for whole, firm, due, here, soon, _ in rows]
        return [
            whole - firm - due - (unused if unused > here + soon else here + soon)
            for whole, firm, due, here, soon, unused in rows
        ]

    def all_plain_after(self) -> list[int]:
        """:meth:`plain_after` of every device."""
        return self._all_after(borrowed=False)

    def all_after(self, *, borrowed: bool) -> int:
        """The room of all nodes after all drains."""
        return self._totals_after(borrowed).all

    def most_after(self, *, borrowed: bool) -> int:
        """The room of the node with the most room after all drains."""
        return max(self.nodes_after(borrowed=borrowed), default=0)

    def free_now(self, at: int) -> int:
        """The unoccupied part of a device now, reserved or not; below 0 on an overcommitted device."""
        return self.capacity[at] - self.firm[at] - self.borrowed[at] - self.leaving[at]

    def plain_now(self, at: int) -> int:
        """Room for firm work now, 0 or more."""
        borrowed, unused_quota = self.borrowed[at], self.unused_quota[at]
        due, occupied = borrowed + self.reserved_borrowed[at], borrowed + self.leaving[at]
        due = self.reserved[at] + (unused_quota if unused_quota > due else due)
        free = self.capacity[at] - self.firm[at] - (due if due > occupied else occupied)
        if self.owed[at]:
            free = min(free, self._beside_lent(at))
        return free if free > 0 else 0

    def firm_now(self, at: int) -> int:
        """The part of a device that firm work could have now, reserved or not; below 0 on an overcommitted device."""
        free = self.free_now(at)
        return min(free, self._beside_lent(at)) if self.owed[at] else free

    def _beside_lent(self, at: int) -> int:
        """The part of a device that is not lent and that no other work than borrowers has now."""
        return self.capacity[at] - self.firm[at] - self.leaving[at] + self.leaving_borrowed[at] - self.owed[at]

    def lendable_now(self, at: int) -> int:
        """Room for a borrower now, 0 or more."""
        return max(0, min(self.free_now(at), self.lendable_after(at)))

    def slice_now(self, at: int) -> int:
        """Room for a notebook slice now, beside lent ones, 0 or more."""
        return max(0, min(self.free_now(at), self.slice_after(at)))
