"""The reservations of devices that a device plugin counts: made for shares that wait, removed after the last share.

The pods themselves are the only state. A share waits behind its scheduling gate, so a reservation that no share without
a gate uses can be removed at any moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from ....core.model import WHOLE_DEVICE
from ...rendering.cluster_names import DEVICE, DEVICE_UUID, FENCING, GPU_MILLI, HUB, RESERVATION
from ...rendering.pods import PodSettings
from ...rendering.reservations import CONTAINER, printed_uuid, reservation_pod
from ...rendering.shares import GATES
from ..client.api_server import AlreadyExists, ApiServer, Conflict, Json, NotFound, RequestFailed
from ..client.informer import Informer
from ..client.loop_thread import LoopThread
from .pod_states import is_over

log = logging.getLogger(__name__)

EVERY_S = 2.0
LOG_BYTES = 4096


class Reservations:
    """Those of one namespace. ``fencing`` returns the number of this leader; 0: this process is none."""

    def __init__(
        self, server: ApiServer, thread: LoopThread, settings: PodSettings, fencing: Callable[[], int]
    ) -> None:
        self._server, self._thread, self._settings, self._fencing = server, thread, settings, fencing
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"
        selector = f"{HUB}={settings.hub},{RESERVATION}"
        self.pods = Informer(server, self._path, self._changed, labelSelector=selector)

    async def run(self) -> None:
        """Look at all reservations every few seconds: a change that came while one was looked at is not lost."""
        while True:
            await asyncio.sleep(EVERY_S)
            for name in {_name_of(pod) for pod in self.pods.objects.values()}:
                self._look_at(name)

    def _changed(self, key: str, now: Json | None, before: Json | None) -> None:
        if (found := now or before) is not None:
            self._look_at(_name_of(found))

    def _look_at(self, name: str) -> None:
        self._thread.run_again(("reservation", name), partial(self._reconcile, name))

    async def _reconcile(self, name: str) -> None:
        """Make or remove one reservation, or start shares on it."""
        if not self._fencing() or not self.pods.is_synced:
            return
        held = self.pods.objects.get(name)
        shares = [pod for key, pod in self.pods.objects.items() if _name_of(pod) == name != key and not is_over(pod)]
        if held is not None and "deletionTimestamp" in held["metadata"]:
            return
        if held is not None and (not shares or is_over(held)):
            await self._delete(held)
        elif held is None and shares:
            await self._make(shares[0]["metadata"]["annotations"][DEVICE])
        elif held is not None and (uuid := await self._uuid_of(held)) is not None:
            await self._start(shares, uuid)

    async def _make(self, device: str) -> None:
        try:
            self.pods.note(
                await self._server.create(self._path, reservation_pod(device, self._fencing(), self._settings))
            )
        except AlreadyExists:
            return

    async def _uuid_of(self, held: Json) -> str | None:
        """The UUID of the held device, from its annotation, or else from the log of the reservation; None: not yet."""
        annotations: dict[str, str] = held["metadata"]["annotations"]
        if DEVICE_UUID in annotations or held["status"].get("phase") != "Running":
            return annotations.get(DEVICE_UUID)
        name = held["metadata"]["name"]
        found = await self._server.read_log(f"{self._path}/{name}/log", LOG_BYTES, container=CONTAINER)
        printed = found.decode(errors="replace")
        if (uuid := printed_uuid(printed)) is None:
            log.warning("reservation %s of %s does not tell its device: %r", name, annotations[DEVICE], printed[:200])
            return None
        await self._patch(held, {"annotations": {DEVICE_UUID: uuid}})
        return uuid

    async def _start(self, shares: list[Json], uuid: str) -> None:
        """Let shares start, the oldest first, as far as they fit. One that has another device is removed."""
        used = 0
        for pod in [each for each in shares if not _waits(each)]:
            if pod["metadata"]["annotations"].get(DEVICE_UUID) == uuid:
                used += _milli(pod)
            elif "deletionTimestamp" not in pod["metadata"]:
                log.warning("pod %s is stopped: its device is no longer reserved", pod["metadata"]["name"])
                await self._delete(pod)
        for pod in sorted(filter(_waits, shares), key=_age):
            if used + _milli(pod) <= WHOLE_DEVICE and "deletionTimestamp" not in pod["metadata"]:
                used += _milli(pod)
                gates = [each for each in pod["spec"]["schedulingGates"] if each not in GATES]
                await self._patch(pod, {"annotations": {DEVICE_UUID: uuid}}, {"schedulingGates": gates or None})

    async def _patch(self, pod: Json, metadata: Json, spec: Json | None = None) -> Json | None:
        """Patch the pod of this uid; None where it is gone."""
        annotations = {**metadata.get("annotations", {}), FENCING: str(self._fencing())}
        body: Json = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": annotations}}
        if spec is not None:
            body["spec"] = spec
        try:
            patched = await self._server.patch(f"{self._path}/{pod['metadata']['name']}", body)
        except (NotFound, Conflict):
            return None
        self.pods.note(patched)
        return patched

    async def _delete(self, pod: Json) -> None:
        """Delete a pod in the state in which it was marked."""
        if (marked := await self._patch(pod, {})) is None:
            return
        seen = {key: marked["metadata"][key] for key in ("uid", "resourceVersion")}
        try:
            options = {"gracePeriodSeconds": 1, "preconditions": seen}
            await self._server.delete(f"{self._path}/{pod['metadata']['name']}", options)
        except (NotFound, Conflict):
            return
        except RequestFailed as error:
            log.info("pod %s is not deleted, it is tried again: %s", pod["metadata"]["name"], error)


def _name_of(pod: Json) -> str:
    name: str = pod["metadata"]["labels"][RESERVATION]
    return name


def _waits(pod: Json) -> bool:
    """Whether it still has our gate; others may hold it by gates of their own."""
    return any(each in GATES for each in pod["spec"].get("schedulingGates") or ())


def _milli(pod: Json) -> int:
    return int(pod["metadata"]["annotations"][GPU_MILLI])


def _age(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]
