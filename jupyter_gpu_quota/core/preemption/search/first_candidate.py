"""The frequent case of a preemption: the first candidate alone makes room for a claim of one device at most.

No set can be cheaper then: one pause is the least where no work may leave without one, and what is free after
all drains is too little for a move. The full search would find the same.
"""

from __future__ import annotations

from ...placement.place import rank_pieces, reserve
from ...queue.pool_state import PoolState
from ...queue.quota_state import Entitlement, Victim
from ..accounting import mark_leaving, subtract_use
from ..candidates import Candidates
from ..result import Preemption
from ..rules import PreemptionRules, Preemptor


def find_first_candidate(pool: PoolState, preemptor: Preemptor) -> Preemption | None:
    """The preemption that pauses the first candidate; None where only the full search can tell.

    If found, the pool is changed as by :func:`.find_preemption`.
    """
    if not _is_simple(pool, preemptor):
        return None
    rules = PreemptionRules(pool, preemptor, most_below=0)
    candidates = Candidates(pool, preemptor, rules, include_protected=False)
    victim = candidates.first_to_pause()
    device = None if victim is None else _freed_device(pool, preemptor, victim)
    if victim is None or device is None or not (rules.is_first_allowed(victim) and _ends_within(preemptor, victim)):
        return None
    project, pieces = preemptor.project, tuple(rank_pieces(0, [device], preemptor.request))
    borrowed = preemptor.can_borrow and pool.ledger.plain_after(device, firm_gone=victim.size) < preemptor.request.size
    used = {project.name: project.use, victim.project.name: victim.project.use}
    gains = pool.ledger.gains
    mark_leaving(pool, victim)
    reserve(pool.ledger, pieces, borrowed=borrowed)
    if victim.size == preemptor.request.size and not (
        borrowed or victim.request.cpu_milli or victim.request.memory_mib
    ):
        pool.ledger.gains = gains  # nothing else gets room
    subtract_use(pool, victim)
    project.add(preemptor.request.size, preemptor.user, fixed=preemptor.fixed)
    return Preemption(preemptor=preemptor, pieces=pieces, victims=[victim], borrowed=borrowed, used=used)


def _is_simple(pool: PoolState, preemptor: Preemptor) -> bool:
    """Whether only pauses can make room, each within the limits, for a claim of one rank on one device."""
    request, project = preemptor.request, preemptor.project
    if request.ranks > 1 or request.devices_per_rank > 1 or request.cpu_milli or request.memory_mib:
        return False
    if pool.departments or pool.borrowers or pool.reserved or pool.has_elastic:
        return False
    if preemptor.entitlement is Entitlement.NOTEBOOK or preemptor.only is not None:
        return False
    if project.use + request.size > project.ceiling:
        return False
    return pool.ledger.all_after(borrowed=preemptor.can_borrow) < request.per_device


def _ends_within(preemptor: Preemptor, victim: Victim) -> bool:
    """Whether a claim that takes from its own project only leaves it no further above its fair share."""
    project = preemptor.project
    bound = project.use if project.use > project.fair else project.fair
    return not preemptor.own_only or project.use + preemptor.request.size - victim.size <= bound


def _freed_device(pool: PoolState, preemptor: Preemptor, victim: Victim) -> int | None:
    """The device of a victim on one device, if there is room for the claim without it."""
    request, ledger, devices = preemptor.request, pool.ledger, {piece.device for piece in victim.pieces}
    at = devices.pop() if len(devices) == 1 else None
    if at is None or not request.accepts(ledger.model[at]):
        return None
    after = ledger.lendable_after if preemptor.can_borrow else ledger.plain_after
    return at if after(at, firm_gone=victim.size) >= request.per_device else None
