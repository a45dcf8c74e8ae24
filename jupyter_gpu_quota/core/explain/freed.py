"""The smallest set of running work whose end starts a workload.

Work ends as a whole, so the amounts that can be freed are those of sets of running jobs and booked notebooks. In small
pools every set is tried, the smallest first; in larger ones a sufficient set is reduced until it needs each of its
members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from ..lifecycle import HOLDS_SLICE, RUNS
from ..model import WHOLE_DEVICE, Job, Notebook, Snapshot
from ..plan import Resume, Start
from .trials import Trials

MAX_EXHAUSTIVE = 12
"""With this many running jobs and notebooks at most, every set of them is tried in a small pool."""
MAX_WAYS = 64
"""If at most this many sets free the amount, all of them are tried; otherwise the work of one set is named."""


class RunningWork(NamedTuple):
    """A running job, or a notebook with a slice, that may end."""

    milli: int
    id: str


Ends = tuple[RunningWork, ...]


def running_work(trials: Trials) -> list[RunningWork]:
    """The work of the pool that has devices and may end, the smallest first."""
    what_if = trials.what_if
    jobs = (RunningWork(job.held_milli, job.id) for job in what_if.snapshot.jobs if job.state in RUNS)
    slices = (
        RunningWork(one.gpu_milli, one.id)
        for one in what_if.snapshot.notebooks
        if one.state in HOLDS_SLICE and one.id != what_if.id
    )
    return sorted((*jobs, *slices))


def without(snapshot: Snapshot, ended: Ends) -> Snapshot:
    """The snapshot after some work has ended."""
    gone = {one.id for one in ended}
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.id not in gone),
        notebooks=tuple(one for one in snapshot.notebooks if one.id not in gone),
        allocations=tuple(one for one in snapshot.allocations if one.workload not in gone),
        reservations=tuple(one for one in snapshot.reservations if one.workload not in gone),
    )


def starts_after(trials: Trials, ended: Ends) -> bool:
    """Whether the workload starts once this work has ended."""
    return trials.starts(snapshot=without(trials.what_if.snapshot, ended))


def smallest_ends(trials: Trials, work: int) -> Ends | None:
    """The smallest set by (milli, number, ids), or within the allowed work one that needs each of its members."""
    among = running_work(trials)
    trials.allow(work)
    if tries_every_set(trials):
        return next((ended for ended in _sets(among) if starts_after(trials, ended)), None)
    found = _sufficient(trials, among)
    return None if found is None else _minimal(trials, found)


def tries_every_set(trials: Trials) -> bool:
    """Whether there is so little running work that every set of it is tried."""
    return trials.is_small and len(running_work(trials)) <= MAX_EXHAUSTIVE


def total(ended: Ends) -> int:
    """Milli-GPU of all of it."""
    return sum(one.milli for one in ended)


def _sets(among: Sequence[RunningWork]) -> list[Ends]:
    """All sets of work but the empty one, the smallest first."""
    found = [ended for count in range(1, len(among) + 1) for ended in combinations(among, count)]
    return sorted(found, key=lambda ended: (total(ended), len(ended), sorted(one.id for one in ended)))


def in_every_way(trials: Trials, ended: Ends, work: int) -> bool:
    """Whether every other set of running work with that much, and none to spare, starts the workload as well.

    False where there is no other, and where there are too many to try.
    """
    if not tries_every_set(trials):
        return False
    ways = _ways(trials, ended)
    if not 1 < len(ways) <= MAX_WAYS:
        return False
    trials.allow(work)
    return all(way == ended or starts_after(trials, way) for way in ways)


def _ways(trials: Trials, ended: Ends) -> list[Ends]:
    """The sets of running work with at least that much, and none to spare."""
    sets = _sets(running_work(trials))
    return [way for way in sets if total(way) >= total(ended) > total(way) - min(one.milli for one in way)]


def started_first(trials: Trials, ended: Ends, *, any_ends: bool, work: int) -> tuple[str, ...]:
    """The waiting work that starts before the workload once this work, or as much in any way, has ended.

    None of it if it is not the same in every way, or if the same amount would be needed without it.
    """
    trials.allow(work)
    ways = _ways(trials, ended) if any_ends else [ended]
    found = {_starts_before(trials, way) for way in ways}
    first = found.pop() if len(found) == 1 else frozenset()
    if not first:
        return ()
    snapshot = trials.what_if.snapshot
    rest = replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.id not in first),
        notebooks=tuple(one for one in snapshot.notebooks if one.id not in first),
    )
    less = (ended[:at] + ended[at + 1 :] for at in range(len(ended)))
    return tuple(sorted(first)) if any(trials.starts(snapshot=without(rest, way)) for way in less) else ()


def _starts_before(trials: Trials, ended: Ends) -> frozenset[str]:
    """The work that starts before the workload because this work has ended."""
    plan = trials.plan(snapshot=without(trials.what_if.snapshot, ended))
    started = {one.workload for one in plan.actions if isinstance(one, Start | Resume)} if plan else set()
    return frozenset(started - trials.what_if.starting - {trials.what_if.id})


# --- larger pools ---------------------------------------------------------------------------------------------------
def _sufficient(trials: Trials, among: Sequence[RunningWork]) -> Ends | None:
    """A set whose end starts the workload: growing parts of the work, in two orders."""
    orders = _by_owner(trials, among), _by_device(trials, among)
    for count in _doubled(len(among)):
        for order in orders:
            if starts_after(trials, tuple(order[:count])):
                return tuple(order[:count])
    return None


def _doubled(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _by_owner(trials: Trials, among: Sequence[RunningWork]) -> list[RunningWork]:
    """The work of its user first, then of its project, then of its department, each the best fit first."""
    what_if = trials.what_if
    every: tuple[Job | Notebook, ...] = (*what_if.snapshot.jobs, *what_if.snapshot.notebooks)
    work = {one.id: one for one in every}
    size, inside = what_if.size, what_if.is_inside(department=True)

    def key(one: RunningWork) -> tuple[bool, bool, bool, bool, int, str]:
        other = work[one.id]
        is_own = other.project == what_if.project
        misfit = one.milli < size, abs(one.milli - size)
        return not (is_own and other.user == what_if.work.user), not is_own, not inside(other), *misfit, one.id

    return sorted(among, key=key)


def _by_device(trials: Trials, among: Sequence[RunningWork]) -> list[RunningWork]:
    """Work side by side: by the place where least has to end, node after node."""
    what_if = trials.what_if
    node_of = {device.id: device.node for device in what_if.snapshot.devices}
    whole = what_if.work.gpu_milli > WHOLE_DEVICE
    place_of, held = dict[str, str](), dict[str, int]()
    by_id = {one.id: one for one in among}
    for one in what_if.snapshot.allocations:
        if one.workload in by_id and one.device in node_of:
            place_of.setdefault(one.workload, node_of[one.device] if whole else one.device)
    for name, place in place_of.items():
        held[place] = held.get(place, 0) + by_id[name].milli
    order = sorted(among, key=lambda one: (held.get(place_of.get(one.id, ""), 0), place_of.get(one.id, ""), one))
    return order


def _minimal(trials: Trials, found: Ends) -> Ends:
    """The set without the members that it does not need: halves first, then one by one."""
    step = len(found) // 2
    while step:
        at = 0
        while at < len(found) and len(found) > 1:
            less = found[:at] + found[at + step :]
            if less and starts_after(trials, less):
                found = less
            else:
                at += step
        step = step // 2
    return found
