"""The effect of another policy on present work: ``decide`` under both policies until their plans are empty.

Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..eviction.removal import removal_reason
from ..lifecycle import HOLDS_SLICE, RUNS
from ..model import Amounts, Department, Job, JobState, Notebook, Policy, Project, Snapshot
from ..preemption.victims import is_protected
from ..queue.quota_state import NO_LIMIT
from ..quota.in_force import in_force
from ..reason_codes import ReasonCode
from ..reason_figures import exceeds_bound_alone, max_use_milli
from ..reasons import NoSuchPool, NoSuchProject, Reason
from .projection import project

OwnerInPool = tuple[bool, str, str]
"""An owner of quota in a pool: whether it is a department, its name, the pool."""


class Effect(StrEnum):
    """The effect of another policy on one job or notebook."""

    PAUSED = "paused"  # runs, and is paused for a claim, or stopped by the drain deadline and queued again
    OVER_QUOTA = "over_quota"  # continues, and may be paused for a later claim
    DRAINS = "drains"  # continues until it ends
    RUNS_ON = "runs_on"  # continues, and would be paused under the old policy
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
    ``loses_device``: a device that it has is in another pool, or in none. ``deadline_at``: the drain deadline of the
    new policy, where it stops the job, or can stop it later.
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
    deadline_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """All affected workloads, jobs before notebooks, by id."""

    affected: tuple[Affected, ...]

    def of(self, effect: Effect) -> tuple[str, ...]:
        return tuple(one.work.id for one in self.affected if one.effect is effect)


def preview(snapshot: Snapshot, old: Policy, new: Policy, *, moved: Snapshot | None = None) -> Preview:
    """Compare two policies on one snapshot, with clock and demand frozen.

    ``moved`` is the same snapshot with its devices in the pools of the new policy, where those differ.
    Rule R65.
    """
    comparison = _Comparison(snapshot, old, new, moved or snapshot)
    jobs = (comparison.of_job(job) for job in sorted(snapshot.jobs, key=lambda job: job.id))
    notebooks = (comparison.of_notebook(one) for one in sorted(snapshot.notebooks, key=lambda one: one.id))
    return Preview(affected=tuple(one for one in (*jobs, *notebooks) if one is not None))


class _PolicyState:
    """One policy: its projection, the names that it has, and the amounts that are in force."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.policy, self.projection = policy, project(snapshot, policy)
        self.leaves = {*self.projection.paused, *self.projection.stopped}
        now = in_force(policy, snapshot.now)
        self.pools, self.departments = frozenset(policy.pools), {row.name: row.department for row in now.projects}
        owners: list[tuple[bool, Project | Department]] = [(False, row) for row in now.projects]
        owners += [(True, row) for row in now.departments]
        self.amounts = {(above, row.name, pool): one for above, row in owners for pool, one in row.amounts.items()}

    def removal_reason(self, work: Job | Notebook) -> Reason | None:
        """Why no quota covers work that has devices; None where one does."""
        deadline = self.policy.drain_by_at is not None
        return removal_reason(work, projects=self.departments, pools=self.pools, deadline=deadline)

    def why_unstartable(self, job: Job) -> Reason | None:
        """Why a held job could not start after a release; None where it could."""
        if job.pool not in self.pools:
            return NoSuchPool(pool=job.pool)
        return NoSuchProject(project=job.project) if job.project not in self.departments else None

    def owners(self, work: Job | Notebook) -> tuple[OwnerInPool, ...]:
        """The owners whose quotas cover it: its project, and its department if there is one."""
        department = self.departments.get(work.project)
        project = (False, work.project, work.pool)
        return (project,) if department is None else (project, (True, department, work.pool))

    def quota_milli(self, owner: OwnerInPool, *, notebooks: bool) -> int:
        """The quota of an owner; a department that the policy does not have limits nothing."""
        department, name, _ = owner
        if department and name not in self.departments.values():
            return NO_LIMIT
        amounts = self.amounts.get(owner, Amounts())
        return amounts.notebook_milli if notebooks else amounts.training_milli


