"""The fencing number in the cluster: the API server refuses the requests of a leader that was replaced."""

from __future__ import annotations

import asyncio
import time

from ...rendering.admission import FENCE, number_of, refusal_of, with_number
from ...rendering.cluster_names import FENCING
from .api_server import ApiServer, Conflict, Forbidden, Json, NotFound, Refused

IN_FORCE_WITHIN_S, PROBE_AGAIN_S = 10.0, 0.05


class FenceMissing(OSError):
    """The cluster cannot refuse leaders that were replaced: the chart is not installed, or not in force."""


class ClusterFence:
    """The ConfigMap of one namespace that the admission policy compares with.

    ``server`` is for the requests of a take-over alone: they never wait behind thousands of requests for jobs.
    """

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self._namespace = server, namespace
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"

    async def newest(self) -> int:
        """The highest number. Raises FenceMissing."""
        return number_of(await self._read())

    async def raise_to(self, fencing: int) -> int:
        """Store a number if it is the highest, and return the highest once the API server refuses all below it."""
        while True:
            stored = await self._read()
            newest = number_of(stored)
            if fencing > newest:
                try:
                    await self.server.replace(f"{self._maps}/{FENCE}", with_number(stored, fencing))
                except Conflict:
                    continue
                newest = fencing
            if fencing == newest:
                await self._wait_until_in_force(newest)
            return newest

    async def _read(self) -> Json:
        try:
            return await self.server.get(f"{self._maps}/{FENCE}")
        except NotFound:
            raise FenceMissing(
                f"namespace {self._namespace} has no ConfigMap {FENCE}, by which the API server refuses leaders that "
                "were replaced. Install the admission policy of the chart."
            ) from None

    async def check_in_force(self, newest: int) -> None:
        """Raise FenceMissing where the policy does not refuse the number below the newest."""
        if why_not := await self._why_not_in_force(newest):
            raise FenceMissing(why_not)

    async def _wait_until_in_force(self, fencing: int) -> None:
        """Wait until a request with an older number is refused: the policy follows its parameter with a delay."""
        until = time.monotonic() + IN_FORCE_WITHIN_S
        while why_not := await self._why_not_in_force(fencing):
            if time.monotonic() >= until:
                raise FenceMissing(why_not)
            await asyncio.sleep(PROBE_AGAIN_S)

    async def _why_not_in_force(self, newest: int) -> str:
        """Why the policy does not refuse the number below the newest; empty where it does.

        The request would create nothing. Another refusal, such as a missing permission, says nothing about the policy.
        """
        older = newest - 1
        probe: Json = {"metadata": {"name": f"{FENCE}-probe", "annotations": {FENCING: str(older)}}}
        try:
            await self.server.create(self._maps, probe, dryRun="All")
        except (Refused, Forbidden) as error:
            if refusal_of(older) in str(error):
                return ""
            return f"leader {older} is refused in namespace {self._namespace}, but not by the policy: {error}"
        return (
            f"the API server accepts requests of leader {older} in namespace {self._namespace}, although the newest is "
            f"{newest}. Install the admission policy of the chart, for this service account."
        )
