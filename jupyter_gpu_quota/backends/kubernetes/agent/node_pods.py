"""The pods of the agent's node in the namespace of the jobs, and the workload of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ...rendering.cluster_names import HUB, JOB, KILL, NOTEBOOK
from ..client.api_server import ApiServer, Json, RequestFailed
from ..client.informer import Informer
from .heartbeat import Turned

LIST_AGAIN_S = 5.0
MAX_GONE = 10_000
"""So many pods without an object stay known. One that has an object is always known: else its workload is idle."""


class PodUnknown(Exception):
    """Whether this pod is one of ours is not known yet."""


class NodePods:
    """The agent may list the pods of one namespace only.

    So a pod is that of others only if a list lacks it that began after its first process was seen. A pod stays known
    after its object is gone: its processes may still run. ``kill_orders`` are fencing numbers by the uid of a pod.
    """

    def __init__(
        self, server: ApiServer, namespace: str, node: str, hub: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        path, selector = f"/api/v1/namespaces/{namespace}/pods", f"spec.nodeName={node}"
        self.informer = Informer(server, path, self._note, kept=_kept, fieldSelector=selector)
        self._hub, self._clock = hub, clock
        self.kill_orders: dict[str, int] = {}
        self._workloads: dict[str, str | None] = {}
        self._gone, self._missing = dict[str, None](), dict[str, float]()
        self._listed_at = float("-inf")

    async def run(self, turned: Turned = lambda: None) -> None:
        """Follow the pods until cancelled. ``turned`` is called after each look for unknown ones."""
        await asyncio.gather(self.informer.run(), self._list_for_missing(turned))

    def workload_of(self, uid: str) -> str | None:
        """The job or notebook of a pod; None for a pod of others. Raises PodUnknown."""
        if uid in self._workloads:
            return self._workloads[uid]
        if self._missing.setdefault(uid, self._clock()) < self._listed_at:
            return None
        raise PodUnknown(uid)

    async def list_for_missing(self) -> None:
        """List all pods again if a process of an unknown pod was seen since the last list. Raises RequestFailed."""
        began = self._clock()
        if any(seen_at >= self._listed_at for seen_at in self._missing.values()):
            await self.informer.list()
            self._listed_at = began

    async def _list_for_missing(self, turned: Turned) -> None:
        while True:
            try:
                await self.list_for_missing()
            except RequestFailed:
                self.informer.is_synced = False  # it lists or watches again, with its own pauses
            turned()
            await asyncio.sleep(LIST_AGAIN_S)

    def _note(self, name: str, pod: Json | None, before: Json | None) -> None:
        if before is not None and (pod is None or pod["metadata"]["uid"] != before["metadata"]["uid"]):
            self.kill_orders.pop(before["metadata"]["uid"], None)
            self._gone[before["metadata"]["uid"]] = None
            if len(self._gone) > MAX_GONE:
                oldest = next(iter(self._gone))
                del self._gone[oldest], self._workloads[oldest]
        if pod is None:
            return
        labels, uid = pod["metadata"].get("labels") or {}, pod["metadata"]["uid"]
        is_ours = labels.get(HUB) == self._hub
        self._workloads[uid] = (labels.get(JOB) or labels.get(NOTEBOOK)) if is_ours else None
        self._missing.pop(uid, None)
        self._gone.pop(uid, None)
        number = (pod["metadata"].get("annotations") or {}).get(KILL, "")
        if is_ours and number.isascii() and number.isdigit():
            self.kill_orders[uid] = int(number)
        if len(self._missing) > MAX_GONE:
            del self._missing[next(iter(self._missing))]


def _kept(pod: Json) -> Json:
    return {"metadata": {name: pod["metadata"].get(name) for name in ("name", "uid", "resourceVersion")}}
