"""The logs and outputs of jobs in several clusters, each with a volume of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import BinaryIO

from ...core.model import OWN_CLUSTER
from ..protocol import MAX_OUTPUTS, LogPart, OutputList, OutputReader, Provenance


class ClustersOutputs:
    """Reads from the cluster of each job, which ``cluster_of_job`` returns."""

    def __init__(self, by_name: Mapping[str, OutputReader], cluster_of_job: Callable[[str], str]) -> None:
        self._by_name, self._cluster_of_job = by_name, cluster_of_job

    def log(self, job: str, attempt: int, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogPart:
        """At most ``limit`` bytes from ``offset``."""
        return self._of(job).log(job, attempt, rank, offset, limit)

    def outputs(self, job: str, limit: int = MAX_OUTPUTS) -> OutputList:
        """The files of a job, by path."""
        return self._of(job).outputs(job, limit)

    def open_output(self, job: str, path: str) -> BinaryIO:
        """One output, open for reading. Raises OutputRefused."""
        return self._of(job).open_output(job, path)

    def provenance(self, job: str, attempt: int) -> Provenance | None:
        """The conditions under which an attempt started."""
        return self._of(job).provenance(job, attempt)

    def _of(self, job: str) -> OutputReader:
        name = self._cluster_of_job(job)
        return self._by_name[name if name in self._by_name else OWN_CLUSTER]
