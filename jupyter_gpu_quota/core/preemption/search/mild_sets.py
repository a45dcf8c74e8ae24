"""Sets of mild operations: those that pause and move no job, and may be combined freely."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Generic, TypeVar

from ..operations import Kind, Operation

Item = TypeVar("Item")


class Cached(Generic[Item]):
    """The items of an iterable, read when they are first needed, and kept; at most ``bound`` of them."""

    def __init__(self, items: Iterable[Item], bound: int) -> None:
        self._more, self._known, self._bound = iter(items), list[Item](), bound
        self.ended_early = False
        """The bound left items out."""

    def __iter__(self) -> Iterator[Item]:
        at = 0
        while at < len(self._known) or self._read():
            yield self._known[at]
            at += 1

    def _read(self) -> bool:
        for item in self._more:
            if len(self._known) < self._bound:
                self._known.append(item)
                return True
            self.ended_early = True
            break
        return False


MildCost = tuple[int, int, int, tuple[int, ...]]
"""Ranks given up, borrowers paused, reservations taken over, places (the last first): as in :func:`.cost_of`."""


def mild_sets(mild: Sequence[Sequence[Operation]]) -> Iterator[tuple[Operation, ...]]:
    """The sets with at most one operation of each candidate, the cheapest first.

    ``mild``: the ways of each candidate. The operations are sorted by their costs; a set is followed by those in which
    its last operation is replaced by the next one, or the next one is added, and both cost more.
    """
    rows = sorted((_cost((one,)), at, way, one) for at, ways in enumerate(mild) for way, one in enumerate(ways))
    operations, owners = [row[3] for row in rows], [row[1] for row in rows]
    heap: list[tuple[MildCost, tuple[int, ...]]] = []

    def push(kept: tuple[int, ...], at: int) -> None:
        taken = {owners[one] for one in kept}
        at = next((one for one in range(at, len(owners)) if owners[one] not in taken), len(owners))
        if at < len(owners):
            chosen = (*kept, at)
            heappush(heap, (_cost([operations[one] for one in chosen]), chosen))

    yield ()
    push((), 0)
    while heap:
        _, chosen = heappop(heap)
        yield tuple(operations[one] for one in chosen)
        push(chosen, chosen[-1] + 1)
        push(chosen[:-1], chosen[-1] + 1)


def _cost(operations: Sequence[Operation]) -> MildCost:
    return (
        sum(one.ranks for one in operations),
        sum(one.kind is Kind.END_BORROWING for one in operations),
        sum(one.kind is Kind.TAKE_OVER for one in operations),
        tuple(sorted((one.position for one in operations), reverse=True)),
    )
