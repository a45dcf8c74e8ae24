"""Queue order: the next job to serve, inside each project, then between projects of a department, then between those.

A project without a department is ordered among the departments. Source: docs/scheduling.md, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from .job_queue import ClassQueue, OrderKey
from .quota_state import FAIR, GUARANTEE, NO_LIMIT, SURPLUS, Entitlement, QuotaState

ServingKey = tuple[int, bool, int, int, int, int, int, str]
"""Entitlement, weight 0, -priority, past use above fair share, (use + job) / fair share, past use, submit time, name.

Past use is per weight. Above the fair share it comes before the ratio: by the ratio alone a project of weight 1 beside
one of weight 2 would get a sixth of a single device instead of a third.
"""
RATIO = 1 << 32
_Row = tuple[ServingKey, ClassQueue, QuotaState]


class QueueOrder:
    """The best job of every project. Only the project that was served is computed again."""

    def __init__(self, projects: Iterable[QuotaState]) -> None:
        inside: dict[QuotaState, list[_Row]] = {}
        for project in projects:
            found = best_in_project(project)
            if found is not None:
                inside.setdefault(project.levels[-1], []).append((*found, project))
        self._inside = list(inside.values())
        for rows in self._inside:
            heapify(rows)
        self._between = [(_between(rows[0]), at) for at, rows in enumerate(self._inside)]
        heapify(self._between)

    def first(self, weakest: Entitlement) -> tuple[QuotaState, ClassQueue] | None:
        """The class whose first job is next; None if the rest has a weaker entitlement than ``weakest``."""
        while self._between and self._between[0][0][0] <= weakest:
            key, queue, project = self._inside[self._between[0][1]][0]
            is_alone = project.parent is None or project.parent.user_ceiling == NO_LIMIT
            if is_alone or best_in_project(project) == (key, queue):  # else a sibling may have used the user's ceiling
                return project, queue
            self.renew()
        return None

    def renew(self) -> None:
        """Update the order after the first project was served."""
        at = self._between[0][1]
        rows = self._inside[at]
        found = best_in_project(rows[0][2])
        if found is not None:
            heapreplace(rows, (*found, rows[0][2]))
        else:
            heappop(rows)
        if rows:
            heapreplace(self._between, (_between(rows[0]), at))
        else:
            heappop(self._between)


def best_in_project(project: QuotaState) -> tuple[ServingKey, ClassQueue] | None:
    """The class of the first job within the guarantee, else within the fair share, else at all; with its key.

    Rule R20.
    """
    classes = project.queue.open_classes()
    firm, fair = project.guarantee - project.use, project.fair - project.use
    rows = [
        (GUARANTEE if queue.size <= firm else FAIR if queue.size <= fair else SURPLUS, queue.priority_key, at)
        for at, queue in enumerate(classes)
    ]
    rows.sort()
    best: tuple[OrderKey, ClassQueue, Entitlement] | None = None
    for entitlement, least, at in rows:
        if best is not None and (entitlement is not best[2] or least != best[0][0]):
            break  # the classes behind these have a weaker entitlement or a lower priority
        key = classes[at].first_key()
        if key is not None and (best is None or key < best[0]):
            best = key, classes[at], entitlement
    return None if best is None else (_key(project, best[1], best[2], best[0][2]), best[1])


def comes_before(project: QuotaState, queue: ClassQueue, other: QuotaState, other_queue: ClassQueue) -> bool:
    """Whether the first job of one class comes before that of another: in the project's order, or between projects."""
    key, other_key = queue.first_key(), other_queue.first_key()
    if key is None or other_key is None:
        return other_key is None
    if project is other:
        return key < other_key
    first = _key(project, queue, project.entitlement(queue.size), key[2])
    second = _key(other, other_queue, other.entitlement(other_queue.size), other_key[2])
    if project.levels[-1] is other.levels[-1]:
        return first < second
    return _between((first, queue, project)) < _between((second, other_queue, other))


def first_of(jobs: Iterable[tuple[QuotaState, ClassQueue]]) -> tuple[QuotaState, ClassQueue] | None:
    """The first of these classes, one of each project: inside each department, then between the departments."""
    inside: dict[QuotaState, _Row] = {}
    for project, queue in jobs:
        if (first := queue.first_key()) is None:
            continue
        row = _key(project, queue, project.entitlement(queue.size), first[2]), queue, project
        best = inside.get(project.levels[-1])
        if best is None or row[0] < best[0]:
            inside[project.levels[-1]] = row
    found = min(inside.values(), key=_between, default=None)
    return None if found is None else (found[2], found[1])


def _key(project: QuotaState, queue: ClassQueue, entitlement: Entitlement, submitted_at: int) -> ServingKey:
    """The sort key of a class's first job in the order between projects. Rule R21."""
    total = project.use + queue.size
    ratio = total * RATIO // project.fair if project.fair else total * RATIO * RATIO
    weightless = entitlement is not GUARANTEE and project.weight == 0
    past = project.used_before * RATIO // (project.weight or 1)
    above = past if entitlement is SURPLUS else 0
    return entitlement, weightless, -project.priority, above, ratio, past, submitted_at, project.name


def _between(row: _Row) -> ServingKey:
    """The key of a project's best job between departments."""
    key, queue, project = row
    if project.parent is None:
        return key
    return _key(project.parent, queue, Entitlement(key[0]), key[-2])
