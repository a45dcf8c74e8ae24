"""The cheapest legal set by trying every set, and every place of every rank; for pools of a few devices.

It shares with the search the legality of a set (:class:`.PreemptionRules`, the bounds) and the cost of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, product
from math import prod

from jupyter_gpu_quota.core.model import WHOLE_DEVICE
from jupyter_gpu_quota.core.placement.ledger import Ledger
from jupyter_gpu_quota.core.placement.place import Request
from jupyter_gpu_quota.core.preemption.operations import Cost, Kind, Operation, cost_of
from jupyter_gpu_quota.core.preemption.search.attempt import Attempt
from jupyter_gpu_quota.core.preemption.search.cheapest import Options
from jupyter_gpu_quota.core.queue.quota_state import Victim


class Rooms:
    """What each device has left for any work when all drains have ended."""

    def __init__(self, attempt: Attempt) -> None:
        ledger: Ledger = attempt.ledger
        assert not any((*ledger.unused_quota, *ledger.lent)), "all room suits all work"
        self.on_node, self.model = ledger.on_node, ledger.model
        columns = zip(
            ledger.capacity, ledger.firm, ledger.reserved, ledger.borrowed, ledger.reserved_borrowed, strict=True
        )
        self.left = [capacity - sum(used) for capacity, *used in columns]

    def without(self, victims: Iterable[Victim]) -> list[int]:
        left = list(self.left)
        for victim in victims:
            for piece in victim.pieces:
                left[piece.device] += piece.gpu_milli
        return left

    def fits(self, ranks: Sequence[Request], left: list[int]) -> bool:
        """Whether every rank finds devices; tries all places."""
        if not ranks:
            return True
        request, rest = ranks[0], ranks[1:]
        each, count = min(request.gpu_milli, WHOLE_DEVICE), request.devices_per_rank
        for devices in self._places(request, each, count, left):
            for at in devices:
                left[at] -= each
            if self.fits(rest, left):
                return True
            for at in devices:
                left[at] += each
        return False

    def _places(self, request: Request, each: int, count: int, left: list[int]) -> Iterator[tuple[int, ...]]:
        for node in self.on_node:
            fitting = [at for at in node if left[at] >= each and request.accepts(self.model[at])]
            yield from combinations(fitting, count)


def cheapest(attempt: Attempt, options: Options) -> Cost | None:
    """The least cost of a legal set after which the claim, and all work that moves, has devices."""
    rooms, claim = Rooms(attempt), attempt.preemptor.request
    ranks = [claim] * claim.ranks
    if not rooms.fits(ranks, rooms.without(_everything(options))):
        return None
    for _, chosen in sorted(((cost_of(one), one) for one in _sets(options)), key=lambda row: row[0]):
        leaving = attempt.rules.with_surplus([one.victim for one in chosen if one.kind is not Kind.MOVE])
        moving = [one.victim for one in chosen if one.kind is Kind.MOVE]
        if leaving and not attempt.rules.is_allowed(leaving):
            continue
        again = [one.request for one in moving for _ in {piece.rank for piece in one.pieces}]
        placed = sorted([*ranks, *again], key=lambda request: -request.gpu_milli)
        is_within = attempt.is_within_bounds(leaving, moves=bool(moving))
        if is_within and rooms.fits(placed, rooms.without([*leaving, *moving])):
            return cost_of(chosen)
    return None


def _everything(options: Options) -> list[Victim]:
    """All work that any option stops or moves, each piece once."""
    rows = chain(options.pauses, options.moves, (one for ways in options.mild for one in ways))
    found = dict[str, list[Victim]]()
    for one in rows:
        parts = [part for part in (one.victim, one.victim.above, one.victim.base) if part is not None]
        if _milli(parts) > _milli(found.get(one.victim.id, ())):
            found[one.victim.id] = parts
    return list(chain.from_iterable(found.values()))


def _milli(parts: Iterable[Victim]) -> int:
    return sum(part.size for part in parts)


def _sets(options: Options) -> Iterator[tuple[Operation, ...]]:
    """Every set with at most one operation of each job."""
    ways: dict[str, list[Operation]] = {}
    for one in chain(options.pauses, options.moves, (one for rows in options.mild for one in rows)):
        ways.setdefault(one.victim.id, []).append(one)
    for chosen in product(*([None, *rows] for rows in ways.values())):
        yield tuple(one for one in chosen if one is not None)


def count_of_sets(options: Options) -> int:
    """The number of sets that :func:`cheapest` tries at most."""
    ways = Counter(one.victim.id for one in chain(options.pauses, options.moves, *options.mild))
    return prod(count + 1 for count in ways.values())
