"""Sends samples of the node's devices to the API, for as long as it takes them.

A batch that cannot be sent is dropped: a later reading takes its place, and the missing one leaves a gap, in which no
notebook counts as idle. So nothing is queued while the service is away.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from ....client.connection import Call, Connection, GPUQuotaError, Refused
from ....wire.samples import IngestedView, SampleBatch
from ...local.sampling.nvml_sampler import NvmlSampler
from ...protocol import DeviceUsers
from .batches import NO_USERS, Rows, batch_of, users_in
from .heartbeat import Turned

log = logging.getLogger(__name__)

SAMPLE_EVERY_S = 10.0
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
TIMEOUT_S, POLL_S = 10.0, 0.05

Send = Callable[[SampleBatch], IngestedView]


class SampleSender:
    """The samples of one node. ``send`` sends one batch, and raises GPUQuotaError; it may wait, in a thread of its own.

    ``clock`` is in milliseconds since 1970. ``turned`` is called after each turn.
    """

    def __init__(
        self, node: str, sampler: NvmlSampler, send: Send, *, every_s: float = SAMPLE_EVERY_S,
        clock: Callable[[], int] = lambda: time.time_ns() // 10**6, turned: Turned = lambda: None,
    ) -> None:  # fmt: skip
        self._node, self._sampler, self._send, self._every_s, self._clock = node, sampler, send, every_s, clock
        self._turned = turned
        self._users: DeviceUsers = NO_USERS
        self._sequence, self._pause_s, self._trouble = 0, 0.0, ""

    async def run(self) -> None:
        """Send until cancelled. The nodes of a cluster begin at different times of the period."""
        await asyncio.sleep(zlib.crc32(self._node.encode()) % 1000 / 1000 * self._every_s)
        while True:
            began = time.monotonic()
            wait_s = await self.turn()
            self._turned()
            spent_s = 0.0 if self._trouble else time.monotonic() - began
            await asyncio.sleep(max(0.0, wait_s - spent_s))

    async def turn(self) -> float:
        """Read and send once; returns the seconds until the next turn."""
        knew_devices = bool(self._users)
        rows = await self._rows() if knew_devices else ()
        self._sequence = max(self._sequence + 1, self._clock())
        try:
            answer = await asyncio.to_thread(self._send, batch_of(self._node, self._sequence, rows))
        except GPUQuotaError as error:
            return self._failed(error)
        if self._trouble:
            log.info("the service takes samples again")
        self._users, self._pause_s, self._trouble = users_in(answer, self._node), 0.0, ""
        if self._users and not knew_devices:
            return 0.0
        return self._every_s

    def _failed(self, error: GPUQuotaError) -> float:
        """Drop the batch; returns the pause, which doubles. A device that is not recorded is not sent again."""
        if isinstance(error, Refused) and error.reason == "unknown_device":
            self._users = NO_USERS
        if error.message != self._trouble:  # logged once, not at every attempt
            log.warning("samples are dropped: %s", error.message)
        self._trouble = error.message
        self._pause_s = min(MAX_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        return self._pause_s

    async def _rows(self) -> Rows:
        """The samples of the next reading. A reading that the driver does not complete has its own time-out."""
        while True:
            rows = self._sampler.sample(self._users, {}, now=self._clock())
            if rows is not None:
                return rows
            await asyncio.sleep(POLL_S)


def sender_to(url: str, token_file: Path) -> Send:
    """Sends to the service at this address. The token is read each time: the kubelet replaces it before it expires."""

    def send(batch: SampleBatch) -> IngestedView:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise GPUQuotaError(f"{token_file} with the token for the service cannot be read: {error}") from error
        call = Call(method="POST", path="samples", body=batch, repeatable=False)
        return Connection(url, token, TIMEOUT_S).ask(IngestedView, call)

    return send
