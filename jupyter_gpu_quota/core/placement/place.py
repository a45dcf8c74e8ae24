"""Which devices take a request: fractions pack on shared devices, whole GPUs of one rank sit on one node.

A rank's CPU and memory must fit its node. Where the snapshot says what is typically asked for, a rank goes where it
costs the least worth for that (:mod:`.demand`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..model import WHOLE_DEVICE, Job, Placement
from .hosts import NOTHING, Host
from .ledger import Ledger, Models
from .node_classes import Shelves

NO_BOUND = 1 << 62


class Request(NamedTuple):
    """What a workload needs: per rank 1..1000 milli of one device, or whole thousands on one node.

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
        """How many devices one rank touches."""
        return max(1, self.gpu_milli // WHOLE_DEVICE)

    @property
    def host(self) -> Host:
        """What one rank needs of its node."""
        return Host(self.cpu_milli, self.memory_mib)

    def fit_beside(self, host: Host) -> int:
        """How many ranks an amount of CPU and memory has room for."""
        by_cpu = host.cpu_milli // self.cpu_milli if self.cpu_milli else NO_BOUND
        return max(0, min(by_cpu, host.memory_mib // self.memory_mib if self.memory_mib else NO_BOUND))

    def takes(self, model: str) -> bool:
        """Whether a device of this model would do."""
        return not self.gpu_models or model in self.gpu_models


def request_of(job: Job, ranks: int) -> Request:
    """What so many ranks of a job need."""
    return Request(job.gpu_milli, ranks, job.gpu_models, job.cpu_milli, job.memory_mib)


class Piece(NamedTuple):
    """Where a part of one rank goes: so much of the device with this number in the ledger.

    The first piece of a rank carries what the rank needs of the device's node.
    """

    rank: int
    device: int
    gpu_milli: int
    cpu_milli: int = 0
    memory_mib: int = 0


def rank_pieces(rank: int, devices: Sequence[int], request: Request) -> list[Piece]:
    """One rank of a request on these devices of a node."""
    each = min(request.gpu_milli, WHOLE_DEVICE)
    pieces = [Piece(rank, at, each) for at in devices]
    if request.cpu_milli or request.memory_mib:
        pieces[0] = pieces[0]._replace(cpu_milli=request.cpu_milli, memory_mib=request.memory_mib)
    return pieces


def with_host(pieces: Iterable[Piece], cpu_milli: int, memory_mib: int) -> list[Piece]:
    """Pieces in order, the first of each rank with what the rank needs of its node."""
    ordered = sorted(pieces)
    if not cpu_milli and not memory_mib:
        return ordered
    first = {piece.rank: at for at, piece in reversed(list(enumerate(ordered)))}
    for at in first.values():
        ordered[at] = ordered[at]._replace(cpu_milli=cpu_milli, memory_mib=memory_mib)
    return ordered


def host_needs(pieces: Iterable[Piece], ledger: Ledger) -> dict[int, Host]:
    """What pieces need of each node that they need anything of."""
    needs: dict[int, Host] = {}
    for piece in pieces:
        if piece.cpu_milli or piece.memory_mib:
            node = ledger.node_of[piece.device]
            cpu, memory = needs.get(node, NOTHING)
            needs[node] = Host(cpu + piece.cpu_milli, memory + piece.memory_mib)
    return needs


class Fit(NamedTuple):
    """It goes here; nothing was taken yet."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """It goes nowhere now. ``possible_ranks`` of the ranks asked for found room."""

    possible_ranks: int


NOWHERE = Refusal(possible_ranks=0)


def place(ledger: Ledger, request: Request, *, lent: bool = False) -> Fit | Refusal:
    """Find free devices for every rank, or for none.

    ``lent``: as a borrower, unbooked notebook quota may be used too. Fractions go to the fullest device that
    takes them; a whole device is taken where the fewest whole ones are left, so that whole nodes stay free.
    Ties go by id. Source: docs/scheduling.md, section 7.
    """
    lent = lent and ledger.holds
    if request.ranks > 1:
        return _all_ranks(ledger, request, lent=lent)
    asked = request, lent
    if ledger.refused.get(asked) == ledger.gains:
        return NOWHERE
    changes, pieces = ledger.found.get(asked, (-1, ()))
    if changes == ledger.changes:
        return Fit(pieces)
    pieces = tuple(_rank(ledger, request, 0, lent=lent))
    if pieces:
        ledger.found[asked] = ledger.changes, pieces
        return Fit(pieces)
    ledger.refused[asked] = ledger.gains
    return NOWHERE


def _all_ranks(ledger: Ledger, request: Request, *, lent: bool) -> Fit | Refusal:
    mark = ledger.mark()
    pieces: list[Piece] = []
    for rank in range(request.ranks):
        found = _rank(ledger, request, rank, lent=lent)
        if not found:
            ledger.undo(mark)
            return Refusal(possible_ranks=rank)
        occupy(ledger, found, lent=lent)
        pieces += found
    ledger.undo(mark)
    return Fit(pieces=tuple(pieces))


def _rank(ledger: Ledger, request: Request, rank: int, *, lent: bool) -> list[Piece]:
    if ledger.worth or request.cpu_milli or request.memory_mib:
        devices = _by_state(ledger, ledger.shelves(lent=lent), request, lent=lent)
    else:
        devices = _by_room(ledger, request, lent=lent)
    return rank_pieces(rank, devices, request) if devices else []


def _by_state(ledger: Ledger, shelves: Shelves, request: Request, *, lent: bool) -> Sequence[int]:
    """The devices of the node where a rank costs least, all of the resources it asks for counted."""
    spot = shelves.best((request.gpu_milli, request.cpu_milli, request.memory_mib, request.gpu_models))
    if spot is None:
        return ()
    node, amount = spot
    free = ledger.lendable_now if lent else ledger.plain_now
    on_node = [at for at in ledger.on_node[node] if request.takes(ledger.model[at])]
    if request.gpu_milli:
        on_node = [at for at in on_node if free(at) == amount]
    return on_node[: request.devices_per_rank]


def _by_room(ledger: Ledger, request: Request, *, lent: bool) -> Sequence[int]:
    """The devices by the plain rule, where only GPUs count."""
    room = ledger.room(request.gpu_models, lent=lent)
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


def promise(ledger: Ledger, pieces: Iterable[Piece], *, lent: bool, sign: int = 1) -> None:
    """Reserve pieces in the ledger; ``sign`` -1 gives them back."""
    column, shift = ledger.promised_lent if lent else ledger.promised, ledger.shift
    for piece in pieces:
        shift(column, piece.device, sign * piece.gpu_milli)
        if piece.cpu_milli or piece.memory_mib:
            ledger.shift_host(ledger.node_of[piece.device], promised=_host(piece, sign))


def occupy(ledger: Ledger, pieces: Iterable[Piece], *, lent: bool) -> None:
    """Give pieces to work that starts now."""
    column, shift = ledger.lent if lent else ledger.firm, ledger.shift
    for piece in pieces:
        shift(column, piece.device, piece.gpu_milli)
        if piece.cpu_milli or piece.memory_mib:
            ledger.shift_host(ledger.node_of[piece.device], used=_host(piece))


def vacate(ledger: Ledger, pieces: Iterable[Piece], *, lent: bool, sign: int = 1) -> None:
    """Note that work which runs on pieces is asked to leave; it stays until it is gone. ``sign`` -1 takes it back."""
    column, leaving, shift = ledger.lent if lent else ledger.firm, ledger.leaving, ledger.shift
    for piece in pieces:
        amount = sign * piece.gpu_milli
        shift(column, piece.device, -amount)
        shift(leaving, piece.device, amount)
        if piece.cpu_milli or piece.memory_mib:
            host = _host(piece, sign)
            ledger.shift_host(ledger.node_of[piece.device], used=_host(piece, -sign), leaving=host)


def _host(piece: Piece, sign: int = 1) -> Host:
    return Host(sign * piece.cpu_milli, sign * piece.memory_mib)


def numbered(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces with their ranks counted from 0 without a gap, as a job that starts again on them has them."""
    pieces = sorted(pieces)
    number = {rank: at for at, rank in enumerate(sorted({piece.rank for piece in pieces}))}
    return tuple(piece._replace(rank=number[piece.rank]) for piece in pieces)


def placements(ledger: Ledger, pieces: Iterable[Piece]) -> tuple[Placement, ...]:
    """The pieces as the plan says them, each with its share of the device's memory, rounded down."""
    devices = ledger.devices
    return tuple(
        _placement(piece.rank, (on := devices[piece.device]).id, piece.gpu_milli, on.memory_mib)
        for piece in sorted(pieces)
    )


@lru_cache(maxsize=1 << 14)
def _placement(rank: int, device: str, gpu_milli: int, device_mib: int) -> Placement:
    memory_mib = device_mib * gpu_milli // WHOLE_DEVICE
    return Placement(rank=rank, device=device, gpu_milli=gpu_milli, memory_mib=memory_mib)


class EmptyPool:
    """How much fits when nothing runs: healthy devices less foreign use, counted by kind once."""

    def __init__(self, ledger: Ledger) -> None:
        self._answers: dict[Request, bool] = {}
        self._ledger = ledger
        self._kinds: dict[Models, Counter[tuple[Host, tuple[int, ...]]]] = {}

    def _nodes(self, models: Models) -> Counter[tuple[Host, tuple[int, ...]]]:
        """How many nodes there are of each kind: CPU and memory, and what each device of these models takes."""
        if models not in self._kinds:
            ledger, fits = self._ledger, Request(0, 1, models)
            self._kinds[models] = Counter(
                (
                    ledger.hosts.size(node),
                    tuple(sorted(ledger.capacity[at] for at in on if fits.takes(ledger.model[at]))),
                )
                for node, on in enumerate(ledger.on_node)
            )
        return self._kinds[models]

    def ranks(self, request: Request) -> int:
        """How many ranks of this request would fit at once."""
        kinds = self._nodes(request.gpu_models)
        return sum(_ranks_on(host, devices, request) * count for (host, devices), count in kinds.items())

    def takes(self, request: Request) -> bool:
        """Whether the request could start if nothing else ran."""
        if request not in self._answers:
            self._answers[request] = is_well_formed(request) and self.ranks(request) >= request.ranks
        return self._answers[request]


def _ranks_on(host: Host, devices: Sequence[int], request: Request) -> int:
    """How many ranks one node takes."""
    if request.gpu_milli > WHOLE_DEVICE:
        ranks = devices.count(WHOLE_DEVICE) // request.devices_per_rank
    else:
        ranks = sum(free // request.gpu_milli for free in devices)
    return min(ranks, request.fit_beside(host))


def is_well_formed(request: Request) -> bool:
    """Whether an amount means something: up to one device, or whole devices; at least one rank."""
    milli = request.gpu_milli
    whole = milli <= WHOLE_DEVICE or milli % WHOLE_DEVICE == 0
    return request.ranks > 0 and milli > 0 and whole and request.cpu_milli >= 0 and request.memory_mib >= 0
