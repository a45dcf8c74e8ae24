"""Victim candidates of one preemptor, in the order of the contract.

Borrowers first, then what elastic jobs have above their minimum, then jobs to pause. Between projects: the department,
and in it the project, that is furthest above its share. Inside a project: lowest priority, least work lost, newest.
Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace, merge
from itertools import takewhile

from ..queue.pool_state import PoolState
from ..queue.quota_state import FAIR, NO_LIMIT, Entitlement, QuotaState, Victim
from .rules import PreemptionRules, Preemptor
from .victims import newest_above

_NONE_GONE: Mapping[QuotaState, int] = {}


class Candidates:
    """The candidates of one search. ``include_protected``: work that is protected, too. Rule R39."""

    def __init__(
        self, pool: PoolState, preemptor: Preemptor, rules: PreemptionRules, *, include_protected: bool
    ) -> None:
        self.pool, self.preemptor, self.rules = pool, preemptor, rules
        self.include_protected, self.notebook = include_protected, rules.notebook
        self.known_others: list[QuotaState] | None = None
        self.too_large: dict[QuotaState, int] = {}
        """The smallest size that was refused for a project: a larger victim is never allowed either."""

    def without_pause(self) -> Iterator[Victim]:
        """Reserved devices of waiting jobs, borrowers, what elastic jobs have above their minimum.

        Only a preemptor within its guarantee takes over reserved devices. Rule R26.
        """
        if self.preemptor.own_only:
            yield from self._surplus([self.preemptor.project])
            return
        others = self._others()
        if self.notebook:
            yield from self._borrowers()
        if self.preemptor.entitlement <= Entitlement.GUARANTEE:
            yield from sorted(self._may_be_taken_over(others), key=lambda one: (most_above(one.project), one.order))
        if not self.notebook:
            yield from self._borrowers()
        if self.pool.has_elastic:
            yield from self._surplus(dict.fromkeys([*others, self.preemptor.project]))

    def to_pause(self) -> Iterator[Victim]:
        """Jobs to pause: of other projects, furthest above their share first, then of the preemptor's own project."""
        if not self.preemptor.own_only:
            for projects in self._siblings_first(self._others()):
                yield from self._by_project(projects)
        if not self.notebook:
            yield from self._own()

    def _may_be_taken_over(self, others: Collection[QuotaState]) -> list[Victim]:
        """The claims above their guarantee: not if only their project's running work that may be preempted is.

        A notebook takes over the devices of any borrower.
        """
        reserved = self.pool.reserved
        borrowed = Counter[QuotaState]()
        for victim in self.pool.borrowers if reserved else ():
            borrowed[victim.project] += victim.size
        above = newest_above(reserved, lambda one: one.use - one.preemptible_use.all - borrowed[one] - one.guarantee)
        found = [one for one in above if one.project in others and one.preemptible]
        if self.notebook:
            found += [one for one in reserved if one.borrower and one not in found]
        return found

    def _others(self) -> list[QuotaState]:
        """The other projects that may lose anything; the same during a search, which changes no use."""
        if self.known_others is None:
            self.known_others = self._above()
        return self.known_others

    def _above(self) -> list[QuotaState]:
        if self.pool.departments:
            return [project for project in self.pool.projects.values() if self.rules.may_lose(project)]
        return projects_above(self.pool, self.preemptor)

    def _siblings_first(self, projects: list[QuotaState]) -> list[list[QuotaState]]:
        """Groups of projects in order; siblings come first where only their loss entitles the preemptor outside."""
        if self.rules.entitlement_outside({}) is self.preemptor.entitlement:
            return [projects]
        siblings = [project for project in projects if self.rules.is_sibling(project)]
        return [siblings, [project for project in projects if not self.rules.is_sibling(project)]]

    def _borrowers(self) -> list[Victim]:
        """Borrowers are over quota whatever their project uses; above guarantee their project must be above as well."""
        if not self.pool.borrowers:
            return []
        candidates = [
            victim
            for victim in self.pool.borrowers
            if (self.preemptor.entitlement <= Entitlement.GUARANTEE or self.rules.may_lose(victim.project))
            and (victim.project is not self.preemptor.project or self.notebook)
            and self.preemptor.within in (None, *victim.project.levels)
            and (self.notebook or self._may_be_picked(victim))
        ]
        return sorted(candidates, key=lambda victim: (most_above(victim.project), victim.order))

    def surplus_of_others(self) -> list[Victim]:
        """What elastic jobs of the other projects that may lose anything have above their minimum."""
        return self._surplus(self._others())

    def _surplus(self, projects: Iterable[QuotaState]) -> list[Victim]:
        """The ranks of elastic jobs above their minimum; in the preemptor's own project at any priority.

        Rule R51.
        """
        if not self.pool.has_elastic:
            return []
        candidates = [
            victim for project in projects for victim in project.elastic_surplus if self._may_be_picked(victim)
        ]
        return sorted(candidates, key=lambda victim: (most_above(victim.project), victim.order))

    def _may_be_picked(self, victim: Victim) -> bool:
        return (self.include_protected or not victim.protected) and may_be_picked(self.preemptor, victim)

    def _victims_of(self, project: QuotaState) -> Iterable[Victim]:
        rows: Iterable[Victim] = project.victims
        if self.include_protected and project.protected_victims:
            rows = merge(project.victims, project.protected_victims, key=lambda one: one.order)
        return rows if self.preemptor.excluded_victim is None else filter(self._may_be_picked, rows)

    def _by_project(self, projects: Iterable[QuotaState]) -> Iterator[Victim]:
        gone: dict[QuotaState, int] = defaultdict(int)
        heap = [(most_above(project, gone), project) for project in projects]
        rows = {project: iter(self._victims_of(project)) for _, project in heap}
        heapify(heap)
        while heap:
            key, project = heap[0]
            if (now := most_above(project, gone)) != key:  # a sibling project lost something meanwhile
                heapreplace(heap, (now, project))
                continue
            too_large = self.too_large.get(project, NO_LIMIT)
            victim = next((one for one in rows[project] if one.size < too_large), None)
            if victim is None:
                heappop(heap)
                continue
            for level in project.levels:
                gone[level] += victim.size
            heapreplace(heap, (most_above(project, gone), project))
            if self.rules.may_be_allowed([victim]):
                yield victim
            else:
                self.too_large[project] = victim.total_size

    def _own(self) -> Iterable[Victim]:
        """The preemptible jobs of lower priority in the preemptor's own project."""
        own, priority = self.preemptor.project, self.preemptor.priority
        if own.preemptible_use.lowest_priority >= priority and not self.pool.borrowers:
            return ()
        borrowers = [one for one in self.pool.borrowers if one.project is own and one.priority < priority]
        firm = of_lower_priority(self.preemptor, self._victims_of(own))
        candidates = merge(borrowers, firm, key=lambda one: one.order) if borrowers else firm
        return (one for one in candidates if self._may_be_picked(one) and may_be_paused_again(self.preemptor, one))


