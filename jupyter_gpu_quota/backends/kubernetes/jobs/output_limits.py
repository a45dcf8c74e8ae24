"""The limit of a job's outputs: its folder on the volume is measured while it runs, and a job above it is stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ...rendering.cluster_names import OVER_LIMIT
from ..client.api_server import RequestFailed
from .attempt_objects import AttemptObjects
from .pod_states import is_over
from .records import SETTLED, STOP, Attempt, attempt_of, data_of, outputs_limit_of
from .volume import JobVolume

log = logging.getLogger(__name__)

EVERY_S, REST = 2.0, 4.0
"""The interval of measurements; with many or large folders, a multiple of the time that the last ones took."""

GRACE_S = 5


class OutputLimits:
    """Of the attempts of one namespace. ``fencing`` returns the number of this leader; 0: this process is none."""

    def __init__(self, objects: AttemptObjects, volume: JobVolume, fencing: Callable[[], int]) -> None:
        self._objects, self._volume, self._fencing = objects, volume, fencing

    async def run(self) -> None:
        """Measure one folder after the other, for ever."""
        took_s = 0.0
        while True:
            await asyncio.sleep(max(EVERY_S, REST * took_s))
            began = time.monotonic()
            for attempt, limit_mib in self._limited() if self._fencing() else ():
                try:
                    await self._look_at(attempt, limit_mib)
                except (RequestFailed, OSError) as error:
                    log.info("job %s, attempt %d is not measured or stopped, it is tried again: %s", *attempt, error)
            took_s = time.monotonic() - began

    def _limited(self) -> list[tuple[Attempt, int]]:
        """The attempts with a limit that run and are not stopped yet."""
        known = [(attempt_of(each), data_of(each)) for each in self._objects.records.objects.values()]
        running = [(key, data) for key, data in known if not {STOP, SETTLED} & data.keys()]
        return [(key, limit) for key, data in running if (limit := outputs_limit_of(data)) is not None]

    async def _look_at(self, attempt: Attempt, limit_mib: int) -> None:
        pods = [each for each in self._objects.pods_of(*attempt) if not is_over(each)]
        if not pods or (excess := await asyncio.to_thread(self._volume.excess, attempt[0], limit_mib)) is None:
            return
        log.warning("job %s, attempt %d is stopped: %s", *attempt, excess)
        for pod in pods:
            await self._objects.delete(pod, self._fencing(), {OVER_LIMIT: excess}, GRACE_S)
