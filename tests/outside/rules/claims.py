"""Whether each claim may take what it takes: R18, R37, R38, R44 to R48, R53, R61."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ..model import Job, Owner, State, is_protected, total
from ..places import fits_empty
from ..shares import Shares
from ..steps import Claim, Step

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    for claim in step.claims:
        if claim.preemptor in step.before.notebooks:
            yield from _notebook(step, claim)
        elif claim.preemptor in step.before.jobs:
            yield from of_claim(Case.of(step, claim))


def of_claim(case: Case) -> Found:
    """Everything that is wrong with one claim of a job."""
    yield from _preemptible(case)
    yield from _protected(case)
    yield from _entry(case)
    yield from _own_victims(case)
    for victims in case.victims:
        yield from _legal(case, victims)
        if not case.within_guarantee:
            yield from _imbalance(case, victims)
            yield from _no_reclaim(case, victims)
    if not case.within_guarantee:
        yield from _no_mutual(case)


@dataclass(frozen=True, slots=True)
class Victims:
    """What a claim takes from one project: amounts in milli, one for each job or rank."""

    project: Owner
    use: int
    items: tuple[int, ...]
    jobs: tuple[Job, ...]
    """Those that are paused as a whole."""

    @property
    def left(self) -> int:
        """What the project has afterwards."""
        return self.use - sum(self.items)


@dataclass(frozen=True, slots=True)
class Case:
    """A claim with the figures of the rules."""

    step: Step
    claim: Claim
    job: Job
    project: Owner
    victims: tuple[Victims, ...]
    own: Victims

    @classmethod
    def of(cls, step: Step, claim: Claim) -> Case:
        job = step.before.jobs[claim.preemptor]
        project = step.before.policy.project(job.project)
        nothing = Victims(project, claim.use.get(project.name, 0), (), ())
        case = cls(step, claim, job, project, (), nothing)
        by_project = _by_project(step, claim, with_borrowers=not case.within_guarantee)
        own = by_project.pop(project.name, nothing)
        return replace(case, victims=tuple(by_project.values()), own=own)

    @property
    def state(self) -> State:
        return self.step.before

    @property
    def use_with(self) -> int:
        """The use of the preemptor's project with the job, its own victims gone."""
        return self.own.left + self.gain

    @property
    def gain(self) -> int:
        """What the claim adds to the use: a waiting job its minimum, an elastic job that grows its further ranks."""
        milli = total(self.claim.placements) if self.job.runs else self.job.milli
        return milli - self.claim.ledger.milli.get(self.job.id, 0)

    @property
    def quota(self) -> int:
        """Its training quota in force; where that is not certain, the most that it may be."""
        return self.step.in_force(self.job.pool).most(self.project.name)

    @property
    def certain(self) -> bool:
        """Whether quotas and fair shares are known exactly: quotas fit, and all work is of a project of the file."""
        return self.step.is_certain(self.job.pool)

    @property
    def use_at_entry(self) -> int:
        """The use of the preemptor's project with the job, none of its own victims subtracted (R37)."""
        return self.use_with + sum(self.own.items)

    @property
    def within_guarantee(self) -> bool:
        return self.use_at_entry <= self.quota

    def fair(self, project: str) -> int:
        """The fair share if a notebook that waits is counted as booked, or as not yet, whichever is less."""
        return min(one.fair.get(project, 0) for one in self._divisions)

    @property
    def entry_fair(self) -> int:
        """The same for the preemptor's project, whichever is more."""
        return max(one.fair.get(self.project.name, 0) for one in self._divisions)

    def department_fair(self, department: str) -> int:
        return min(one.department_fair[department] for one in self._divisions)

    @property
    def _divisions(self) -> tuple[Shares, Shares]:
        return self.step.shares(self.job.pool), self.step.shares_with_requests(self.job.pool)

    def crosses(self, other: Owner) -> bool:
        """Whether another project is of another department."""
        return other.department != self.project.department

    def borrowed(self, project: str) -> int:
        """The part of a project's use before the claim that running borrowers have."""
        return self.claim.borrowed.get(project, 0)

    def firm_of(self, victims: Sequence[Victims]) -> list[int]:
        """What the claim takes from these projects, borrowers left out."""
        found = [milli for rows in victims for milli in rows.items]
        for job in (job for rows in victims for job in rows.jobs if job.borrower):
            found.remove(self.state.held_milli(job.id))
        return found

    def department_use(self, name: str) -> int:
        """The use of a department before the claim."""
        policy = self.state.policy
        return sum(used for one, used in self.claim.use.items() if policy.project(one).department == name)


