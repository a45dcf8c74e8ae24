"""Elastic jobs that a plan shrinks: a part leaves, and the devices of the rest are reserved for the restart.

A later claim of the plan may shrink the job further. It then restarts once, with the ranks that both claims leave it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..placement.place import Piece
from ..queue.pool_state import PoolState, remove_victim
from ..queue.quota_state import Victim
from .accounting import restart_in_place
from .operations import split


def replace_parts(above: Victim) -> None:
    """Put the two parts of an elastic job that shrinks where its minimum and the part above it were."""
    project, rest = above.project, above.base
    old = next(one for one in project.elastic_surplus if one.id == above.id)
    assert rest is not None and old.base is not None, "both have a part that stays"
    above.least_ranks = old.least_ranks or len(_ranks(old.base.pieces))
    if old is above:
        return
    project.elastic_surplus[project.elastic_surplus.index(old)] = above
    for rows in (project.victims, project.protected_victims):
        if old.base in rows:
            rows[rows.index(old.base)] = rest


def shrink(pool: PoolState, above: Victim) -> None:
    """Shrink an elastic job by this part, which has left its project's lists."""
    rest = above.base
    assert rest is not None, "a part that leaves has one that stays"
    if above.first_shrink is None:
        restart_in_place(pool, rest)
        remove_victim(pool, rest)
    else:
        above.first_shrink.base = rest
    rest.above = None
    _offer_the_rest(above, rest)


def _offer_the_rest(above: Victim, rest: Victim) -> None:
    """Let later claims take what the job still has above its minimum; it is not paused in this plan any more."""
    ranks = _ranks(rest.pieces)
    surplus = frozenset(ranks[above.least_ranks :])
    if not surplus:
        return
    more = split(rest, rest.pieces, surplus)
    more.restarting, more.least_ranks = True, above.least_ranks
    more.first_shrink = above.first_shrink or above
    above.project.elastic_surplus.append(more)
    above.project.elastic_surplus.sort(key=lambda one: one.order)


def take_back_offer(above: Victim) -> None:
    """Before a part is restored: later claims may not shrink the job further."""
    rows = above.project.elastic_surplus
    rows[:] = [one for one in rows if one.id != above.id]


def _ranks(pieces: Sequence[Piece]) -> list[int]:
    return sorted({piece.rank for piece in pieces})
