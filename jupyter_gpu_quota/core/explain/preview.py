"""What another policy does to present work: the same ``decide`` under both policies, until their plans are empty.

Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..eviction.removal import outlives
from ..lifecycle import HOLDS_SLICE
from ..model import Amounts, Department, Job, JobState, Notebook, Policy, Project, Snapshot
from ..preemption.victims import is_protected
from ..queue.quota_state import NO_LIMIT
from ..quota.in_force import in_force
from ..reason_figures import is_too_wide, most_milli
from ..reasons import NoSuchPool, NoSuchProject, Reason, ReasonCode
from .projection import Projection, project

RUNS = (JobState.STARTING, JobState.RUNNING)
Place = tuple[bool, str, str]
"""An owner of quota in a pool: whether it is a department, its name, the pool."""


class Effect(StrEnum):
    """What another policy does to one job or notebook."""

    PAUSED = "paused"  # runs, and is paused for a claim
    OVER_QUOTA = "over_quota"  # runs on, and may be paused for a later claim
    DRAINS = "drains"  # keeps what it has until it ends
    RUNS_ON = "runs_on"  # is not paused, as it would be under the old policy
    STARTS = "starts"  # starts instead of waiting
    WAITS = "waits"  # waits instead of starting, for another reason, or longer; or can no longer start
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """One affected workload.

    ``before`` is why it waits under the old policy, ``after`` why it waits, drains or is refused under the new one;
    None where it does not. ``anyway``: the old policy pauses it too. ``used_milli`` and ``quota_milli``: what made its
    project over quota, None where something else did; of work that may not be preempted only such use counts.
    ``had_milli``: how much of the old quota was used. ``department``: the quota is this one's, and not the project's.
    ``loses_device``: a device that it has is in another pool, or in none.
    """

    work: Job | Notebook
    effect: Effect
    before: Reason | None = None
    after: Reason | None = None
    anyway: bool = False
    used_milli: int | None = None
    quota_milli: int | None = None
    had_milli: int | None = None
    department: str | None = None
    loses_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """All affected workloads, jobs before notebooks, by id."""

    affected: tuple[Affected, ...]

    def of(self, effect: Effect) -> tuple[str, ...]:
        """The ids of the workloads with this effect."""
        return tuple(one.work.id for one in self.affected if one.effect is effect)


def preview(snapshot: Snapshot, old: Policy, new: Policy, *, moved: Snapshot | None = None) -> Preview:
    """Compare two policies on one snapshot, with clock and demand frozen.

    ``moved`` is the same snapshot with its devices in the pools of the new policy, where those differ.
    Rule R54.
    """
    both = _both(_Side.of(snapshot, old), _Side.of(moved or snapshot, new), snapshot, moved or snapshot)
    jobs = (both.of_job(job) for job in sorted(snapshot.jobs, key=lambda job: job.id))
    notebooks = (both.of_notebook(one) for one in sorted(snapshot.notebooks, key=lambda one: one.id))
    return Preview(affected=tuple(one for one in (*jobs, *notebooks) if one is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One policy: its projection, the names that it has, and the amounts that are in force."""

    policy: Policy
    rest: Projection
    projects: frozenset[str]
    pools: frozenset[str]
    deadline: bool
    amounts: Mapping[Place, Amounts]
    departments: Mapping[str, str | None]

    @classmethod
    def of(cls, snapshot: Snapshot, policy: Policy) -> _Side:
        amounts = in_force(policy, snapshot.now)
        rows = amounts.projects
        owners: list[tuple[bool, Project | Department]] = [
            *((False, row) for row in rows),
            *((True, row) for row in amounts.departments),
        ]
        return cls(
            policy=policy,
            rest=project(snapshot, policy),
            projects=frozenset(row.name for row in rows),
            pools=frozenset(policy.pools),
            deadline=policy.drain_by_at is not None,
            amounts={(above, row.name, pool): one for above, row in owners for pool, one in row.amounts.items()},
            departments={row.name: row.department for row in rows},
        )

    def outlived(self, work: Job | Notebook) -> Reason | None:
        """Why no quota covers what holds devices; None where one does."""
        return outlives(work, projects=self.projects, pools=self.pools, deadline=self.deadline)

    def nowhere(self, job: Job) -> Reason | None:
        """Why a held job could never start after a release; None where it could."""
        if job.pool not in self.pools:
            return NoSuchPool(pool=job.pool)
        if job.project not in self.projects:
            return NoSuchProject(project=job.project)
        return None

    def places(self, work: Job | Notebook) -> tuple[Place, ...]:
        """The owners whose quotas cover it: its project, and its department if there is one."""
        department = self.departments.get(work.project)
        project = (False, work.project, work.pool)
        return (project,) if department is None else (project, (True, department, work.pool))

    def quota_milli(self, place: Place, *, notebooks: bool) -> int:
        """The quota of an owner; a department that the policy does not have limits nothing."""
        department, name, _ = place
        if department and name not in self.departments.values():
            return NO_LIMIT
        amounts = self.amounts.get(place, Amounts())
        return amounts.notebook_milli if notebooks else amounts.training_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """The old policy and the new one, and what each project uses now."""

    old: _Side
    new: _Side
    jobs_use: Mapping[Place, int]
    fixed_use: Mapping[Place, int]
    notebooks_use: Mapping[Place, int]
    falls_over: Mapping[str, Place]
    loses_device: frozenset[str]

    def of_job(self, job: Job) -> Affected | None:
        if job.state in RUNS:
            return self._of_running(job)
        if job.state is JobState.HELD and (why := self.new.nowhere(job)) and not self.old.nowhere(job):
            return Affected(work=job, effect=Effect.WAITS, after=why)
        return self._of_waiting(job)

    def _of_running(self, job: Job) -> Affected | None:
        anyway = job.id in self.old.rest.paused
        if job.id in self.new.rest.paused:
            return Affected(work=job, effect=Effect.PAUSED, after=self.new.rest.waits.get(job.id), anyway=anyway)
        if (gone := self._gone(job)) is not None:
            claimed = job.preemptible and gone.code is ReasonCode.PROJECT_GONE
            return Affected(work=job, effect=Effect.OVER_QUOTA if claimed else Effect.DRAINS, after=gone)
        if (lost := self._lost(job)) is not None:
            return lost
        over = None if job.borrower else self._over_job(job)
        return over or (Affected(work=job, effect=Effect.RUNS_ON) if anyway else None)

    def of_notebook(self, notebook: Notebook) -> Affected | None:
        if notebook.state in HOLDS_SLICE:
            if (gone := self._gone(notebook)) is not None:
                return Affected(work=notebook, effect=Effect.DRAINS, after=gone)
            return self._lost(notebook) or self._over(notebook, self.notebooks_use, Effect.DRAINS)
        refused = self.new.rest.refused.get(notebook.id)
        if refused is None:
            return self._of_waiting(notebook)
        again = notebook.id in self.old.rest.refused
        return None if again else Affected(work=notebook, effect=Effect.REFUSED, after=refused)

    def _of_waiting(self, work: Job | Notebook) -> Affected | None:
        before, after = self.old.rest.waits.get(work.id), self.new.rest.waits.get(work.id)
        if _is_as_before(before, after):
            return None
        return Affected(work=work, effect=Effect.STARTS if after is None else Effect.WAITS, before=before, after=after)

    def _gone(self, work: Job | Notebook) -> Reason | None:
        """Why the new policy no longer covers it; None where it does, or the old one did not either."""
        return self.new.outlived(work) if self.old.outlived(work) is None else None

    def _lost(self, work: Job | Notebook) -> Affected | None:
        return Affected(work=work, effect=Effect.DRAINS, loses_device=True) if work.id in self.loses_device else None

    def _over_job(self, job: Job) -> Affected | None:
        """A preemptible job that the edit puts over quota; any other one where such jobs alone are above it."""
        if not job.preemptible:
            return self._over(job, self.fixed_use, Effect.DRAINS)
        place = self.falls_over.get(job.id)
        return None if place is None else self._over_at(place, job, self.jobs_use, Effect.OVER_QUOTA)

    def _over(self, work: Job | Notebook, use: Mapping[Place, int], effect: Effect) -> Affected | None:
        """What the edit does to its project's use above quota, or its department's; None where neither is above it."""
        found = (self._over_at(place, work, use, effect) for place in self.new.places(work))
        return next((one for one in found if one is not None), None)

    def _over_at(self, place: Place, work: Job | Notebook, use: Mapping[Place, int], effect: Effect) -> Affected | None:
        """The same for one owner; None where its use is within its quota, or its quota was not lowered."""
        notebooks = isinstance(work, Notebook)
        used, quota = use[place], self.new.quota_milli(place, notebooks=notebooks)
        had = self.old.quota_milli(place, notebooks=notebooks)
        if used <= quota or quota >= had:
            return None
        department = place[1] if place[0] else None
        had = min(had, used)
        return Affected(
            work=work, effect=effect, used_milli=used, quota_milli=quota, had_milli=had, department=department
        )


