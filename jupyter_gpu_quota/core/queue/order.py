"""Queue order: the next job to serve, inside each project, then between projects of a department, then between those.

A project without a department is ordered among the departments. Source: docs/scheduling.md, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from operator import attrgetter, itemgetter
from typing import NamedTuple

from .job_queue import ClassQueue, Head, OrderKey
from .quota_state import FAIR, GUARANTEE, NO_LIMIT, SURPLUS, Entitlement, QuotaState


class ServingKey(NamedTuple):
    """Order between projects and departments, compared from the first field; past use is per weight, times RATIO.

    Above the fair share past use comes before the ratio: by the ratio alone a project of weight 1 beside one of weight
    2 would get a sixth of a single device instead of a third.
    """

    entitlement: int
    has_no_weight: bool
    negative_priority: int
    past_use_above_fair: int
    """0 for a job within its fair share."""
    ratio: int
    """(use + job) / fair share, times RATIO."""
    past_use: int
    submitted_at: int
    name: str


RATIO = 1 << 32
"""Ratios are integers, in parts of this."""


class Row(NamedTuple):
    """The first job of a class, with its key in the order between projects."""

    key: ServingKey
    queue: ClassQueue
    project: QuotaState


class _Entry(NamedTuple):
    """An entry of a heap; the number is unique, so that rows are not compared."""

    key: ServingKey
    number: int
    row: Row


class QueueOrder:
    """The best job of every project, down to one entitlement; :meth:`update` computes that of one project again.

    The entries of the heaps are numbered; only the last of a project or department counts.
    """

    def __init__(self, projects: Iterable[QuotaState], weakest: Entitlement) -> None:
        self.weakest = weakest
        self._between: list[_Entry] = []
        """A heap of the projects without a department, and of the first project of each department."""
        self._inside: dict[QuotaState, list[_Entry]] = {}
        """A heap of the projects of each department."""
        self._last: dict[QuotaState, int] = {}
        self._count = 0
        for project in projects:
            self._add(project)
        for department in self._inside:
            self._offer(department)

    def first(self) -> tuple[QuotaState, ClassQueue] | None:
        """The class whose first job is next; None if the rest has a weaker entitlement."""
        while self._between:
            key, number, row = self._between[0]
            level = row.project.levels[-1]
            if number != self._last[level]:
                heappop(self._between)
            elif level.is_department and _between(row) != key:
                self._offer(level)
            elif key.entitlement > self.weakest:
                break
            elif not _is_obsolete(row):
                return row.project, row.queue
            else:
                self.update(row.project)
        return None

    def update(self, project: QuotaState) -> None:
        """Order a project again, whose use or queue has changed."""
        self._add(project)
        if project.parent is not None:
            self._offer(project.parent)

    def _add(self, project: QuotaState) -> None:
        is_weaker = self.weakest is GUARANTEE and project.use >= project.guarantee
        found = None if is_weaker else best_in_project(project)
        heap = self._between if project.parent is None else self._inside.setdefault(project.parent, [])
        self._push(heap, project, found)

    def _offer(self, department: QuotaState) -> None:
        rows = self._inside[department]
        while rows and self._last[rows[0].row.project] != rows[0].number:
            heappop(rows)
        self._push(self._between, department, rows[0].row if rows else None)

    def _push(self, heap: list[_Entry], level: QuotaState, row: Row | None) -> None:
        """Replace the entry of a project or department in its heap."""
        self._count += 1
        self._last[level] = self._count
        if row is not None:
            heappush(heap, _Entry(_between(row) if level.is_department else row.key, self._count, row))


def _is_obsolete(row: Row) -> bool:
    """Whether jobs of another project of the department have used up the ceiling of the job's user."""
    department = row.project.parent
    return department is not None and department.user_ceiling != NO_LIMIT and best_in_project(row.project) != row


def best_in_project(project: QuotaState) -> Row | None:
    """The class of the project's first open job, by :func:`best_of`."""
    return best_of(project, project.queue.open_classes())


def best_of(project: QuotaState, queues: Iterable[ClassQueue]) -> Row | None:
    """Of these classes the one with the first job within the project's guarantee, else its fair share, else at all.

    Rule R21.
    """
    if not (rest := list(queues)):
        return None
    firm, fair = project.guarantee - project.use, project.fair - project.use
    for entitlement, most in ((GUARANTEE, firm), (FAIR, fair), (SURPLUS, NO_LIMIT)):
        if not (entitled := [queue for queue in rest if queue.size <= most]):
            continue
        if (found := _first_by_priority(entitled)) is not None:
            head, queue = found
            return Row(_key(project, queue, entitlement, head[1]), queue, project)
        rest = [queue for queue in rest if queue.size > most]
    return None


def _first_by_priority(queues: Sequence[ClassQueue]) -> tuple[Head, ClassQueue] | None:
    """The first job of the classes of the highest priority whose users have room, and its class."""
    best: tuple[Head, ClassQueue] | None = None
    while queues and best is None:
        highest = min([queue.priority_key for queue in queues])
        for queue in queues:
            if queue.priority_key == highest:
                head = queue.head()
                if head is not None and (best is None or head < best[0]):
                    best = head, queue
        if best is None:
            queues = [queue for queue in queues if queue.priority_key != highest]
    return best