class _Comparison:
    """The old policy and the new one, and the use of each owner now."""

    def __init__(self, snapshot: Snapshot, old: Policy, new: Policy, moved: Snapshot) -> None:
        self.old, self.new = _PolicyState(snapshot, old), _PolicyState(moved, new)
        runs = [job for job in snapshot.jobs if job.state in RUNS and not job.borrower]
        slices = [notebook for notebook in snapshot.notebooks if notebook.state in HOLDS_SLICE]
        self.jobs_use = self._use((job, job.held_milli) for job in runs)
        self.non_preemptible_use = self._use((job, job.held_milli) for job in runs if not job.preemptible)
        self.notebooks_use = self._use((notebook, notebook.gpu_milli) for notebook in slices)
        self.over_quota = self._put_over_quota(_in_victim_order(runs, self.new, snapshot.now))
        self.device_lost = _with_moved_device(snapshot, moved)
        self.is_past_deadline = new.drain_by_at is not None and new.drain_by_at <= snapshot.now

    def _use(self, rows: Iterable[tuple[Job | Notebook, int]]) -> Counter[OwnerInPool]:
        """The use of each project and department in each pool."""
        use = Counter[OwnerInPool]()
        for work, milli in rows:
            use.update(dict.fromkeys(self.new.owners(work), milli))
        return use

    def _put_over_quota(self, in_order: Iterable[tuple[Job, int]]) -> dict[str, OwnerInPool]:
        """The first jobs that make up what the edit adds to their owners' use above quota, each with that owner.

        Of a department only jobs count whose project is above its own quota.
        """
        gone, found = Counter[OwnerInPool](), dict[str, OwnerInPool]()
        for job, milli in in_order:
            for owner in self.new.owners(job):
                before, gone[owner] = gone[owner], gone[owner] + milli
                was, becomes = (
                    max(0, self.jobs_use[owner] - side.quota_milli(owner, notebooks=False))
                    for side in (self.old, self.new)
                )
                if before < becomes and gone[owner] > was:
                    found.setdefault(job.id, owner)
                if before >= becomes:
                    break
        return found

    def of_job(self, job: Job) -> Affected | None:
        if job.state in RUNS:
            return self._of_running(job)
        if job.state is JobState.HELD and (why := self.new.why_unstartable(job)) and not self.old.why_unstartable(job):
            return Affected(work=job, effect=Effect.WAITS, after=why)
        return self._of_waiting(job)

    def _of_running(self, job: Job) -> Affected | None:
        anyway = job.id in self.old.leaves
        if job.id in self.new.leaves:
            by = self.new.policy.drain_by_at if job.id in self.new.projection.stopped else None
            after = self.new.projection.waits.get(job.id)
            return Affected(work=job, effect=Effect.PAUSED, after=after, anyway=anyway, deadline_at=by)
        if (gone := self._gone(job)) is not None:
            claimed = job.preemptible and gone.code is ReasonCode.PROJECT_GONE
            return Affected(work=job, effect=Effect.OVER_QUOTA if claimed else Effect.DRAINS, after=gone)
        if (lost := self._lost(job)) is not None:
            return lost
        over = None
        if not job.preemptible:  # such a job drains where non-preemptible work alone is above the quota
            is_over = not job.borrower and not self.is_past_deadline  # what a past deadline leaves is within quota
            over = self._over(job, self.non_preemptible_use, Effect.DRAINS) if is_over else None
        elif not job.borrower and (owner := self.over_quota.get(job.id)) is not None:
            over = self._over_at(owner, job, self.jobs_use, Effect.OVER_QUOTA)
        return over or (Affected(work=job, effect=Effect.RUNS_ON) if anyway else None)

    def of_notebook(self, notebook: Notebook) -> Affected | None:
        if notebook.state in HOLDS_SLICE:
            if (gone := self._gone(notebook)) is not None:
                return Affected(work=notebook, effect=Effect.DRAINS, after=gone)
            return self._lost(notebook) or self._over(notebook, self.notebooks_use, Effect.DRAINS)
        refused = self.new.projection.refused.get(notebook.id)
        if refused is None:
            return self._of_waiting(notebook)
        again = notebook.id in self.old.projection.refused
        return None if again else Affected(work=notebook, effect=Effect.REFUSED, after=refused)

    def _of_waiting(self, work: Job | Notebook) -> Affected | None:
        before, after = self.old.projection.waits.get(work.id), self.new.projection.waits.get(work.id)
        if _is_as_before(before, after):
            return None
        return Affected(work=work, effect=Effect.STARTS if after is None else Effect.WAITS, before=before, after=after)

    def _gone(self, work: Job | Notebook) -> Reason | None:
        """Why the new policy no longer covers it; None where it does, or the old one did not either."""
        return self.new.removal_reason(work) if self.old.removal_reason(work) is None else None

    def _lost(self, work: Job | Notebook) -> Affected | None:
        if work.id not in self.device_lost:
            return None
        return Affected(work=work, effect=Effect.DRAINS, loses_device=True, deadline_at=self._deadline_at(work))

    def _deadline_at(self, work: Job | Notebook) -> int | None:
        """The drain deadline, where it can stop a job: one that may not be preempted, of an owner above its quota."""
        if isinstance(work, Notebook) or work.preemptible or self.is_past_deadline:
            return None
        owners = self.new.owners(work)
        is_above = any(
            self.non_preemptible_use[owner] > self.new.quota_milli(owner, notebooks=False) for owner in owners
        )
        return self.new.policy.drain_by_at if is_above else None

    def _over(self, work: Job | Notebook, use: Mapping[OwnerInPool, int], effect: Effect) -> Affected | None:
        """The effect on its project's use above quota, or its department's; None where neither is above it."""
        found = (self._over_at(owner, work, use, effect) for owner in self.new.owners(work))
        return next((one for one in found if one is not None), None)

    def _over_at(
        self, owner: OwnerInPool, work: Job | Notebook, use: Mapping[OwnerInPool, int], effect: Effect
    ) -> Affected | None:
        """The effect for one owner; None where its use is within its quota, or its quota was not lowered."""
        notebooks = isinstance(work, Notebook)
        used, quota = use[owner], self.new.quota_milli(owner, notebooks=notebooks)
        had = self.old.quota_milli(owner, notebooks=notebooks)
        if used <= quota or quota >= had:
            return None
        department = owner[1] if owner[0] else None
        had = min(had, used)
        return Affected(
            work=work,
            effect=effect,
            used_milli=used,
            quota_milli=quota,
            had_milli=had,
            department=department,
            deadline_at=self._deadline_at(work),
        )


