"""A world, a state or a plan as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .model import Job, Placement, Reservation, State
from .steps import Action, Step

WIDTH = 80


def policy_lines(state: State) -> Iterator[str]:
    """The amounts of projects and departments."""
    policy = state.policy
    yield f"grace {policy.grace_s} s, lent {policy.lent_grace_s} s, {policy.within_project}"
    yield f"min_runtime {policy.min_runtime_s} s, {policy.max_pauses} pauses per {policy.per_s} s"
    yield f"patience {policy.patience_s} s, k {policy.k_milli}, half-life {policy.half_life_s} s"
    for owner in (*policy.departments.values(), *policy.projects.values()):
        for pool, one in owner.amounts.items():
            text = f"{owner.name} in {pool}: quota {one.training}, notebooks {one.notebook}"
            text += f", limit {one.limit}, weight {one.weight}, priority {owner.priority}"
            text += f", in {owner.department}" if owner.department else ""
            text += f", per user {one.user_jobs}/{one.user_notebooks}" if one.user_jobs or one.user_notebooks else ""
            yield from _wrapped(text)


def state_lines(state: State) -> Iterator[str]:
    """The devices with their work, then what waits."""
    for device in state.devices.values():
        parts = [(name, one.gpu_milli) for name, held in state.held.items() for one in held if one.device == device.id]
        work = ", ".join(f"{_mark(state, name)} {milli}" for name, milli in parts)
        lent = [one.id for one in state.notebooks.values() if one.device == device.id]
        state_text = "" if device.healthy else " (unhealthy)"
        yield from _wrapped(f"  {device.id}{state_text}: {work}{' lent: ' + ' '.join(lent) if lent else ''}")
    for job in state.jobs.values():
        if not job.runs and not job.leaves:
            yield from _wrapped(f"  {job.state} {job_text(job)}")
    for one in state.notebooks.values():
        yield from _wrapped(f"  {one.state} {one.id} of {one.project}/{one.user}, {one.gpu_milli}, {one.activity}")
    for kept in state.reserved.values():
        yield from _wrapped(f"  reserved for {kept.workload}: {_places(kept.placements)}")
    for kept in state.backfill.values():
        yield from _wrapped(f"  backfill {_backfill(kept, state)}")
    past = ", ".join(f"{name} {amount}" for (name, _), amount in sorted(state.usage.items()) if amount)
    yield from _wrapped(f"  past use, milli-seconds: {past or 'none'}")


def _mark(state: State, workload: str) -> str:
    job = state.jobs.get(workload)
    if job is None:
        return workload
    text = (
        f"{workload}({job.project}/{job.user}{'' if job.preemptible else ' fixed'}{' borrows' if job.borrower else ''})"
    )
    return f"{text} leaves" if job.leaves else text


def job_text(job: Job) -> str:
    """A job's request and its past on one line."""
    ranks = f"{job.ranks}" if job.min_ranks is None else f"{job.min_ranks}-{job.ranks}"
    text = f"{job.id} of {job.project}/{job.user}: {ranks} x {job.gpu_milli}, priority {job.priority}"
    text += "" if job.preemptible else ", fixed"
    text += f", limit {job.time_limit_s} s"
    return text + (f", paused {len(job.paused_at)} times, for {job.paused_for}" if job.paused_at else "")


def plan_lines(step: Step) -> Iterator[str]:
    for action in step.actions:
        yield from _wrapped(f"  > {_action(action)}")
    for kept in step.backfill.values():
        yield from _wrapped(f"  > backfill {_backfill(kept, step.before)}")
    for pool in step.pools:
        fair = ", ".join(f"{name} {milli}" for name, milli in sorted(step.shares(pool).fair.items()))
        yield from _wrapped(f"  (fair shares in {pool}: {fair})")


def _action(one: Action) -> str:
    preemptor = f" for {one.preemptor}" if one.preemptor else ""
    return f"{one.kind} {one.workload}{preemptor} ({one.code}) {_places(one.placements)}".rstrip()


def _backfill(kept: Reservation, state: State) -> str:
    starts_s = (kept.planned_start - state.now) / 1000
    return f"for {kept.workload} in {starts_s:.0f} s: {_places(kept.placements)}"


def _places(placements: tuple[Placement, ...]) -> str:
    return " ".join(f"{one.device}={one.gpu_milli}" for one in placements)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="      ", drop_whitespace=True) or [""]
