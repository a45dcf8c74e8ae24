"""Limits a cgroup before a process starts in it. A limit that is not read back as it was set is removed again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ....core.enforcement.levels import DeviceShare
from .cgroup import Cgroups
from .limits_client import LimitAnswer, LimitRequest, limits

log = logging.getLogger(__name__)

RETRY_AFTER_S = 300.0
"""After the driver refused all limits no other is requested for so long: every start would wait for its answer."""

SLOW_S, RESET_AGAIN_S = 5.0, 25.0
"""After a failed removal of limits that took longer than the first, none is tried for the second: each would wait.

While a request for a limit takes longer than the first, no other is sent.
"""

AT_ONCE = float("-inf")


class Limiter:
    """The driver's limits on the cgroups of one state folder. Calls may wait for the driver; it is thread-safe."""

    def __init__(
        self, cgroups: Cgroups, limits: Callable[[Sequence[LimitRequest]], Sequence[LimitAnswer]] = limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.cgroups, self._limits, self._clock = cgroups, limits, clock
        self._retry_at = self._reset_at = AT_ONCE
        self._requested_at: list[float] = []
        self._answered = threading.Condition()

    def limit(self, name: str, shares: Sequence[DeviceShare]) -> bool:
        """Limit a cgroup to each fraction of a device. Returns whether all was read back as it was set."""
        group = str(self.cgroups.path(name))
        requests = [
            LimitRequest(device=share.device, group=group, mib=share.memory_mib)
            for share in shares
            if share.device and share.is_fraction and not share.is_instance and not share.simulated and share.memory_mib
        ]
        if not requests:
            return False
        with self._request() as is_open:
            return is_open and self._limit(name, requests)

    @contextmanager
    def _request(self) -> Iterator[bool]:
        """Whether to request a limit now; the driver has answered when the block ends.

        While it is slow the others wait for its answer, since it may have limits: a rank that starts without one never
        gets one. After it refused all limits one caller requests one again, and the others start without.
        """
        with self._answered:
            self._answered.wait_for(lambda: self._clock() < self._retry_at or not self._is_slow())
            now = self._clock()
            is_open = now >= self._retry_at
            if is_open:
                self._requested_at.append(now)
                self._retry_at = AT_ONCE if self._retry_at == AT_ONCE else now + RETRY_AFTER_S
        try:
            yield is_open
        finally:
            with self._answered:
                if is_open:
                    self._requested_at.remove(now)
                self._answered.notify_all()

    def _is_slow(self) -> bool:
        return any(self._clock() - at > SLOW_S for at in self._requested_at)

    def _limit(self, name: str, requests: Sequence[LimitRequest]) -> bool:
        """Set limits and read them back. Removes them where the driver has set others."""
        answers = self._limits(requests)
        pairs = list(zip(requests, answers, strict=True))
        failures = [
            answer.why or f"{request.mib} MiB was set, {answer.limit_mib} MiB read back"
            for request, answer in pairs
            if answer.limit_mib != request.mib
        ]
        self._retry_at = self._clock() + RETRY_AFTER_S if all(answer.why for answer in answers) else AT_ONCE
        if not failures:
            return True
        log.warning("the driver does not limit the memory of %s: %s", name, "; ".join(failures))
        if any(answer.limit_mib is not None for answer in answers):
            self._limits([replace(request, mib=0) for request in requests])
        return False

    def release(self, name: str, devices: Sequence[str]) -> bool:
        """Remove a cgroup's limits on devices, then the cgroup, if no process is in it. Returns whether it was removed.

        In the other order the groups above it would keep its limit: where the driver does not answer, the cgroup stays
        for a later sweep. Source: as in :mod:`.mechanisms`.
        """
        if not self.cgroups.exists(name):
            return True
        if self.cgroups.processes(name):
            return False
        return (not devices or self._reset(name, devices)) and self.cgroups.remove(name)

    def _reset(self, name: str, devices: Sequence[str]) -> bool:
        """Remove a cgroup's limits on devices. Returns whether the driver answered that it has none."""
        if (began := self._clock()) < self._reset_at:
            return False
        group = str(self.cgroups.path(name))
        answers = self._limits([LimitRequest(device=device, group=group, mib=0) for device in devices])
        failures = sorted({each.why for each in answers if not each.is_known})
        if failures:
            log.warning("cgroup %s is kept until its limits can be removed: %s", name, "; ".join(failures))
            self._reset_at = self._clock() + RESET_AGAIN_S if self._clock() - began > SLOW_S else self._reset_at
        return not failures
