"""The facts of ranks, from records, pods and files. An end is kept on the volume before it is reported."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from ....core.facts import RankFact
from ..client.api_server import Json, RequestFailed
from .attempt_objects import AttemptObjects
from .pod_states import is_waiting, rank_of, rank_status, why_lost
from .records import SETTLED, STARTED, STOP, data_of, kept_order, ranks_of, refused_of
from .volume import JobVolume

log = logging.getLogger(__name__)

Rank = tuple[str, int, int]

NO_LOG = (400, 404)
"""Statuses of a request for a log that there is none: the container never ran."""

LOG_PATIENCE_S = 30.0
"""How long a kubelet may not answer before the log of an ended rank is given up."""


class AttemptFacts:
    """``newest`` has the newest fact of each rank. ``on_waiting`` is called with each pod whose rank has not begun."""

    def __init__(self, objects: AttemptObjects, volume: JobVolume, on_waiting: Callable[[Json], None]) -> None:
        self._objects, self._volume, self._on_waiting = objects, volume, on_waiting
        self.newest: dict[Rank, RankFact] = {}
        self._ends: dict[Rank, dict[str, Any]] = {}

    def forget(self, job: str, attempt: int) -> None:
        """Drop an attempt that is settled."""
        for known in (self.newest, self._ends):
            for rank in [rank for rank in known if rank[:2] == (job, attempt)]:
                del known[rank]

    async def read(self, job: str, attempt: int) -> list[RankFact]:
        """The facts of an attempt by its record and its pods; none of one that is settled or unknown."""
        record = self._objects.record_of(job, attempt)
        if record is None or SETTLED in (data := data_of(record)):
            return []
        pods = {rank_of(pod)[2]: pod for pod in self._objects.pods_of(job, attempt)}
        refused = refused_of(data)
        found = []
        for rank in range(ranks_of(data)):
            about: dict[str, Any] = {"job": job, "attempt": attempt, "rank": rank}
            status: dict[str, Any] | None = None
            if str(rank) in refused:
                status = {**about, "refused": refused[str(rank)], "tree_gone": True}
            elif rank in pods or {STOP, STARTED} & data.keys():
                pod = pods.get(rank)
                if pod is None and (job, attempt, rank) not in self._ends:  # a record may be known before its pods
                    pod = await self._objects.read_pod(job, attempt, rank)
                status = await (self._status_of(pod, data) if pod else self._status_without_pod(about, data))
            if status is not None:
                found.append(await asyncio.to_thread(self._volume.fact, status))
        return found

    async def _status_of(self, pod: Json, data: dict[str, str]) -> dict[str, Any] | None:
        """The status of a rank with a pod; None: it has not begun. The end of one is kept before it is reported."""
        status = rank_status(pod)
        if "ended_at" in status:
            return await self._kept_end(pod, status, data)
        if is_waiting(status):
            self._on_waiting(pod)
            return None
        return status

    async def _status_without_pod(self, status: dict[str, Any], data: dict[str, str]) -> dict[str, Any]:
        """A rank that was stopped before it had a pod, or whose pod was removed by force."""
        rank = (status["job"], status["attempt"], status["rank"])
        if rank not in self._ends:
            known = await asyncio.to_thread(self._volume.ended, *rank)
            ended: dict[str, Any] = {
                **status,
                "ended_at": time.time_ns() // 1_000_000,
                "tree_gone": True,
                "exit_status": None,
            }
            if (seen := self.newest.get(rank)) is not None and seen.started_at is not None:
                ended |= {"started_at": seen.started_at, "pid": seen.handle}
            if STOP in data:
                ended |= {"pause_requested": True, "pause_reason": data[STOP]}
            if known is None:
                known = await asyncio.to_thread(self._volume.record_end, ended, None)
            self._ends[rank] = known
        return self._ends[rank]

    async def _kept_end(self, pod: Json, status: dict[str, Any], data: dict[str, str]) -> dict[str, Any] | None:
        """The record of a rank's end, with its log on the volume; None: it cannot be kept now."""
        rank = rank_of(pod)
        if rank not in self._ends:
            try:
                self._ends[rank] = await self._keep_end(pod, status | kept_order(data))
            except RequestFailed as error:
                log.info("the log of %s cannot be read, it is tried again: %s", pod["metadata"]["name"], error)
                return None
            known = self._ends[rank]
            if known.get("exit_status") is None and not known.get("pause_requested"):
                log.warning("job %s, attempt %d, rank %d was lost: %s", *rank, why_lost(pod))
        return self._ends[rank]

    async def _keep_end(self, pod: Json, status: dict[str, Any]) -> dict[str, Any]:
        known = await asyncio.to_thread(self._volume.ended, *rank_of(pod))
        if known is not None:
            return known
        return await asyncio.to_thread(self._volume.record_end, status, await self._log_of(pod))

    async def _log_of(self, pod: Json) -> bytes:
        """The log of a pod that ended; a sentence instead of one that was lost."""
        try:
            return await self._objects.read_log(pod, self._volume.log_limit_mib << 20)
        except RequestFailed as error:
            waited_s = time.time() - rank_status(pod)["ended_at"] / 1000
            if error.status not in NO_LOG and (error.status == 0 or waited_s < LOG_PATIENCE_S):
                raise
            return f"[jupyter-gpu-quota] the log was lost: {error}\n".encode()