def comes_before(project: QuotaState, queue: ClassQueue, other: QuotaState, other_queue: ClassQueue) -> bool:
    """Whether the first job of one class comes before that of another, as candidates: by entitlement first (R21)."""
    key, other_key = queue.first_key(), other_queue.first_key()
    if key is None or other_key is None:
        return other_key is None
    entitlement, other_entitlement = project.entitlement(queue.size), other.entitlement(other_queue.size)
    if entitlement is not other_entitlement:
        return entitlement < other_entitlement
    if project is other:
        return key < other_key
    first = _key(project, queue, entitlement, key.submitted_at)
    second = _key(other, other_queue, other_entitlement, other_key.submitted_at)
    if project.levels[-1] is other.levels[-1]:
        return first < second
    return _between(Row(first, queue, project)) < _between(Row(second, other_queue, other))


def precedes(project: QuotaState, queue: ClassQueue, other: QuotaState, other_queue: ClassQueue) -> bool:
    """:func:`comes_before`; of jobs of one project, whether the first comes before in the project's own order."""
    key, other_key = queue.first_key(), other_queue.first_key()
    if project is other and key is not None and other_key is not None:
        return key < other_key
    return comes_before(project, queue, other, other_queue)


def first_row(rows: Iterable[Row]) -> Row | None:
    """The first of these jobs, one of each project: inside each department, then between the departments."""
    listed = list(rows)
    if not [row for row in listed if row.project.parent is not None]:
        return min(listed, key=itemgetter(0), default=None)
    inside: dict[QuotaState, Row] = {}
    for row in listed:
        best = inside.get(row.project.levels[-1])
        if best is None or row.key < best.key:
            inside[row.project.levels[-1]] = row
    return min(inside.values(), key=_between, default=None)


def first_in_project(project: QuotaState, queues: Iterable[ClassQueue]) -> Row | None:
    """The first of the first jobs of these classes in the project's own order."""
    best: tuple[OrderKey, ClassQueue] | None = None
    for queue in sorted(queues, key=lambda one: one.priority_key):
        if best is not None and queue.priority_key > best[1].priority_key:
            break
        if (key := queue.first_key()) is not None and (best is None or key < best[0]):
            best = key, queue
    if best is None:
        return None
    first, queue = best
    return Row(_key(project, queue, project.entitlement(queue.size), first.submitted_at), queue, project)


def first_of(
    classes: Mapping[QuotaState, Sequence[ClassQueue]], is_eligible: Callable[[QuotaState, ClassQueue], bool]
) -> Row | None:
    """The first job of the eligible ones of these classes.

    Without departments only the jobs of the projects that may be first are read.
    """

    def first_in(project: QuotaState) -> Row | None:
        return first_in_project(project, (queue for queue in classes[project] if is_eligible(project, queue)))

    if any(project.parent is not None for project in classes):
        return first_row(row for row in map(first_in, classes) if row is not None)
    best: Row | None = None
    for bound, project in sorted(_bounds(classes), key=lambda row: row[0]):
        if best is not None and best.key < bound:
            break
        row = first_in(project)
        if row is not None and (best is None or row.key < best.key):
            best = row
    return best


def _bounds(classes: Mapping[QuotaState, Sequence[ClassQueue]]) -> Iterator[tuple[ServingKey, QuotaState]]:
    """A lower bound of the key of each project's first job: a smaller job comes first there."""
    for project, queues in classes.items():
        if queues:
            smallest = min(queues, key=attrgetter("size"))
            oldest_at = min([queue.oldest_at for queue in queues if queue.size == smallest.size])
            yield _key(project, smallest, project.entitlement(smallest.size), oldest_at), project


def past_use(level: QuotaState) -> int:
    """The past use of a project or department per weight, times :data:`RATIO`."""
    return level.past_use_milli_s * RATIO // (level.weight or 1)


def turn_of(project: QuotaState) -> tuple[bool, int]:
    """The turn of a project's jobs above its fair share: projects with a weight first, then least past use."""
    return project.weight == 0, past_use(project)


def _key(project: QuotaState, queue: ClassQueue, entitlement: Entitlement, submitted_at: int) -> ServingKey:
    """The sort key of a class's first job in the order between projects. Rule R22."""
    total = project.use + queue.size
    ratio = total * RATIO // project.fair if project.fair else total * RATIO * RATIO
    weightless = entitlement is not GUARANTEE and project.weight == 0
    past = past_use(project)
    above = past if entitlement is SURPLUS else 0
    return ServingKey(entitlement, weightless, -project.priority, above, ratio, past, submitted_at, project.name)


def _between(row: Row) -> ServingKey:
    """The key of a project's best job between departments."""
    key, queue, project = row
    if project.parent is None:
        return key
    return _key(project.parent, queue, Entitlement(key.entitlement), key.submitted_at)