def _is_as_before(before: Reason | None, after: Reason | None) -> bool:
    """Whether work waits as before, or does not wait at all: for the same reason, and for no more work to end.

    Under a lowered limit, quota or ceiling it waits for more work to end. Work that freed devices could not start
    waited in vain before, too.
    """
    if before is None or after is None:
        return before is after
    if before.code is not after.code or is_too_wide(before) is not is_too_wide(after):
        return False
    was, becomes = most_milli(before), most_milli(after)
    return is_too_wide(after) or was is None or becomes is None or becomes >= was


def _both(old: _Side, new: _Side, snapshot: Snapshot, moved: Snapshot) -> _Both:
    runs = [job for job in snapshot.jobs if job.state in RUNS and not job.borrower]
    used = _used(runs, new)
    return _Both(
        old=old,
        new=new,
        jobs_use=used,
        fixed_use=_used((job for job in runs if not job.preemptible), new),
        notebooks_use=_booked(snapshot, new),
        falls_over=_falls_over(old, new, used, _in_turn(runs, new, snapshot.now)),
        loses_device=_loses_device(snapshot, moved),
    )


def _in_turn(runs: Iterable[Job], new: _Side, now: int) -> list[tuple[Job, int]]:
    """Preemptible jobs in the order in which they would be paused, each with its GPU; elastic ones twice.

    Jobs that the new policy pauses come first. Source: docs/scheduling.md, section 4.
    """
    parts = [part for job in runs if job.preemptible for part in _parts(job)]

    def turn(part: tuple[Job, int, bool]) -> tuple[bool | int | str, ...]:
        job, _, above = part
        started_at = now if job.started_at is None else job.started_at
        saved_at = max(started_at, job.checkpoint_at or started_at)
        stays = is_protected(new.policy, job, started_at, now) and not above
        asked = job.id not in new.rest.paused, not above, stays, job.priority, max(0, now - saved_at)
        return *asked, -started_at, -job.submitted_at, job.id

    return [(job, milli) for job, milli, _ in sorted(parts, key=turn)]


