"""Whether work waits for CPU or host memory: GPUs that it fits on are there, and no node has the rest beside them."""

from __future__ import annotations

from collections.abc import Mapping

from ..frozen import with_changes
from ..model import Job
from ..placement.place import Fit, Request, place, request_of, reserve
from ..queue.pool_state import PoolState
from ..reasons import NeverFits, PausesUsedUp, Reason, Waiting, WaitsForDrain
from .plan_builder import PlanBuilder

NeedsPlacement = Waiting | PausesUsedUp | WaitsForDrain | NeverFits
"""Reasons that more devices, CPU or memory would remove, and a higher limit would not."""


def waits_of(builder: PlanBuilder, jobs: Mapping[str, Job]) -> dict[str, Reason]:
    """Why each workload of a pool waits; where CPU or memory is short, with what a rank needs of its node.

    Ends the plan: the backfill reservation is released in the ledger.
    """
    waits, pool = builder.waits(), builder.pool
    reserve(pool.ledger, builder.backfill.pieces if builder.backfill else (), borrowed=False, sign=-1)
    short: dict[tuple[Request, bool], bool] = {}
    for name, reason in waits.items():
        job = jobs.get(name)  # None is a notebook's slice
        if job and (job.cpu_milli or job.memory_mib) and isinstance(reason, NeedsPlacement):
            key = request_of(job, job.least_ranks), isinstance(reason, NeverFits)
            if key not in short:
                short[key] = _is_short(pool, *key)
            if short[key]:
                waits[name] = with_changes(reason, cpu_milli=job.cpu_milli, memory_mib=job.memory_mib)
    return waits


def _is_short(pool: PoolState, request: Request, never: bool) -> bool:
    """Whether GPU alone would be found: in the empty pool for what can never start, else now."""
    gpu_alone = request._replace(cpu_milli=0, memory_mib=0)
    if never:
        return pool.empty.takes(gpu_alone)
    return isinstance(place(pool.ledger, gpu_alone), Fit) and not isinstance(place(pool.ledger, request), Fit)
