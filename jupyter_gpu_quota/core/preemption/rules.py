"""Preemption rules: which sets of victims a preemptor may take.

A rule holds at every level below the common ancestor of preemptor and victim: for projects of one department between
the projects, otherwise between the departments as well. Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..model import Job
from ..placement.place import Request
from ..queue.job_queue import ClassQueue
from ..queue.pool_state import PoolState, waiting_sizes
from ..queue.quota_state import GUARANTEE, SURPLUS, Entitlement, QuotaState, Victim


class Preemptor(NamedTuple):
    """A request that may take devices from running work. ``can_borrow``: it may run on unused notebook quota.

    ``only``: the devices that it may use; None for any.
    """

    id: str
    project: QuotaState
    user: str
    request: Request
    entitlement: Entitlement
    priority: int = 0
    preemptible: bool = True
    can_borrow: bool = False
    only: Container[int] | None = None
    excluded_victim: str | None = None
    """A job that may not be its victim: above its guarantee a job never pauses the job that it was paused for."""
    within: QuotaState | None = None
    """The project or department that every victim must belong to; None for any."""
    submitted_at: int | None = None
    """Of its own project it pauses no job that was paused since then; None: it may."""

    @property
    def own_only(self) -> bool:
        return self.within is self.project


def preemptor_of(
    project: QuotaState, queue: ClassQueue, entitlement: Entitlement, within: QuotaState | None, job: Job | None = None
) -> Preemptor:
    """The first job of a class, or the given one, as a preemptor; ``within``: see :class:`Preemptor`."""
    job, job_class = job or queue.first(), queue.job_class
    may_pause_again = entitlement is GUARANTEE or not job_class.preemptible
    return Preemptor(
        job.id,
        project,
        job.user,
        job_class.request,
        entitlement,
        job_class.priority,
        job_class.preemptible,
        can_borrow=job_class.preemptible and entitlement is not GUARANTEE,
        excluded_victim=None if entitlement is GUARANTEE else job.paused_for,
        within=within,
        submitted_at=None if may_pause_again else job.submitted_at,
    )


@dataclass(slots=True)
class Loss:
    """The loss of a project by a set of victims, in milli-GPU; ``borrowed``: of that, borrowers."""

    firm: int = 0
    largest_firm: int = 0
    borrowed: int = 0
    largest_borrowed: int = 0
    reserved: bool = False
    """Whether it loses reserved devices, which only a preemptor within its guarantee takes over."""

    def merge(self, other: Loss) -> None:
        self.firm += other.firm
        self.largest_firm = max(self.largest_firm, other.largest_firm)
        self.borrowed += other.borrowed
        self.largest_borrowed = max(self.largest_borrowed, other.largest_borrowed)
        self.reserved |= other.reserved

    def add(self, victim: Victim, *, for_slice: bool) -> None:
        """Add a victim; ``for_slice``: a notebook takes over reserved notebook quota from a borrower as such."""
        self.reserved |= victim.reserved
        if victim.borrower and (for_slice or not victim.reserved):
            self.borrowed += victim.size
            self.largest_borrowed = max(self.largest_borrowed, victim.size)
        else:
            one = victim.total_size if victim.base is None else victim.request.gpu_milli  # rank by rank
            self.firm += victim.size
            self.largest_firm = max(self.largest_firm, one)


class PreemptionRules:
    """Which further victims one preemptor may take beside those picked so far.

    ``most_below``: the number of victims' projects that may end below their guarantee, where nothing else helps.
    """

    def __init__(self, pool: PoolState, preemptor: Preemptor, *, most_below: int) -> None:
        self.pool, self.preemptor, self.most_below = pool, preemptor, most_below
        self.notebook = preemptor.entitlement is Entitlement.NOTEBOOK
        self.stopped_at_guarantee = False
        """A set was refused only because too many projects would have ended below their guarantee."""
        self._below: set[QuotaState] = set()
        """The projects that would end below it, of the set that was compared last."""
        self._borrowed: Counter[QuotaState] | None = None
        self.picked: dict[str, Victim] = {}
        self.losses_so_far: dict[QuotaState, Loss] = defaultdict(Loss)
        self.allowed_alone: Victim | None = None
        """The last victim that was allowed alone, beside those picked; only without departments."""
        self.own_may_lose = 0
        """What the preemptor's own project may lose beside any set, in milli-GPU, for :meth:`may_be_allowed`."""

    def pick(self, victim: Victim) -> None:
        self.allowed_alone = None
        self.picked[victim.key] = victim
        self.losses_so_far[victim.project].add(victim, for_slice=self.notebook)

    def may_lose(self, project: QuotaState) -> bool:
        """Whether a project may lose anything: it, and a department of its own, is above the threshold. Rule R38."""
        if project is self.preemptor.project and not self.notebook:
            return False
        if self.preemptor.within not in (None, *project.levels):
            return False
        entitlement = self.preemptor.entitlement
        return entitlement is not Entitlement.SURPLUS and all(
            level.use > threshold(level, entitlement) for level in self._compared(project)
        )

    def is_sibling(self, project: QuotaState) -> bool:
        return project.parent is self.preemptor.project.parent

    def _compared(self, level: QuotaState) -> tuple[QuotaState, ...]:
        """The victim's levels below the common ancestor. Rule R35."""
        return (level,) if self.is_sibling(level) else level.levels

    def entitlement_outside(self, losses: Mapping[QuotaState, Loss]) -> Entitlement:
        """The entitlement to take from other departments; what siblings lose is no gain of the department."""
        department = self.preemptor.project.parent
        if department is None or self.notebook:
            return self.preemptor.entitlement
        entitlement = department.entitlement(self.department_gain(department, losses))
        if entitlement is Entitlement.FAIR and (department.weight == 0 or not self.preemptor.preemptible):
            return Entitlement.SURPLUS
        return max(self.preemptor.entitlement, entitlement)

    def department_gain(self, department: QuotaState, losses: Mapping[QuotaState, Loss]) -> int:
        """The additional use of the preemptor's department: the request's size less the losses of its own projects."""
        inside = sum(one.firm + one.borrowed for project, one in losses.items() if project.parent is department)
        return self.preemptor.request.size - inside

    def with_surplus(self, chosen: Sequence[Victim]) -> Sequence[Victim]:
        """These victims; with an elastic job's minimum also what it has above."""
        if not [victim for victim in chosen if victim.above is not None]:
            return chosen
        known = {*(id(victim) for victim in chosen), *(id(victim) for victim in self.picked.values())}
        more = [victim.above for victim in chosen if victim.above is not None and id(victim.above) not in known]
        return [*chosen, *more]

    def is_allowed(self, chosen: Sequence[Victim], *, assume_entitled: bool = False) -> bool:
        """Whether taking these beside those picked keeps every rule.

        ``assume_entitled``: what siblings lose entitles the preemptor to take from other departments.
        """
        is_alone = len(chosen) == 1
        if is_alone and chosen[0] is self.allowed_alone:
            return True
        losses = self.losses(chosen)
        entitlement = self.preemptor.entitlement
        outside = entitlement if assume_entitled else self.entitlement_outside(losses)
        if not self._are_allowed(losses, outside, chosen):
            return False
        if is_alone and self.preemptor.project.parent is None:
            self.allowed_alone = chosen[0]
        return True

    def may_be_allowed(self, chosen: Sequence[Victim]) -> bool:
        """Whether any set with these may be allowed.

        A larger set is never more allowed, with two exceptions: what siblings lose may entitle the preemptor to take
        from other departments, and what its own project loses leaves it less above its guarantee.
        """
        if self.own_may_lose == 0:
            return self.is_allowed(chosen, assume_entitled=True)
        losses = self.losses(chosen)
        own = losses.setdefault(self.preemptor.project, Loss())
        own.firm = max(own.firm, self.own_may_lose)
        return self._are_allowed(losses, self.preemptor.entitlement, chosen)

    def _are_allowed(self, losses: Mapping[QuotaState, Loss], outside: Entitlement, chosen: Sequence[Victim]) -> bool:
        """Whether these losses are; ``outside``: the preemptor's entitlement to take from other departments."""
        entitlement = self.preemptor.entitlement
        return all(
            self.is_loss_allowed(project, losses, entitlement if self.is_sibling(project) else outside, chosen)
            for project in losses
            if project is not self.preemptor.project or self.notebook
        )

    def losses(self, chosen: Sequence[Victim]) -> dict[QuotaState, Loss]:
        """The loss of each project by the picked victims and these."""
        losses: dict[QuotaState, Loss] = {}
        self._below.clear()
        for project, loss in self.losses_so_far.items():
            kept = loss.firm, loss.largest_firm, loss.borrowed, loss.largest_borrowed, loss.reserved
            losses[project] = Loss(*kept)
        for victim in self.with_surplus(chosen):
            project_loss = losses.get(victim.project)
            if project_loss is None:
                project_loss = losses[victim.project] = Loss()
            project_loss.add(victim, for_slice=self.notebook)
        return losses

    def is_loss_allowed(
        self, project: QuotaState, losses: Mapping[QuotaState, Loss], entitlement: Entitlement, chosen: Sequence[Victim]
    ) -> bool:
        if entitlement is Entitlement.SURPLUS:
            return False
        return all(self._is_level_loss_allowed(level, losses, entitlement, chosen) for level in self._compared(project))

    def loss_of(self, level: QuotaState, losses: Mapping[QuotaState, Loss]) -> Loss:
        if not level.is_department:
            return losses.get(level) or Loss()
        total = Loss()
        for project, loss in losses.items():
            if project.parent is level:
                total.merge(loss)
        return total

    def _is_level_loss_allowed(
        self, level: QuotaState, losses: Mapping[QuotaState, Loss], entitlement: Entitlement, chosen: Sequence[Victim]
    ) -> bool:
        loss = self.loss_of(level, losses)
        after = level.use - loss.firm - loss.borrowed
        if entitlement <= Entitlement.GUARANTEE:
            if not loss.firm:
                return True
            return after + loss.largest_firm > level.guarantee and not self._ends_below_guarantee(level, after)
        above = after + loss.largest_borrowed
        if loss.firm:
            above = level.use - self._borrowed_by(level) - loss.firm + loss.largest_firm
        if loss.reserved or above <= threshold(level, entitlement):
            return False
        if self._ends_below_guarantee(level, after):
            return False
        if after < level.guarantee and self._could_reclaim(level, after, chosen):
            return False
        return self._stays_balanced(level, after, losses)

    def _borrowed_by(self, level: QuotaState) -> int:
        """The use of the running borrowers of a level: they make no other work of it a victim."""
        if self._borrowed is None:
            self._borrowed = Counter()
            for one in self.pool.borrowers:
                self._borrowed.update(dict.fromkeys(one.project.levels, one.size))
        return self._borrowed[level]

    def _ends_below_guarantee(self, level: QuotaState, after: int) -> bool:
        """Whether a level may not end with this use. Rule R47."""
        if after >= level.guarantee:
            return False
        if not level.is_department:
            self._below.add(level)
        is_one_too_many = max(1, len(self._below)) > self.most_below
        self.stopped_at_guarantee |= is_one_too_many
        return is_one_too_many

    def _could_reclaim(self, level: QuotaState, after: int, chosen: Sequence[Victim]) -> bool:
        """Whether work of the level could reclaim within its guarantee, now or when the rest of its work has ended.

        Remaining work that fills less of the guarantee than a victim that fits it ran on surplus. So did what elastic
        jobs have above their minimum: they give it up for any job of their project.
        Rule R45.
        """
        leaving = [victim for victim in (*self.picked.values(), *chosen) if level in victim.project.levels]
        jobs = [victim for victim in leaving if victim.base is None]
        if any(after < victim.size <= level.guarantee and not victim.borrower for victim in jobs):
            return True
        surplus = self._surplus_left(level, leaving) if self.pool.has_elastic else 0
        sizes = (*(victim.size for victim in jobs), *waiting_sizes(self.pool, level))
        return any(after - surplus + size <= level.guarantee for size in sizes)

    def _surplus_left(self, level: QuotaState, leaving: Sequence[Victim]) -> int:
        """What the elastic jobs of a level still have above their minimum when these victims have left."""
        gone = {victim.id for victim in leaving if victim.base is None}
        shrunk = {victim.id: victim.size for victim in leaving if victim.base is not None}
        return sum(
            victim.size - shrunk.get(victim.id, 0)
            for project in self.pool.projects.values()
            if level in project.levels
            for victim in project.elastic_surplus
            if victim.id not in gone
        )

    def _stays_balanced(self, level: QuotaState, after: int, losses: Mapping[QuotaState, Loss]) -> bool:
        """Whether the preemptor ends no further above its guarantee, by weight, than the victim.

        Compares the two that share a parent: projects of one department, or their departments.
        Rule R44.
        """
        preemptor_level = next((one for one in self.preemptor.project.levels if one.parent is level.parent), None)
        if preemptor_level is None or preemptor_level.is_department != level.is_department:
            return True
        own = self.loss_of(preemptor_level, losses)
        gain = self.preemptor.request.size - own.firm - own.borrowed
        return is_balanced(preemptor_level, level, gain=gain, after=after)


