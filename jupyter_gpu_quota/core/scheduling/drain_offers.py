"""What claims free beyond their need is offered to the jobs that could not start before.

Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..backfill.state import BackfillState
from ..model import WHOLE_DEVICE
from ..placement.ledger import Ledger
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
        self._firsts: dict[int, dict[QuotaState, Row | None]] = {}
        """By the size of the largest rank that may fit, of each project the first job that may."""

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
        most, reservation = _largest_rank(self.pool.ledger), self.backfill.current
        if not most and reservation is None:
            return None
        known = self._firsts.setdefault(most, {})
        own = {*self._refused, *(() if reservation is None else (reservation.project,))}
        for project in self.pool.projects.values():
            if project not in known and project not in own:
                known[project] = self._search(project, most)
        firsts = known | {project: self._search(project, most) for project in own}
        found = first_row(row for row in firsts.values() if row is not None)
        return None if found is None else (found.project, found.queue)

    def _search(self, project: QuotaState, most: int) -> Row | None:
        """The first class of a project that could not start, may fit, and has not refused.

        The class of the job with the backfill reservation is not filtered by size: what drains may become a part of its
        reservation.
        """
        refused, reservation = self._refused.get(project, ()), self.backfill.current
        holder = None if reservation is None else reservation.queue
        found = best_of(
            project,
            [
                queue
                for queue in project.queue.classes.values()
                if queue.blocked is not None
                and (queue.job_class.request.gpu_milli <= most or queue is holder)
                and not queue.is_overtaking
                and queue not in refused
            ],
        )
        return None if found is None or found.key.entitlement > self.weakest else found


def _largest_rank(ledger: Ledger) -> int:
    """An upper bound of a rank that fits where work leaves, beside what is free on its node, in milli-GPU."""
    rooms = {at: ledger.lendable_after(at) for at in ledger.draining}
    on_device = max(rooms.values(), default=0)
    if on_device < WHOLE_DEVICE:
        return on_device
    return max(ledger.node_after(node, borrowed=True) for node in {ledger.node_of[at] for at in rooms})
