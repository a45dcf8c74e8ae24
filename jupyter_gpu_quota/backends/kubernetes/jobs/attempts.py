"""Attempts by their records in the cluster, and on the volume once they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from functools import cache

from ....core.facts import RankFact
from ....core.model import Placement
from ....core.recovery.differences import AttemptRecord
from ...job_files.attempt_records import JobAttempts
from ..client.api_server import RequestFailed
from ..client.fencing import ClusterFence, FenceMissing
from ..client.loop_thread import LoopThread
from .jobs import KubernetesJobs
from .pod_states import rank_of, rank_status
from .records import SETTLED, STOP, Attempt, Json, attempt_of, data_of, order_of, ranks_of
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
        except RequestFailed as error:
            raise OSError(f"the fencing number of the cluster cannot be read: {error}") from error

    def left_out(self) -> Mapping[str, bool]:
        """None: there is one cluster."""
        return {}

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
        try:
            found = self._thread.call(self._of_cluster(present.items()), TIMEOUT_S)
        except RequestFailed as error:
            raise OSError(f"the attempts of the cluster cannot be read: {error}") from error
        return sorted(
            [*found, *self._settled.newest([job for job in jobs if job not in present])], key=lambda each: each.job
        )

    async def _of_cluster(self, attempts: Iterable[Attempt]) -> list[AttemptRecord]:
        """Attempts of the cluster; one that has neither a pod nor an end is left out.

        All in one call, and no request for a rank that has a pod: a new leader compares thousands of them.
        """
        records = {each: record for each in attempts if (record := self._jobs.objects.record_of(*each)) is not None}
        statuses, unseen = list[Json](), list[Attempt]()
        facts = {each: dict[int, RankFact]() for each in records}
        for each, record in records.items():
            known = {rank[2]: fact for rank, fact in self._jobs.facts.of_attempt(*each).items()}
            pods = {rank_of(pod)[2]: pod for pod in self._jobs.objects.pods_of(*each)}
            facts[each] |= known
            statuses += [rank_status(pod) for rank, pod in pods.items() if rank not in known]
            if len(known.keys() | pods.keys()) < ranks_of(data_of(record)):
                unseen.append(each)
        for each in unseen:
            statuses += await self._jobs.facts.statuses(*each)
        checkpoint = cache(self._volume.newest_checkpoint)
        for fact in await asyncio.to_thread(lambda: [self._volume.fact_of_pod(each, checkpoint) for each in statuses]):
            facts[fact.job, fact.attempt].setdefault(fact.rank, fact)
        return [_attempt_record(record, facts[each]) for each, record in records.items() if facts[each]]


def _attempt_record(record: Json, facts: Mapping[int, RankFact]) -> AttemptRecord:
    (job, attempt), order = attempt_of(record), order_of(data_of(record))
    return AttemptRecord(
        job=job, attempt=attempt, facts=tuple(facts[rank] for rank in sorted(facts)), ranks=order.get("ranks"),
        placements=tuple(Placement(**part) for part in order["placements"]) if order else None,
        stop_reason=data_of(record).get(STOP),
    )  # fmt: skip
