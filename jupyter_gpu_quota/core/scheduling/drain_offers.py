"""What claims free beyond their need is offered to the jobs that could not start before.

Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..backfill.state import BackfillState
from ..placement.drain_room import DrainRoom, DrainSize
from ..queue.job_queue import ClassQueue
from ..queue.order import Row, first_row, row_of
from ..queue.pool_state import PoolState
from ..queue.quota_state import NO_LIMIT, Entitlement, QuotaState


class _Blocked(NamedTuple):
    """The classes of one project that could not start."""

    use: tuple[int, int]
    """The use of the project and of its department when the rows were sorted."""
    rows: list[Row]
    """By entitlement, then in the project's order."""
    firsts: dict[DrainSize, Row | None]
    """The first that may fit, by the room that work leaves."""


class DrainOffers:
    """The jobs, from the top of the order, down to one entitlement. Rule R42.

    ``first``: the class whose turn it is to get what work leaves; None if nothing is left, or nothing fits.
    """

    def __init__(self, pool: PoolState, backfill: BackfillState, weakest: Entitlement) -> None:
        self.pool, self.backfill, self.weakest = pool, backfill, weakest
        self.first: tuple[QuotaState, ClassQueue] | None = None
        self._refused: dict[QuotaState, set[ClassQueue]] = {}
        self._blocked: dict[QuotaState, _Blocked] = {}

    def renew(self, served: QuotaState, *, any_freed: bool) -> None:
        """Begin again after a job of a project was served; ``any_freed``: a claim may have freed more than it needs."""
        self._blocked.pop(served, None)
        if any_freed:
            self._refused.clear()
            self.first = self._find()

    def offer_to(self, take: Callable[[QuotaState, ClassQueue], bool]) -> bool:
        """Offer it to the first class. Returns whether that took devices."""
        assert self.first is not None, "there is a class to offer it to"
        project, queue = self.first
        is_taken = take(project, queue)
        if is_taken:
            self._blocked.pop(project, None)
        else:
            self._refused.setdefault(project, set()).add(queue)
        self.first = self._find()
        return is_taken

    def _find(self) -> tuple[QuotaState, ClassQueue] | None:
        drain, held = DrainRoom(self.pool.ledger), self.backfill.current
        if drain.is_empty and held is None:
            return None
        searched = {*self._refused, *(() if held is None else (held.project,))}
        firsts = (
            self._search(project, drain) if project in searched else self._first(project, drain)
            for project in self.pool.projects.values()
        )
        found = first_row(row for row in firsts if row is not None)
        return None if found is None else (found.project, found.queue)

    def _first(self, project: QuotaState, drain: DrainRoom) -> Row | None:
        firsts = self._in_order(project).firsts
        if drain.size not in firsts:
            firsts[drain.size] = self._search(project, drain)
        return firsts[drain.size]

    def _search(self, project: QuotaState, drain: DrainRoom) -> Row | None:
        """The first class of a project that could not start, may fit, and has not refused."""
        refused = self._refused.get(project, ())
        for row in self._in_order(project).rows:
            queue = row.queue
            if queue not in refused and (drain.may_fit(queue.job_class.request) or self._is_holders(queue)):
                return row
        return None

    def _in_order(self, project: QuotaState) -> _Blocked:
        parent = project.parent
        use = project.use, 0 if parent is None else parent.use
        known = self._blocked.get(project)
        if known is None or known.use != use or (parent is not None and parent.user_ceiling != NO_LIMIT):
            known = self._blocked[project] = _Blocked(use, self._sorted(project), {})
        return known

    def _sorted(self, project: QuotaState) -> list[Row]:
        rows = [
            (entitlement, key, row_of(project, queue, key))
            for queue in project.queue.classes.values()
            if queue.blocked is not None
            and not queue.is_overtaking
            and (entitlement := project.entitlement(queue.size)) <= self.weakest
            and (key := queue.first_key()) is not None
        ]
        return [row for _, _, row in sorted(rows, key=lambda one: one[:2])]

    def _is_holders(self, queue: ClassQueue) -> bool:
        """Whether the backfill reservation is for a job of this class: what work leaves may be reserved for it."""
        return self.backfill.current is not None and self.backfill.current.queue is queue
