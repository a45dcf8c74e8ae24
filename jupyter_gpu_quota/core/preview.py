"""What another policy does to the work that is there: the same ``decide`` under both, each until nothing moves.

Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from .amounts import in_force
from .foresee import Foresight, foresee
from .lifecycle import HOLDS_SLICE
from .model import Amounts, Job, JobState, Notebook, Policy, Snapshot
from .plan import Reason, ReasonCode
from .removal import outlives

RUNS = (JobState.STARTING, JobState.RUNNING)
Place = tuple[str, str]
"""A project and a pool."""


class Effect(StrEnum):
    """What another policy does to one job or notebook."""

    PAUSED = "paused"  # runs, and is paused for somebody who claims
    OVER_QUOTA = "over_quota"  # runs on, and may be paused once somebody claims
    DRAINS = "drains"  # keeps what it has until it ends
    RUNS_ON = "runs_on"  # is not paused, as it would be without
    STARTS = "starts"  # starts instead of waiting
    WAITS = "waits"  # waits instead of starting, or for another reason
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """One workload to which something happens.

    ``before`` is why it waits under the old policy, ``after`` why it waits, drains or is refused under the new one;
    None where it does not. ``anyway``: the old policy pauses it too. ``used_milli`` and ``quota_milli``: what made its
    project over quota, None where something else did.
    """

    work: Job | Notebook
    effect: Effect
    before: Reason | None = None
    after: Reason | None = None
    anyway: bool = False
    used_milli: int | None = None
    quota_milli: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Everybody to whom something happens, jobs before notebooks, by id."""

    affected: tuple[Affected, ...]

    def of(self, effect: Effect) -> tuple[str, ...]:
        """The ids of those to whom this happens."""
        return tuple(one.work.id for one in self.affected if one.effect is effect)


def preview(snapshot: Snapshot, old: Policy, new: Policy, *, moved: Snapshot | None = None) -> Preview:
    """Compare two policies on the world as it is, with clock and demand frozen.

    ``moved`` is the same world with its devices in the pools of the new policy, where those differ.
    """
    both = _Both(
        old=_Side.of(snapshot, old),
        new=_Side.of(moved or snapshot, new),
        jobs_use=_used(snapshot),
        notebooks_use=_booked(snapshot),
    )
    jobs = (both.of_job(job) for job in sorted(snapshot.jobs, key=lambda job: job.id))
    notebooks = (both.of_notebook(one) for one in sorted(snapshot.notebooks, key=lambda one: one.id))
    return Preview(affected=tuple(one for one in (*jobs, *notebooks) if one is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One policy: the world at rest under it, the names it knows, and the amounts it has in force."""

    rest: Foresight
    projects: frozenset[str]
    pools: frozenset[str]
    deadline: bool
    amounts: Mapping[Place, Amounts]

    @classmethod
    def of(cls, snapshot: Snapshot, policy: Policy) -> _Side:
        rows = in_force(policy, snapshot.now).projects
        return cls(
            rest=foresee(snapshot, policy),
            projects=frozenset(row.name for row in rows),
            pools=frozenset(policy.pools),
            deadline=policy.drain_by_at is not None,
            amounts={(row.name, pool): amounts for row in rows for pool, amounts in row.amounts.items()},
        )

    def outlived(self, work: Job | Notebook) -> Reason | None:
        """Why no quota covers what holds devices; None where one does."""
        return outlives(work, projects=self.projects, pools=self.pools, deadline=self.deadline)

    def nowhere(self, job: Job) -> Reason | None:
        """Why a job that rests could never start, were it released."""
        if job.pool not in self.pools:
            return Reason(code=ReasonCode.NO_SUCH_POOL, figures=(("pool", job.pool),))
        if job.project not in self.projects:
            return Reason(code=ReasonCode.NO_SUCH_PROJECT, figures=(("project", job.project),))
        return None

    def quota_milli(self, work: Job | Notebook) -> int:
        amounts = self.amounts.get((work.project, work.pool), Amounts())
        return amounts.training_milli if isinstance(work, Job) else amounts.notebook_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """The old policy and the new one, and what each project uses now."""

    old: _Side
    new: _Side
    jobs_use: Mapping[Place, int]
    notebooks_use: Mapping[Place, int]

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
        over = None if job.borrower else self._over(job, self.jobs_use)
        return over or (Affected(work=job, effect=Effect.RUNS_ON) if anyway else None)

    def of_notebook(self, notebook: Notebook) -> Affected | None:
        if notebook.state in HOLDS_SLICE:
            if (gone := self._gone(notebook)) is not None:
                return Affected(work=notebook, effect=Effect.DRAINS, after=gone)
            return self._over(notebook, self.notebooks_use)
        refused = self.new.rest.refused.get(notebook.id)
        if refused is None:
            return self._of_waiting(notebook)
        again = notebook.id in self.old.rest.refused
        return None if again else Affected(work=notebook, effect=Effect.REFUSED, after=refused)

    def _of_waiting(self, work: Job | Notebook) -> Affected | None:
        before, after = self.old.rest.waits.get(work.id), self.new.rest.waits.get(work.id)
        if (before and before.code) == (after and after.code):
            return None
        return Affected(work=work, effect=Effect.STARTS if after is None else Effect.WAITS, before=before, after=after)

    def _gone(self, work: Job | Notebook) -> Reason | None:
        """Why the new policy covers it no more; None where it does, or the old one did not either."""
        return self.new.outlived(work) if self.old.outlived(work) is None else None

    def _over(self, work: Job | Notebook, use: Mapping[Place, int]) -> Affected | None:
        """What the edit makes over quota: its project uses more than it will have, and no more than it had."""
        used, quota = use.get((work.project, work.pool), 0), self.new.quota_milli(work)
        if used <= quota or used > self.old.quota_milli(work):
            return None
        effect = Effect.OVER_QUOTA if isinstance(work, Job) and work.preemptible else Effect.DRAINS
        return Affected(work=work, effect=effect, used_milli=used, quota_milli=quota)


def _used(snapshot: Snapshot) -> Counter[Place]:
    """What each project's jobs run with in each pool, without what they borrow of notebook quota."""
    used = Counter[Place]()
    for job in snapshot.jobs:
        if job.state in RUNS and not job.borrower:
            used[job.project, job.pool] += job.held_milli
    return used


def _booked(snapshot: Snapshot) -> Counter[Place]:
    used = Counter[Place]()
    for notebook in snapshot.notebooks:
        if notebook.state in HOLDS_SLICE:
            used[notebook.project, notebook.pool] += notebook.gpu_milli
    return used
