"""The fencing number in the cluster: the API server refuses the requests of a leader that was replaced."""

from __future__ import annotations

import asyncio
import time

from ...rendering.admission import FENCE, NUMBER, fence
from ...rendering.cluster_names import FENCING
from .api_server import ApiServer, Conflict, Json, NotFound, Refused

IN_FORCE_WITHIN_S, PROBE_AGAIN_S = 10.0, 0.05


class FenceMissing(OSError):
    """The cluster cannot refuse leaders that were replaced: the chart is not installed, or not in force."""


class ClusterFence:
    """The ConfigMap of one namespace that the admission policy compares with."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server, self._namespace = server, namespace
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"

    async def newest(self) -> int:
        """The highest number. Raises FenceMissing."""
        return int((await self._read())["data"][NUMBER])

    async def raise_to(self, fencing: int) -> int:
        """Store a number if it is the highest, and return the highest once the API server refuses all below it."""
        while True:
            stored = await self._read()
            newest = int(stored["data"][NUMBER])
            if fencing > newest:
                wanted = fence(self._namespace, fencing)
                wanted["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
                try:
                    await self._server.replace(f"{self._maps}/{FENCE}", wanted)
                except Conflict:
                    continue
                newest = fencing
            if fencing == newest:
                await self._wait_until_in_force(newest)
            return newest

    async def _read(self) -> Json:
        try:
            return await self._server.get(f"{self._maps}/{FENCE}")
        except NotFound:
            raise FenceMissing(
                f"namespace {self._namespace} has no ConfigMap {FENCE}, by which the API server refuses leaders that "
                "were replaced. Install the admission policy of the chart."
            ) from None

    async def check_in_force(self, newest: int) -> None:
        """Raise FenceMissing where the API server does not refuse a number below the newest."""
        if await self._accepts(newest - 1):
            raise self._not_in_force(newest)

    async def _wait_until_in_force(self, fencing: int) -> None:
        """Wait until a request with an older number is refused: the policy follows its parameter with a delay."""
        until = time.monotonic() + IN_FORCE_WITHIN_S
        while time.monotonic() < until:
            if not await self._accepts(fencing - 1):
                return
            await asyncio.sleep(PROBE_AGAIN_S)
        raise self._not_in_force(fencing)

    async def _accepts(self, fencing: int) -> bool:
        """Whether the API server accepts a request with this number; it would create nothing."""
        probe: Json = {"metadata": {"name": f"{FENCE}-probe", "annotations": {FENCING: str(fencing)}}}
        try:
            await self._server.create(self._maps, probe, dryRun="All")
        except Refused:
            return False
        return True

    def _not_in_force(self, newest: int) -> FenceMissing:
        return FenceMissing(
            f"the API server accepts requests of leader {newest - 1} in namespace {self._namespace}, although the "
            f"newest is {newest}. Install the admission policy of the chart, for this service account."
        )
