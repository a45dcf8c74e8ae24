"""Whether the volume of the state folder is full."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MIN_FREE_BYTES = 1 << 20
"""With less on its volume the service cannot store a new leader, or start a job."""
TIMEOUT_S = 1.0


class StateVolume:
    """Reads in a thread of its own, one at a time: a network volume that hangs blocks nothing else."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state-volume")
        self._reading: asyncio.Future[bool] | None = None
        self._is_full = False

    async def is_full(self, folder: Path) -> bool:
        """Whether there is no room, by the newest reading that has ended. Waits at most ``TIMEOUT_S`` for one."""
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = asyncio.get_running_loop().run_in_executor(self._thread, has_no_room, folder)
        await asyncio.wait([reading], timeout=TIMEOUT_S)
        if reading.done():
            self._is_full = reading.result()
        return self._is_full


def has_no_room(folder: Path) -> bool:
    """Whether the volume of a folder has neither bytes nor files left for this account; False where that is unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    free_blocks, free_files = (found.f_bfree, found.f_ffree) if os.geteuid() == 0 else (found.f_bavail, found.f_favail)
    counts_blocks, counts_files = found.f_blocks > 0, found.f_files > 0
    return (counts_blocks and free_blocks * found.f_frsize < MIN_FREE_BYTES) or (counts_files and free_files == 0)
