"""Kills the processes of a pod of the node where its annotation orders it. The controllers decide, the agent does not.

An order is carried out only if its fencing number is not below the newest one, which is read for each order: the order
of a leader that was replaced is ignored. Without an answer of the API server it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from ...local.host.processes import kill_all, processes
from ...rendering.admission import FENCE, number_of
from ..client.api_server import ApiServer, RequestFailed
from .cgroup_paths import AmbiguousCgroups, pod_of
from .heartbeat import Turned
from .node_pods import NodePods
from .pod_reader import cgroups_of_process

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0


class KillOrders:
    """The orders for pods of one node. ``cgroups_of`` reads the cgroups of a process."""

    def __init__(
        self, server: ApiServer, namespace: str, pods: NodePods,
        cgroups_of: Callable[[int], str | None] = cgroups_of_process,
    ) -> None:  # fmt: skip
        self._server, self._pods, self._cgroups_of = server, pods, cgroups_of
        self._fence = f"/api/v1/namespaces/{namespace}/configmaps/{FENCE}"
        self._done: dict[str, int] = {}

    async def run(self, turned: Turned = lambda: None) -> None:
        """Carry out orders until cancelled. ``turned`` is called after each turn."""
        while True:
            try:
                await self.turn()
            except RequestFailed as error:
                log.warning("an order to kill waits: the newest fencing number cannot be read: %s", error)
            turned()
            await asyncio.sleep(CHECK_EVERY_S)

    async def turn(self) -> None:
        """Carry out each new order once. Raises RequestFailed where the newest fencing number cannot be read."""
        orders = dict(self._pods.kill_orders)
        self._done = {uid: number for uid, number in self._done.items() if uid in orders}
        for uid, number in orders.items():
            if self._done.get(uid) == number:
                continue
            newest = number_of(await self._server.get(self._fence))
            if number < newest:
                log.warning("pod %s is not killed: leader %d is older than %d", uid, number, newest)
            else:
                killed = await asyncio.to_thread(kill_all, partial(self._processes_of, uid))
                log.warning("killed %d processes of pod %s, by order of leader %d", len(killed), uid, number)
            self._done[uid] = number

    def _processes_of(self, uid: str) -> set[int]:
        return {pid for pid, each in processes().items() if each.is_alive and self._pod_of(pid) == uid}

    def _pod_of(self, pid: int) -> str | None:
        try:
            found = pod_of(self._cgroups_of(pid) or "")
        except AmbiguousCgroups:
            return None
        return None if found is None else found.uid