def _by_project(step: Step, claim: Claim, *, with_borrowers: bool) -> dict[str, Victims]:
    """What the claim takes from each project.

    ``with_borrowers``: also from other projects; for a claim within guarantee these count as over quota always (R38).
    """
    state = step.before
    items: dict[str, list[int]] = {}
    jobs: dict[str, list[Job]] = {}
    preemptor = step.before.jobs[claim.preemptor]
    for job in claim.evicted:
        if with_borrowers or not job.borrower or job.project == preemptor.project:
            items.setdefault(job.project, []).append(state.held_milli(job.id))
            jobs.setdefault(job.project, []).append(job)
    for rank in claim.shrunk:
        items.setdefault(rank.job.project, []).append(rank.milli)
    return {
        name: Victims(state.policy.project(name), claim.use.get(name, 0), tuple(one), tuple(jobs.get(name, ())))
        for name, one in items.items()
    }


# --- the rules --------------------------------------------------------------------------------------------------------
def _preemptible(case: Case) -> Found:
    for job in (*case.claim.evicted, *case.claim.moved, *(one.job for one in case.claim.shrunk)):
        if not job.preemptible:
            yield "R38", f"{case.job.id} takes devices of {job.id}, which may not be preempted"


def _protected(case: Case) -> Found:
    """R53: a protected job is paused or moved only for a claim within guarantee."""
    if case.within_guarantee:
        return
    for job in (*case.claim.evicted, *case.claim.moved):
        if is_protected(job, case.state) and not job.borrower:
            yield "R53", f"{case.job.id}, above its guarantee, touches {job.id}, which is protected"


def _entry(case: Case) -> Found:
    """R37: with the job the project stays within its fair share, or within its quota; if not preemptible, its quota.

    What its own project loses does not count, except where no other project loses anything. A claim that takes only
    from its own project, which has no more afterwards, concerns no other project.
    """
    fair = max(case.entry_fair, case.quota) if case.job.preemptible or not case.victims else case.quota
    grows = bool(case.claim.moved) or case.use_with > case.own.use
    use = case.use_at_entry if case.victims else case.use_with if grows else 0
    if use > fair and case.certain:
        yield "R37", f"{case.job.id} takes from others; {case.project.name} comes to {use}, fair share {fair}"
    if not case.job.preemptible:
        mine = case.claim.fixed.get(case.project.name, 0)
        if mine + case.job.milli > case.quota and case.job.id not in case.state.reserved:
            yield "R37", f"{case.job.id} may not be preempted; with it {mine + case.job.milli}, quota {case.quota}"


def _own_victims(case: Case) -> Found:
    """R48: inside a project only work of lower priority is preempted, or of equal where it is over its quota."""
    over = case.own.use + case.gain > case.quota
    for job in case.own.jobs:
        if job.priority > case.job.priority or (job.priority == case.job.priority and not over):
            yield "R48", f"{case.job.id} ({case.job.priority}) pauses {job.id} ({job.priority}) of its own project"


def _legal(case: Case, victims: Victims) -> Found:
    """R38 and P5, for the project and, between departments, for the department."""
    pool, name = case.job.pool, victims.project.name
    quota = case.step.in_force(pool).least(name)
    least = quota if case.within_guarantee else max(quota, case.fair(name) if case.certain else 0)
    if victims.left + max(victims.items) <= least:
        yield "R38", f"{case.job.id} takes {victims.items} from {name} with {victims.use}; only above {least} is legal"
    firm, use = case.firm_of([victims]), victims.use - case.borrowed(name)
    if firm and not case.within_guarantee and use - sum(firm) + max(firm) <= least:
        yield "R38", f"{case.job.id} takes {firm} from {name} with {use} beside borrowers; legal above {least}"
    department = victims.project.department
    if department is not None and case.crosses(victims.project):
        yield from _legal_department(case, department)


def _legal_department(case: Case, department: str) -> Found:
    """The same for all that the claim takes from one other department."""
    concerned = [rows for rows in case.victims if rows.project.department == department]
    items = [one for rows in concerned for one in rows.items]
    quota = case.step.in_force(case.job.pool).department_least_of[department]
    fair = case.department_fair(department) if case.certain else 0
    least = quota if case.within_guarantee else max(quota, fair)
    use = case.department_use(department)
    if use - sum(items) + max(items) <= least:
        yield "R38", f"{case.job.id} takes {items} from department {department} with {use}; legal above {least}"
    projects = [one.name for one in case.state.policy.projects.values() if one.department == department]
    firm, use = case.firm_of(concerned), use - sum(map(case.borrowed, projects))
    if firm and not case.within_guarantee and use - sum(firm) + max(firm) <= least:
        yield "R38", f"{case.job.id} takes {firm} from {department} with {use} beside borrowers; legal above {least}"


