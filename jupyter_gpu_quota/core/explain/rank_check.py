"""Whether a waiting job needs a larger rank than its project can always have on one node.

Source: docs/scheduling.md, section 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lifecycle import HOLDS_GPU
from ..model import WHOLE_DEVICE, Job, NotebookState, Snapshot
from ..quota.checked_ranks import checked_ranks, pool_shape, whole_devices
from ..quota.in_force import in_force
from .counterfactual import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class UncheckedRank:
    """A rank larger than the checked shape of its project. ``checked_milli``: the largest that can always be had."""

    project: str
    rank_milli: int
    checked_milli: int


def unchecked_rank(what_if: WhatIf) -> UncheckedRank | None:
    """The rank of a job that fits its training quota and has no checked shape; None for any other workload.

    The shapes are those of the devices that are available now; slices are where they are.
    """
    job, snapshot = what_if.job, what_if.snapshot
    if job is None or not _fits_quota(what_if, job):
        return None
    slices, policy = _with_slices(snapshot), in_force(what_if.policy, snapshot.now)
    whole = whole_devices((device for device in snapshot.devices if device.id not in slices), snapshot.nodes)
    checked = checked_ranks(policy, what_if.pool, pool_shape(whole), job.gpu_models, with_slices=len(slices))
    if checked.covers(job.project, job.gpu_milli):
        return None
    checked_milli = checked.projects.get(job.project, 0) * WHOLE_DEVICE
    return UncheckedRank(project=job.project, rank_milli=job.gpu_milli, checked_milli=checked_milli)


def _with_slices(snapshot: Snapshot) -> set[str]:
    """The devices with slices of notebooks, lent ones included."""
    notebooks = {one.id for one in snapshot.notebooks}
    lent = {one.device for one in snapshot.notebooks if one.state is NotebookState.LENT and one.device}
    return lent | {one.device for one in snapshot.allocations if one.workload in notebooks}


def _fits_quota(what_if: WhatIf, job: Job) -> bool:
    """Whether the job fits the rest of its project's training quota."""
    used = sum(one.held_milli for one in what_if.snapshot.jobs if one.project == job.project and one.state in HOLDS_GPU)
    return used + job.gpu_milli * job.least_ranks <= what_if.amounts.training_milli
