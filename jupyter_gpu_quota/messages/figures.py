"""The figures of reasons for people: a label for each name, and each value with its unit."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.amounts import gpu_text
from ..core.reasons import Figure
from .rendering import instant_text, time_text

LABELS: Mapping[str, str] = {
    "ahead": "jobs of its project with a higher priority",
    "asked_milli": "requested",
    "attempt": "attempt of those processes",
    "by": "held or cancelled by",
    "capacity_milli": "capacity of the pool",
    "ceiling_milli": "ceiling for each user",
    "cluster": "cluster",
    "compute": "enforcement of compute",
    "cpu_milli": "CPU of each rank",
    "data": "data",
    "delayed_by": "projects that may start there first",
    "delaying": "number of projects that may start there first",
    "department": "department",
    "device": "device",
    "devices": "number of unavailable devices",
    "exit_status": "exit status",
    "fair_milli": "fair share",
    "freed_s": "time since its GPU was freed",
    "given_milli": "change of its GPUs",
    "gpu_milli": "slice",
    "gpu_model": "GPU model",
    "grace_s": "time to save",
    "guarantee_milli": "training quota in force",
    "kept_milli": "GPUs afterwards",
    "kind": "kind of work",
    "last_day": "last day",
    "least_compute": "required enforcement of compute",
    "least_memory": "required enforcement of memory",
    "leaving": "workloads that are being stopped there",
    "left_s": "time to the drain's deadline",
    "lent_grace_s": "time in which a borrower returns the slice",
    "limit_milli": "limit",
    "max_pauses": "limit of pauses",
    "memory": "enforcement of memory",
    "memory_mib": "memory of each rank",
    "min_runtime_s": "minimum run time",
    "most_s": "longest time limit to start before",
    "node": "node",
    "non_preemptible_milli": "used by other non-preemptible jobs",
    "notebook_milli": "part of the limit for notebooks",
    "oom_kill": "process killed for memory",
    "others_milli": "quotas of others that may be claimed",
    "per_s": "period of the limit of pauses",
    "planned_s": "time to the overdue job's planned start",
    "pool": "pool",
    "possible_ranks": "ranks that fit the empty pool",
    "preemptor": "preemptor",
    "preemptor_fair_milli": "fair share of the preemptor's project",
    "preemptor_guarantee_milli": "training quota in force of the preemptor's project",
    "preemptor_priority": "priority of the preemptor",
    "preemptor_project": "project of the preemptor",
    "preemptor_used_milli": "used by the preemptor's project",
    "priority": "priority",
    "project": "project",
    "quota_milli": "quota",
    "ran_s": "time that it ran",
    "rank": "rank",
    "ranks": "ranks",
    "release_after_s": "time until the slice is returned",
    "share_mib": "memory share",
    "stop_at": "stops at",
    "time_limit_s": "time limit",
    "took_over_from": "earlier reservations of these devices",
    "trouble": "problem",
    "unread_since_at": "cluster unread since",
    "used_mib": "memory in use",
    "used_milli": "in use",
    "user": "user",
    "waited_s": "wait of the overdue job",
    "warned_s": "time since the warning",
    "was": "state before",
    "within_s": "time to the planned start",
    "workload": "workload it waits for",
    "workloads": "first of these jobs",
}
"""The label of each figure in :mod:`..core.reasons`."""


def label(name: str) -> str:
    """The label of a figure; for one of another release its name."""
    return LABELS.get(name, name.replace("_", " "))


def value_text(name: str, value: Figure) -> str:
    """A value with the unit that ends its name: GPU, CPU, MiB, a time, an instant in UTC."""
    if isinstance(value, str):
        return value
    unit = name.rpartition("_")[2]
    match unit:
        case "milli":
            return f"{gpu_text(value)} {'CPU' if name.startswith('cpu') else 'GPU'}"
        case "mib":
            return f"{value} MiB"
        case "s":
            return time_text(value)
        case "at":
            return instant_text(value)
        case _:
            return str(value)
