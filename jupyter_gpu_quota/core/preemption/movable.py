"""The work that may be moved for a claim, and the slots from which least has to move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest

from ..placement.ledger import ANY_MODEL
from ..placement.place import Request
from ..queue.pool_state import PoolState
from ..queue.quota_state import ABOVE, Entitlement, QuotaState, Victim
from .rules import Preemptor
from .victims import may_restart, parts_of

MAX_CONSIDERED = 64
"""The number of nodes or devices that are considered, those with most room first."""
MAX_SLOTS = 8
"""The number of slots that are tried for one rank, the one that moves least first."""


def may_move_for(preemptor: Preemptor) -> bool:
    """Whether work may be moved for a claim: a job's that may use any device, and is within its fair share."""
    return preemptor.entitlement in (Entitlement.GUARANTEE, Entitlement.FAIR) and preemptor.only is None


def movable_work(pool: PoolState, *, protected: bool) -> list[Victim]:
    """All work of a pool that may move, the smallest first; elastic work above its minimum shrinks instead.

    Rule R52.
    """
    work = (one for project in pool.projects.values() for one in _work_of(project, protected=protected))
    return sorted((one for one in work if _is_movable(one)), key=lambda one: (one.size, one.key))


def movable_on(pool: PoolState, devices: Iterable[int], *, protected: bool) -> list[Victim]:
    """The work with a part on these devices that may move and was not stopped in this plan, the smallest first."""
    found = {one.key: one for at in devices for one in _on_device(pool, at, protected=protected)}
    return sorted(found.values(), key=lambda one: (one.size, one.key))


def _on_device(pool: PoolState, at: int, *, protected: bool) -> Iterator[Victim]:
    """The work with a part on a device that may move; victims are made of this work only."""
    for workload in pool.work_on.get(pool.ledger.devices[at].id, ()):
        running = pool.preemptible_job(workload)
        if running is None:
            continue
        whole = parts_of(pool.policy, pool.now, pool.project(running.project), running)[0]
        is_stopped = whole.key in pool.stopped or whole.key + ABOVE in pool.stopped
        if not is_stopped and (protected or not whole.protected) and _is_movable(whole):
            yield whole


def _work_of(project: QuotaState, *, protected: bool) -> Iterable[Victim]:
    return (*project.victims, *project.protected_victims) if protected else project.victims


def _is_movable(victim: Victim) -> bool:
    """Whether it could start again, is on schedulable devices only, and is no elastic job above its minimum."""
    whole = victim.size == sum(piece.gpu_milli for piece in victim.pieces)
    return whole and victim.preemptible and victim.above is None and may_restart(victim.project, victim.user)


def slots_to_clear(pool: PoolState, request: Request, *, protected: bool) -> Iterator[Sequence[int]]:
    """The devices of the slots that could be cleared for one rank, those from which least work moves first."""
    room = pool.ledger.free_devices(request.gpu_models, borrowed=False)
    if room is None or room.devices.at_least(1) is None:
        return
    everywhere = pool.ledger.free_devices(ANY_MODEL, borrowed=False)
    if everywhere is None or everywhere.total < request.gpu_milli:
        return
    rows = [
        (moved, devices)
        for devices in _with_most_room(pool, request)
        if (moved := _least_moved(pool, request, devices, protected=protected)) is not None
    ]
    rows.sort(key=lambda row: (row[0], row[1][0]))
    for _, devices in rows[:MAX_SLOTS]:
        yield devices


def _with_most_room(pool: PoolState, request: Request) -> Iterator[Sequence[int]]:
    """The nodes, or for requests up to one device the devices, with most room."""
    ledger = pool.ledger
    if request.devices_per_rank > 1:
        return (ledger.on_node[node] for node in _with_most(ledger.nodes_after(borrowed=False)))
    return ([at] for at in _with_most(ledger.all_plain_after()))


def _with_most(rooms: Sequence[int]) -> list[int]:
    """The numbers with most room; of equal ones the lowest first."""
    return [-number for _, number in nlargest(MAX_CONSIDERED, zip(rooms, range(0, -len(rooms), -1), strict=True))]


def _least_moved(pool: PoolState, request: Request, devices: Sequence[int], *, protected: bool) -> int | None:
    """An estimate of the least work, in milli-GPU, that has to leave these devices; None if it cannot be enough."""
    need, costs = request.per_device, list[int]()
    for at in devices:
        if not request.accepts(pool.ledger.model[at]):
            continue
        short = need - pool.ledger.plain_after(at)
        if short <= 0:
            costs.append(0)
            continue
        parts = sorted(
            (sum(piece.gpu_milli for piece in one.pieces if piece.device == at), one.size)
            for one in _on_device(pool, at, protected=protected)
        )
        if sum(milli for milli, _ in parts) >= short:
            enough = next((size for milli, size in parts if milli >= short), None)
            costs.append(sum(size for _, size in parts) if enough is None else enough)
    costs.sort()
    return sum(costs[: request.devices_per_rank]) if len(costs) >= request.devices_per_rank else None
