"""The objects of attempts in one namespace: what is known of them, and the requests that change them.

Every request carries the number of a leader, and every deletion a precondition on what was seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ...rendering.cluster_names import FENCING, FINALIZER, HUB, JOB, attempt_name, pod_name
from ...rendering.pods import CONTAINER, MIN_GRACE_S, PodSettings, attempt_record
from ..client.api_server import AlreadyExists, ApiServer, Conflict, Json, NotFound
from ..client.informer import Informer
from ..client.kept_fields import kept_of_rank, kept_of_record
from .pod_states import is_over, is_terminal
from .records import data_of, ranks_of

log = logging.getLogger(__name__)

KNOWN_AGAIN_S = 0.2

OTHERS_GRACE_S = 5
"""The grace of containers beside that of the job, when it has ended: until they end no other pod gets the devices."""


class AttemptObjects:
    """``on_change`` is called with each record and each pod that changed."""

    def __init__(self, server: ApiServer, settings: PodSettings, on_change: Callable[[Json], None]) -> None:
        self._server, self._settings, self._on_change = server, settings, on_change
        self._core = f"/api/v1/namespaces/{settings.namespace}"
        self._claims = f"/apis/resource.k8s.io/v1/namespaces/{settings.namespace}/resourceclaims"
        selector = f"{HUB}={settings.hub},{JOB}"
        self.pods = Informer(server, f"{self._core}/pods", self._changed, kept_of_rank, labelSelector=selector)
        self.records = Informer(
            server, f"{self._core}/configmaps", self._changed, kept_of_record, labelSelector=selector
        )

    async def read_all(self, server: ApiServer) -> None:
        """Read all records and pods as they are now, by connections that no other requests wait for."""
        await self.records.list(server)
        await self.pods.list(server)

    def drop_below(self, fencing: int) -> None:
        """Drop the requests of older leaders that still wait to be sent."""
        self._server.newest_leader = fencing

    async def wait_until_known(self) -> None:
        """Wait until all records and pods were listed and are watched."""
        while True:
            if self.records.is_synced and self.pods.is_synced:
                return
            await asyncio.sleep(KNOWN_AGAIN_S)

    def record_of(self, job: str, attempt: int) -> Json | None:
        """The record of an attempt."""
        return self.records.objects.get(attempt_name(job, attempt))

    def pods_of(self, job: str, attempt: int) -> list[Json]:
        """The pods of an attempt with a record."""
        record = self.record_of(job, attempt)
        names = [] if record is None else [pod_name(job, attempt, rank) for rank in range(ranks_of(data_of(record)))]
        return [self.pods.objects[name] for name in names if name in self.pods.objects]

    async def read_pod(self, job: str, attempt: int, rank: int) -> Json | None:
        """The pod of a rank as it is now; None: it does not exist."""
        try:
            pod = await self._server.get(f"{self._core}/pods/{pod_name(job, attempt, rank)}")
        except NotFound:
            return None
        self.pods.note(pod)
        return pod

    async def read_log(self, pod: Json, limit: int) -> bytes:
        """The newest ``limit`` bytes of the log of a pod: of the job's container, as the site may add others."""
        path = f"{self._core}/pods/{pod['metadata']['name']}/log"
        return await self._server.read_log(path, limit, newest=True, container=CONTAINER)

    # --- changes --------------------------------------------------------------------------------------------------
    async def make_record(self, job: str, attempt: int, fencing: int, data: dict[str, str]) -> Json:
        """The record of an attempt; the one that exists, if there is one."""
        path = f"{self._core}/configmaps"
        try:
            made = await self._server.create(path, attempt_record(job, attempt, fencing, self._settings, data))
        except AlreadyExists:
            made = await self._server.get(f"{path}/{attempt_name(job, attempt)}")
        self.records.note(made)
        return made

    async def patch_record(
        self, job: str, attempt: int, fencing: int, data: dict[str, str], *, later: bool = False
    ) -> None:
        """Set fields of a record. ``later``: nothing waits for that."""
        path = f"{self._core}/configmaps/{attempt_name(job, attempt)}"
        body = {"metadata": {"annotations": {FENCING: str(fencing)}}, "data": data}
        self.records.note(await self._server.patch(path, body, later=later))

    async def create(self, resource: str, body: Json) -> None:
        """Create an object of an attempt, unless it exists."""
        path = self._claims if resource == "resourceclaims" else f"{self._core}/{resource}"
        try:
            made = await self._server.create(path, body)
        except AlreadyExists:
            return
        if resource == "pods":
            self.pods.note(made)

    async def delete(self, pod: Json, fencing: int, why: Mapping[str, str], grace_s: int) -> bool:
        """Delete a pod in the state in which it was marked, unless it ended before.

        Returns whether the deletion was accepted or is not needed. ``why``: the annotation of a pause, or of an
        exceeded limit; without one the rank counts as lost.
        """
        metadata, grace_s = pod["metadata"], max(MIN_GRACE_S, grace_s)
        if metadata.get("deletionGracePeriodSeconds", grace_s + 1) <= grace_s:
            return True  # it stops at least as soon
        path = f"{self._core}/pods/{metadata['name']}"
        marks = {"annotations": {FENCING: str(fencing), **why}}
        try:
            marked = await self._annotate_for_deletion(path, {"metadata": {"uid": metadata["uid"], **marks}})
            if marked is not None:
                deleted = await self._server.delete(path, {"gracePeriodSeconds": grace_s, "preconditions": marked})
                if deleted.get("kind") == "Pod":
                    self.pods.note(deleted)
        except NotFound:
            return True
        except Conflict as error:
            log.info("pod %s changed while it was stopped, the order is repeated: %s", metadata["name"], error)
            return False
        return True

    async def _annotate_for_deletion(self, path: str, marks: Json) -> Json | None:
        """Annotate a pod before its deletion. Returns the preconditions of the deletion; None if the pod has ended.

        The answer is not kept: thousands of deletions may wait.
        """
        marked = await self._server.patch(path, marks)
        self.pods.note(marked)
        return None if is_over(marked) else {name: marked["metadata"][name] for name in ("uid", "resourceVersion")}

    async def release(self, pod: Json, fencing: int) -> None:
        """Remove a pod that ended. Containers beside that of the job may still run: they have a short grace."""
        path = f"{self._core}/pods/{pod['metadata']['name']}"
        finalizers = [each for each in pod["metadata"].get("finalizers", ()) if each != FINALIZER]
        body = {"metadata": {"annotations": {FENCING: str(fencing)}, "finalizers": finalizers or None}}
        try:
            released = await self._server.patch(path, body, later=True)
        except NotFound:
            return
        metadata = released["metadata"]
        if is_terminal(released):
            if "deletionTimestamp" not in metadata:
                await self._remove(path, released)
        elif metadata.get("deletionGracePeriodSeconds", OTHERS_GRACE_S + 1) > OTHERS_GRACE_S:
            await self._remove(path, released, gracePeriodSeconds=OTHERS_GRACE_S)

    async def remove_record(self, job: str, attempt: int) -> None:
        """Remove a record; the cluster collects what it owns."""
        name = attempt_name(job, attempt)
        await self._remove(f"{self._core}/configmaps/{name}", self.records.objects.get(name))

    async def _remove(self, path: str, found: Json | None, **options: int) -> None:
        if found is not None:
            try:
                body = {"preconditions": {"uid": found["metadata"]["uid"]}, **options}
                await self._server.delete(path, body, later=True)
            except (NotFound, Conflict):
                return

    def _changed(self, key: str, now: Json | None, before: Json | None) -> None:
        if (found := now or before) is not None:
            self._on_change(found)
