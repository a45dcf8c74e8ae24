"""Placement: which devices take a request. Fractions share devices; whole GPUs of one rank are on one node.

A rank's CPU and memory must fit its node. With a workload profile, a rank goes where the fragmentation score falls
least (:mod:`.fragmentation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..amounts import memory_share_mib
from ..model import WHOLE_DEVICE, Job, Placement
from .ledger import Ledger, Models
from .locality import Group, closest_group
from .node_resources import NOTHING, CpuMemory

NO_BOUND = 1 << 62


class Request(NamedTuple):
    """The request of a workload: per rank 1..1000 milli of one device, or whole thousands on one node.

    ``gpu_models``: any where none is named. ``cpu_milli`` and ``memory_mib`` are per rank, 0 where not stated.
    """

    gpu_milli: int
    ranks: int = 1
    gpu_models: Models = ()
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def size(self) -> int:
        """Milli-GPU of all ranks."""
        return self.gpu_milli * self.ranks

    @property
    def devices_per_rank(self) -> int:
        """The number of devices of one rank."""
        return self.gpu_milli // WHOLE_DEVICE or 1

    @property
    def per_device(self) -> int:
        """Milli-GPU of one rank on each of its devices."""
        return self.gpu_milli if self.gpu_milli < WHOLE_DEVICE else WHOLE_DEVICE

    @property
    def cpu_memory(self) -> CpuMemory:
        """The CPU and memory of one rank."""
        return CpuMemory(self.cpu_milli, self.memory_mib)

    def ranks_within(self, room: CpuMemory) -> int:
        """The number of ranks that fit into an amount of CPU and memory."""
        by_cpu = room.cpu_milli // self.cpu_milli if self.cpu_milli else NO_BOUND
        return max(0, min(by_cpu, room.memory_mib // self.memory_mib if self.memory_mib else NO_BOUND))

    def accepts(self, model: str) -> bool:
        return not self.gpu_models or model in self.gpu_models


def request_of(job: Job, ranks: int) -> Request:
    return Request(job.gpu_milli, ranks, job.gpu_models, job.cpu_milli, job.memory_mib)


class Piece(NamedTuple):
    """A part of one rank on the device with this number in the ledger.

    The first piece of a rank carries what the rank needs of the device's node.
    """

    rank: int
    device: int
    gpu_milli: int
    cpu_milli: int = 0
    memory_mib: int = 0


def rank_pieces(rank: int, devices: Sequence[int], request: Request) -> list[Piece]:
    """One rank of a request on these devices of a node."""
    each = request.per_device
    pieces = [Piece(rank, at, each) for at in devices]
    if request.cpu_milli or request.memory_mib:
        pieces[0] = pieces[0]._replace(cpu_milli=request.cpu_milli, memory_mib=request.memory_mib)
    return pieces


def with_cpu_memory(pieces: Iterable[Piece], cpu_milli: int, memory_mib: int) -> list[Piece]:
    """Pieces in order, the first of each rank with what the rank needs of its node."""
    ordered = sorted(pieces)
    if not cpu_milli and not memory_mib:
        return ordered
    first = {piece.rank: at for at, piece in reversed(list(enumerate(ordered)))}
    for at in first.values():
        ordered[at] = ordered[at]._replace(cpu_milli=cpu_milli, memory_mib=memory_mib)
    return ordered


def node_needs(pieces: Iterable[Piece], ledger: Ledger) -> dict[int, CpuMemory]:
    """The CPU and memory that pieces need, by node."""
    needs: dict[int, CpuMemory] = {}
    for piece in pieces:
        if piece.cpu_milli or piece.memory_mib:
            node = ledger.node_of[piece.device]
            cpu, memory = needs.get(node, NOTHING)
            needs[node] = CpuMemory(cpu + piece.cpu_milli, memory + piece.memory_mib)
    return needs


def is_free_now(ledger: Ledger, pieces: Iterable[Piece], *, borrowed: bool = False) -> bool:
    """Whether nothing occupies these pieces now; reservations do not count. ``borrowed``: for a borrower."""
    free_on = ledger.free_now if borrowed else ledger.firm_now
    return _cover(ledger, tuple(pieces), free_on, ledger.node_resources.unoccupied)


def has_room_after_drains(ledger: Ledger, pieces: Iterable[Piece]) -> bool:
    """Whether a borrower would have room for these pieces after all drains."""
    return _cover(ledger, tuple(pieces), ledger.lendable_after, ledger.node_resources.after)


def _cover(
    ledger: Ledger, pieces: Sequence[Piece], free_on: Callable[[int], int], left_on: Callable[[int], CpuMemory]
) -> bool:
    wanted = Counter[int]()
    for piece in pieces:
        wanted[piece.device] += piece.gpu_milli
    fits = all(left_on(node).covers(need) for node, need in node_needs(pieces, ledger).items())
    return fits and all(free_on(at) >= milli for at, milli in wanted.items())


class Fit(NamedTuple):
    """The pieces on which a request fits; nothing is taken yet."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request does not fit now. ``possible_ranks``: the number of its ranks that found room."""

    possible_ranks: int


