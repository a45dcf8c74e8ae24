"""A smaller request of a waiting job: fewer ranks, or less GPU for each. Source: docs/scheduling.md, section 8."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from ..model import Job
from ..placement.node_resources import CpuMemory, default_share
from .counterfactual import WhatIf


class SmallerRequest(NamedTuple):
    """By how much it is smaller, the GPU of a rank, and the number of ranks that it needs."""

    by_milli: int
    gpu_milli: int
    ranks: int


def with_request(what_if: WhatIf, job: Job, request: SmallerRequest) -> Job:
    """The job with this request. CPU and memory that were the default for its GPU are the default for less GPU."""
    changed = replace(job, gpu_milli=request.gpu_milli)
    changed = (
        replace(changed, ranks=request.ranks) if job.min_ranks is None else replace(changed, min_ranks=request.ranks)
    )
    if request.gpu_milli == job.gpu_milli or not (job.cpu_milli or job.memory_mib):
        return changed
    was, becomes = _default(what_if, job), _default(what_if, changed)
    return replace(
        changed,
        cpu_milli=becomes.cpu_milli if job.cpu_milli == was.cpu_milli else job.cpu_milli,
        memory_mib=becomes.memory_mib if job.memory_mib == was.memory_mib else job.memory_mib,
    )


def _default(what_if: WhatIf, job: Job) -> CpuMemory:
    devices = what_if.snapshot.devices
    usable = {device.node for device in devices if not job.gpu_models or device.model in job.gpu_models}
    count = Counter(device.node for device in devices)
    nodes = [node for node in what_if.snapshot.nodes if node.id in usable]
    return default_share(
        job.gpu_milli, [(CpuMemory(node.cpu_milli, node.memory_mib), count[node.id]) for node in nodes]
    )
