"""Attempts by their records in the cluster, and on the volume once they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from ....core.model import Placement
from ....core.recovery.differences import AttemptRecord
from ...job_files.attempt_records import JobAttempts
from ..client.fencing import ClusterFence, FenceMissing
from ..client.loop_thread import LoopThread
from .jobs import KubernetesJobs
from .pod_states import rank_of, rank_status
from .records import SETTLED, STOP, attempt_of, data_of, order_of, ranks_of
from .volume import JobVolume

TIMEOUT_S = 30.0


class ClusterAttempts:
    """The attempts of one namespace, as the newest lists and watches have them."""

    def __init__(self, jobs: KubernetesJobs, thread: LoopThread, fence: ClusterFence, volume: JobVolume) -> None:
        self._jobs, self._thread, self._fence, self._volume = jobs, thread, fence, volume
        self._settled = JobAttempts(volume.state_dir)

    def newest_fence(self) -> int:
        """The number in the cluster. Raises OSError where it cannot be read."""
        try:
            return self._thread.call(self._fence.newest(), TIMEOUT_S)
        except FenceMissing:
            return 0

    def unsettled(self) -> Collection[tuple[str, int]]:
        """The attempts with a record that is not settled. Raises OSError while the records cannot be read."""
        try:
            self._thread.call(self._jobs.objects.wait_until_known(), TIMEOUT_S)
        except TimeoutError:
            raise OSError(f"the records and the pods of jobs could not be read within {TIMEOUT_S:.0f} s") from None
        found = list(self._jobs.objects.records.objects.values())
        return frozenset(attempt_of(each) for each in found if SETTLED not in data_of(each))

    def newest(self, jobs: Collection[str]) -> list[AttemptRecord]:
        """The newest attempt of each job: of the cluster, or else of the volume."""
        present: dict[str, int] = {}
        for job, attempt in self.unsettled():
            present[job] = max(attempt, present.get(job, 0))
        found = self._thread.call(self._all_of_cluster(present), TIMEOUT_S)
        return sorted(
            [*filter(None, found), *self._settled.newest([job for job in jobs if job not in present])],
            key=lambda each: each.job,
        )

    async def _all_of_cluster(self, newest: Mapping[str, int]) -> list[AttemptRecord | None]:
        """All in one call: a new leader has them within its lease, of thousands of jobs."""
        return [await self._of_cluster(job, attempt) for job, attempt in newest.items()]

    async def _of_cluster(self, job: str, attempt: int) -> AttemptRecord | None:
        """One attempt; None where it has neither a pod nor an end."""
        record = self._jobs.objects.record_of(job, attempt)
        if record is None:
            return None
        ranks = range(ranks_of(data_of(record)))
        facts = {
            rank: fact for rank in ranks if (fact := self._jobs.facts.newest.get((job, attempt, rank))) is not None
        }
        if len(facts) < len(ranks):
            facts = {fact.rank: fact for fact in await self._jobs.facts.read(job, attempt)}
        for pod in self._jobs.objects.pods_of(job, attempt):
            rank = rank_of(pod)[2]
            if rank not in facts:  # it waits for its node or its image
                facts[rank] = await asyncio.to_thread(self._volume.fact, rank_status(pod))
        order = order_of(data_of(record))
        return AttemptRecord(
            job=job, attempt=attempt, facts=tuple(facts[rank] for rank in sorted(facts)), ranks=order.get("ranks"),
            placements=tuple(Placement(**part) for part in order["placements"]) if order else None,
            stop_reason=data_of(record).get(STOP),
        ) if facts else None  # fmt: skip