NOWHERE = Refusal(possible_ranks=0)


def place(ledger: Ledger, request: Request, *, borrowed: bool = False) -> Fit | Refusal:
    """Find free devices for every rank, or for none.

    ``borrowed``: as a borrower, unused notebook quota may be used as well. Fractions go to the fullest device that
    takes them, whole devices to the node with the fewest whole free ones, so that whole nodes stay free.
    Ties go by id. The ranks of a gang stay within the closest group of nodes with room for all, if there is one
    (:mod:`.locality`). Source: docs/scheduling.md, section 7.
    Rule R72.
    """
    borrowed = borrowed and ledger.has_unused_quota
    if request.ranks > 1:
        return _all_ranks(ledger, request, borrowed=borrowed)
    key = request, borrowed
    if ledger.refused.get(key) == ledger.gains:
        return NOWHERE
    changes, pieces = ledger.found.get(key, (-1, ()))
    if changes == ledger.changes:
        return Fit(pieces)
    pieces = tuple(_rank(ledger, request, 0, borrowed=borrowed))
    if pieces:
        ledger.found[key] = ledger.changes, pieces
        return Fit(pieces)
    ledger.refused[key] = ledger.gains
    return NOWHERE


def is_refused(ledger: Ledger, request: Request, gains: int, *, borrowed: bool) -> bool:
    """Whether :func:`place` refused a request for one rank when the last change that may have freed room was this."""
    return ledger.refused.get((request, borrowed and ledger.has_unused_quota)) == gains


def _all_ranks(ledger: Ledger, request: Request, *, borrowed: bool) -> Fit | Refusal:
    group = closest_group(ledger.groups, _ranks_by_node(ledger, request, borrowed=borrowed), request.ranks)
    if group is not None:
        close = _rank_by_rank(ledger, request, borrowed=borrowed, group=group)
        if isinstance(close, Fit):
            return close
    return _rank_by_rank(ledger, request, borrowed=borrowed)


