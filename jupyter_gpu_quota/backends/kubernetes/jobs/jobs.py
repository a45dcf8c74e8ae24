"""Jobs as pods. Each attempt has a record, a ConfigMap that owns its pods and says what was ordered.

An order is carried out in the background, one at a time for each attempt. Whatever it creates has a name that follows
from job, attempt and rank, so a repeated order creates nothing twice. A pod is kept by a finalizer until its exit
status is stored, and a record until the attempt is settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice

from ....bundle import BundleRefused
from ....core.facts import RankFact
from ...job_files.disk_use import OutputSizes
from ...job_files.trash import empty_trash
from ...protocol import Inventory, StartOrder, StopOrder
from ...rendering.claims import rank_claim
from ...rendering.cluster_names import FENCING, GIVEN_UP, JOB, STOP_REASON, attempt_name, pod_name
from ...rendering.pods import (
    MIN_GRACE_S,
    PodSettings,
    RankOfJob,
    can_reserve,
    owner_of,
    rank_pod,
    rendezvous_service,
    secret,
)
from ...rendering.site_fields import SiteFieldClash
from ...rendering.variables import without_ours
from ..client.api_server import ApiServer, Forbidden, Json, NotFound, Refused, RequestFailed, Unavailable
from ..client.fencing import ClusterFence
from ..client.loop_thread import LoopThread, all_of
from ..devices.inventory import PublishedDevice
from ..devices.shares import NotClaimable, claimed_parts
from .attempt_facts import AttemptFacts, Keep, Rank
from .attempt_objects import AttemptObjects
from .pod_states import OTHER_NODE, MayChange, Verdict, is_confirmed, is_over, rank_of, why_waiting
from .records import (
    LOST,
    REFUSED,
    SETTLED,
    STARTED,
    STOP,
    Attempt,
    attempt_of,
    data_of,
    order_field,
    ranks_of,
    refused_field,
    refused_of,
    stop_fields,
)
from .verdicts import CACHE_S, CLUSTER_S, SHOWN_S, SLOW_S, Verdicts
from .volume import NOT_PREPARED, JobVolume

log = logging.getLogger(__name__)

FENCE_TIMEOUT_S = 30.0
PUBLISH_EVERY_S, PUBLISH_REST = 2.0, 4.0
"""The interval of readings of the files of running jobs; with thousands of them, a multiple of the last reading."""

PUBLISH_BATCH, PUBLISH_AT_ONCE = 64, 4
LIMITED, MAX_OF_A_KIND = ("start", "started", "settled", "forget", "end"), 64
"""Kinds of tasks of which there may be thousands, and how many of each run at the same time.

