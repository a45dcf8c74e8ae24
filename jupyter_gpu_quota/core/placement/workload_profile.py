"""The workload profile: the requests that are expected in a pool, with their counts (:class:`.Demand`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..model import Demand, Job

MAX_REQUESTS = 512
"""The number of requests that a profile keeps: those that ask for most GPU together, as large ones are rare."""
RankRequest = tuple[int, int, int, tuple[str, ...]]
"""The request of one rank: gpu_milli, cpu_milli, memory_mib, models (none: any)."""


def commonest_requests(counts: Mapping[RankRequest, int]) -> tuple[Demand, ...]:
    """The requests that ask for most GPU, with their counts; ties go by request."""
    return commonest(
        Demand(gpu_milli=gpu, cpu_milli=cpu, memory_mib=memory, gpu_models=models, count=count)
        for (gpu, cpu, memory, models), count in counts.items()
    )


def commonest(rows: Iterable[Demand]) -> tuple[Demand, ...]:
    """The rows that ask for most GPU, in order; ties go by request."""
    return tuple(sorted(rows, key=_most_gpu_first)[:MAX_REQUESTS])


def _most_gpu_first(row: Demand) -> tuple[int, RankRequest]:
    return -row.count * row.gpu_milli, (row.gpu_milli, row.cpu_milli, row.memory_mib, row.gpu_models)


def profile_of_jobs(jobs: Iterable[Job]) -> tuple[Demand, ...]:
    """The profile of a pool's jobs, waiting and running, by rank; empty where they ask for GPU amounts only."""
    counts = Counter[RankRequest]()
    for job in jobs:
        counts[rank_request(job)] += job.ranks
    return workload_profile(counts)


def workload_profile(counts: Mapping[RankRequest, int]) -> tuple[Demand, ...]:
    """The profile of ranks counted by request; empty where all ask for GPU amounts only.

    Counts are rounded down to 1, 2, 3, 4, 6, 8, 12, 16 ...: one job more or less seldom changes the profile, which
    would make every score invalid.
    """
    if not any(cpu or memory or models for _, cpu, memory, models in counts):
        return ()
    return commonest_requests({job_class: _rounded(count) for job_class, count in counts.items()})


def rank_request(job: Job) -> RankRequest:
    return job.gpu_milli, job.cpu_milli, job.memory_mib, job.gpu_models


def _rounded(count: int) -> int:
    """The two leading bits of a count."""
    rest = max(0, count.bit_length() - 2)
    return count >> rest << rest


class ObservedDemand:
    """The requests seen so far; a new profile is due when their number has grown by half."""

    def __init__(self) -> None:
        self._counts: dict[RankRequest, int] = {}
        self._total = 0
        self._due = 1

    def note(self, job_class: RankRequest) -> tuple[Demand, ...] | None:
        """Count one request; return the new profile if one is due."""
        self._counts[job_class] = self._counts.get(job_class, 0) + 1
        self._total += 1
        if self._total < self._due:
            return None
        self._due = max(self._total + 1, self._total * 3 // 2)
        return commonest_requests(self._counts)


def needs_score(demand: Sequence[Demand]) -> bool:
    """Whether a demand has more than GPU amounts, so that placement needs fragmentation scores."""
    return any(row.cpu_milli or row.memory_mib or row.gpu_models for row in demand)
