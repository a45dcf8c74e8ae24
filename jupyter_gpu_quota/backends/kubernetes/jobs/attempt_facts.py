"""The facts of ranks, from records, pods and files. An end is kept on the volume before it is reported.

Only the leader keeps and reports ends: other processes read the same volume, and must not write to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from typing import Any

from ....core.facts import RankFact
from ..client.api_server import Json, RequestFailed
from ..devices.inventory import is_lost, why_not_ready
from .attempt_objects import AttemptObjects
from .end_logs import LOG_LOST, EndLogs
from .pod_states import (
    abandoned_status,
    is_abandoned,
    is_over,
    is_waiting,
    not_admitted,
    rank_of,
    rank_status,
    refusal,
)
from .records import LOST, SETTLED, STARTED, STOP, Attempt, data_of, kept_order, pause_before, ranks_of, refused_of
from .verdicts import CACHE_S
from .volume import JobVolume

log = logging.getLogger(__name__)

Rank = tuple[str, int, int]
Status = dict[str, Any]
Keep = Callable[[], Awaitable[bool]]

UNREADABLE = "job %s, attempt %d cannot be observed: %s"


class AttemptFacts:
    """``newest`` has the newest fact of each rank.

    ``on_waiting`` is called with each pod whose rank has not begun, and returns its trouble, if it has one.
    ``on_refused`` is called with each pod of a refused rank that is not over. ``node`` returns the newest state of a
    node; None: it is not known. ``later`` runs a call that keeps the end of a rank; where that returns true, the
    attempt is read again. ``leads``: whether this process is the leader.
    """

    def __init__(
        self, objects: AttemptObjects, volume: JobVolume, on_waiting: Callable[[Json], str | None],
        on_refused: Callable[[Json], None], node: Callable[[str], Json | None], later: Callable[[Rank, Keep], None],
        leads: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._objects, self._volume, self._on_waiting, self._node = objects, volume, on_waiting, node
        self._on_refused, self._later, self._leads = on_refused, later, leads
        self.logs, self._not_created = EndLogs(objects, volume.log_limit_mib << 20), dict[Rank, str]()
        self._keeping, self._seen_ends = set[Rank](), dict[Rank, tuple[Status, Status]]()
        self._recording_since, self._deleted = dict[Rank, float](), dict[Rank, tuple[str, float]]()
        self.newest: dict[Rank, RankFact] = {}
        self._ranks: dict[Attempt, dict[Rank, None]] = {}
        self._ends: dict[Attempt, dict[Rank, Status]] = {}

    def note(self, fact: RankFact) -> bool:
        """Take a fact; returns whether it is new."""
        rank = (fact.job, fact.attempt, fact.rank)
        if self.newest.get(rank) == fact:
            return False
        self.newest[rank] = fact
        self._ranks.setdefault(rank[:2], {})[rank] = None
        return True

    def of_attempt(self, job: str, attempt: int) -> dict[Rank, RankFact]:
        """The newest facts of one attempt."""
        return {rank: self.newest[rank] for rank in self._ranks.get((job, attempt), ())}

    def note_not_created(self, job: str, attempt: int, ranks: Iterable[int], why: str) -> None:
        """Take why ranks have no pod yet: it is their trouble until they have one."""
        created = {rank_of(pod) for pod in self._objects.pods_of(job, attempt)} | self.created(job, attempt)
        self._not_created |= {rank: why for each in ranks if (rank := (job, attempt, each)) not in created}

    def created(self, job: str, attempt: int) -> set[Rank]:
        """The ranks of an attempt that were observed, except those that had no pod yet."""
        return set(self._ranks.get((job, attempt), ())) - self._not_created.keys()

    def forget(self, job: str, attempt: int) -> None:
        """Drop an attempt that is settled."""
        for rank in [each for each in self._not_created if each[:2] == (job, attempt)]:
            del self._not_created[rank]
        for rank in self._ranks.pop((job, attempt), ()):
            del self.newest[rank]
            self._recording_since.pop(rank, None)
            self._deleted.pop(rank, None)
        self._ends.pop((job, attempt), None)

    def begin_term(self) -> None:
        """Forget how long logs and records could not be kept in an earlier term: another process led meanwhile."""
        self.logs.begin_term()
        self._recording_since.clear()

    async def read(self, attempts: Iterable[Attempt]) -> list[RankFact]:
        """The facts of attempts; those that cannot be read now are left out, and logged.

        The files of all of them are read in one thread: a change of threads for each of thousands would take longer.
        """
        found = await asyncio.gather(*(self._readable(each) for each in attempts))
        return await asyncio.to_thread(self._of_files, [status for statuses in found for status in statuses])

    async def _readable(self, attempt: Attempt) -> list[Status]:
        try:
            found = await self.statuses(*attempt)
            return found if self._leads() else [each for each in found if "ended_at" not in each]
        except (RequestFailed, OSError) as error:
            log.info(UNREADABLE, *attempt, error)
            return []

    def _of_files(self, statuses: list[Status]) -> list[RankFact]:
        found, checkpoint = [], cache(self._volume.newest_checkpoint)
        for status in statuses:
            try:
                found.append(self._volume.fact(status, checkpoint))
            except OSError as error:
                log.info(UNREADABLE, status["job"], status["attempt"], error)
        return found

    async def statuses(self, job: str, attempt: int) -> list[Status]:
        """The status of each rank by the record and the pods; none of an attempt that is settled or unknown.

        Raises RequestFailed and OSError. With the leader the end of a rank is kept on the volume before it is one.
        """
        record = self._objects.record_of(job, attempt)
        if record is None or SETTLED in (data := data_of(record)):
            return []
        pods = {rank_of(pod): pod for pod in self._objects.pods_of(job, attempt)}
        refused, found = refused_of(data), list[Status | None]()
        for rank in [(job, attempt, number) for number in range(ranks_of(data))]:
            if rank in self._keeping:
                continue
            if (why := refused.get(str(rank[2]))) is not None and not self._has_begun(rank, pods.get(rank)):
                found.append(await self._status_of_refused(rank, pods.get(rank), why))
            else:
                found.append(await self._status(rank, pods.get(rank), data))
        return [status for status in found if status is not None]

    async def _status(self, rank: Rank, pod: Json | None, data: dict[str, str]) -> Status | None:
        """The status of a rank that is not refused; None: nothing is known of it yet."""
        about = _about(rank)
        if pod is not None:
            self._not_created.pop(rank, None)
        elif (why := self._not_created.get(rank)) is not None and not {STOP, LOST} & data.keys():
            return {**about, "trouble": why}
        elif not {STOP, STARTED} & data.keys() and rank not in self.newest:
            return None
        elif rank not in self._ends_of(rank[:2]):  # a record may be known before its pods
            pod = await self._objects.read_pod(*rank)
        return self._status_of(pod, data) if pod else await self._status_without_pod(about, data)

    def _has_begun(self, rank: Rank, pod: Json | None) -> bool:
        """Whether the container of a rank ran: it may begin while its rank is refused."""
        seen = self.newest.get(rank)
        return (seen is not None and seen.handle is not None) or (pod is not None and "pid" in rank_status(pod))

    async def _status_of_refused(self, rank: Rank, pod: Json | None, why: str) -> Status:
        """The status of a refused rank: until its pod is over it may begin, so it has not ended."""
        if pod is None and rank not in self.newest:  # a record may be known before its pods
            pod = await self._objects.read_pod(*rank)
        if pod is None or is_over(pod) or self.why_abandoned(pod):
            return {**_about(rank), "refused": why, "tree_gone": True}
        self._on_refused(pod)
        return {**_about(rank), "trouble": why}

    def _status_of(self, pod: Json, data: dict[str, str]) -> Status | None:
        """The status of a rank with a pod. The end of one is kept before it is reported.

        None: it has not begun, and there is no trouble and was none.
        """
        status = abandoned_status(pod, why) if (why := self.why_abandoned(pod)) else rank_status(pod)
        if "ended_at" in status:
            return self._kept_end(pod, status, data) if self._leads() else status
        if is_waiting(status):
            if (trouble := self._on_waiting(pod)) is not None:
                return {**status, "trouble": trouble}
            return status if rank_of(pod) in self.newest else None
        return status

    def has_gone(self, pod: Json) -> bool:
        """Whether the rank of a pod was reported as gone, also if its kubelet may still end it."""
        fact = self.newest.get(rank_of(pod))
        return fact is not None and fact.tree_gone

    def why_abandoned(self, pod: Json) -> str:
        """Why no kubelet ends a pod that was deleted; empty: one does, or may."""
        if not is_abandoned(pod, time.time_ns() // 1_000_000, self._deletion_seen_for_s(pod)):
            return ""
        node = self._node(pod["spec"].get("nodeName") or "")
        return why_not_ready(node) if node is not None and is_lost(node) else ""

    def _deletion_seen_for_s(self, pod: Json) -> float:
        """Seconds since the leader first saw the present deletion of a pod; a later one may have a shorter grace."""
        if (deleted := pod["metadata"].get("deletionTimestamp")) is None or not self._leads():
            return 0.0
        now_s = time.monotonic()
        known, since_s = self._deleted.get(rank_of(pod), ("", now_s))
        if known != deleted:
            self._deleted[rank_of(pod)], since_s = (deleted, now_s), now_s
        return now_s - since_s

    async def _status_without_pod(self, status: Status, data: dict[str, str]) -> Status:
        """A rank that was stopped or lost before it had a pod, or whose pod was removed by force."""
        rank = (status["job"], status["attempt"], status["rank"])
        ends = self._ends_of(rank[:2])
        if rank not in ends:
            known = await asyncio.to_thread(self._volume.ended, *rank)
            ended: Status = {
                **status,
                "ended_at": time.time_ns() // 1_000_000,
                "tree_gone": True,
                "exit_status": None,
            }
            if (seen := self.newest.get(rank)) is not None and seen.started_at is not None:
                ended |= {"started_at": seen.started_at, "pid": seen.handle, "unconfirmed": True}
            elif LOST in data:
                ended["why_lost"] = data[LOST]
            if STOP in data:
                ended |= {"pause_requested": True, "pause_reason": data[STOP]}
            if known is None:
                if not self._leads():
                    return ended
                known = await self._record_end(rank, ended, None)
            ends[rank] = known
        return ends[rank]

    def _ends_of(self, attempt: Attempt) -> dict[Rank, Status]:
        return self._ends.setdefault(attempt, {})

    def _kept_end(self, pod: Json, status: Status, data: dict[str, str]) -> Status | None:
        """The record of a rank's end, with its log on the volume; None: it is being kept, and no other end waits."""
        rank = rank_of(pod)
        if (known := self._ends_of(rank[:2]).get(rank)) is None:
            asked = {} if "notice" in status else pause_before(data, status["ended_at"])
            # a stop order or an eviction that comes while it is kept is too late
            first, asked = self._seen_ends.setdefault(rank, (status, asked))
            status = status if first["exit_status"] is None else first
            self._keeping.add(rank)
            self._later(rank, partial(self._keep_end, pod, status | asked, data))
        return known

    async def _keep_end(self, pod: Json, status: Status, data: dict[str, str]) -> bool:
        """Keep the log and the record of an end. Returns whether they are kept; else it is tried again."""
        rank = rank_of(pod)
        try:
            kept = await self._recorded_end(pod, status, data)
        except (RequestFailed, OSError) as error:
            log.info("the end of %s cannot be kept, it is tried again: %s", pod["metadata"]["name"], error)
            return False
        finally:
            self._keeping.discard(rank)
        kept.pop("placements", None)  # of thousands of ends; no fact has them
        self._ends_of(rank[:2])[rank] = kept
        self._seen_ends.pop(rank, None)
        if "why_lost" in kept and not kept.get("pause_requested"):
            log.warning("job %s, attempt %d, rank %d was lost: %s", *rank, kept["why_lost"])
        return True

    async def _recorded_end(self, pod: Json, status: Status, data: dict[str, str]) -> Status:
        known = await asyncio.to_thread(self._volume.ended, *rank_of(pod))
        if known is not None:
            return known
        status = await asyncio.to_thread(self._refused_if_lasting, pod, status)
        kept = await self.logs.read(pod) if is_over(pod) else LOG_LOST.format(status["why_lost"]).encode()
        return await self._record_end(rank_of(pod), status | kept_order(data), kept)

    async def _record_end(self, rank: Rank, status: Status, log_of_rank: bytes | None) -> Status:
        """Keep the log and the record of an end. Raises OSError: it is tried again, on a full volume for a while.

        The end itself has the time of its node, whose clock may differ.
        """
        now_s = time.monotonic()
        waited_s = now_s - self._recording_since.setdefault(rank, now_s)
        found = await asyncio.to_thread(self._volume.record_end, status, log_of_rank, waited_s)
        self._recording_since.pop(rank, None)
        return found

    def _refused_if_lasting(self, pod: Json, status: Status) -> Status:
        """The end of a rank; one that its kubelets have not admitted for a while is refused, and not queued again.

        A kubelet that starts may not know its devices yet, so that one attempt after the other fails in seconds.
        """
        if not (reason := not_admitted(pod)) or "why_lost" not in status:
            return status
        since = self._volume.lost_since(*rank_of(pod)[:2], reason)
        if since is None or status["ended_at"] - since < CACHE_S * 1000:
            return status
        return {name: value for name, value in status.items() if name != "why_lost"} | refusal(status["why_lost"])


def _about(rank: Rank) -> Status:
    return {"job": rank[0], "attempt": rank[1], "rank": rank[2]}