A stop waits for the requests of so many starts, not for those of thousands. Of ends that are kept there is no limit:
one kubelet that does not answer would delay those of other nodes.
"""
STOPS_AT_ONCE = 64
"""Counted when a stop has the lock of its attempt: one that waits for a start delays no other."""

TRASH_AGAIN_S = 600.0
MAX_REMOVED = 10_000
"""Settled attempts that are remembered; the oldest are dropped first."""
NOT_CREATED = "NotCreated"
"""The word of the trouble of a rank whose objects the API server forbids now."""


class KubernetesJobs:
    """The job backend of one namespace. ``on_change`` is called after each change that ``observe`` reports.

    ``node`` returns the newest state of a node; None: it is not known.
    """

    def __init__(
        self, server: ApiServer, thread: LoopThread, fence: ClusterFence, volume: JobVolume, settings: PodSettings,
        inventory: Callable[[], Inventory | None], published: Callable[[], Mapping[str, PublishedDevice] | None],
        node: Callable[[str], Json | None], on_change: Callable[[], object] = lambda: None,
        patience_s: float = CLUSTER_S,
    ) -> None:  # fmt: skip
        self._thread, self._fence, self._volume, self._settings = thread, fence, volume, settings
        self.inventory, self._published, self._node = inventory, published, node
        self._on_change = on_change
        patience = {MayChange.NOTHING: 0, MayChange.CACHE: CACHE_S, MayChange.PULL: math.inf}
        self._verdicts = Verdicts(patience | {MayChange.CLUSTER: patience_s, MayChange.NODE: patience_s})
        self.objects = AttemptObjects(server, settings, self._changed)
        self.facts = AttemptFacts(
            self.objects, volume, self._look_why_waiting, self._remove_refused, node, self._keep_end_later,
            lambda: self._fencing > 0,
        )  # fmt: skip
        self._outputs = OutputSizes(volume.state_dir)
        self._fencing = 0
        self._locks: dict[Attempt, asyncio.Lock] = {}
        self._stops_at_once = asyncio.Semaphore(STOPS_AT_ONCE)
        for kind in LIMITED:
            thread.limit(kind, MAX_OF_A_KIND)
        self._stop_ordered_at: dict[Attempt, int] = {}
        self._lock = threading.Lock()
        self._news: dict[Rank, None] = {}
        self._dirty, self._unchanged = dict[Attempt, None](), dict[Attempt, None]()
        self._publishing, self._published_in_s = set[Attempt](), 0.0
        self._unsettled, self._removed = set[Attempt](), dict[Attempt, None]()

    @property
    def fencing(self) -> int:
        """The number of this leader; 0: it is none yet, or was replaced."""
        return self._fencing

    # --- the job backend ------------------------------------------------------------------------------------------
    def start(self, order: StartOrder) -> None:
        """Create the record and the pods of an attempt that was never started."""
        attempt_name(order.job, order.attempt)
        self._thread.run(("start", order.job, order.attempt), partial(self._start, order))

    def has_code(self, job: str, bundle: str) -> bool:
        """Whether a job has its bundle, or unpacked code on the volume."""
        return self._volume.has_code(job, bundle)

    def stop(self, order: StopOrder) -> None:
        """Record the stop, and delete the pods with the grace."""
        attempt_name(order.job, order.attempt)
        self._thread.run(("stop", order.job, order.attempt), partial(self._stop, order))

    def stop_ordered_at(self, job: str, attempt: int) -> int | None:
        """When the API server had accepted the deletion of all pods of an attempt: thousands take minutes."""
        return self._stop_ordered_at.get((job, attempt))

    def observe(self) -> Sequence[RankFact]:
        """The facts that changed, and those of ends that are not settled."""
        with self._lock:
            found = [self.facts.newest[rank] for rank in self._news if rank in self.facts.newest]
            self._news = {
                rank: None for rank in self._news if rank in self.facts.newest and _has_ended(self.facts.newest[rank])
            }
        return found

    def settled(self, job: str, attempt: int) -> None:
        """Remove the pods and the record of an attempt; its log and its end stay on the volume."""
        with self._lock:
            facts = self.facts.of_attempt(job, attempt)
            if all(fact.tree_gone for fact in facts.values()):
                for rank in facts:
                    self._news.pop(rank, None)
        self._thread.run(("settled", job, attempt), partial(self._settle, job, attempt))

    def forget(self, job: str) -> None:
        """Move a job's files to the trash. Raises OSError where the volume is away.

        Also while an attempt has a record, unlike those of each job that ended long ago: it is removed in the
        background where no attempt runs any more. The caller removes the rows of the job next, and nothing else names
        its files.
        """
        if self._attempts_of(job):
            self._thread.run(("forget", job), partial(self._forget, job))
            raise OSError(f"job {job} still has an attempt in the cluster")
        self._volume.forget(job)
        self._thread.run_again(("trash",), self._empty_trash)

    def output_sizes(self, jobs: Collection[str]) -> Mapping[str, int | None]:
        """The sizes that were measured; the others are measured in the background."""
        found = self._outputs.sizes(jobs)
        if missing := [job for job in jobs if job not in found]:
            self._thread.run(("measure outputs",), partial(asyncio.to_thread, self._outputs.measure, missing))
        return found

    def remove_outputs(self, job: str) -> None:
        """Remove a job's outputs, unless one of its attempts still runs."""
        self._thread.run(("remove outputs", job), partial(self._remove_outputs, job))

    def fence(self, fencing: int) -> None:
        """Store the number, wait until the API server refuses lower ones, and read again what there is.

        Raises OSError where another process has stored a higher one: this process leads no more.
        """
        try:
            self._thread.call(self._raise_fence(fencing), FENCE_TIMEOUT_S)
        except (RequestFailed, TimeoutError) as error:
            raise OSError(f"the fencing number {fencing} cannot be stored in the cluster: {error}") from error

    # --- starting -------------------------------------------------------------------------------------------------
    async def _start(self, order: StartOrder) -> None:
        key = order.job, order.attempt
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self.objects.record_of(*key)
            if key in self._removed or (known is not None and self._has_started(known)):
                return
            if known is None and await asyncio.to_thread(self._volume.ended, *key, 0) is not None:
                return
            if not await asyncio.to_thread(self._volume.may_start, *key, time.time_ns() // 1_000_000):
                return
            record = known or await self.objects.make_record(*key, order.fencing, order_field(order))
            if not self._has_started(record):
                await self._create_ranks_or_note(order, record)

    def _has_started(self, record: Json) -> bool:
        """Whether nothing is to be created for an attempt any more."""
        return bool({STOP, STARTED, SETTLED} & data_of(record).keys()) or self._was_created(record)

    def _was_created(self, record: Json) -> bool:
        """Whether every rank has a pod, or had one that was observed; that may not be recorded yet."""
        return len(self._created(attempt_of(record))) == ranks_of(data_of(record))

    def _created(self, key: Attempt) -> set[Rank]:
        return {rank_of(pod) for pod in self.objects.pods_of(*key)} | self.facts.created(*key)

    async def _create_ranks_or_note(self, order: StartOrder, record: Json) -> None:
        """Create the ranks; what forbids that now is their trouble, and the repeated order tries again."""
        try:
            await self._create_ranks(order, record)
        except Forbidden as error:
            self.facts.note_not_created(order.job, order.attempt, range(order.ranks), f"{NOT_CREATED}: {error}")
            self._publish_later(attempt_of(record))
            raise

    async def _create_ranks(self, order: StartOrder, record: Json) -> None:
        """Create what an attempt needs and its pods, and record that; a rank that cannot be created is refused."""
        owner = owner_of(record)
        failed = await self._prepare(order) or await self._create_shared(order, owner)
        if failed := failed or await self._create_each(order, owner):
            await self.objects.patch_record(order.job, order.attempt, order.fencing, {STARTED: "true"} | failed)
        else:
            self._record_start_later(record)

    async def _create_each(self, order: StartOrder, owner: Json) -> dict[str, str]:
        """Create the ranks that have no pod; returns the field with those that are refused."""
        created = {rank for _, _, rank in self._created((order.job, order.attempt))}
        ranks = [rank for rank in range(order.ranks) if rank not in created]
        found = await all_of([self._create_rank(order, rank, owner) for rank in ranks])
        return refused_field({rank: why for rank, why in zip(ranks, found, strict=True) if why is not None})

    def _record_start_later(self, record: Json) -> None:
        """Record that every rank has a pod. Nothing waits for that, and a stop of the attempt may overtake it.

        It is repeated while the pods are there, also by the next leader.
        """
        key = attempt_of(record)
        self._thread.run(("started", *key), partial(self._record_start, *key))

    async def _record_start(self, job: str, attempt: int) -> None:
        with contextlib.suppress(NotFound):  # the attempt was settled meanwhile
            await self.objects.patch_record(job, attempt, self._fencing, {STARTED: "true"}, later=True)

    async def _prepare(self, order: StartOrder) -> dict[str, str]:
        """Make the folders of an attempt; returns the field with why none of its ranks can start."""
        if order.live:
            return _all_refused(order, "pods do not have the folders of users")
        if without := [each.variable for each in order.data if each.claim is None]:
            return _all_refused(order, f"the quota file names no claim of pods for the data of {', '.join(without)}")
        try:
            before = await asyncio.to_thread(self._volume.unconfirmed_before, order.job, order.attempt)
            if before is not None:
                await self._thread.copy(partial(self._volume.detach, order.job, before))
            await asyncio.to_thread(self._volume.prepare, order)
        except (OSError, BundleRefused) as error:
            why = f"its folders cannot be made: {error}"
            if not await asyncio.to_thread(self._volume.may_pass, order, error):
                return _all_refused(order, why)
            log.warning("job %s, attempt %d is lost: %s", order.job, order.attempt, why)
            return {LOST: f"{NOT_PREPARED}: {why}"}
        return {}

    async def _create_shared(self, order: StartOrder, owner: Json) -> dict[str, str]:
        """Create what the ranks of an attempt share; returns the field with why none of them can start."""
        about = order.job, order.attempt, order.fencing, self._settings, owner
        try:
            if secrets := without_ours(order.secrets):
                await self.objects.create("secrets", secret(*about, secrets))
            if order.ranks > 1:
                await self.objects.create("services", rendezvous_service(*about))
        except Refused as error:
            return _all_refused(order, f"the cluster does not accept its secret or its service: {error}")
        return {}

    async def _create_rank(self, order: StartOrder, rank: int, owner: Json) -> str | None:
        """Create the claim and the pod of a rank; returns why the cluster cannot run it."""
        published = self._published()
        if published is None:
            raise Unavailable(0, "the devices of the cluster are not known")
        own = [part for part in order.placements if part.rank == rank]
        try:
            parts = claimed_parts(
                own, {each.id: each for each in order.devices}, published, can_reserve=can_reserve(self._settings)
            )
            if parts:
                about = order.job, order.attempt, rank, order.fencing, self._settings, owner, parts
                await self.objects.create("resourceclaims", rank_claim(*about))
            await self.objects.create("pods", rank_pod(self._rank(order, rank, bool(parts)), self._settings, owner))
        except (NotClaimable, SiteFieldClash) as error:
            return str(error)
        except Refused as error:
            return f"the cluster does not accept its pod: {error}"
        return None

    def _rank(self, order: StartOrder, rank: int, has_claim: bool) -> RankOfJob:
        return RankOfJob(
            job=order.job, attempt=order.attempt, rank=rank, ranks=order.ranks, fencing=order.fencing,
            command=order.command, placements=order.placements, devices=order.devices, variables=order.variables,
            secrets=tuple(without_ours(order.secrets)), directory=order.directory,
            has_code=order.bundle is not None, user=order.run_as, cpu_milli=order.cpu_milli,
            memory_mib=order.memory_mib,
            claim=pod_name(order.job, order.attempt, rank) if has_claim else None, image=order.image,
            python=order.python, data=order.data, grace_s=order.grace_s,
        )  # fmt: skip

    # --- stopping -------------------------------------------------------------------------------------------------
    async def _stop(self, order: StopOrder) -> None:
        key = order.job, order.attempt
        async with self._locks.setdefault(key, asyncio.Lock()), self._stops_at_once:
            record, asked = self.objects.record_of(*key), stop_fields(order, time.time_ns() // 1_000_000)
            if record is None:
                if await asyncio.to_thread(self._volume.ended, *key, 0) is not None:
                    return
                record = await self.objects.make_record(*key, order.fencing, asked)
            if STOP not in data_of(record):
                await self.objects.patch_record(*key, order.fencing, asked)
            pods = [pod for pod in self.objects.pods_of(*key) if not is_over(pod)]
            await asyncio.to_thread(self._request_pause, pods, order.reason)
            why = {STOP_REASON: order.reason}
            if all(await all_of([self.objects.delete(pod, order.fencing, why, order.grace_s) for pod in pods])):
                self._stop_ordered_at.setdefault(key, time.time_ns() // 1_000_000)

    def _request_pause(self, pods: Sequence[Json], reason: str) -> None:
        for pod in pods:
            self._volume.request_pause(*rank_of(pod), reason)

    def _look_why_waiting(self, pod: Json) -> str | None:
        """The trouble of a rank that waits; None: there is none. One whose verdict is final is refused, or lost."""
        job, attempt, rank = rank_of(pod)
        if (verdict := why_waiting(pod, self._node(pod["spec"].get("nodeName") or ""))) is None:
            self._verdicts.drop((job, attempt), rank)
            return None
        lasted_s = self._verdicts.take((job, attempt), rank, verdict, time.monotonic())
        if self._fencing and self._verdicts.is_final(verdict, lasted_s):
            self._thread.run(("end", job, attempt, rank), partial(self._end_waiting, pod, verdict))
        return str(verdict) if lasted_s >= SLOW_S.get(verdict.may_change, SHOWN_S) else None

    async def _end_waiting(self, pod: Json, verdict: Verdict) -> None:
        """Refuse a rank by a final verdict, or queue its job again where another pod may get another verdict."""
        job, attempt, _ = rank_of(pod)
        again = verdict.code in OTHER_NODE
        if verdict.may_change is MayChange.CACHE:
            again = await asyncio.to_thread(self._volume.lost_since, job, attempt, verdict.code) is None
        end = self._return_to_queue if again else self._refuse
        await end(pod, str(verdict))

    async def _refuse(self, pod: Json, why: str) -> None:
        """Record that a rank does not start, and remove its pod."""
        job, attempt, rank = rank_of(pod)
        async with self._locks.setdefault((job, attempt), asyncio.Lock()):
            record = self.objects.record_of(job, attempt)
            if record is not None and STOP not in data_of(record):
                refused = refused_of(data_of(record)) | {str(rank): why}
                await self.objects.patch_record(job, attempt, self._fencing, {REFUSED: json.dumps(refused)})
                await self.objects.delete(pod, self._fencing, {}, MIN_GRACE_S)

    def _remove_refused(self, pod: Json) -> None:
        """Repeat the deletion of the pod of a refused rank: the first one may have failed."""
        if self._fencing:
            delete = partial(self.objects.delete, pod, self._fencing, {}, MIN_GRACE_S)
            self._thread.run(("end", *rank_of(pod)), delete)

    async def _return_to_queue(self, pod: Json, why: str) -> None:
        """Remove a pod that its node cannot take: the job is queued again, and may be placed elsewhere."""
        log.warning("job %s, attempt %d, rank %d is queued again: %s", *rank_of(pod), why)
        await self.objects.delete(pod, self._fencing, {GIVEN_UP: why}, MIN_GRACE_S)

    # --- settling -------------------------------------------------------------------------------------------------
    async def _settle(self, job: str, attempt: int) -> None:
        """Remove what an attempt has in the cluster. Where that fails, or a pod is abandoned, it is repeated."""
        try:
            await self._remove_objects(job, attempt)
        except (RequestFailed, OSError):
            self._unsettled.add((job, attempt))
            raise

    async def _remove_objects(self, job: str, attempt: int) -> None:
        key = job, attempt
        async with self._locks.setdefault(key, asyncio.Lock()):
            pods = self.objects.pods_of(*key)
            if not all(map(is_over, pods)):
                await self._settle_abandoned(job, attempt, pods)
                return
            if self.objects.record_of(*key) is not None:
                await self.objects.patch_record(*key, self._fencing, {SETTLED: "true"}, later=True)
            if pods and all(map(is_confirmed, pods)):
                await asyncio.to_thread(self._volume.drop_detached, *key)
            await all_of([self.objects.release(pod, self._fencing) for pod in pods])
            self._note_removed(key)
            await self.objects.remove_record(*key)
            with self._lock:
                self.facts.forget(*key)
            self._verdicts.forget(key)
            self._unsettled.discard(key)
            self._locks.pop(key, None)
            self._stop_ordered_at.pop(key, None)

    def _note_removed(self, key: Attempt) -> None:
        """Remember a settled attempt.

        A late start order must not create it again, and a refused attempt leaves no record on the volume.
        """
        self._removed[key] = None
        if len(self._removed) > MAX_REMOVED:
            del self._removed[next(iter(self._removed))]

    async def _settle_abandoned(self, job: str, attempt: int, pods: Sequence[Json]) -> None:
        """Mark an attempt as settled whose pods its kubelet may still end; the rest follows when it has."""
        is_settled = SETTLED in data_of(self.objects.record_of(job, attempt) or {})
        if not is_settled and all(is_over(pod) or self.facts.has_gone(pod) for pod in pods):
            await self.objects.patch_record(job, attempt, self._fencing, {SETTLED: "true"})
            is_settled = True
        if is_settled:
            self._unsettled.add((job, attempt))

    async def _forget(self, job: str) -> None:
        if await self._may_run(job):
            return
        for key in self._attempts_of(job):
            await self._settle(*key)
        await asyncio.to_thread(self._volume.forget, job)
        self._thread.run_again(("trash",), self._empty_trash)

    async def _remove_outputs(self, job: str) -> None:
        if not await self._may_run(job):
            await asyncio.to_thread(self._outputs.move_to_trash, job)
            self._thread.run_again(("trash",), self._empty_trash)

    async def _empty_trash(self) -> None:
        """Remove what is in the trash; what cannot be removed is tried again later."""
        kept = await asyncio.to_thread(empty_trash, self._volume.state_dir)
        for path, why in kept.items():
            log.warning("%s cannot be removed, next attempt in %.0f s: %s", path, TRASH_AGAIN_S, why)
        if kept:
            self._thread.run(("trash later",), self._empty_trash_later)

    async def _empty_trash_later(self) -> None:
        await asyncio.sleep(TRASH_AGAIN_S)
        self._thread.run_again(("trash",), self._empty_trash)

    def _attempts_of(self, job: str) -> set[Attempt]:
        known = list(self.objects.records.objects.values())
        return {attempt_of(each) for each in known if each["metadata"]["labels"][JOB] == job}

    async def _may_run(self, job: str) -> bool:
        """Whether a pod of the job is not over, so that no file of it is removed; waits until that is known."""
        await self.objects.wait_until_known()
        pods = [pod for key in self._attempts_of(job) for pod in self.objects.pods_of(*key)]
        if any(not is_over(pod) for pod in pods):
            log.warning("no file of job %s is removed: it may still have processes", job)
            return True
        return False

    # --- leaders --------------------------------------------------------------------------------------------------
    async def _raise_fence(self, fencing: int) -> None:
        """Take over: read everything again, and settle what the leader before had begun to settle."""
        own, newest = max(self._fencing, fencing), await self._fence.raise_to(fencing)
        self.objects.drop_below(newest)
        self._fencing = own if newest <= own else 0
        if not self._fencing:
            raise OSError(f"leader {own} was replaced: the newest in the cluster is {newest}")
        await self.objects.read_all(self._fence.server)
        self.facts.begin_term()
        self._removed.clear()  # another database may begin the same attempts anew
        self._thread.run_again(("trash",), self._empty_trash)
        for record in self.objects.records.objects.values():
            if SETTLED in data_of(record):
                self._thread.run(("settled", *attempt_of(record)), partial(self._settle, *attempt_of(record)))
        with self._lock:
            self._news = dict.fromkeys(self.facts.newest)
        self._dirty |= dict.fromkeys(map(attempt_of, self.objects.records.objects.values()))  # their ends are kept now
        self._thread.run_again(("publish",), self._publish)

    # --- facts ----------------------------------------------------------------------------------------------------
    def _changed(self, found: Json) -> None:
        if self._fencing and int(found["metadata"].get("annotations", {}).get(FENCING, 0)) > self._fencing:
            log.info("another process leads: leader %d of this one was replaced", self._fencing)
            self._fencing = 0
        self._publish_later(attempt_of(found))

    def _keep_end_later(self, rank: Rank, keep: Keep) -> None:
        self._thread.run_again(("keep end", *rank), partial(self._keep_end, rank, keep))

    async def _keep_end(self, rank: Rank, keep: Keep) -> None:
        """Keep the end of a rank, and publish it."""
        if await keep():
            self._publish_later(rank[:2])

    def _publish_later(self, attempt: Attempt) -> None:
        self._dirty.setdefault(attempt)
        self._thread.run_again(("publish",), self._publish)

    async def publish_forever(self) -> None:
        """Publish attempts that have not ended every few seconds: their progress and checkpoints, and failed reads."""
        while True:
            await asyncio.sleep(max(PUBLISH_EVERY_S, PUBLISH_REST * self._published_in_s))
            ended = Counter(rank[:2] for rank, fact in self.facts.newest.items() if _has_ended(fact))
            for record in self.objects.records.objects.values():
                key, data = attempt_of(record), data_of(record)
                if SETTLED not in data and ended[key] < ranks_of(data):
                    self._unchanged.setdefault(key)
                if self._fencing and not {STOP, STARTED, SETTLED} & data.keys() and self._was_created(record):
                    self._record_start_later(record)
            self._thread.run(("publish",), self._publish)
            for key in tuple(self._unsettled) if self._fencing else ():
                self._thread.run(("settled", *key), partial(self._settle, *key))

    async def _publish(self) -> None:
        """Compute the facts of the attempts that changed, and then of those whose files may have changed."""
        began, reads_all = time.monotonic(), bool(self._unchanged)
        while self._dirty or self._unchanged:
            await all_of([self._publish_next() for _ in range(PUBLISH_AT_ONCE)])
        if reads_all:
            self._published_in_s = time.monotonic() - began

    async def _publish_next(self) -> None:
        """Publish one batch after the other, each attempt in one of them at a time."""
        while batch := self._next_batch():
            self._publishing |= batch
            try:
                self._note(await self.facts.read(batch))
            finally:
                self._publishing -= batch

    def _next_batch(self) -> set[Attempt]:
        """Some attempts that nobody publishes; those that changed come first."""
        for waiting in (self._dirty, self._unchanged):
            batch = set(islice((key for key in waiting if key not in self._publishing), PUBLISH_BATCH))
            for key in batch:
                self._dirty.pop(key, None)
                self._unchanged.pop(key, None)
            if batch:
                return batch
        return set()

    def _note(self, facts: Sequence[RankFact]) -> None:
        with self._lock:
            new = [fact for fact in facts if self.facts.note(fact)]
            self._news |= {(fact.job, fact.attempt, fact.rank): None for fact in new}
        if new:
            self._on_change()


def _all_refused(order: StartOrder, why: str) -> dict[str, str]:
    return refused_field(dict.fromkeys(range(order.ranks), why))


def _has_ended(fact: RankFact) -> bool:
    return fact.ended_at is not None or fact.refused is not None
