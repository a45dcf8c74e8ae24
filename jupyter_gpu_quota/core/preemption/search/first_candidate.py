"""The frequent case of a preemption: the first candidate alone makes room for a claim of one device at most.

No set can be cheaper then: one pause is the least where no work may leave without one, and what is free after
all drains is too little for a move. The full search would find the same.
"""

from __future__ import annotations

from ...model import WHOLE_DEVICE
from ...placement.place import Piece, reserve
from ...queue.pool_state import PoolState
from ...queue.quota_state import Entitlement, Victim
from ..accounting import mark_leaving, subtract_use
from ..candidates import may_be_paused_again, may_be_picked, most_above, of_lower_priority, projects_above
from ..result import Preemption
from ..rules import Preemptor, is_first_allowed


def find_first_candidate(pool: PoolState, preemptor: Preemptor) -> Preemption | None:
    """The preemption that pauses the first candidate; None where only the full search can tell.

    If found, the pool is changed as by :func:`.find_preemption`.
    """
    if not _is_simple(pool, preemptor):
        return None
    victim = _first_to_pause(pool, preemptor)
    if victim is None or not (is_first_allowed(preemptor, victim) and _ends_within(preemptor, victim)):
        return None
    if (device := _freed_device(pool, preemptor, victim)) is None:
        return None
    project, milli = preemptor.project, preemptor.request.gpu_milli
    pieces = (Piece(0, device, milli),)
    borrowed = preemptor.can_borrow and pool.ledger.plain_after(device, firm_gone=victim.size) < milli
    used = {project.name: project.use, victim.project.name: victim.project.use}
    gains = pool.ledger.gains
    mark_leaving(pool, victim)
    reserve(pool.ledger, pieces, borrowed=borrowed)
    if victim.size == milli and not (borrowed or victim.request.cpu_milli or victim.request.memory_mib):
        pool.ledger.gains = gains  # nothing else gets room
    subtract_use(pool, victim)
    project.add(milli, preemptor.user, preemptible=preemptor.preemptible)
    return Preemption(preemptor=preemptor, pieces=pieces, victims=[victim], borrowed=borrowed, used=used)


def _is_simple(pool: PoolState, preemptor: Preemptor) -> bool:
    """Whether only pauses can make room, each within the limits, for a claim of one rank on one device."""
    request, project = preemptor.request, preemptor.project
    if request.ranks > 1 or request.gpu_milli > WHOLE_DEVICE or request.cpu_milli or request.memory_mib:
        return False
    if pool.departments or pool.borrowers or pool.reserved or pool.has_elastic:
        return False
    if preemptor.entitlement is Entitlement.NOTEBOOK or preemptor.only is not None:
        return False
    if project.use + request.gpu_milli > project.ceiling:
        return False
    return pool.ledger.all_after(borrowed=preemptor.can_borrow) < request.gpu_milli


def _first_to_pause(pool: PoolState, preemptor: Preemptor) -> Victim | None:
    """The first of :meth:`.Candidates.to_pause`; None where its project has none."""
    others = () if preemptor.own_only else projects_above(pool, preemptor)
    if others:
        project = others[0] if len(others) == 1 else min(others, key=most_above)
        return next((one for one in project.victims if may_be_picked(preemptor, one)), None)
    own = preemptor.project
    if own.preemptible_use.lowest_priority >= preemptor.priority:
        return None
    lower = of_lower_priority(preemptor, own.victims)
    return next((one for one in lower if may_be_picked(preemptor, one) and may_be_paused_again(preemptor, one)), None)


def _ends_within(preemptor: Preemptor, victim: Victim) -> bool:
    """Whether a claim that takes from its own project only leaves it no further above its fair share."""
    project, gained = preemptor.project, preemptor.request.gpu_milli - victim.size
    return not preemptor.own_only or gained <= 0 or project.use + gained <= project.fair


def _freed_device(pool: PoolState, preemptor: Preemptor, victim: Victim) -> int | None:
    """The device of a victim with one piece, if there is room for the claim without it."""
    request, ledger = preemptor.request, pool.ledger
    if len(victim.pieces) != 1:
        return None
    at = victim.pieces[0].device
    if not request.accepts(ledger.model[at]):
        return None
    after = ledger.lendable_after if preemptor.can_borrow else ledger.plain_after
    return at if after(at, firm_gone=victim.size) >= request.gpu_milli else None
