"""Fair share by rules R14 to R19, computed from a state alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from .model import WHOLE, Job, Owner, State
from .places import fits_empty


class Wish(NamedTuple):
    """What one project or department has a right to and wants, in milli."""

    name: str
    quota: int
    wanted: int
    weight: int
    priority: int
    past: int = 0
    fixed: int = 0
    """What it has of the capacity that may not be preempted."""

    @property
    def floor(self) -> int:
        """The least that it gets beside its quota (R66)."""
        return max(0, self.fixed - self.quota)


@dataclass(frozen=True, slots=True)
class Shares:
    """The division of one pool."""

    capacity: int
    wanted: dict[str, int]
    fair: dict[str, int]
    department_fair: dict[str, int]
    department_wanted: dict[str, int]


# --- what is wanted ---------------------------------------------------------------------------------------------------
def capacity_of(state: State, pool: str) -> int:
    """R14: healthy devices, less booked slices that are not lent, less foreign use."""
    devices = {one.id for one in state.healthy(pool)}
    booked = sum(
        part.gpu_milli for one in state.slices(pool) for part in state.held.get(one.id, ()) if part.device in devices
    )
    return sum(WHOLE - one.foreign for one in state.healthy(pool)) - booked


def counted_milli(job: Job, state: State) -> int:
    """R17: the minimum of an elastic job, or its present size if it may not be preempted."""
    if job.preemptible or not job.runs:
        return job.milli
    return state.held_milli(job.id)


def is_demand(job: Job, state: State) -> bool:
    """Whether a job is running or queued work that could start in an empty pool, or has devices reserved (R25).

    A reservation above a lowered limit, ceiling or quota ends before the division (R12).
    """
    owner = state.policy.projects.get(job.project)
    if owner is None or job.target not in ("running", "paused"):
        return False
    amounts = owner.of(job.pool)
    ceilings = [amounts.limit, amounts.user_jobs, None if job.preemptible else amounts.training]
    if owner.department is not None:
        above = state.policy.departments[owner.department].of(job.pool)
        ceilings += [above.limit, above.user_jobs]
    within = all(one is None or job.milli <= one for one in ceilings)
    kept = state.reserved.get(job.id)
    has_reserved = kept is not None and not state.is_lost(kept)
    return job.runs or job.leaves or (within and (has_reserved or fits_empty(job, state)))


def wanted_of(project: Owner, state: State, pool: str) -> int:
    """R17: the work of a project, up to its limit and the ceilings for users."""
    jobs = [job for job in state.in_pool(pool) if job.project == project.name and is_demand(job, state)]
    amounts = project.of(pool)
    by_user = _by_user(jobs, state)
    wanted = sum(_at_most(milli, amounts.user_jobs) for milli in by_user.values())
    return _at_most(
        wanted, _room_under(amounts.limit, max(amounts.notebook, notebooks_milli(project.name, state, pool)))
    )


def _by_user(jobs: Iterable[Job], state: State) -> dict[str, int]:
    """The amounts of each user; what may not be preempted counts up to the project's training quota."""
    found: dict[str, int] = {}
    left: dict[str, int] = {}
    for job in sorted(jobs, key=lambda one: (not one.runs, one.submitted_at, one.id)):
        milli = counted_milli(job, state)
        if not job.preemptible:
            quota = left.setdefault(job.project, state.policy.project(job.project).of(job.pool).training)
            milli = milli if job.runs or job.leaves else min(milli, max(0, quota))
            left[job.project] = quota - milli
        found[job.user] = found.get(job.user, 0) + milli
    return found


def notebooks_milli(project: str, state: State, pool: str) -> int:
    """The slices of a project that are booked or lent."""
    return sum(one.gpu_milli for one in state.slices(pool) if one.project == project and one.state != "requested")


def _at_most(milli: int, ceiling: int | None) -> int:
    return milli if ceiling is None else min(milli, ceiling)


