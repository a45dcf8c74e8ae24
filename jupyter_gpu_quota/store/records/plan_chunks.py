"""A large plan in pieces, each a transaction of its own: whoever else writes waits for one of them, not for the plan.

A plan's actions are legal one after the other, so what stands after any piece is legal, and a controller that is killed
there leaves what another one decides on anew. Actions that belong together (the pauses of a claim and what it reserves,
all that is done to one workload) are never divided. Source: scheduling.md, sections 4 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...core.canonical import digest
from ...core.plan import Action, Pause, Plan, Reserve, Resume, Start

MOST_ROWS = 2_000
"""About so many rows are written in one piece: well under a tenth of the time that others wait for the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some actions of a plan, in its order, from the ``first`` of ``of``; ``whole``: the digest of the whole plan."""

    plan: Plan
    first: int
    of: int
    whole: str

    @property
    def is_all(self) -> bool:
        """Whether there is no other piece."""
        return len(self.plan.actions) == self.of


def whole(plan: Plan) -> Piece:
    """The plan in one piece, whatever it writes."""
    return Piece(plan=plan, first=0, of=len(plan.actions), whole=digest(plan))


def pieces_of(plan: Plan, most_rows: int = MOST_ROWS) -> Iterator[Piece]:
    """The plan in its order, cut where nothing is divided that belongs together; one piece where it is small.

    A piece writes more than ``most_rows`` only where its actions all belong together.
    """
    every, first = whole(plan), 0
    for end in _ends(plan.actions, most_rows):
        part = replace(plan, actions=plan.actions[first:end])
        yield replace(every, plan=part, first=first)
        first = end


def _ends(actions: tuple[Action, ...], most_rows: int) -> Iterator[int]:
    """Where each piece ends: before the run of actions that would make it too large."""
    begun = ended = rows = 0
    for cut in _cuts(actions):
        more = sum(map(_rows, actions[ended:cut]))
        if ended > begun and rows + more > most_rows:
            yield ended
            begun, rows = ended, 0
        ended, rows = cut, rows + more
    if ended > begun:
        yield ended


def _cuts(actions: tuple[Action, ...]) -> Iterator[int]:
    """Every place at which no workload is named on both sides."""
    last = {name: at for at, action in enumerate(actions) for name in _named(action)}
    until = -1
    for at, action in enumerate(actions):
        until = max(until, *(last[name] for name in _named(action)))
        if until == at:
            yield at + 1


def _named(action: Action) -> tuple[str, ...]:
    return (action.workload, action.claimer) if isinstance(action, Pause) else (action.workload,)


def _rows(action: Action) -> int:
    """How many rows it writes, more or less: the workload, its audit, and each part of a device."""
    return 2 + (2 * len(action.placements) if isinstance(action, (Start, Resume, Reserve)) else 0)