def _ranks_by_node(ledger: Ledger, request: Request, *, borrowed: bool) -> dict[int, int]:
    """The number of ranks that each node has room for; no node where nodes are in no groups."""
    room = ledger.free_devices(request.gpu_models, borrowed=borrowed) if ledger.groups else None
    if room is None:
        return {}
    milli, found = request.gpu_milli, dict[int, int]()
    for node, on_node in enumerate(ledger.on_node):
        if milli < WHOLE_DEVICE:
            ranks = sum(room.devices[at] // milli for at in on_node)
        else:
            ranks = room.nodes[node] // request.devices_per_rank
        if ranks:
            found[node] = min(ranks, request.ranks_within(ledger.node_resources.now(node)))
    return found


def _rank_by_rank(ledger: Ledger, request: Request, *, borrowed: bool, group: Group | None = None) -> Fit | Refusal:
    mark = ledger.mark()
    pieces: list[Piece] = []
    for rank in range(request.ranks):
        found = _rank(ledger, request, rank, borrowed=borrowed, group=group)
        if not found:
            ledger.undo(mark)
            return Refusal(possible_ranks=rank)
        occupy(ledger, found, borrowed=borrowed)
        pieces += found
    ledger.undo(mark)
    return Fit(pieces=tuple(pieces))


def _rank(ledger: Ledger, request: Request, rank: int, *, borrowed: bool, group: Group | None = None) -> list[Piece]:
    """The pieces of one rank on a node of the group (None: on any)."""
    if ledger.score or request.cpu_milli or request.memory_mib:
        devices = _by_score(ledger, request, borrowed=borrowed, group=group)
    elif group is None:
        devices = _by_gpu(ledger, request, borrowed=borrowed)
    else:
        devices = _by_gpu_within(ledger, request, group, borrowed=borrowed)
    return rank_pieces(rank, devices, request) if devices else []


def _by_score(ledger: Ledger, request: Request, *, borrowed: bool, group: Group | None) -> Sequence[int]:
    """The devices of the node where a rank costs least, counting all resources that it requests."""
    classes = ledger.node_classes(borrowed=borrowed)
    found = classes.best((request.gpu_milli, request.cpu_milli, request.memory_mib, request.gpu_models), group)
    if found is None:
        return ()
    node, amount = found
    free = ledger.lendable_now if borrowed else ledger.plain_now
    on_node = [at for at in ledger.on_node[node] if request.accepts(ledger.model[at])]
    if request.gpu_milli:
        on_node = [at for at in on_node if free(at) == amount]
    return on_node[: request.devices_per_rank]


def _by_gpu(ledger: Ledger, request: Request, *, borrowed: bool) -> Sequence[int]:
    room = ledger.free_devices(request.gpu_models, borrowed=borrowed)
    if room is None:
        return ()
    if request.gpu_milli < WHOLE_DEVICE:
        at = room.devices.at_least(request.gpu_milli)
        if at is None:
            return ()
        if room.devices[at] < WHOLE_DEVICE:
            return (at,)
    count = request.devices_per_rank
    node = room.nodes.at_least(count)
    return () if node is None else room.first_whole(node, count)


def _by_gpu_within(ledger: Ledger, request: Request, group: Group, *, borrowed: bool) -> Sequence[int]:
    """:func:`_by_gpu` on the nodes of a group."""
    room = ledger.free_devices(request.gpu_models, borrowed=borrowed)
    if room is None:
        return ()
    if request.gpu_milli < WHOLE_DEVICE:
        shared = ((room.devices[at], at) for node in group for at in ledger.on_node[node])
        fullest = min((each for each in shared if request.gpu_milli <= each[0] < WHOLE_DEVICE), default=None)
        if fullest is not None:
            return fullest[1:]
    count = request.devices_per_rank
    fewest = min(((room.nodes[node], node) for node in group if room.nodes[node] >= count), default=None)
    return () if fewest is None else room.first_whole(fewest[1], count)


def reserve(ledger: Ledger, pieces: Collection[Piece], *, borrowed: bool, sign: int = 1) -> None:
    """Reserve pieces in the ledger; ``sign`` -1 gives them back."""
    ledger.shift_each(ledger.reserved_borrowed if borrowed else ledger.reserved, pieces, sign)
    for piece in _with_cpu_or_memory(pieces):
        ledger.shift_resources(ledger.node_of[piece.device], reserved=_amount(piece, sign))


def occupy(ledger: Ledger, pieces: Collection[Piece], *, borrowed: bool, sign: int = 1) -> None:
    """Give pieces to work that starts now; ``sign`` -1 takes them back."""
    ledger.shift_each(ledger.borrowed if borrowed else ledger.firm, pieces, sign)
    for piece in _with_cpu_or_memory(pieces):
        ledger.shift_resources(ledger.node_of[piece.device], used=_amount(piece, sign))


def vacate(ledger: Ledger, pieces: Collection[Piece], *, borrowed: bool, sign: int = 1) -> None:
    """Record that running work leaves its pieces; it occupies them until it is gone. ``sign`` -1 undoes it."""
    ledger.shift_each(ledger.borrowed if borrowed else ledger.firm, pieces, -sign)
    ledger.shift_each(ledger.leaving, pieces, sign)
    if borrowed:
        ledger.shift_each(ledger.leaving_borrowed, pieces, sign)
    for piece in _with_cpu_or_memory(pieces):
        leaving = _amount(piece, sign)
        ledger.shift_resources(ledger.node_of[piece.device], used=_amount(piece, -sign), leaving=leaving)


def _with_cpu_or_memory(pieces: Iterable[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece.cpu_milli or piece.memory_mib]


def _amount(piece: Piece, sign: int = 1) -> CpuMemory:
    return CpuMemory(sign * piece.cpu_milli, sign * piece.memory_mib)


def numbered(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces with ranks numbered from 0 without gaps, as a job has them after a restart."""
    pieces = sorted(pieces)
    number = {rank: at for at, rank in enumerate(sorted({piece.rank for piece in pieces}))}
    return tuple(piece._replace(rank=number[piece.rank]) for piece in pieces)


def placements(ledger: Ledger, pieces: Iterable[Piece]) -> tuple[Placement, ...]:
    """The pieces as placements of a plan, each with its share of the device's memory."""
    devices = ledger.devices
    rows = [(rank, devices[at], milli) for rank, at, milli, *_ in sorted(pieces)]
    return tuple([_placement(rank, on.id, milli, on.memory_mib) for rank, on, milli in rows])


@lru_cache(maxsize=1 << 14)
def _placement(rank: int, device: str, gpu_milli: int, device_mib: int) -> Placement:
    return Placement(rank=rank, device=device, gpu_milli=gpu_milli, memory_mib=memory_share_mib(device_mib, gpu_milli))


class EmptyPool:
    """A pool without any work: which requests fit on its schedulable devices beside foreign use."""

    def __init__(self, ledger: Ledger) -> None:
        self._answers: dict[Request, bool] = {}
        self._ledger = ledger
        self._kinds: dict[Models, Counter[tuple[CpuMemory, tuple[int, ...]]]] = {}

    def _nodes(self, models: Models) -> Counter[tuple[CpuMemory, tuple[int, ...]]]:
        """The number of nodes of each kind: CPU and memory, and the capacity of each device of these models."""
        if models not in self._kinds:
            ledger, fits = self._ledger, Request(0, 1, models)
            self._kinds[models] = Counter(
                (
                    ledger.node_resources.size(node),
                    tuple(sorted(ledger.capacity[at] for at in on if fits.accepts(ledger.model[at]))),
                )
                for node, on in enumerate(ledger.on_node)
            )
        return self._kinds[models]

    def ranks(self, request: Request) -> int:
        """The number of ranks of this request that would fit at once."""
        found = 0
        for (room, devices), count in self._nodes(request.gpu_models).items():
            if request.gpu_milli > WHOLE_DEVICE:
                ranks = devices.count(WHOLE_DEVICE) // request.devices_per_rank
            else:
                ranks = sum(free // request.gpu_milli for free in devices)
            found += count * min(ranks, request.ranks_within(room))
        return found

    def fits(self, request: Request) -> bool:
        """Whether the request could start if nothing else ran."""
        if request not in self._answers:
            self._answers[request] = is_well_formed(request) and self.ranks(request) >= request.ranks
        return self._answers[request]


def is_well_formed(request: Request) -> bool:
    """Whether a request is valid: up to one device, or whole devices, per rank; at least one rank."""
    milli = request.gpu_milli
    whole = milli <= WHOLE_DEVICE or milli % WHOLE_DEVICE == 0
    return request.ranks > 0 and milli > 0 and whole and request.cpu_milli >= 0 and request.memory_mib >= 0
