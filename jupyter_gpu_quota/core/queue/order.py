"""What each project offers to be served next, and how offers are ordered: inside a department, then between them.

A project without a department stands beside the departments. Source: docs/scheduling.md, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from ..scheduling.backfill import may_be_kept
from .job_queue import Line, OrderKey
from .pool_state import Pool
from .quota_state import FAIR, GUARANTEE, NO_LIMIT, SURPLUS, Right, Standing

OfferKey = tuple[int, bool, int, int, int, int, int, str]
"""Right, weight 0, -priority, past use above fair share, (use + job) / entitlement, past use, first submit time, name.

Past use is per weight. Above the fair share it comes first: there a share of less than one job decides nothing, and by
the ratio alone a project of weight 1 beside one of weight 2 would get a sixth of a single device instead of a third.
"""
RATIO = 1 << 32
_Row = tuple[OfferKey, Line, Standing]


class Offers:
    """The best offers of all projects. Only what is served is looked at again: others keep their place meanwhile."""

    def __init__(self, standings: Iterable[Standing]) -> None:
        inside: dict[Standing, list[_Row]] = {}
        for standing in standings:
            found = best_offer(standing)
            if found is not None:
                inside.setdefault(standing.levels[-1], []).append((*found, standing))
        self._inside = list(inside.values())
        for rows in self._inside:
            heapify(rows)
        self._between = [(_between(rows[0]), at) for at, rows in enumerate(self._inside)]
        heapify(self._between)

    def first(self, weakest: Right) -> tuple[Standing, Line] | None:
        """The offer to be served next, None where all that is left has less right than that."""
        while self._between and self._between[0][0][0] <= weakest:
            key, line, standing = self._inside[self._between[0][1]][0]
            if not _depends_on_siblings(standing) or best_offer(standing) == (key, line):
                return standing, line
            self.renew()
        return None

    def renew(self) -> None:
        """The first one was served; its project offers anew."""
        at = self._between[0][1]
        rows = self._inside[at]
        found = best_offer(rows[0][2])
        if found is not None:
            heapreplace(rows, (*found, rows[0][2]))
        else:
            heappop(rows)
        if rows:
            heapreplace(self._between, (_between(rows[0]), at))
        else:
            heappop(self._between)


def _depends_on_siblings(standing: Standing) -> bool:
    """Whether what another project was given may have brought a user of this one to a ceiling."""
    return standing.parent is not None and standing.parent.user_ceiling != NO_LIMIT


def best_offer(standing: Standing) -> tuple[OfferKey, Line] | None:
    """The first job that fits the guarantee, else the first within the fair share, else the first; with its key."""
    lines = standing.queue.open_lines()
    firm, fair = standing.guarantee - standing.use, standing.fair - standing.use
    rows = [
        (GUARANTEE if line.size <= firm else FAIR if line.size <= fair else SURPLUS, line.least, at)
        for at, line in enumerate(lines)
    ]
    rows.sort()
    best: tuple[OrderKey, Line, Right] | None = None
    for right, least, at in rows:
        if best is not None and (right is not best[2] or least != best[0][0]):
            break  # whoever is first in the lines behind these comes later
        key = lines[at].first_key()
        if key is not None and (best is None or key < best[0]):
            best = key, lines[at], right
    return None if best is None else (_key(standing, best[1], best[2], best[0][2]), best[1])


def stands_before(standing: Standing, line: Line, other: Standing, behind: Line) -> bool:
    """Whether the first job of a line comes before that of another: in the project's own order, or between projects."""
    mine, its = line.first_key(), behind.first_key()
    if mine is None or its is None:
        return its is None
    if standing is other:
        return mine < its
    first = _key(standing, line, standing.right(line.size), mine[2])
    second = _key(other, behind, other.right(behind.size), its[2])
    if standing.levels[-1] is other.levels[-1]:
        return first < second
    return _between((first, line, standing)) < _between((second, behind, other))


def first_blocked(pool: Pool) -> tuple[Standing, Line] | None:
    """The line whose first job is the first of all that cannot start and may have a place kept."""
    best: tuple[Standing, Line] | None = None
    for standing in pool.standings.values():
        rows = [
            (key, line)
            for line in standing.queue.lines.values()
            if line.blocked is not None and may_be_kept(standing, line) and (key := line.first_key()) is not None
        ]
        if rows:
            _, line = min(rows, key=lambda row: row[0])
            if best is None or stands_before(standing, line, *best):
                best = standing, line
    return best


def _key(standing: Standing, line: Line, right: Right, submitted_at: int) -> OfferKey:
    total = standing.use + line.size
    ratio = total * RATIO // standing.fair if standing.fair else total * RATIO * RATIO
    weightless = right is not GUARANTEE and standing.weight == 0
    past = standing.used_before * RATIO // (standing.weight or 1)
    above = past if right is SURPLUS else 0
    return right, weightless, -standing.priority, above, ratio, past, submitted_at, standing.name


def _between(row: _Row) -> OfferKey:
    """The key of an offer between departments."""
    key, line, standing = row
    if standing.parent is None:
        return key
    return _key(standing.parent, line, Right(key[0]), key[-2])
