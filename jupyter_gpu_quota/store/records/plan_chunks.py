"""A large plan in chunks, one transaction each: other writers wait for a chunk, not for the plan.

A plan's actions are legal one after the other, so the state after each chunk is legal. When a controller is killed
between two chunks, its successor decides again from there. Actions that belong together are never divided: the pauses
of a claim with its reservation, and all actions on one workload. Source: scheduling.md, sections 4 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...core.canonical import digest
from ...core.plan import Action, Pause, Plan, Reserve, Resume, Start

MAX_ROWS = 2_000
"""Rows written in one chunk: less than a tenth of the time that other writers wait for the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChunk:
    """Some actions of a plan, in its order, from number ``first`` of ``of``; ``plan_digest`` is that of the plan."""

    plan: Plan
    first: int
    of: int
    plan_digest: str

    @property
    def is_whole_plan(self) -> bool:
        """Whether the plan has no other chunk."""
        return len(self.plan.actions) == self.of


def whole(plan: Plan) -> PlanChunk:
    """The plan as a single chunk of any size."""
    return PlanChunk(plan=plan, first=0, of=len(plan.actions), plan_digest=digest(plan))


def chunks_of(plan: Plan, max_rows: int = MAX_ROWS) -> Iterator[PlanChunk]:
    """Divide a plan, in its order, between actions that do not belong together; a small plan is one chunk.

    A chunk writes more than ``max_rows`` rows only where all its actions belong together.
    """
    every, first = whole(plan), 0
    for end in _ends(plan.actions, max_rows):
        part = replace(plan, actions=plan.actions[first:end])
        yield replace(every, plan=part, first=first)
        first = end


def _ends(actions: tuple[Action, ...], max_rows: int) -> Iterator[int]:
    """The end of each chunk: before the actions that would make it too large."""
    begun = ended = rows = 0
    for cut in _cuts(actions):
        more = sum(map(_rows, actions[ended:cut]))
        if ended > begun and rows + more > max_rows:
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
    return (action.workload, action.preemptor) if isinstance(action, Pause) else (action.workload,)


def _rows(action: Action) -> int:
    """The approximate number of rows that it writes: the workload, its audit, and each allocation."""
    return 2 + (2 * len(action.placements) if isinstance(action, (Start, Resume, Reserve)) else 0)
