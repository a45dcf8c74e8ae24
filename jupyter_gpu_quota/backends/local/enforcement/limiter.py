"""Limiting what begins in a control group: set before it begins, read back at once, taken away where that differs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ....core.enforcement import DeviceShare
from .cgroup import Cgroups
from .limits_client import Ask, Told, limits

log = logging.getLogger(__name__)

ASK_AGAIN_S = 300.0
"""A driver that limits no memory is not asked again for so long: every start would wait for its answer."""


class Limiter:
    """The driver's limits on the cgroups of one state folder. Calls may wait for the driver; threads may share it."""

    def __init__(
        self, cgroups: Cgroups, limits: Callable[[Sequence[Ask]], Sequence[Told]] = limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.cgroups, self._limits, self._clock = cgroups, limits, clock
        self._ask_at = float("-inf")

    def limit(self, name: str, parts: Sequence[DeviceShare]) -> bool:
        """Limit a cgroup to each fraction of a device. Returns whether all was read back as it was set."""
        group = str(self.cgroups.path(name))
        asked = [
            Ask(device=part.device, group=group, mib=part.memory_mib)
            for part in parts
            if part.device and part.is_fraction and not part.is_instance and not part.simulated and part.memory_mib
        ]
        if not asked or self._clock() < self._ask_at:
            return False
        told = list(self._limits(asked))
        if all(each.limit_mib == ask.mib for ask, each in zip(asked, told, strict=True)):
            return True
        if all(each.why for each in told):
            self._ask_at = self._clock() + ASK_AGAIN_S
        log.warning("the driver does not limit the memory of %s: %s", name, _what_is_wrong(asked, told))
        if any(each.limit_mib is not None for each in told):
            self._limits([Ask(device=ask.device, group=ask.group, mib=0) for ask in asked])
        return False

    def release(self, name: str, devices: Sequence[str]) -> bool:
        """Take a cgroup's limits on devices away, then the cgroup, if nothing runs in it. Returns whether it is gone.

        The other way round the groups above it would keep its part for ever. Source: NVIDIA, as in :mod:`.driver`.
        """
        if not self.cgroups.exists(name):
            return True
        if self.cgroups.processes(name):
            return False
        if devices and self._clock() >= self._ask_at:
            group = str(self.cgroups.path(name))
            self._limits([Ask(device=device, group=group, mib=0) for device in devices])
        return self.cgroups.remove(name)


def _what_is_wrong(asked: Sequence[Ask], told: Sequence[Told]) -> str:
    pairs = [(ask, each) for ask, each in zip(asked, told, strict=True) if each.limit_mib != ask.mib]
    return "; ".join(each.why or f"{ask.mib} MiB was set, {each.limit_mib} MiB read back" for ask, each in pairs)