def _room_under(limit: int | None, notebooks: int) -> int | None:
    """What jobs may have below a limit, beside the notebook quota, or the booked slices if they are more."""
    return None if limit is None else max(0, limit - notebooks)


# --- the division -----------------------------------------------------------------------------------------------------
def shares_of(state: State, pool: str) -> Shares:
    """The fair share of each project, and of each department, in one pool."""
    capacity = capacity_of(state, pool)
    projects = state.policy.projects
    wanted = {name: wanted_of(one, state, pool) for name, one in projects.items()}
    if not state.policy.departments:
        fair = divide(capacity, [_wish(one, wanted[name], state, pool) for name, one in projects.items()], _k(state))
        return Shares(capacity, wanted, fair, {}, {})
    return _two_levels(state, pool, capacity, wanted)


def _two_levels(state: State, pool: str, capacity: int, wanted: dict[str, int]) -> Shares:
    departments = state.policy.departments
    above = {name: _department_wanted(one, state, pool, wanted) for name, one in departments.items()}
    wishes = [_wish(one, above[name], state, pool) for name, one in departments.items()]
    parts = divide(capacity, wishes, _k(state))
    fair: dict[str, int] = {}
    for name in departments:
        members = [one for one in state.policy.projects.values() if one.department == name]
        fair |= divide(parts[name], [_wish(one, wanted[one.name], state, pool) for one in members], _k(state))
    return Shares(capacity, wanted, fair, parts, above)


def _department_wanted(department: Owner, state: State, pool: str, wanted: Mapping[str, int]) -> int:
    """What the projects of a department want, less what is above its ceiling for each user, up to its limit."""
    members = [one for one in state.policy.projects.values() if one.department == department.name]
    amounts = department.of(pool)
    every = sum(wanted[one.name] for one in members)
    if amounts.user_jobs is not None:
        users = _users_in_all(members, state, pool)
        every = min(every, sum(min(milli, amounts.user_jobs) for milli in users.values()))
    used = sum(notebooks_milli(one.name, state, pool) for one in members)
    return _at_most(every, _room_under(amounts.limit, max(amounts.notebook, used)))


def _users_in_all(members: Iterable[Owner], state: State, pool: str) -> dict[str, int]:
    """What each user wants in several projects together, in each up to its ceiling."""
    found: dict[str, int] = {}
    for project in members:
        jobs = [job for job in state.in_pool(pool) if job.project == project.name and is_demand(job, state)]
        for user, milli in _by_user(jobs, state).items():
            found[user] = found.get(user, 0) + _at_most(milli, project.of(pool).user_jobs)
    return found


def _k(state: State) -> Fraction:
    return Fraction(state.policy.k_milli, 1000)


def _wish(owner: Owner, wanted: int, state: State, pool: str) -> Wish:
    amounts = owner.of(pool)
    past, fixed = past_use(owner, state, pool), fixed_milli(owner, state, pool, include_stopping=False)
    return Wish(owner.name, amounts.training, wanted, amounts.weight, owner.priority, past, fixed)


def fixed_milli(owner: Owner, state: State, pool: str, *, include_stopping: bool = True) -> int:
    """What a project, or all projects of a department, have of the capacity that may not be preempted.

    ``include_stopping``: whether work that is being stopped counts.
    """
    devices = {one.id for one in state.healthy(pool)}
    projects = state.policy.projects.values()
    is_department = state.policy.departments.get(owner.name) is owner
    names = {one.name for one in projects if one.department == owner.name} if is_department else {owner.name}
    jobs = [one for one in state.in_pool(pool) if not one.preemptible and one.project in names]
    jobs = [one for one in jobs if include_stopping or not one.leaves]
    return sum(part.gpu_milli for job in jobs for part in state.held.get(job.id, ()) if part.device in devices)


def past_use(owner: Owner, state: State, pool: str) -> int:
    """The past use of a project, or of all projects of a department."""
    if owner.name in state.policy.projects and owner is state.policy.project(owner.name):
        return state.usage.get((owner.name, pool), 0)
    members = [one.name for one in state.policy.projects.values() if one.department == owner.name]
    return sum(state.usage.get((name, pool), 0) for name in members)


