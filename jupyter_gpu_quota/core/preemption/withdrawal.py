"""Withdraw from a plan the jobs that lose their devices, claims that were legal only beside those, and victims."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Sequence

from ..placement.place import occupy, reserve
from ..queue.job_class import queue_of
from ..queue.pool_state import PoolState, victim_list
from ..queue.quota_state import Entitlement, QuotaState, Victim
from .replacement import Amounts, Replacement, Victims
from .result import Preemption
from .rules import Preemptor, threshold
from .shrinking import take_back_offer


def set_aside(pool: PoolState, preemption: Preemption) -> None:
    """Release what a job has, and do not count it as use: what may be restored does not depend on it."""
    preemptor, give = preemption.preemptor, occupy if preemption.starts else reserve
    give(pool.ledger, preemption.pieces, borrowed=preemption.borrowed, sign=-1)
    preemptor.project.remove(preemptor.request.size, preemptor.user, preemptible=preemptor.preemptible)


def take_place(pool: PoolState, lost: Preemption, claims: list[Preemption], reserved: Amounts) -> Preemption:
    """Let a job that has lost its devices have the claim, or the room, of a job of its project with lower priority.

    A claim with victims is legal for an equal job; without any its room is for whatever fits. The job that has the
    backfill reservation keeps its room. Returns the one that has no devices then, which is no claim any more.
    """
    mine = lost.preemptor
    if lost.starts:
        return lost
    holder = "" if pool.backfill is None else pool.backfill.workload
    of_project = (one for one in claims if one.preemptor.project is mine.project and one.preemptor.id != holder)
    behind = [one for one in of_project if one.preemptor.priority < mine.priority and _could_claim(mine, one)]
    for last in sorted(behind, key=lambda one: one.preemptor.priority):
        if last.preemptor.request == mine.request:
            lost.preemptor, last.preemptor = last.preemptor, mine._replace(entitlement=last.preemptor.entitlement)
            return lost
        if not last.victims and not last.moves and _take_room(pool, lost, last, reserved):
            claims.remove(last)
            return last
    return lost


def _take_room(pool: PoolState, lost: Preemption, last: Preemption, reserved: Amounts) -> bool:
    """Whether a job that has lost its devices fits in the room of a claim without victims; that has no devices then."""
    preemptor, mark = last.preemptor, pool.ledger.mark()
    set_aside(pool, last)
    may_start = lost.preemptor.project.may_be_restored(0, lost.preemptor.user)
    fits = may_start and Replacement(pool, [lost], reserved).succeeds()
    if not fits:
        pool.ledger.undo(mark)
    preemptor.project.add(preemptor.request.size, preemptor.user, preemptible=preemptor.preemptible)
    return fits


def _could_claim(preemptor: Preemptor, other: Preemption) -> bool:
    """Whether the claim of an equal job of lower priority would be legal for a job; the claim of a notebook is not."""
    since = preemptor.submitted_at
    if other.preemptor.entitlement is Entitlement.NOTEBOOK:
        return False
    return preemptor.preemptible == other.preemptor.preemptible and all(
        victim.id != preemptor.excluded_victim
        and (since is None or victim.project is not preemptor.project or victim.paused_at < since)
        for victim in other.victims
    )


def restore(pool: PoolState, victims: Victims) -> None:
    """Count victims as running, or as reserved, again, and list them as victims; their devices are in the ledger."""
    for victim in victims:
        if victim.base is not None:
            take_back_offer(victim)
        insert_victim(pool, victim)
        pool.stopped.discard(victim.key)
        if victim.reserved:
            if (queue := queue_of(pool, job := pool.waiting[victim.id])) is not None:
                queue.pick(job)
            victim.project.add(victim.size, victim.user, preemptible=True)  # no non-preemptible use was subtracted
        elif victim.base is None:
            victim.project.undo_pause(victim.size, victim.user)
        else:
            victim.project.undo_shrink(victim.size, victim.user)
    if (base := victims[0].base) is not None:
        base.above = victims[0]
        insert_victim(pool, base)


def insert_victim(pool: PoolState, victim: Victim) -> None:
    """List a victim in its place in the order."""
    insort(victim_list(pool, victim), victim, key=lambda one: one.order)


def withdraw_unfounded(
    pool: PoolState, preemptions: Sequence[Preemption], lost: Sequence[Preemption], reserved: Amounts
) -> list[Preemption]:
    """Take out the claims on projects that were above their fair share only with jobs that have lost their devices.

    Their victims continue. Returns these claims.
    """
    gone = list(lost)
    for number, one in enumerate(preemptions) if lost else ():
        if one in gone or one.preemptor.entitlement is not Entitlement.FAIR:
            continue
        before = [other for other in preemptions[:number] if other in gone and not other.victims]
        others = [other for other in preemptions if other is not one and not other.starts and other not in gone]
        if not _is_founded(pool, one, before) and _release_victims(pool, one, others, reserved):
            gone.append(one)
    return gone[len(lost) :]


def _is_founded(pool: PoolState, claim: Preemption, lost: Sequence[Preemption]) -> bool:
    """Whether each victim is allowed at the claim's turn without the use of the jobs that have lost their devices."""
    own, taken, gone = claim.preemptor.project, defaultdict[QuotaState, list[Victim]](list), Counter[QuotaState]()
    for victim in claim.victims:
        is_sibling = victim.project.parent is own.parent
        for level in (victim.project,) if is_sibling else victim.project.levels:
            taken[level].append(victim)
    for other in lost:
        gone.update(dict.fromkeys(other.preemptor.project.levels, other.preemptor.request.size))
    concerned = {level: claim.used[level.key] - gone[level] for level in taken if gone[level] and level is not own}
    return all(
        _may_lose(pool, level, used, taken[level])
        and _is_balanced(claim, level, used - sum([one.size for one in taken[level]]))
        for level, used in concerned.items()
    )


