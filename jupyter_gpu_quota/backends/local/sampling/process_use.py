"""The use of a device by each of its processes between two readings, and the instant at which it ended.

Drivers answer nvmlDeviceGetProcessUtilization differently. Some keep a row for each of their samples. Driver 580 on an
H100 returned one row for each process: the mean since the requested time, with the time of its newest sample, which
says nothing about when the use was. By NVML's documentation the answer has only samples since the requested time, so
the end of a use is found by requests for later times. That such a request finds nothing after a use that ended was not
measured on hardware; a driver that reports the use still only makes it count for longer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from .instance_metrics import Unknown

AHEAD_US = 2_000_000

PERIOD_US = 1_000_000
"""A sample covers the time before or after its stamp: a sixth of a second to a second, depending on the model."""

BEHIND_US = 60_000_000
"""The driver keeps no sample that is so much older than the previous reading: such a stamp is not valid."""

MAX_REQUESTS = 10
"""The number of requests of one reading that look for the end of a use, a second apart."""

Rows = Mapping[int, list[tuple[int, int]]]
"""Time stamp in microseconds since 1970, and percent of the busiest engine, by process."""

RowsSince = Callable[[int], Rows | Unknown]
"""Requests a device's samples since a time, in microseconds since 1970; none is an answer, not an error."""


@dataclass(frozen=True, slots=True)
class Use:
    """The utilisation of a process's busiest engine since the previous reading, and its end; None is unknown."""

    percent: int | None
    used_us: int | None


UNUSED = Use(0, None)


class ProcessUses:
    """The uses of all devices, each between two readings."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._read_us: dict[str, int] = {}
        self._on_this_clock: set[str] = set()

    def forget(self, uuid: str) -> None:
        """Take nothing from the previous reading of a device: the clock was set."""
        self._since.pop(uuid, None)
        self._read_us.pop(uuid, None)
        self._on_this_clock.discard(uuid)

    def read(self, uuid: str, rows_since: RowsSince, clock_us: Callable[[], int]) -> dict[int, Use] | Unknown:
        """The use of a device by each process since the previous reading; a missing process was idle."""
        rows, now_us = rows_since(self._since.get(uuid, 0)), clock_us()
        before_us, self._read_us[uuid] = self._read_us.get(uuid), now_us
        if isinstance(rows, Unknown):
            return rows
        stamps = {pid: dated(_last_use(samples), before_us, now_us) for pid, samples in rows.items()}
        known = {pid for pid, at in stamps.items() if at is not None}
        self._keep_time(uuid, rows, now_us, is_on_this_clock=bool(known))
        ends = ends_of_use(rows_since, known, before_us or now_us, now_us)
        return {pid: Use(_mean(samples), _earlier(stamps[pid], ends.get(pid))) for pid, samples in rows.items()}

    def _keep_time(self, uuid: str, rows: Rows, now_us: int, *, is_on_this_clock: bool) -> None:
        """Note the time since which the next reading requests samples: a mean over a short time hides no use.

        A driver whose stamps are of another clock is asked by its own stamps alone.
        """
        if is_on_this_clock:
            self._on_this_clock.add(uuid)
        times = [at for samples in rows.values() for at, _ in samples if at <= now_us + AHEAD_US]
        newest = max(times, default=0 if rows else self._since.get(uuid, 0))
        self._since[uuid] = max(newest, now_us - PERIOD_US) if uuid in self._on_this_clock else newest


def ends_of_use(rows_since: RowsSince, used: Collection[int], before_us: int, now_us: int) -> dict[int, int]:
    """The latest possible end of the use of each process that used the device between two readings.

    A request that fails ends the search: what was found until then holds.
    """
    ends, open_, unused_since_us = dict[int, int](), set(used), now_us
    for seconds in range(1, MAX_REQUESTS + 1):
        since_us = now_us - seconds * 1_000_000
        rows = rows_since(since_us) if open_ and since_us > before_us else Unknown("")
        if isinstance(rows, Unknown):
            break
        ended = {pid for pid in open_ if any(percent for _, percent in rows.get(pid, ()))}
        ends |= dict.fromkeys(ended, min(unused_since_us + PERIOD_US, now_us))
        open_ -= ended
        unused_since_us = since_us
    return ends | dict.fromkeys(open_, min(unused_since_us + PERIOD_US, now_us))


def dated(last_us: int | None, before_us: int | None, now_us: int) -> int | None:
    """The latest possible end of a process's use of the device, between the previous reading and this one.

    None where the stamp of its last sample is not valid, or the time of the previous reading is unknown.
    """
    if last_us is None or before_us is None or not before_us - BEHIND_US <= last_us <= now_us:
        return None
    return min(max(last_us + PERIOD_US, before_us), now_us)


def _last_use(samples: list[tuple[int, int]]) -> int | None:
    return max((at for at, percent in samples if percent), default=None)


def _mean(samples: list[tuple[int, int]]) -> int | None:
    """The mean, rounded up, so that little use is never 0; an impossible figure is None."""
    values = [percent for _, percent in samples]
    return None if max(values) > 100 else -(-sum(values) // len(values))


def _earlier(stamp_us: int | None, end_us: int | None) -> int | None:
    return stamp_us if stamp_us is None or end_us is None else min(stamp_us, end_us)
