"""Edits of the quota file, and devices that are out: R66 to R70."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Device, Job, Owner, State
from ..steps import Action, Step
from .quotas import owners

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    yield from _gone(step)
    yield from _moved(step)
    for pool in step.pools:
        yield from _deadline(step, pool)
    yield from _drained(step)
    yield from _stopped_for_a_reason(step)


# --- projects that were taken out -------------------------------------------------------------------------------------
def _gone(step: Step) -> Found:
    """R68: what a project that was taken out has queued waits; its notebooks' requests, too."""
    policy = step.before.policy
    for action in (*step.giving(), *step.of_kind("reserve")):
        project = _project(step.before, action)
        if project is not None and policy.is_gone(project) and not _continues(step, action):
            yield "R68", f"{action.workload} gets devices or a reservation; {project} is not in the quota file"


def _project(state: State, action: Action) -> str | None:
    work = state.jobs.get(action.workload) or state.notebooks.get(action.workload)
    return None if work is None else work.project


def _continues(step: Step, action: Action) -> bool:
    """Whether it has devices, or gets back a slice that was lent."""
    notebook = step.before.notebooks.get(action.workload)
    return action.workload in step.before.held or (notebook is not None and notebook.state != "requested")


def _moved(step: Step) -> Found:
    """R68: what such a project runs is not moved, and does not grow."""
    for claim in step.claims:
        for job in claim.moved:
            if step.before.policy.is_gone(job.project):
                yield "R68", f"{job.id} is moved for {claim.preemptor}; {job.project} is not in the quota file"
    for action in step.reserving.values():
        job = step.before.jobs.get(action.workload)
        if job is not None and action.code == "grown" and step.before.policy.is_gone(job.project):
            yield "R68", f"{job.id} grows; {job.project} is not in the quota file"


# --- the deadline -----------------------------------------------------------------------------------------------------
def _deadline(step: Step, pool: str) -> Found:
    """R67: from the deadline on no work that may not be preempted runs above its quota, and no job more is stopped."""
    policy, state = step.before.policy, step.after
    due = policy.drain_by_at is not None and step.before.now >= policy.drain_by_at
    stopped = [step.before.jobs[one.workload] for one in step.of_kind("stop") if one.code == "drain_deadline"]
    for job in stopped:
        if not due:
            yield "R67", f"{job.id} is stopped by the deadline, which is not reached"
    if not due:
        return
    for owner, names in _all_owners(state):
        runs = sum(_fixed(state, job) for job in state.in_pool(pool) if job.project in names)
        if runs > owner.of(pool).training:
            yield "R67", f"{owner.name} has {runs} milli that may not be preempted; quota {owner.of(pool).training}"
    for job in stopped:
        if job.pool == pool and not _is_above(state, pool, job):
            yield "R67", f"{job.id} is stopped by the deadline, and fits the quota beside what stays"


def _all_owners(state: State) -> Iterator[tuple[Owner, tuple[str, ...]]]:
    yield from owners(state)
    for name in sorted({job.project for job in state.jobs.values() if state.policy.is_gone(job.project)}):
        yield state.policy.project(name), (name,)


def _fixed(state: State, job: Job) -> int:
    return state.held_milli(job.id) if job.runs and not job.preemptible else 0


def _is_above(state: State, pool: str, job: Job) -> bool:
    """Whether an owner of a job would be above its quota if the job stayed."""
    for owner, names in _all_owners(state):
        if job.project in names:
            runs = sum(_fixed(state, one) for one in state.in_pool(pool) if one.project in names)
            if runs + state.held_milli(job.id) > owner.of(pool).training:
                return True
    return False


# --- nodes and devices ------------------------------------------------------------------------------------------------
def _drained(step: Step) -> Found:
    """R69 and R70: what may be preempted leaves failed devices and drained nodes, and no reservation stays there.

    The rest of a drained node leaves at the deadline, if there is one.
    """
    state = step.after
    for job in [one for one in state.jobs.values() if one.runs]:
        for device in _devices(state, job):
            late = device.drain_by_at is not None and state.now >= device.drain_by_at
            if device.loses_work and (job.preemptible or late):
                yield "R69" if device.health == "unhealthy" else "R70", f"{job.id} stays on {device.id}, which is out"
    for kept in (*state.reserved.values(), *state.backfill.values()):
        lost = {one.device for one in kept.placements if not state.devices[one.device].healthy}
        is_kept = kept.starts_at is None and not state.is_lost(kept)  # R25
        if lost and not is_kept and lost.isdisjoint(one.device for one in state.held.get(kept.workload, ())):
            yield "R70", f"{min(lost)}, which takes no work, is reserved for {kept.workload}"


def _devices(state: State, job: Job) -> list[Device]:
    return [state.devices[one.device] for one in state.held.get(job.id, ())]


def _stopped_for_a_reason(step: Step) -> Found:
    """R69 and R70: what is stopped has such a device, and waits again; what may not be preempted has a deadline."""
    state = step.before
    for action in step.of_kind("stop"):
        job = state.jobs.get(action.workload)
        if job is None or action.code not in ("node_drained", "device_unhealthy"):
            continue
        devices = _devices(state, job)
        late = any(one.drain_by_at is not None and state.now >= one.drain_by_at for one in devices)
        if not (job.preemptible or late) or action.target != "paused" or all(one.healthy for one in devices):
            yield "R70", f"{job.id} is stopped ({action.code}), target {action.target}"
