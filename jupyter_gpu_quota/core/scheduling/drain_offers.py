"""What claims free beyond their need is offered to the jobs that could not start before.

Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..backfill.state import BackfillState
from ..placement.drain_room import DrainRoom, DrainSize
from ..queue.job_queue import ClassQueue
from ..queue.order import Row, best_of, first_row
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState


class DrainOffers:
    """The jobs, from the top of the order, down to one entitlement. Rule R42.

    ``first``: the class whose turn it is to get what work leaves; None if nothing is left, or nothing fits.
    """

    def __init__(self, pool: PoolState, backfill: BackfillState, weakest: Entitlement) -> None:
        self.pool, self.backfill, self.weakest = pool, backfill, weakest
        self.first: tuple[QuotaState, ClassQueue] | None = None
        self._refused: dict[QuotaState, set[ClassQueue]] = {}
        self._firsts: dict[DrainSize, dict[QuotaState, Row | None]] = {}
        """By the room that work leaves, of each project the first job that may fit."""

    def forget(self, changed: Iterable[QuotaState]) -> None:
        """Search these projects again, whose use or queue has changed; their departments, too."""
        levels = {project.levels[-1] for project in changed} if self._firsts else set()
        for level in levels:
            below = (
                [one for one in self.pool.projects.values() if one.parent is level] if level.is_department else [level]
            )
            for known in self._firsts.values():
                for project in below:
                    known.pop(project, None)
        if self.first is not None and self.first[0].levels[-1] in levels:  # its user may have no room any more
            self.first = self._find()

    def renew(self) -> None:
        """Begin again: a claim may have freed more than it needs."""
        self._refused.clear()
        self.first = self._find()

    def offer_to(self, take: Callable[[QuotaState, ClassQueue], bool]) -> bool:
        """Offer it to the first class. Returns whether that took devices."""
        assert self.first is not None, "there is a class to offer it to"
        project, queue = self.first
        is_taken = take(project, queue)
        if is_taken:
            self.forget([project])
        else:
            self._refused.setdefault(project, set()).add(queue)
            self.first = self._find()
        return is_taken

    def _find(self) -> tuple[QuotaState, ClassQueue] | None:
        drain, held = DrainRoom(self.pool.ledger), self.backfill.current
        if drain.is_empty and held is None:
            return None
        known = self._firsts.setdefault(drain.size, {})
        own = {*self._refused, *(() if held is None else (held.project,))}
        for project in [one for one in self.pool.projects.values() if one not in known and one not in own]:
            known[project] = self._search(project, drain)
        firsts = known | {project: self._search(project, drain) for project in own}
        found = first_row(row for row in firsts.values() if row is not None)
        return None if found is None else (found.project, found.queue)

    def _search(self, project: QuotaState, drain: DrainRoom) -> Row | None:
        """The first class of a project that could not start, may fit, and has not refused."""
        refused = self._refused.get(project, ())
        found = best_of(
            project,
            [
                queue
                for queue in project.queue.classes.values()
                if queue.blocked is not None
                and not queue.is_overtaking
                and queue not in refused
                and (drain.may_fit(queue.job_class.request) or self._is_holders(queue))
            ],
        )
        return None if found is None or found.key.entitlement > self.weakest else found

    def _is_holders(self, queue: ClassQueue) -> bool:
        """Whether the backfill reservation is for a job of this class: what work leaves may be reserved for it."""
        return self.backfill.current is not None and self.backfill.current.queue is queue