def divide(capacity: int, wishes: list[Wish], k: Fraction = Fraction(0)) -> dict[str, int]:
    """R16 and R18: the quota first, then the rest by priority and weight, rounded once.

    :returns: milli by name; they add up to the capacity, or to what is wanted if that is less, or to the floors if
        those are more.
    """
    floors = {one.name: one.floor for one in wishes}
    first = _guarantees(capacity - sum(floors.values()), wishes)
    rest = Fraction(capacity) - sum(first.values()) - sum(floors.values())
    most = {one.name: one.wanted - first[one.name] for one in wishes}
    given = dict(first)
    for group in _groups(wishes):
        got = _fill(rest, group, most, k)
        given |= {name: first[name] + max(floors[name], milli) for name, milli in got.items()}
        rest -= sum(max(0, milli - floors[name]) for name, milli in got.items())
    return _rounded(given, min(capacity, sum(one.wanted for one in wishes)))


def _guarantees(capacity: int, wishes: list[Wish]) -> dict[str, Fraction]:
    """min(quota, wanted) of each, reduced by priority and in proportion where the capacity is less (R5)."""
    first = {one.name: Fraction(min(one.quota, one.wanted)) for one in wishes}
    rest = Fraction(max(0, capacity))
    for priority in sorted({one.priority for one in wishes}, reverse=True):
        names = [one.name for one in wishes if one.priority == priority]
        asked = sum((first[name] for name in names), Fraction(0))
        if asked > rest:
            first |= {name: first[name] * rest / asked for name in names}
        rest -= min(asked, rest)
    return first


def _groups(wishes: list[Wish]) -> list[list[Wish]]:
    """Those that divide the rest among themselves, in order: by priority, then all of weight 0, equally."""
    keys = sorted({_group(one) for one in wishes})
    return [[one for one in wishes if _group(one) == key] for key in keys]


def _group(one: Wish) -> tuple[bool, int]:
    return (False, -one.priority) if one.weight else (True, 0)


def _fill(rest: Fraction, group: list[Wish], most: Mapping[str, Fraction], k: Fraction) -> dict[str, Fraction]:
    """Divide the rest among one group until nothing moves. What is given below a floor costs nothing: it is there."""
    given = {one.name: Fraction(0) for one in group}
    active = [one for one in group if most[one.name] > 0]
    while active and rest > 0:
        weights = _weights(active, k)
        cost = sum(weights[one.name] for one in active if given[one.name] >= one.floor)
        ends = {one.name: one.floor if given[one.name] < one.floor else most[one.name] for one in active}
        steps = [(ends[name] - given[name]) / weight for name, weight in weights.items() if weight]
        step = min([*steps, rest / cost] if cost else steps)
        for one in active:
            given[one.name] += step * weights[one.name]
        rest -= step * cost
        active = [one for one in active if given[one.name] < most[one.name]]
    return given


def _weights(active: list[Wish], k: Fraction) -> dict[str, Fraction]:
    """R19: the weights of those that are not satisfied yet."""
    plain = {one.name: Fraction(one.weight or 1) for one in active}
    past = sum(one.past for one in active)
    if not k or not past or any(one.weight == 0 for one in active):
        return plain
    every = sum(plain.values())
    share: Callable[[Wish], Fraction] = lambda one: plain[one.name] / every  # noqa: E731
    with_history = {
        one.name: max(Fraction(0), share(one) + k * (share(one) - Fraction(one.past, past))) for one in active
    }
    return with_history if any(with_history.values()) else plain


def _rounded(given: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Whole milli that add up to ``total``: the remainder goes by largest fraction, then by name."""
    found = {name: int(amount) for name, amount in given.items()}
    left = max(0, total - sum(found.values()))
    order = sorted(given, key=lambda name: (found[name] - given[name], name))
    for name in order[:left]:
        found[name] += 1
    return found
