"""Which devices take a request: fractions pack on shared devices, whole GPUs of one rank sit on one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .ledger import Ledger, Room
from .model import WHOLE_DEVICE, Placement


class Request(NamedTuple):
    """What a workload needs: per rank 1..1000 milli of one device, or whole thousands on one node."""

    gpu_milli: int
    ranks: int = 1
    gpu_model: str | None = None

    @property
    def size(self) -> int:
        """Milli-GPU of all ranks."""
        return self.gpu_milli * self.ranks

    @property
    def devices_per_rank(self) -> int:
        """How many devices one rank touches."""
        return max(1, self.gpu_milli // WHOLE_DEVICE)


class Piece(NamedTuple):
    """Where a part of one rank goes: so much of the device with this number in the ledger."""

    rank: int
    device: int
    gpu_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """It goes here; nothing was taken yet."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """It goes nowhere now. ``possible_ranks`` of the ranks asked for found room."""

    possible_ranks: int


def place(ledger: Ledger, request: Request, *, lent: bool = False) -> Fit | Refusal:
    """Find free devices for every rank, or for none.

    ``lent``: as a borrower, unbooked notebook quota may be used too. Fractions go to the fullest device that
    takes them; a whole device is taken where the fewest whole ones are left, so that whole nodes stay free.
    Ties go by id. Source: docs/scheduling.md, section 7.
    """
    room = ledger.room(request.gpu_model, lent=lent)
    if room is None:
        return Refusal(possible_ranks=0)
    if request.ranks == 1:
        pieces = _rank(ledger, room, request, 0)
        return Fit(pieces=tuple(pieces)) if pieces else Refusal(possible_ranks=0)
    return _all_ranks(ledger, room, request, lent=lent)


def _all_ranks(ledger: Ledger, room: Room, request: Request, *, lent: bool) -> Fit | Refusal:
    mark = ledger.mark()
    pieces: list[Piece] = []
    for rank in range(request.ranks):
        found = _rank(ledger, room, request, rank)
        if not found:
            ledger.undo(mark)
            return Refusal(possible_ranks=rank)
        occupy(ledger, found, lent=lent)
        pieces += found
    ledger.undo(mark)
    return Fit(pieces=tuple(pieces))


def _rank(ledger: Ledger, room: Room, request: Request, rank: int) -> list[Piece]:
    milli = request.gpu_milli
    if milli < WHOLE_DEVICE:
        at = room.devices.at_least(milli)
        if at is None:
            return []
        if room.devices[at] < WHOLE_DEVICE:
            return [Piece(rank, at, milli)]
    node = room.nodes.at_least(request.devices_per_rank)
    if node is None:
        return []
    whole = [at for at in ledger.on_node[node] if room.devices[at] == WHOLE_DEVICE]
    each = min(milli, WHOLE_DEVICE)
    return [Piece(rank, at, each) for at in whole[: request.devices_per_rank]]


def promise(ledger: Ledger, pieces: Iterable[Piece], *, lent: bool, sign: int = 1) -> None:
    """Reserve pieces in the ledger; ``sign`` -1 gives them back."""
    for piece in pieces:
        if lent:
            ledger.shift(piece.device, promised_lent=sign * piece.gpu_milli)
        else:
            ledger.shift(piece.device, promised=sign * piece.gpu_milli)


def occupy(ledger: Ledger, pieces: Iterable[Piece], *, lent: bool) -> None:
    """Give pieces to work that starts now."""
    for piece in pieces:
        if lent:
            ledger.shift(piece.device, lent=piece.gpu_milli)
        else:
            ledger.shift(piece.device, firm=piece.gpu_milli)


def numbered(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces with their ranks counted from 0 without a gap, as a job that starts again on them has them."""
    pieces = sorted(pieces)
    number = {rank: at for at, rank in enumerate(sorted({piece.rank for piece in pieces}))}
    return tuple(Piece(number[piece.rank], piece.device, piece.gpu_milli) for piece in pieces)


def placements(ledger: Ledger, pieces: Iterable[Piece]) -> tuple[Placement, ...]:
    """The pieces as the plan says them, each with its share of the device's memory, rounded down."""
    return tuple(
        Placement(
            rank=piece.rank,
            device=ledger.devices[piece.device].id,
            gpu_milli=piece.gpu_milli,
            memory_mib=ledger.devices[piece.device].memory_mib * piece.gpu_milli // WHOLE_DEVICE,
        )
        for piece in sorted(pieces)
    )


class EmptyPool:
    """How much fits when nothing runs: healthy devices less foreign use, counted by kind once."""

    def __init__(self, ledger: Ledger) -> None:
        self._answers: dict[Request, bool] = {}
        self._devices: dict[str | None, Counter[int]] = {}
        self._nodes: dict[str | None, Counter[int]] = {}
        for model in {None, *ledger.model}:
            numbers = [at for at, name in enumerate(ledger.model) if model in (None, name)]
            self._devices[model] = Counter(ledger.capacity[at] for at in numbers)
            whole = Counter(ledger.node_of[at] for at in numbers if ledger.capacity[at] == WHOLE_DEVICE)
            self._nodes[model] = Counter(whole.values())

    def ranks(self, request: Request) -> int:
        """How many ranks of this request would fit at once."""
        if request.gpu_milli > WHOLE_DEVICE:
            per_rank = request.devices_per_rank
            return sum(count // per_rank * nodes for count, nodes in self._nodes.get(request.gpu_model, {}).items())
        return sum(
            free // request.gpu_milli * devices for free, devices in self._devices.get(request.gpu_model, {}).items()
        )

    def takes(self, request: Request) -> bool:
        """Whether the request could start if nothing else ran."""
        if request not in self._answers:
            self._answers[request] = is_well_formed(request) and self.ranks(request) >= request.ranks
        return self._answers[request]


def is_well_formed(request: Request) -> bool:
    """Whether an amount means something: up to one device, or whole devices; at least one rank."""
    milli = request.gpu_milli
    return request.ranks > 0 and milli > 0 and (milli <= WHOLE_DEVICE or milli % WHOLE_DEVICE == 0)