def _imbalance(case: Case, victims: Victims) -> Found:
    """R44, and R18: weight 0 reclaims nothing above its quota."""
    if not case.certain:
        return
    if case.crosses(victims.project):
        yield from _imbalance_of_departments(case, victims)
        return
    weight = case.project.of(case.job.pool).weight
    if not weight:
        yield "R18", f"{case.job.id} of {case.project.name}, weight 0, takes from {victims.project.name}"
    elif victims.project.priority == case.project.priority:
        mine = Fraction(case.use_with - case.quota, weight)
        theirs = _excess(victims.project, victims.left, case.job.pool)
        if theirs is not None and mine > theirs:
            text = f"{case.job.id} of {case.project.name} comes to {float(mine):g} above quota by weight"
            yield "R44", f"{text}, {victims.project.name} to {float(theirs):g}"


def _imbalance_of_departments(case: Case, victims: Victims) -> Found:
    departments = case.state.policy.departments
    mine, other = (departments[one.department or ""] for one in (case.project, victims.project))
    if mine.priority != other.priority:
        return
    own = [one for rows in (*case.victims, case.own) if rows.project.department == mine.name for one in rows.items]
    taken = [one for rows in case.victims if rows.project.department == other.name for one in rows.items]
    ours = _excess(mine, case.department_use(mine.name) - sum(own) + case.gain, case.job.pool)
    theirs = _excess(other, case.department_use(other.name) - sum(taken), case.job.pool)
    if theirs is not None and ours is not None and ours > theirs:
        text = f"{case.job.id}: department {mine.name} comes to {float(ours):g}"
        yield "R44", f"{text}, {other.name} to {float(theirs):g}"


def _excess(owner: Owner, use: int, pool: str) -> Fraction | None:
    """(use - quota) / weight; none for weight 0, which is above every figure."""
    amounts = owner.of(pool)
    return Fraction(use - amounts.training, amounts.weight) if amounts.weight else None


def _no_reclaim(case: Case, victims: Victims) -> Found:
    """R45: no job of a victim project that ends below its quota could take the devices back."""
    quota = case.step.in_force(case.job.pool).least(victims.project.name)
    if victims.left < quota:
        firm = victims.left - _elastic_surplus(case, victims)
        for job in _could_reclaim(case, victims):
            if firm + job.milli <= quota:
                text = f"{victims.project.name} ends with {firm} of quota {quota}"
                yield "R45", f"{case.job.id}: {text}, and {job.id} ({job.milli}) could reclaim"
    for job in victims.jobs:
        if victims.left < job.milli <= quota and not job.borrower:
            yield "R45", f"{case.job.id} takes {job.id} ({job.milli} of quota {quota}); only {victims.left} remain"


def _elastic_surplus(case: Case, victims: Victims) -> int:
    """What the elastic jobs that stay have above their minimum."""
    gone = {job.id for job in victims.jobs}
    given = Counter[str]()
    for rank in case.claim.shrunk:
        given[rank.job.id] += rank.milli
    stays = [job for job in case.state.in_pool(case.job.pool) if job.project == victims.project.name and job.runs]
    found = 0
    for job in stays:
        if job.id not in gone and job.min_ranks is not None and job.preemptible:
            found += max(0, case.claim.ledger.milli.get(job.id, 0) - given[job.id] - job.milli)
    return found


def _could_reclaim(case: Case, victims: Victims) -> list[Job]:
    name = victims.project.name
    waiting = [job for job in case.state.waiting(case.job.pool) if job.project == name]
    served = {*case.state.reserved, *case.step.started, *case.claim.ledger.milli}
    waiting = [job for job in waiting if job.id not in served]
    return [job for job in (*victims.jobs, *waiting) if fits_empty(job, case.state)]


def _no_mutual(case: Case) -> Found:
    """R46: a job that was paused for another job does not pause that one."""
    for job in case.claim.evicted:
        if case.job.paused_for == job.id:
            yield "R46", f"{case.job.id} was paused for {job.id}, and pauses it"


def _notebook(step: Step, claim: Claim) -> Found:
    """R6 and R61: for a notebook only borrowers are paused.

    Not judged while devices are out: jobs may then run on what the notebooks' quota needs.
    """
    lost = any(not one.healthy for one in step.before.devices.values())
    for job in (*claim.evicted, *claim.moved):
        if not job.borrower and not lost:
            yield "R61", f"{job.id} is paused for notebook {claim.preemptor}, and is no borrower"
