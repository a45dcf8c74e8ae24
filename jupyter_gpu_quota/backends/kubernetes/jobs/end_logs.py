"""The logs of ended ranks, one at a time of each node: a kubelet that does not answer delays few ends elsewhere."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext

from ..client.api_server import Json, LogTimedOut, RequestFailed
from .attempt_objects import AttemptObjects
from .pod_states import rank_of, rank_status

NO_LOG = (400, 404)
"""Statuses of a request for a log that there is none: the container never ran."""

LOG_LOST = "[jupyter-gpu-quota] the log was lost: {}\n"
LOG_CUT = "[jupyter-gpu-quota] the beginning of this log was dropped: its limit is {} bytes\n"
LOG_PATIENCE_S = 30.0
"""How long a kubelet may not answer before the log of an ended rank is given up."""

SILENT_AT_ONCE = 4
"""So many of the requests for logs may be sent to nodes that did not answer the one before."""


class EndLogs:
    """Of one namespace. ``limit_bytes`` is for each log."""

    def __init__(self, objects: AttemptObjects, limit_bytes: int) -> None:
        self._objects, self._limit_bytes = objects, limit_bytes
        self._of_node: dict[str, asyncio.Lock] = {}
        self._silent: dict[str, tuple[float, LogTimedOut]] = {}
        self._silent_at_once = asyncio.Semaphore(SILENT_AT_ONCE)

    async def read(self, pod: Json) -> bytes:
        """The log of a pod that ended; a sentence instead of one that was lost. Raises RequestFailed: try it again."""
        try:
            found = await self._read_of_node(pod, pod["spec"].get("nodeName") or "")
        except RequestFailed as error:
            if error.status not in NO_LOG and not await self._is_given_up(pod, error):
                raise
            return LOG_LOST.format(error).encode()
        if len(found) <= self._limit_bytes:
            return found
        return LOG_CUT.format(self._limit_bytes).encode() + found[-self._limit_bytes :]

    async def _read_of_node(self, pod: Json, node: str) -> bytes:
        """The log, unless the node stayed silent while the patience for this rank ended."""
        async with self._of_node.setdefault(node, asyncio.Lock()):
            silent_at, silence = self._silent.get(node, (0.0, None))
            if silence is not None and time.monotonic() - silent_at < LOG_PATIENCE_S and _is_late(pod):
                raise silence
            async with self._silent_at_once if silence is not None else nullcontext():
                try:
                    found = await self._objects.read_log(pod, self._limit_bytes + 1)
                except LogTimedOut as error:
                    self._silent[node] = time.monotonic(), error
                    raise
            self._silent.pop(node, None)
            return found

    async def _is_given_up(self, pod: Json, error: RequestFailed) -> bool:
        """Whether a log is given up: a kubelet did not send it for a while. Raises RequestFailed.

        The log is kept while the API server itself may be away: it answers for the pod of a log that timed out.
        """
        if not _is_late(pod):
            return False
        if isinstance(error, LogTimedOut):
            await self._objects.read_pod(*rank_of(pod))
            return True
        return error.status != 0


def _is_late(pod: Json) -> bool:
    """Whether the patience for the log of a rank is over."""
    return bool(time.time() - rank_status(pod)["ended_at"] / 1000 >= LOG_PATIENCE_S)
