"""Whether a claim could find enough at all: sums that are cheap to take and never too low, before anybody is looked at.

Most claims of a full pool find nothing; a walk over everybody that may be asked to leave is for those that might.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..queue.pool_state import Pool
from ..queue.quota_state import Right, Standing
from .rules import Asker, bar


def is_within_reach(pool: Pool, asker: Asker) -> bool:
    """Whether what a claim could be let take, and what is free once all who leave have left, come to its size."""
    if asker.own_only and not is_own_enough(pool, asker.standing, asker.priority, asker.request.size):
        return False
    return _is_sum_enough(pool, asker) and _could_be_on_one_node(pool, asker)


def _is_sum_enough(pool: Pool, asker: Asker) -> bool:
    short = asker.request.size
    for milli in _takable(pool, asker):
        short -= milli
        if short <= 0:
            return True
    lent = asker.lent_too or asker.right is Right.NOTEBOOK
    return short <= pool.ledger.all_after(lent=lent)


def is_own_enough(pool: Pool, own: Standing, priority: int, size: int) -> bool:
    """Of who may ask its own project only: whether that leaves it, with the claim, within its limit and no further
    above its fair share than it is. Who would take nothing waits for a drain like everybody else.
    """
    takable = own.movable.below(priority) + own.movable.elastic
    takable += sum([holder.size for holder in pool.borrowers if holder.project is own])
    bound = min(own.ceiling, max(own.use, own.fair))
    return takable > 0 and own.use + size - takable <= bound


def _could_be_on_one_node(pool: Pool, asker: Asker) -> bool:
    """A rank of several devices that may take from its own project only: whether a node could hold one at all."""
    request, own = asker.request, asker.standing
    if not asker.own_only or request.devices_per_rank == 1:
        return True
    guests = sum(piece.gpu_milli for one in pool.borrowers if one.project is own for piece in one.pieces)
    most = own.movable.most_on_node(pool.ledger.node_of) + guests
    return pool.ledger.most_after(lent=asker.lent_too) + most >= request.gpu_milli


def _takable(pool: Pool, asker: Asker) -> Iterator[int]:
    """What it might take from whom, each sum at least as large as any legal set."""
    own, right = asker.standing, asker.right
    yield sum(holder.size for holder in pool.borrowers)
    if right is not Right.NOTEBOOK:
        yield own.movable.below(asker.priority) + own.movable.elastic
    if asker.own_only:
        return
    if right <= Right.GUARANTEE:
        yield sum(holder.size for holder in pool.promised)
    for standing in pool.standings.values():
        if standing is not own or right is Right.NOTEBOOK:
            yield _above(standing, right)


def _above(standing: Standing, right: Right) -> int:
    """Taking stops once its project is at the bar: at most one job reaches below it."""
    above = standing.use - bar(standing, right)
    return min(standing.movable.all, above + standing.movable.largest) if above > 0 else 0