def is_balanced(preemptor: QuotaState, victim: QuotaState, *, gain: int, after: int) -> bool:
    """:meth:`PreemptionRules._stays_balanced` for two that share a parent.

    ``gain``: the additional use of the one; ``after``: the use with which the other ends.
    """
    if victim.priority != preemptor.priority or victim.weight == 0:
        return True
    above = (preemptor.use + gain - preemptor.guarantee) * victim.weight
    return above <= (after - victim.guarantee) * preemptor.weight


def is_first_allowed(preemptor: Preemptor, victim: Victim) -> bool:
    """:meth:`PreemptionRules.is_allowed` for one firm victim with nothing picked, of a claim of a job.

    In a pool without departments, elastic jobs and borrowers; no project may end below its guarantee.
    """
    project, entitlement = victim.project, preemptor.entitlement
    if project is preemptor.project:
        return True
    after = project.use - victim.size
    if after < project.guarantee or entitlement is SURPLUS:
        return False
    if entitlement <= GUARANTEE:
        return True
    is_above = project.use > threshold(project, entitlement)
    return is_above and is_balanced(preemptor.project, project, gain=preemptor.request.size, after=after)


def threshold(level: QuotaState, entitlement: Entitlement) -> int:
    """The use above which a project or department may lose anything to a preemptor of this entitlement.

    A fair share is below the guarantee where elastic jobs use it that want less.
    """
    return max(level.fair, level.guarantee) if entitlement is Entitlement.FAIR else level.guarantee
