"""The stretch at the end of a series of readings in which nothing was used: since the last use, gap or clock jump."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from .activity import GpuSample


class StretchBoundary(StrEnum):
    """The event just before an unused stretch."""

    USE = "use"
    GAP = "gap"
    JUMP = "jump"
    NOTHING = "nothing"  # the first reading there is


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedStretch:
    """A stretch in which every known reading shows no use, from ``since`` to its newest reading, ``until``.

    Both are None where there is none. ``at`` are its known readings, newest first. ``use`` is the one before it.
    """

    since: int | None
    until: int | None
    boundary: StretchBoundary
    at: tuple[int, ...] = ()
    use: GpuSample | None = None

    def missing_ms(self, *, now: int, for_ms: int, every_ms: int) -> int:
        """The part of the last ``for_ms`` that no known reading covers.

        A reading covers the period before it; one that is late by less than half a period leaves no gap.
        """
        begin = now - for_ms
        edges = (now, *(at for at in self.at if begin < at < now), begin)
        gaps = (later - earlier for later, earlier in pairwise(edges))
        return sum(gap - every_ms for gap in gaps if 2 * gap > 3 * every_ms)


def find_unused_stretch(samples: Sequence[GpuSample], *, every_ms: int, max_gap_ms: int) -> UnusedStretch:
    """The unused stretch at the end of a series, in the order of arrival.

    It begins after the last use, after a stretch of more than ``max_gap_ms`` without a known reading, and where the
    clock stood still or went back; at most one period before its first reading, which covers no more, so that a
    use that becomes known in the middle of a gap leaves the rest of the gap unknown. Where the reading just before has
    the instant of the last use, the stretch begins there.
    """
    at: list[int] = []
    later: int | None = None
    for sample in reversed(samples):
        if later is not None and sample.at >= later:
            return _stretch(at, every_ms, StretchBoundary.JUMP)
        later = sample.at
        if sample.percent is None:
            continue
        if at and at[-1] - sample.at > max_gap_ms:
            return _stretch(at, every_ms, StretchBoundary.GAP)
        if sample.percent > 0:
            return _stretch(at, every_ms, StretchBoundary.USE, sample, max_gap_ms)
        at.append(sample.at)
    return _stretch(at, every_ms, StretchBoundary.NOTHING)


def _stretch(
    at: list[int], every_ms: int, boundary: StretchBoundary, use: GpuSample | None = None, max_gap_ms: int = 0
) -> UnusedStretch:
    if not at:
        return UnusedStretch(since=None, until=None, boundary=boundary, use=use)
    since = at[-1] - every_ms
    if use is not None:
        used_at = use.used_at if 2 * (at[-1] - use.at) <= 3 * every_ms else None
        dated = used_at is not None and use.at - used_at <= max_gap_ms  # further back only where the clock was set
        since = min(used_at or use.at, use.at) if dated else max(since, use.at)
    return UnusedStretch(since=since, until=at[0], boundary=boundary, at=tuple(at), use=use)
