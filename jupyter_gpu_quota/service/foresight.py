"""Why work waits, what a new job would meet, what another quota file would do: the core's own answers, as views."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core import explain as core_explain
from ..core import foresee
from ..core.lifecycle import HOLDS_GPU, WAITING
from ..core.model import Job, JobState, NotebookState, Policy, Project, Snapshot
from ..core.plan import Reason
from ..core.pool import read_pools
from ..core.quota import Share
from ..core.round import Round
from ..core.schedule import Decision, decide_and_explain
from ..quotafile import QuotaFile
from ..store.protocol import JobRecord, JobSpec, NotebookRecord
from ..wire import (
    AffectedView,
    DryRunView,
    ExplainView,
    PreviewView,
    ProjectPoolView,
    ReasonView,
    WouldStart,
)
from .access import Person, sees_work
from .arithmetic import arithmetic_of
from .views import maybe_instant, reason_view

if TYPE_CHECKING:
    from .door import Door
    from .world import World

FRESH_S = 1.0
EXPLAINED_FRESH_S = 2.0
MOST_EXPLAINED = 500


@dataclass(frozen=True, slots=True)
class _Decided:
    version: int
    revision: int
    at: float
    decision: Decision


class Foresight:
    """What ``decide`` says of the mirror, kept for a second; computed outside the event loop."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: _Decided | None = None
        self._thinking: asyncio.Task[Decision | None] | None = None
        self._explained: dict[str, tuple[tuple[int, int], float, core_explain.Explanation]] = {}
        self._shares: tuple[tuple[int, int], float, Mapping[tuple[str, str], Share]] | None = None

    def wait_of(self, workload: str) -> Reason | None:
        """Why something waits, as far as was last thought of."""
        return self._last.decision.waits.get(workload) if self._last else None

    async def think(self) -> Decision | None:
        """The decision on the world as it is, at most a second old; None while no quota file is in force."""
        world, last = self._world, self._last
        if world.quota is None:
            return None
        now = asyncio.get_running_loop().time()
        same = last and (last.version, last.revision) == (world.mirror.version, world.quota.revision)
        if last and (same or now - last.at < FRESH_S):
            return last.decision
        if self._thinking is None or self._thinking.done():
            self._thinking = asyncio.create_task(self._think(now))
        return await asyncio.shield(self._thinking)

    async def _think(self, now: float) -> Decision | None:
        quota = self._world.quota
        if quota is None:
            return None
        snapshot = self.snapshot()
        decision = await self._world.think(decide_and_explain, snapshot, quota.policy)
        self._last = _Decided(snapshot.version, quota.revision, now, decision)
        return decision

    def snapshot(self) -> Snapshot:
        return self._world.mirror.snapshot(self._world.now())

    async def explain(self, workload: str, policy: Policy) -> core_explain.Explanation:
        """The core's explanation, at most 2 s old unless nothing changed. Raises KeyError for what has ended."""
        now, key = asyncio.get_running_loop().time(), (self._world.mirror.version, policy.revision)
        known = self._explained.get(workload)
        if known and (known[0] == key or now - known[1] < EXPLAINED_FRESH_S):
            return known[2]
        told = await self._world.think(core_explain.explain, self.snapshot(), policy, workload)
        if len(self._explained) >= MOST_EXPLAINED:
            self._explained.clear()
        self._explained[workload] = (key, now, told)
        return told

    async def standings(self) -> dict[tuple[str, str], ProjectPoolView]:
        """Each project in each of its pools, by (project, pool)."""
        quota = self._world.quota
        if quota is None:
            return {}
        shares, use = await self._divided(quota.policy), _use_of(self._world)
        return {
            (project.name, pool): _standing_view(project, pool, use, shares.get((project.name, pool)))
            for project in quota.policy.projects
            for pool in project.amounts
        }

    async def _divided(self, policy: Policy) -> Mapping[tuple[str, str], Share]:
        """Each project's guarantee and fair share now, by (project, pool); at most a second old."""
        now = asyncio.get_running_loop().time()
        key = (self._world.mirror.version, policy.revision)
        if self._shares is None or (self._shares[0] != key and now - self._shares[1] >= FRESH_S):
            self._shares = (key, now, await self._world.think(_shares_of, self.snapshot(), policy))
        return self._shares[2]


def _shares_of(snapshot: Snapshot, policy: Policy) -> dict[tuple[str, str], Share]:
    """The division that ``decide`` makes of every pool."""
    pools = read_pools(snapshot, policy, frozenset())
    for pool in pools:
        Round(pool).run()
    return {
        (name, pool.name): Share(guarantee_milli=one.guarantee, fair_milli=one.fair)
        for pool in pools
        for name, one in pool.standings.items()
    }


@dataclass(frozen=True, slots=True)
class _Use:
    notebook: Counter[tuple[str, str]]
    training: Counter[tuple[str, str]]
    borrowed: Counter[tuple[str, str]]
    queued: Counter[tuple[str, str]]


def _use_of(world: World) -> _Use:
    use = _Use(Counter(), Counter(), Counter(), Counter())
    for record in world.mirror.jobs.values():
        job = record.job
        key = (job.project, job.pool)
        if job.state in HOLDS_GPU:
            (use.borrowed if job.borrower else use.training)[key] += job.gpu_milli * job.ranks
        elif job.state in WAITING:
            use.queued[key] += 1
    for slice_ in world.mirror.notebooks.values():
        if slice_.notebook.state is NotebookState.BOOKED:
            use.notebook[slice_.notebook.project, slice_.notebook.pool] += slice_.notebook.gpu_milli
    return use


