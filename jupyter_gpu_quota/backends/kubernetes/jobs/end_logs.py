"""The logs of ended ranks, one at a time of each node: a kubelet that does not answer delays few ends elsewhere."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext

from ..client.api_server import Json, LogTimedOut, RequestFailed
from .attempt_objects import AttemptObjects
from .pod_states import rank_of

NO_LOG = (400, 404)
"""Statuses of a request for a log that there is none: the container never ran."""

NOT_NOW = (0, 429, 503)
"""Statuses of a request that the API server did not serve, which says nothing about the log; 0: there was no answer."""

LOG_LOST = "[jupyter-gpu-quota] the log was lost: {}\n"
LOG_CUT = "[jupyter-gpu-quota] the beginning of this log was dropped: its limit is {} bytes\n"
LOG_PATIENCE_S = 30.0
"""How long a kubelet may not send the log of an ended rank, from the first read of this process that fails."""

SILENT_AT_ONCE = 4
"""So many of the requests for logs may be sent to nodes that did not answer the one before."""


class EndLogs:
    """Of one namespace. ``limit_bytes`` is for each log."""

    def __init__(self, objects: AttemptObjects, limit_bytes: int) -> None:
        self._objects, self._limit_bytes = objects, limit_bytes
        self._of_node: dict[str, asyncio.Lock] = {}
        self._silent: dict[str, LogTimedOut] = {}
        self._silent_at_once = asyncio.Semaphore(SILENT_AT_ONCE)
        self._failing_since: dict[tuple[str, int, int], float] = {}

    def begin_term(self) -> None:
        """Forget the failed reads of an earlier term of this process: another one led meanwhile."""
        self._failing_since.clear()

    async def read(self, pod: Json) -> bytes:
        """The log of a pod that ended; a sentence instead of one that was lost. Raises RequestFailed: try it again."""
        try:
            found = await self._read_of_node(pod, pod["spec"].get("nodeName") or "")
        except RequestFailed as error:
            if error.status not in NO_LOG and not await self._is_given_up(rank_of(pod), error):
                raise
            self._failing_since.pop(rank_of(pod), None)
            return LOG_LOST.format(error).encode()
        self._failing_since.pop(rank_of(pod), None)
        if len(found) <= self._limit_bytes:
            return found
        return LOG_CUT.format(self._limit_bytes).encode() + found[-self._limit_bytes :]

    async def _read_of_node(self, pod: Json, node: str) -> bytes:
        """The log. A node that stayed silent while this read waited for its turn is not asked again."""
        known = self._silent.get(node)
        async with self._of_node.setdefault(node, asyncio.Lock()):
            silence = self._silent.get(node)
            if silence is not None and silence is not known:
                raise silence
            async with self._silent_at_once if silence is not None else nullcontext():
                try:
                    found = await self._objects.read_log(pod, self._limit_bytes + 1)
                except LogTimedOut as error:
                    self._silent[node] = error
                    raise
            self._silent.pop(node, None)
            return found

    async def _is_given_up(self, rank: tuple[str, int, int], error: RequestFailed) -> bool:
        """Whether a log is given up: a kubelet has not sent it for a while. Raises RequestFailed.

        The log is kept while the API server itself may be away: it answers for the pod of a log that timed out.
        """
        if error.status in NOT_NOW and not isinstance(error, LogTimedOut):
            self._failing_since.pop(rank, None)
            return False
        now_s = time.monotonic()
        if now_s - self._failing_since.setdefault(rank, now_s) < LOG_PATIENCE_S:
            return False
        del self._failing_since[rank]  # it begins anew where the API server does not answer
        if isinstance(error, LogTimedOut):
            await self._objects.read_pod(*rank)
        return True
