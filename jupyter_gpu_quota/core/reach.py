"""Whether a claim could find enough at all: sums that are cheap to take and never too low, before anybody is looked at.

Most claims of a full pool find nothing; a walk over everybody that may be asked to leave is for those that might.
"""

from __future__ import annotations

from collections.abc import Iterator

from .pool import Pool
from .rights import Asker, bar
from .standing import Right, Standing


def is_within_reach(pool: Pool, asker: Asker) -> bool:
    """Whether what a claim could be let take, and what is free once all who leave have left, come to its size."""
    short = asker.request.size
    for milli in _takable(pool, asker):
        short -= milli
        if short <= 0:
            return True
    lent = asker.lent_too or asker.right is Right.NOTEBOOK
    return short <= pool.ledger.all_after(lent=lent)


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