def _parts(job: Job) -> list[tuple[Job, int, bool]]:
    """A job, and apart from it what an elastic one runs with above its minimum."""
    least = job.held_milli if job.min_ranks is None else min(job.held_milli, job.min_ranks * job.gpu_milli)
    above = job.held_milli - least
    return [(job, least, False), *([(job, above, True)] if above else [])]


def _falls_over(
    old: _Side, new: _Side, used: Mapping[Place, int], in_turn: Iterable[tuple[Job, int]]
) -> dict[str, Place]:
    """The first jobs that make up what the edit adds to their owners' use above quota, each with that owner.

    Of a department only jobs count whose project is above its own quota.
    """
    gone, found = Counter[Place](), dict[str, Place]()
    for job, milli in in_turn:
        for place in new.places(job):
            begins, gone[place] = gone[place], gone[place] + milli
            was, becomes = (max(0, used[place] - side.quota_milli(place, notebooks=False)) for side in (old, new))
            if begins < becomes and gone[place] > was:
                found.setdefault(job.id, place)
            if begins >= becomes:
                break
    return found


def _loses_device(snapshot: Snapshot, moved: Snapshot) -> frozenset[str]:
    """The workloads with a device of their pool that the new policy puts into another pool, or into none."""
    work: tuple[Job | Notebook, ...] = (*snapshot.jobs, *snapshot.notebooks)
    pool = {one.id: one.pool for one in work}
    was, becomes = ({device.id: device.pool for device in side.devices} for side in (snapshot, moved))
    lent = ((one.id, one.device) for one in snapshot.notebooks if one.device is not None)
    has = {*lent, *((one.workload, one.device) for one in snapshot.allocations)}
    return frozenset(
        name for name, device in has if was.get(device) == pool.get(name) and becomes.get(device) != was.get(device)
    )


def _used(runs: Iterable[Job], side: _Side) -> Counter[Place]:
    """What the jobs of each project, and of each department, run with in each pool."""
    used = Counter[Place]()
    for job in runs:
        used.update(dict.fromkeys(side.places(job), job.held_milli))
    return used


def _booked(snapshot: Snapshot, side: _Side) -> Counter[Place]:
    used = Counter[Place]()
    for notebook in snapshot.notebooks:
        if notebook.state in HOLDS_SLICE:
            used.update(dict.fromkeys(side.places(notebook), notebook.gpu_milli))
    return used
