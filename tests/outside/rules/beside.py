"""Whether a job fits beside the guarantees of the others (R27), the order inside a project, and when a job ends."""

from __future__ import annotations

from ..model import WHOLE, Job, State
from ..places import fits_empty
from ..shares import notebooks_milli
from ..steps import Step


def others_milli(step: Step, job: Job) -> int:
    """min(training quota, wanted) of all other projects."""
    wanted = step.shares(job.pool).wanted
    force = step.in_force(job.pool)
    return sum(min(force.least(name), milli) for name, milli in wanted.items() if name != job.project)


def fits_beside(step: Step, job: Job) -> bool:
    """In amount alone; without this the job may not have the reservation."""
    return job.milli + others_milli(step, job) <= step.shares(job.pool).capacity


def packs_beside(step: Step, job: Job) -> bool:
    """In shape, too; with this the job may have the reservation.

    Parts of devices are packed side by side; a guarantee of more than a device counts as whole devices. Larger ranks
    are judged only where no other project has a guarantee.
    """
    state, projects = step.after, step.before.policy.projects
    wanted = step.shares(job.pool).wanted
    slices = [max(one.of(job.pool).notebook, notebooks_milli(name, state, job.pool)) for name, one in projects.items()]
    others = [min(one.of(job.pool).training, wanted[name]) for name, one in projects.items() if name != job.project]
    ranks = [job.gpu_milli] * job.least
    parts = [milli for milli in (*others, *ranks) if milli < WHOLE]
    whole = sum(-(-milli // WHOLE) for milli in (*others, *ranks) if milli >= WHOLE)
    free = [one for one in state.healthy(job.pool) if not one.foreign]
    if not fits_empty(job, state):
        return False
    if job.gpu_milli > WHOLE and any((*others, *slices)):
        return False
    with_slices = {part.device for one in state.slices(job.pool) for part in state.held.get(one.id, ())}
    return whole + _devices_for(parts) + max(_devices_for(slices), len(with_slices)) <= len(free)


def _devices_for(parts: list[int]) -> int:
    """How many devices parts of devices take side by side: the largest first, each where it fits first."""
    devices: list[int] = []
    for milli in sorted(parts, reverse=True):
        at = next((at for at, used in enumerate(devices) if used + milli <= WHOLE), None)
        if at is None:
            devices.append(milli)
        else:
            devices[at] += milli
    return len([used for used in devices if used])


def end_if_started(job: Job, state: State) -> int:
    return state.now + (job.time_limit_s + state.policy.grace_s) * 1000


def ends_at(job: Job, state: State) -> int:
    grace = state.policy.grace_s * 1000
    if job.leaves and job.pausing_since_at is not None:
        return job.pausing_since_at + grace
    return (job.started_at or state.now) + job.time_limit_s * 1000 + grace


def own_order(job: Job) -> tuple[int, int, str]:
    return (-job.priority, job.submitted_at, job.id)
