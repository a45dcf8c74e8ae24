"""Whether work waits for CPU or host memory: GPUs that it fits on are there, and no node has the rest beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..model import Job
from ..placement.place import Fit, Request, place, promise, request_of
from ..plan import Reason, ReasonCode
from ..queue.pool_state import Pool
from .plan_builder import Draft

NOT_OF_PLACES = frozenset(
    {ReasonCode.ABOVE_LIMIT, ReasonCode.ABOVE_TRAINING_QUOTA, ReasonCode.ABOVE_USER_CEILING, ReasonCode.NO_SUCH_PROJECT}
)
"""Reasons that would bind with any amount of CPU and memory."""


def waits_of(draft: Draft, jobs: Mapping[str, Job]) -> dict[str, Reason]:
    """Why each thing of a pool waits, jobs with what a rank needs of its node where that is what is short.

    Ends the draft: the place that is kept is looked at as if it were free.
    """
    waits, pool = draft.waits(), draft.pool
    promise(pool.ledger, draft.kept.pieces if draft.kept else (), lent=False, sign=-1)
    short: dict[tuple[Request, bool], bool] = {}
    for name, reason in waits.items():
        job = jobs.get(name)  # None is a notebook's slice
        if job and (job.cpu_milli or job.memory_mib) and reason.code not in NOT_OF_PLACES:
            key = request_of(job, job.least_ranks), reason.code is ReasonCode.NEVER_FITS
            if key not in short:
                short[key] = _is_short(pool, *key)
            if short[key]:
                waits[name] = _with_needs(reason, job)
    return waits


def _is_short(pool: Pool, request: Request, never: bool) -> bool:
    """Whether GPU alone would be found: in the empty pool for what can never start, else now."""
    gpu_alone = request._replace(cpu_milli=0, memory_mib=0)
    if never:
        return pool.empty.takes(gpu_alone)
    return isinstance(place(pool.ledger, gpu_alone), Fit) and not isinstance(place(pool.ledger, request), Fit)


def _with_needs(reason: Reason, job: Job) -> Reason:
    needs = (("cpu_milli", job.cpu_milli), ("memory_mib", job.memory_mib))
    return replace(reason, figures=(*reason.figures, *needs))