def _is_balanced(claim: Preemption, level: QuotaState, after: int) -> bool:
    """Whether a claim ends no further above its guarantee, by weight, than a victims' owner that then uses so much."""
    preemptor, same = claim.preemptor, (level.parent, level.is_department, level.priority)
    own = next((one for one in preemptor.project.levels if (one.parent, one.is_department, one.priority) == same), None)
    if own is None or not level.weight:
        return True
    lost = sum([one.size for one in claim.victims if own in one.project.levels])
    above = claim.used[own.key] + preemptor.request.size - lost - own.guarantee
    return above * level.weight <= (after - level.guarantee) * own.weight


def _may_lose(pool: PoolState, level: QuotaState, used: int, victims: Sequence[Victim]) -> bool:
    """Whether a project or department that uses so much may lose these to a claim within its fair share.

    The largest is the last.
    """
    most = threshold(level, Entitlement.FAIR)
    sizes, firm = [one.size for one in victims], [one.size for one in victims if not one.borrower]
    if used - sum(sizes) + max(sizes) <= most:
        return False
    beside = used - sum([one.size for one in pool.borrowers if level in one.project.levels])
    return not firm or beside - sum(firm) + max(firm) > most


def _release_victims(pool: PoolState, claim: Preemption, others: Sequence[Preemption], reserved: Amounts) -> bool:
    """Whether all victims and moved jobs of a claim may continue; they do then, and the claim has no devices."""
    victims = (*claim.victims, *(move.victim for move in claim.moves))
    if any(one.base is not None or one.above is not None or one.reserved for one in victims):
        return False
    back = Counter[QuotaState]()
    for one in claim.victims:
        back[one.project] += one.size
    if not all(one.project.may_be_restored(back[one.project], one.user) for one in claim.victims):
        return False
    mark = pool.ledger.mark()
    reserve(pool.ledger, claim.pieces, borrowed=claim.borrowed, sign=-1)
    devices = {piece.device for one in victims for piece in one.pieces}
    touched = [one for one in others if not devices.isdisjoint(piece.device for piece in one.pieces)]
    elsewhere = tuple(piece for move in claim.moves for piece in move.pieces)
    if not Replacement(pool, touched, reserved).succeeds_with(victims, elsewhere):
        pool.ledger.undo(mark)
        return False
    for victim in claim.victims:
        restore(pool, (victim,))
    for move in claim.moves:
        pool.stopped.discard(move.victim.key)
        insert_victim(pool, move.victim)
    claim.victims.clear()
    claim.moves.clear()
    pool.room_came_back = True
    return True
