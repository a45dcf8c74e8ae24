"""Whether a preemptor could find enough victims at all: cheap upper bounds, computed before the search.

In a full pool most preemptors find nothing. Only those that pass these bounds pay for a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import compress

from ..placement.place import Request
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState
from .rules import Preemptor, threshold


def is_feasible(pool: PoolState, preemptor: Preemptor) -> bool:
    """Whether an upper bound of what the preemptor may take, and of what is free after all drains, reaches its size."""
    if preemptor.own_only:
        own, request = preemptor.project, preemptor.request
        if not own_project_suffices(pool, own, preemptor.priority, request.size):
            return False
        return (
            _is_sum_enough(pool, preemptor)
            and _could_be_on_one_node(pool, preemptor)
            and _could_fit_without_preemptible(pool, request)
        )
    return _is_sum_enough(pool, preemptor) and _could_fit_without_preemptible(pool, preemptor.request)


def own_project_suffices(pool: PoolState, own: QuotaState, priority: int, size: int) -> bool:
    """For a preemptor that may take from its own project only: whether that can be enough.

    The project must end within its limit and no further above what it is entitled to than it is. A preemptor that would
    take nothing waits for a drain like any other job.
    """
    takable = own.preemptible_use.below(priority) + own.preemptible_use.elastic
    takable += sum([victim.size for victim in pool.borrowers if victim.project is own])
    bound = min(own.ceiling, max(own.use, own.entitled))
    return takable > 0 and own.use + size - takable <= bound


def _is_sum_enough(pool: PoolState, preemptor: Preemptor) -> bool:
    short = preemptor.request.size
    for milli in _takable(pool, preemptor):
        short -= milli
        if short <= 0:
            return True
    borrowed = preemptor.can_borrow or preemptor.entitlement is Entitlement.NOTEBOOK
    return short <= pool.ledger.all_after(borrowed=borrowed)


def _takable(pool: PoolState, preemptor: Preemptor) -> Iterator[int]:
    """Upper bounds of what the preemptor may take, by source, in milli-GPU."""
    own, entitlement = preemptor.project, preemptor.entitlement
    yield sum(victim.size for victim in pool.borrowers)
    if entitlement is not Entitlement.NOTEBOOK:
        yield own.preemptible_use.below(preemptor.priority) + own.preemptible_use.elastic
    if preemptor.own_only:
        return
    if entitlement <= Entitlement.GUARANTEE:
        yield sum(victim.size for victim in pool.reserved)
    for project in pool.projects.values():
        if project is not own or entitlement is Entitlement.NOTEBOOK:
            above = project.use - threshold(project, entitlement)
            if above > 0:  # only the last victim may reach below the threshold
                yield min(project.preemptible_use.all, above + project.preemptible_use.largest)


def _could_be_on_one_node(pool: PoolState, preemptor: Preemptor) -> bool:
    """Whether one node could hold a rank of several devices, for a preemptor that takes from its own project only."""
    request, own = preemptor.request, preemptor.project
    if request.devices_per_rank == 1:
        return True
    borrowed = sum(piece.gpu_milli for one in pool.borrowers if one.project is own for piece in one.pieces)
    most = own.preemptible_use.most_on_node(own.running, pool.ledger.node_of) + borrowed
    return pool.ledger.most_after(borrowed=preemptor.can_borrow) + most >= request.gpu_milli


def _could_fit_without_preemptible(pool: PoolState, request: Request) -> bool:
    """Whether a request would find room if all preemptible work left."""
    if request not in pool.ranks_without_preemptible:
        pool.ranks_without_preemptible[request] = _ranks_without_preemptible(pool, request)
    return pool.ranks_without_preemptible[request] >= request.ranks


def _ranks_without_preemptible(pool: PoolState, request: Request) -> int:
    ledger, need, per_rank = pool.ledger, request.per_device, request.devices_per_rank
    if pool.free_without_preemptible is None:
        pool.free_without_preemptible = _free_without_preemptible(pool)
    free = pool.free_without_preemptible
    if request.gpu_models:
        free = [room if request.accepts(model) else 0 for room, model in zip(free, ledger.model, strict=True)]
    if per_rank == 1:
        return sum([room // need for room in free if room > 0])
    fitting = Counter(compress(ledger.node_of, map(need.__le__, free)))
    return sum(devices // per_rank for devices in fitting.values())


def _free_without_preemptible(pool: PoolState) -> list[int]:
    """The room of each device if all preemptible work left that runs now."""
    ledger, preemptible_on = pool.ledger, pool.running_before.preemptible_on
    rows = zip(ledger.capacity, ledger.firm, ledger.borrowed, preemptible_on, strict=True)
    free = [whole - firm - borrowed + leaves for whole, firm, borrowed, leaves in rows]
    for running in pool.started.values():
        for piece in running.pieces if running.job.preemptible else ():
            free[piece.device] += piece.gpu_milli
    return free