def _standing_view(project: Project, pool: str, use: _Use, share: Share | None) -> ProjectPoolView:
    amounts, key = project.amounts[pool], (project.name, pool)
    return ProjectPoolView(
        pool=pool,
        notebook_milli=amounts.notebook_milli,
        training_milli=amounts.training_milli,
        limit_milli=amounts.limit_milli,
        weight=amounts.weight,
        notebook_used_milli=use.notebook[key],
        training_used_milli=use.training[key],
        borrowed_milli=use.borrowed[key],
        fair_share_milli=share.fair_milli if share else 0,
        in_force_training_milli=share.guarantee_milli if share else 0,
        queued_jobs=use.queued[key],
    )


# --- one job before it is submitted -----------------------------------------------------------------------------------
async def dry_run(door: Door, person: Person, spec: JobSpec) -> DryRunView:
    """What a job would meet if it were submitted now."""
    quota = door.world.quota
    assert quota is not None, "a spec is only made under a quota file"
    job = Job(
        id=door.new_id(door.clock()),
        project=spec.project,
        user=person.id,
        pool=spec.pool,
        gpu_milli=spec.gpu_milli,
        submitted_at=door.clock(),
        ranks=spec.ranks,
        gpu_model=spec.gpu_model,
        priority=spec.priority,
        preemptible=spec.preemptible,
        time_limit_s=spec.time_limit_s,
    )
    met = await door.world.think(foresee.dry_run, door.foresight.snapshot(), quota.policy, job)
    return DryRunView(
        starts_now=met.starts_now,
        pauses=_affected(
            door, person, met.pauses, "paused", "would be paused for it and queued again in its old place"
        ),
        reason=reason_view(met.reason, door.world),
        charged_milli=spec.gpu_milli * spec.ranks,
    )


def _affected(door: Door, person: Person, jobs: Iterable[str], effect: str, what: str) -> list[AffectedView]:
    """Jobs that something would happen to; of those one may not see, only that there is one."""
    views = []
    for name in jobs:
        record = door.world.mirror.jobs.get(name)
        if record is None:
            continue
        job, private = record.job, record.spec.private
        seen = sees_work(person, project=job.project, owner=job.user, private=private)
        user = door.world.name_of(job.user) if seen else "another user"
        views.append(
            AffectedView.model_validate(
                {
                    "job": name if seen else "hidden",
                    "project": job.project if seen else "another project",
                    "user": user,
                    "effect": effect,
                    "message": f"{user}'s job {record.spec.name if seen else ''}".rstrip() + f" {what}.",
                }
            )
        )
    return views


# --- another quota file -----------------------------------------------------------------------------------------------
async def preview(door: Door, person: Person, file: QuotaFile) -> PreviewView:
    """The arithmetic of every pool under another file, and everybody whose work it would move."""
    world = door.world
    snapshot = under(file, door.foresight.snapshot(), {node.id: node.name for node in world.nodes.values()})
    present = world.quota
    new = file.policy((present.revision if present else 0) + 1)
    old = present.policy if present else Policy(revision=0)
    sums = arithmetic_of(snapshot.devices, new)
    seen = await world.think(foresee.preview, snapshot, old, new)
    affected = [
        *_affected(door, person, seen.paused, "paused", "is paused and queued again in its old place"),
        *_affected(door, person, seen.start_sooner, "starts", "starts instead of waiting"),
        *_affected(door, person, seen.wait_longer, "waits", "waits instead of starting"),
        *_affected(door, person, seen.other_reason, "waits", "waits for another reason than now"),
    ]
    return PreviewView(arithmetic=[*sums.sentences], refusals=[*sums.refusals], affected=affected)


def under(file: QuotaFile, snapshot: Snapshot, node_names: Mapping[str, str]) -> Snapshot:
    """The same world with its devices in the pools of another file."""
    devices = tuple(
        replace(device, pool=file.pool_of(device, node_names.get(device.node, ""))) for device in snapshot.devices
    )
    return replace(snapshot, devices=devices)


# --- why --------------------------------------------------------------------------------------------------------------
async def explanation(door: Door, record: JobRecord | NotebookRecord) -> ExplainView:
    """The binding reason of a job or notebook, and the smallest changes that would start it."""
    work = record.job if isinstance(record, JobRecord) else record.notebook
    quota = door.world.quota
    waits = work.state in (JobState.QUEUED, JobState.PAUSED, NotebookState.REQUESTED)
    if quota is None or not waits:
        return ExplainView(
            id=work.id, state=work.state, reason=_settled(door, record), would_start=[], estimate_at=None
        )
    try:
        told = await door.foresight.explain(work.id, quota.policy)
    except KeyError:  # it ended between the two looks
        return ExplainView(
            id=work.id, state=work.state, reason=_settled(door, record), would_start=[], estimate_at=None
        )
    reason = told.reason or record.reason
    said = reason_view(reason, door.world) if reason else _settled(door, record)
    return ExplainView(
        id=work.id,
        state=work.state,
        reason=said.model_copy(update={"message": told.sentence}),
        would_start=[WouldStart(kind=change.kind, message=change.sentence) for change in told.would_start],
        estimate_at=maybe_instant(told.estimate_at),
    )


def _settled(door: Door, record: JobRecord | NotebookRecord) -> ReasonView:
    """The reason of what does not wait; where none was recorded, its state says it."""
    if record.reason is not None:
        return reason_view(record.reason, door.world)
    state = record.job.state if isinstance(record, JobRecord) else record.notebook.state
    noun = "job" if isinstance(record, JobRecord) else "notebook's slice"
    return ReasonView(code=state, figures={}, message=f"The {noun} is {state}.")