def _is_as_before(before: Reason | None, after: Reason | None) -> bool:
    """Whether work waits as before, or does not wait at all: for the same reason, and for no more work to end.

    Under a lowered limit, quota or ceiling it waits for more work to end. Work that no freed device could start
    counts as waiting as before.
    """
    if before is None or after is None:
        return before is after
    if before.code is not after.code or exceeds_bound_alone(before) is not exceeds_bound_alone(after):
        return False
    was, becomes = max_use_milli(before), max_use_milli(after)
    return exceeds_bound_alone(after) or was is None or becomes is None or becomes >= was


def _in_victim_order(runs: Iterable[Job], new: _PolicyState, now: int) -> list[tuple[Job, int]]:
    """Preemptible jobs in the order in which they would be paused, each with its GPU; elastic ones twice.

    Jobs that the new policy pauses come first. Source: docs/scheduling.md, section 4.
    """
    parts = [part for job in runs if job.preemptible for part in _parts(job)]

    def order(part: tuple[Job, int, bool]) -> tuple[bool | int | str, ...]:
        job, _, above = part
        started_at = now if job.started_at is None else job.started_at
        stays = is_protected(new.policy, job, started_at, now) and not above
        asked = job.id not in new.projection.paused, not above, stays, job.priority, max(0, job.unsaved_ms(now))
        return *asked, -started_at, -job.submitted_at, job.id

    return [(job, milli) for job, milli, _ in sorted(parts, key=order)]


def _parts(job: Job) -> list[tuple[Job, int, bool]]:
    """A job, and apart from it what an elastic one runs with above its minimum."""
    least = job.held_milli if job.min_ranks is None else min(job.held_milli, job.min_ranks * job.gpu_milli)
    above = job.held_milli - least
    return [(job, least, False), *([(job, above, True)] if above else [])]


def _with_moved_device(snapshot: Snapshot, moved: Snapshot) -> frozenset[str]:
    """The workloads with a device of their pool that the new policy puts into another pool, or into none."""
    work: tuple[Job | Notebook, ...] = (*snapshot.jobs, *snapshot.notebooks)
    pool = {one.id: one.pool for one in work}
    was, becomes = ({device.id: device.pool for device in side.devices} for side in (snapshot, moved))
    lent = ((one.id, one.device) for one in snapshot.notebooks if one.device is not None)
    has = {*lent, *((one.workload, one.device) for one in snapshot.allocations)}
    return frozenset(
        name for name, device in has if was.get(device) == pool.get(name) and becomes.get(device) != was.get(device)
    )
