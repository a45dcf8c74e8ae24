"""Who may be asked to leave for a claim, in the order of the contract.

Source: docs/scheduling.md, section 4: borrowers, what elastic jobs have above their minimum, then pauses; first the
department, and in it the project, most above its share; inside it lowest priority, least work lost, newest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace, merge
from itertools import takewhile

from ..queue.pool_state import Pool
from ..queue.quota_state import NO_LIMIT, Holder, Right, Standing
from .rules import Asker, Rules


class Asked:
    """The candidates of one search. ``protected_too``: work that is protected, too."""

    def __init__(self, pool: Pool, asker: Asker, rules: Rules, *, protected_too: bool) -> None:
        self.pool, self.asker, self.rules = pool, asker, rules
        self.protected_too, self.notebook = protected_too, rules.notebook
        self.known_others: list[Standing] | None = None
        self.too_large: dict[Standing, int] = defaultdict(lambda: NO_LIMIT)
        """From this size on no holder of the project may be taken: a larger one is never more legal."""

    def before_moves(self) -> Iterator[Holder]:
        """In the order of the contract: promised places, borrowers, what elastic jobs have above their minimum."""
        if self.asker.own_only:
            yield from self._surplus([self.asker.standing])
            return
        others = self._others()
        if self.notebook:
            yield from self._borrowers()
        if self.asker.right <= Right.GUARANTEE:
            yield from [holder for holder in self.pool.promised if holder.project in others and holder.preemptible]
        if not self.notebook:
            yield from self._borrowers()
        yield from self._surplus(dict.fromkeys([*others, self.asker.standing]))  # a slice may take from its own project

    def pauses(self) -> Iterator[Holder]:
        """Then, after moves, work by project most above; own last."""
        if not self.asker.own_only:
            for standings in self._siblings_first(self._others()):
                yield from self._by_project(standings)
        if not self.notebook:
            yield from self._own()

    def _others(self) -> list[Standing]:
        """The other projects that may lose anything: the same during a search, which changes no books."""
        if self.known_others is None:
            self.known_others = self._above()
        return self.known_others

    def _above(self) -> list[Standing]:
        standings = self.pool.standings.values()
        if self.pool.departments:
            return [standing for standing in standings if self.rules.may_lose(standing)]
        right, own = self.asker.right, None if self.notebook else self.asker.standing
        if right is Right.FAIR:
            return [one for one in standings if one.use > one.fair and one is not own]
        return [one for one in standings if one.use > one.guarantee and one is not own]

    def _siblings_first(self, standings: list[Standing]) -> list[list[Standing]]:
        """In the order of the contract; siblings before all others where only what they lose lets the claim out."""
        if self.rules.outside_right({}) is self.asker.right:
            return [standings]
        siblings = [standing for standing in standings if self.rules.is_sibling(standing)]
        return [siblings, [standing for standing in standings if not self.rules.is_sibling(standing)]]

    def _borrowers(self) -> list[Holder]:
        """Borrowers count as over quota whatever their project uses; above guarantee their project must be above."""
        if not self.pool.borrowers:
            return []
        asked = [
            holder
            for holder in self.pool.borrowers
            if (self.asker.right <= Right.GUARANTEE or self.rules.may_lose(holder.project))
            and (holder.project is not self.asker.standing or self.notebook)
            and self.asker.within in (None, *holder.project.levels)
            and (self.notebook or self._may_go(holder))
        ]
        return sorted(asked, key=lambda holder: (_most_above(holder.project, {}), holder.order))

    def _surplus(self, standings: Iterable[Standing]) -> list[Holder]:
        """What elastic jobs run with above their minimum; of the asker's own project whatever the priority."""
        if not self.pool.has_elastic:
            return []
        asked = [holder for standing in standings for holder in standing.surplus if self._may_go(holder)]
        return sorted(asked, key=lambda holder: (_most_above(holder.project, {}), holder.order))

    def _may_go(self, holder: Holder) -> bool:
        asker = self.asker
        spared = asker.spares is not None and holder.id == asker.spares
        return holder.preemptible and not spared and (self.protected_too or not holder.protected)

    def _rows(self, standing: Standing) -> Iterable[Holder]:
        """What of a project's own may be asked, in order."""
        rows: Iterable[Holder] = standing.holders
        if self.protected_too and standing.shielded:
            rows = merge(standing.holders, standing.shielded, key=lambda one: one.order)
        return rows if self.asker.spares is None else filter(self._may_go, rows)

    def _by_project(self, standings: Iterable[Standing]) -> Iterator[Holder]:
        gone: dict[Standing, int] = defaultdict(int)
        heap = [(_most_above(standing, gone), standing) for standing in standings]
        rows = {standing: iter(self._rows(standing)) for _, standing in heap}
        heapify(heap)
        while heap:
            key, standing = heap[0]
            if (now := _most_above(standing, gone)) != key:  # a sibling was taken from meanwhile
                heapreplace(heap, (now, standing))
                continue
            holder = next((one for one in rows[standing] if one.size < self.too_large[standing]), None)
            if holder is None:
                heappop(heap)
                continue
            for level in standing.levels:
                gone[level] += holder.size
            heapreplace(heap, (_most_above(standing, gone), standing))
            if self.rules.is_legal([holder], entered=True):
                yield holder
            else:
                self.too_large[standing] = holder.whole

    def _own(self) -> Iterable[Holder]:
        own, priority = self.asker.standing, self.asker.priority
        borrowers = [one for one in self.pool.borrowers if one.project is own and one.priority < priority]
        firm = takewhile(lambda one: one.priority < priority, self._rows(own))
        asked = merge(borrowers, firm, key=lambda one: one.order) if borrowers else firm
        return filter(self._may_go, asked)


def _most_above(standing: Standing, gone: Mapping[Standing, int]) -> tuple[bool, int, bool, int, str]:
    """Sorts the first victim first: by department, then project: weight 0, furthest above the fair share, then name.

    ``gone`` is what was looked at before, by project and department.
    """
    parent = standing.parent
    above = (True, 0) if parent is None else (parent.weight > 0, parent.fair - parent.use + gone.get(parent, 0))
    return (*above, standing.weight > 0, standing.fair - standing.use + gone.get(standing, 0), standing.name)