def projects_above(pool: PoolState, preemptor: Preemptor) -> list[QuotaState]:
    """The other projects that may lose anything in a pool without departments: :meth:`.PreemptionRules.may_lose`."""
    projects = pool.projects.values()
    own = None if preemptor.entitlement is Entitlement.NOTEBOOK else preemptor.project
    if preemptor.entitlement is FAIR:
        return [one for one in projects if one.use > one.fair and one.use > one.guarantee and one is not own]
    return [one for one in projects if one.use > one.guarantee and one is not own]


def may_be_picked(preemptor: Preemptor, victim: Victim) -> bool:
    """Whether a victim may be picked: preemptible, and not what the preemptor was paused for. Rule R46."""
    return victim.preemptible and (preemptor.excluded_victim is None or victim.id != preemptor.excluded_victim)


def of_lower_priority(preemptor: Preemptor, jobs: Iterable[Victim]) -> Iterator[Victim]:
    """The first of these jobs, in their order, whose job priority is lower than the preemptor's."""
    priority = preemptor.priority
    return takewhile(lambda one: one.priority < priority, jobs)


def may_be_paused_again(preemptor: Preemptor, victim: Victim) -> bool:
    """Whether a job of the preemptor's own project may be paused.

    A preemptible preemptor above its guarantee takes none that was paused since it was submitted: then no job is
    paused for ever in turn with others of its project.
    Rule R48.
    """
    return preemptor.submitted_at is None or victim.paused_at < preemptor.submitted_at


def most_above(project: QuotaState, gone: Mapping[QuotaState, int] = _NONE_GONE) -> tuple[bool, int, bool, int, str]:
    """Sort key: weight 0 first, then furthest above the fair share, then name; by department, then project.

    ``gone``: the candidates before, by project and department, in milli-GPU.
    """
    parent = project.parent
    above = (True, 0) if parent is None else (parent.weight > 0, parent.fair - parent.use + gone.get(parent, 0))
    return (*above, project.weight > 0, project.fair - project.use + gone.get(project, 0), project.name)
