"""Minimize the victims of a whole plan: a victim that later picks made unnecessary keeps running."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from ..placement.ledger import Ledger
from ..placement.place import Piece, occupy, reserve
from ..queue.job_class import queue_of
from ..queue.pool_state import PoolState
from ..queue.quota_state import Entitlement, QuotaState, Victim
from .operations import split
from .replacement import Amounts, Replacement, Victims, lifted
from .result import Preemption
from .shrinking import take_back_offer
from .slots import room_after
from .withdrawal import insert_victim, restore, set_aside, take_place, withdraw_unfounded

MAX_REPLACED = 12
"""At most this many preemptions are placed again to spare a victim."""


def minimize_victims(
    pool: PoolState, preemptions: Sequence[Preemption], backfill: Sequence[Piece] = (), holder: str = ""
) -> list[Preemption]:
    """Restore every victim without which all preemptions of the plan still find room.

    Only room that is left over on draining devices can replace a victim's, also room that jobs above their fair share
    have reserved without victims, or with victims that are restored, or on which they start. Returns those that lose
    it: they are no part of the plan any more. A claim that has taken over devices keeps a part of them: they are for
    no claim above its guarantee. ``backfill``: the pieces of the backfill reservation, and ``holder`` its job. A
    restored victim may stay on its devices. A preemptor comes there only if it has the right, or if they were not
    reserved when it was served.
    Rule R43.
    """
    if not any((one.victims or one.moves) and not one.starts for one in preemptions):
        return []
    left_over, restored, reserved = set[Preemption](), set[QuotaState](), Counter[int]()
    for piece in backfill:
        reserved[piece.device] += piece.gpu_milli
    _set_left_over_aside(pool, preemptions, left_over, restored)
    for one in preemptions:
        one.kept_from = _still_kept_from(pool, one, backfill, holder)
    with lifted(pool.ledger, backfill):
        while True:
            claims = [one for one in preemptions if not one.starts and one not in left_over]
            entitled = [one for one in preemptions if one not in left_over and (one.victims or not one.starts)]
            restored |= _restore_all(pool, entitled, reserved)
            if _keep_ranks(pool, entitled, reserved):
                restored |= _restore_all(pool, entitled, reserved)
            if not _set_left_over_aside(pool, preemptions, left_over, restored):
                break
        for one in claims:
            _leave_reservation(pool, one, reserved)
        in_turn = _by_job_priority([one for one in preemptions if one in left_over])
        without = [one for one in in_turn if not _reserve_again(pool, one, reserved)]
        lost = [take_place(pool, one, claims, reserved) for one in without]
        lost += withdraw_unfounded(pool, preemptions, lost, reserved)
        for one in claims:
            if one not in lost:
                _end_borrowing(pool.ledger, one)
    return lost


def _leave_reservation(pool: PoolState, preemption: Preemption, reserved: Amounts) -> None:
    """Place a claim again that entered the backfill reservation, where another place is free now (R32)."""
    took_over = any(victim.reserved for victim in preemption.victims)
    if took_over or not preemption.has_right or not _needs_reserved(pool.ledger, preemption, reserved):
        return
    mark, before = pool.ledger.mark(), preemption.pieces
    reserve(pool.ledger, before, borrowed=preemption.borrowed, sign=-1)
    if not Replacement(pool, [preemption], reserved).succeeds() or _needs_reserved(pool.ledger, preemption, reserved):
        pool.ledger.undo(mark)
        preemption.pieces = before


def _needs_reserved(ledger: Ledger, preemption: Preemption, reserved: Amounts) -> bool:
    """Whether a claim has room that the backfill reservation, which is released, needs."""
    return any(ledger.plain_after(piece.device) < reserved.get(piece.device, 0) for piece in preemption.pieces)


def _still_kept_from(
    pool: PoolState, preemption: Preemption, backfill: Sequence[Piece], holder: str
) -> tuple[Piece, ...]:
    """The devices from which the backfill reservation kept a claim.

    If its job had it before the plan, and has it still, all of them are in use. Otherwise those that are reserved now.
    """
    recorded = pool.backfill.workload if pool.backfill is not None else ""
    if not preemption.kept_from or preemption.kept_for == recorded == holder:
        return preemption.kept_from
    devices = {piece.device for piece in preemption.kept_from}
    return tuple(piece for piece in backfill if piece.device in devices)


def _end_borrowing(ledger: Ledger, preemption: Preemption) -> None:
    """Reserve firm devices for a claim that was placed again where it needs no unbooked notebook quota."""
    if not preemption.borrowed:
        return
    mark = ledger.mark()
    reserve(ledger, preemption.pieces, borrowed=True, sign=-1)
    reserve(ledger, preemption.pieces, borrowed=False)
    preemption.borrowed = any(ledger.plain_after(piece.device) < 0 for piece in preemption.pieces)
    if preemption.borrowed:
        ledger.undo(mark)


def _set_left_over_aside(
    pool: PoolState, preemptions: Sequence[Preemption], left_over: set[Preemption], restored: set[QuotaState]
) -> bool:
    """Set aside the devices of jobs above their fair share, the last job first.

    Adds these jobs to ``left_over``. Returns whether there are more of them than before.
    """
    count = len(left_over)
    for number, one in reversed(list(enumerate(preemptions))):
        if one not in left_over and _is_left_over(pool, one, restored):
            left_over.add(one)
            set_aside(pool, one)
            for other in preemptions[number + 1 :]:
                if other.preemptor.project is one.preemptor.project:
                    other.set_aside_milli += one.preemptor.request.size
    return len(left_over) > count


def _is_left_over(pool: PoolState, preemption: Preemption, restored: set[QuotaState]) -> bool:
    """Whether a job above its fair share has what others are leaving, or starts there, and not on reserved devices.

    ``restored``: the projects with restored victims; with these a job may be above its project's fair share.
    """
    preemptor = preemption.preemptor
    if preemption.starts and not _starts_where_work_leaves(pool.ledger, preemption):
        return False
    if pool.backfill is not None and (preemptor.id == pool.backfill.workload or _has_entered(pool, preemption)):
        return False
    entitlement = preemptor.entitlement
    if entitlement in (Entitlement.GUARANTEE, Entitlement.FAIR) and preemptor.project in restored:
        entitlement = preemptor.project.entitlement(0)
    return entitlement is Entitlement.SURPLUS and not preemption.victims and not preemption.moves


def _starts_where_work_leaves(ledger: Ledger, preemption: Preemption) -> bool:
    nodes = {ledger.node_of[piece.device] for piece in preemption.pieces}
    return any(ledger.leaving[at] for node in nodes for at in ledger.on_node[node])


def _has_entered(pool: PoolState, preemption: Preemption) -> bool:
    """Whether a claim has devices of the recorded backfill reservation by right."""
    recorded = pool.backfill.placements if pool.backfill is not None and preemption.has_right else ()
    devices = {pool.ledger.number.get(part.device) for part in recorded}
    return any(piece.device in devices for piece in preemption.pieces)


def _by_job_priority(left_over: Sequence[Preemption]) -> list[Preemption]:
    """The same turns of projects, with the jobs of each project by job priority, high to low (R23).

    A job that did not fit before may fit now.
    """
    by_project = defaultdict[QuotaState, deque[Preemption]](deque)
    for one in sorted(left_over, key=lambda one: -one.preemptor.priority):
        by_project[one.preemptor.project].append(one)
    return [by_project[one.preemptor.project].popleft() for one in left_over]


def _reserve_again(pool: PoolState, preemption: Preemption, reserved: Amounts) -> bool:
    """Whether a job still finds devices: those that it had, or others. Its use counts again in any case.

    One that starts is not looked for others: what is free now is offered to all jobs again.
    """
    ledger, mark = pool.ledger, pool.ledger.mark()
    preemptor, give = preemption.preemptor, occupy if preemption.starts else reserve
    preemptor.project.add(preemptor.request.size, preemptor.user, preemptible=preemptor.preemptible)
    if not preemptor.project.may_be_restored(0, preemptor.user):
        return False
    after = room_after(ledger, preemption.preemptor.entitlement, can_borrow=preemption.borrowed)
    give(ledger, preemption.pieces, borrowed=preemption.borrowed)
    devices = [piece.device for piece in preemption.pieces]
    if all(after(at) >= 0 and not ledger.is_overfull(ledger.node_of[at]) for at in devices):
        return True
    ledger.undo(mark)
    return not preemption.starts and Replacement(pool, [preemption], reserved).succeeds()


def _restore_all(pool: PoolState, preemptions: Sequence[Preemption], reserved: Amounts) -> set[QuotaState]:
    """Let all work stay that needs neither move nor stop. Returns the projects of the victims that are restored.

    Work that stays leaves its new devices to other work, and a claim without victims needs no entitlement: so one
    piece of work that stays may let another one stay. ``preemptions``: the claims, and the jobs that start on devices
    that they took over, in order; these keep their devices, and their entitlement.
    """
    restored, is_changed = set[QuotaState](), True
    while is_changed:
        any_stays = _restore_moves(pool, preemptions, reserved, restored)
        is_changed = _restore_victims(pool, preemptions, reserved, restored) or any_stays
    return restored


def _restore_moves(
    pool: PoolState, preemptions: Sequence[Preemption], reserved: Amounts, restored: set[QuotaState]
) -> bool:
    """Let work stay that moves and need not. Returns whether any stays."""
    any_stays = False
    for number, preemption in enumerate(preemptions):
        for move in list(preemption.moves):
            for taken_over in _restored_with_move(pool, preemption):
                if taken_over and not _may_stay(pool, preemptions, number, taken_over):
                    continue
                if _fits_without(pool, preemptions, reserved, (move.victim, *taken_over), move.pieces):
                    pool.room_came_back = any_stays = True  # on the pieces reserved for the move
                    preemption.moves.remove(move)
                    pool.stopped.discard(move.victim.key)
                    insert_victim(pool, move.victim)
                    if taken_over:
                        restored.add(_restore_together(pool, preemptions, number, taken_over))
                    break
    return any_stays


def _restore_victims(
    pool: PoolState, preemptions: Sequence[Preemption], reserved: Amounts, restored: set[QuotaState]
) -> bool:
    """Restore the victims that need not stop, and add their projects. Returns whether there are any.

    A victim stays out if a preemptor of its own project would lose its entitlement, or if a preemptor of its department
    depends on its loss. Work that moves uses as much before as after, so it may stay in any case. Victims of claims
    above their fair share are tried last: without a victim such a claim could have used what is left over.
    """
    any_stays = False
    if pool.ledger.all_after(borrowed=True) < _least_freed(preemptions):
        return False
    several = {victim.id for preemption in preemptions for victim in preemption.shrunk_further}
    in_order = sorted(enumerate(preemptions), key=lambda row: row[1].preemptor.entitlement is Entitlement.SURPLUS)
    for number, preemption in in_order:
        for victims in () if preemption.starts else _restorable(pool, preemption, several):
            if not _may_stay(pool, preemptions, number, victims):
                continue
            if _fits_without(pool, preemptions, reserved, victims):
                restored.add(_restore_together(pool, preemptions, number, victims))
                any_stays = True
    return any_stays


def _restored_with_move(pool: PoolState, preemption: Preemption) -> list[Victims]:
    """The reservations to restore with a move: none, one that the claim took over, or all that it took from a project.

    A claim has to use devices that it takes over (R26). If only these require the move, neither is needed.
    """
    taken_over = [one for one in preemption.victims if one.reserved and _is_queued(pool, one)]
    found: list[Victims] = [(), *((one,) for one in taken_over)]
    if len(taken_over) > 1 and len({one.project for one in taken_over}) == 1:
        found.append(tuple(taken_over))
    return found


def _restore_together(pool: PoolState, preemptions: Sequence[Preemption], number: int, victims: Victims) -> QuotaState:
    """Restore victims of one project. Returns the project."""
    for victim in victims:
        preemptions[number].victims.remove(victim)
    restore(pool, victims)
    pool.room_came_back = True  # where a claim was before it was placed again
    _count_restored(victims[0].project, sum(one.size for one in victims), preemptions, number)
    return victims[0].project


def _least_freed(preemptions: Sequence[Preemption]) -> int:
    """The least that any victim frees on schedulable devices."""
    victims = (one for preemption in preemptions if not preemption.starts for one in preemption.victims)
    return min((sum([part.gpu_milli for part in one.pieces]) for one in victims), default=0)


def _may_stay(pool: PoolState, preemptions: Sequence[Preemption], number: int, victims: Victims) -> bool:
    """Whether there may be room for these victims of a preemption, and every claim stays legal beside them."""
    project, size = victims[0].project, sum(one.size for one in victims)
    if not _may_fit(pool, victims) or not project.may_be_restored(size, victims[0].user):
        return False
    own = [(at - number, one) for at, one in enumerate(preemptions) if one.preemptor.project is project]
    if not all(_keeps_entitlement(one, size, turn) for turn, one in own):
        return False
    return all(other.slack_milli >= size for other in _depending_on(project, preemptions[number:]))


def _keep_ranks(pool: PoolState, preemptions: Sequence[Preemption], reserved: Amounts) -> bool:
    """Let elastic jobs that shrink keep the ranks that need not go; they restart with them.

    Returns whether one keeps all that one of several claims took: it may keep what leaves for another, too.
    """
    is_kept = False
    for number, preemption in enumerate(preemptions) if pool.has_elastic else ():
        for victim in (*preemption.shrunk, *preemption.shrunk_further):
            is_kept |= _keep_ranks_of(pool, preemptions, reserved, number, victim)
    return is_kept


def _keep_ranks_of(
    pool: PoolState, preemptions: Sequence[Preemption], reserved: Amounts, number: int, victim: Victim
) -> bool:
    """Keep ranks of the part that leaves for one claim. Returns whether all of them stay."""
    victims = preemptions[number].victims
    further = [part for one in preemptions for part in one.victims if part.first_shrink is victim]
    for rank in sorted({piece.rank for piece in victim.pieces}):
        kept = _kept_rank(victim, rank)
        is_last = kept.size == victim.size
        if is_last and victim.first_shrink is None and not further:
            continue  # the job need not restart; that is tried with the other victims
        if not _may_stay(pool, preemptions, number, (kept,)):
            continue
        if _fits_without(pool, preemptions, reserved, (kept,)):
            at, fewer = victims.index(victim), _without_rank(victim, rank)
            victims[at : at + 1] = [] if is_last else [fewer]
            _replace_part(preemptions, victim, fewer)
            _count_restored(victim.project, kept.size, preemptions, number)
            victim = fewer
    if not victim.pieces and victim.first_shrink is None:
        _restart_for_next(further)
    return not victim.pieces


def _restart_for_next(further: Sequence[Victim]) -> None:
    """Let the next claim that shrinks an elastic job name its restart. The first claim takes no rank of it."""
    first, *others = further
    first.restarting, first.first_shrink = False, None
    for part in others:
        part.first_shrink = first


def _replace_part(preemptions: Sequence[Preemption], part: Victim, fewer: Victim) -> None:
    """Give the parts of an elastic job that leave for other claims the part that stays now."""
    for other in [one for preemption in preemptions for one in preemption.victims]:
        if other.id == part.id and other.base is not None:
            other.base = fewer.base
            other.first_shrink = fewer if other.first_shrink is part else other.first_shrink


def _kept_rank(victim: Victim, rank: int) -> Victim:
    """One rank of the part of an elastic job that leaves; its devices are reserved again if it is kept."""
    assert victim.base is not None, "a part that leaves has one that stays"
    kept = split(victim.base, victim.pieces, frozenset([rank]))
    kept.base, kept.restarting = None, True
    return kept


def _without_rank(victim: Victim, rank: int) -> Victim:
    """The part of an elastic job that leaves, if one rank of it stays."""
    assert victim.base is not None, "a part that leaves has one that stays"
    take_back_offer(victim)
    gone = frozenset(piece.rank for piece in victim.pieces if piece.rank != rank)
    fewer = split(victim.base, sorted((*victim.base.pieces, *victim.pieces)), gone)
    fewer.least_ranks, fewer.restarting, fewer.first_shrink = victim.least_ranks, victim.restarting, victim.first_shrink
    assert fewer.base is not None, "split gives both parts"
    fewer.base.above = None
    victim.project.undo_shrink(victim.size - fewer.size, victim.user)
    return fewer


def _count_restored(project: QuotaState, size: int, preemptions: Sequence[Preemption], number: int) -> None:
    """Count what a victim of one preemption uses, for the claims behind that."""
    for other in preemptions[number + 1 :]:
        for level in project.levels:
            if level.key in other.used:
                other.used[level.key] += size
    for other in _depending_on(project, preemptions[number:]):
        other.slack_milli -= size


def _restorable(pool: PoolState, preemption: Preemption, several: set[str]) -> list[Victims]:
    """The victims of a preemption, in the order in which they are restored.

    Work that runs comes before the reservations of jobs that still wait; protected work before other work, borrowers
    last. Within these, victims of a department below its quota come first, then those of a project below its quota.
    ``several``: the elastic jobs that several claims shrink, which stay as they are.
    """
    alone = [one for one in preemption.victims if one.base not in preemption.victims]
    alone = [one for one in alone if not one.reserved or _is_queued(pool, one)]
    alone = [one for one in alone if one.base is None or one.id not in several]
    alone.sort(key=lambda one: (one.reserved, not one.protected, one.borrower, _restore_order(one.project)))
    return [(one,) if one.above is None else (one, one.above) for one in alone]


def _restore_order(project: QuotaState) -> tuple[bool, bool]:
    """Sort key: projects of departments below their quota in force first, then projects below theirs."""
    department = project.parent or project
    return department.use >= department.guarantee, project.use >= project.guarantee


def _is_queued(pool: PoolState, victim: Victim) -> bool:
    job = pool.waiting[victim.id]
    queue = queue_of(pool, job)
    return queue is not None and queue.has(job)


def _keeps_entitlement(preemption: Preemption, size: int, turn: int) -> bool:
    """Whether a preemptor keeps its entitlement if its project uses so much more.

    ``turn``: 0 for the claim of the victim, below 0 for the claims before it.
    """
    preemptor = preemption.preemptor
    if preemptor.entitlement is Entitlement.NOTEBOOK or not preemption.victims:
        return True
    levels = _levels_that_gain(preemption)
    if preemptor.entitlement is Entitlement.GUARANTEE:
        if all(level.use + size <= level.guarantee for level in levels):
            return True
        more = preemptor.request.size + (size if turn > 0 else 0)
        return all(preemption.used[level.key] + more <= level.guarantee for level in levels)
    if any(victim.project is not preemptor.project for victim in preemption.victims):
        return _keeps_fair_share(preemption, levels, size, turn)
    return _would_enter(preemption, size, turn)


def _levels_that_gain(preemption: Preemption) -> tuple[QuotaState, ...]:
    """The project of a preemptor, and its department if it takes from others: what siblings lose is no gain (R36)."""
    project = preemption.preemptor.project
    takes_from_outside = any(victim.project.parent is not project.parent for victim in preemption.victims)
    return project.levels if takes_from_outside else (project,)


def _would_enter(preemption: Preemption, size: int, turn: int) -> bool:
    """Whether a claim with victims in its own project only would be legal at its turn, whatever came behind it."""
    level = preemption.preemptor.project
    used = preemption.used[level.key] + (size if turn > 0 else 0)
    lost = sum(victim.size for victim in preemption.victims) - (0 if turn else size)
    without_aside = used - preemption.set_aside_milli
    total = without_aside + preemption.preemptor.request.size - lost
    before = without_aside if lost else used  # without victims it gets what was set aside
    return total <= max(0 if preemption.moves else before, level.entitled)


def _keeps_fair_share(preemption: Preemption, levels: Sequence[QuotaState], size: int, turn: int) -> bool:
    """Whether a preemptor with victims in other projects stays within its fair share, and reverses no imbalance.

    The use before its claim includes all work that left for it or for later claims.
    """
    project, lost = preemption.preemptor.project, Counter[QuotaState]()
    for victim in preemption.victims:
        for level in victim.project.levels:
            lost[level] += victim.size
    more = preemption.preemptor.request.size + (size if turn > 0 else 0)
    for level in levels:
        if preemption.used[level.key] + more > level.entitled:
            return False
    kept = 0 if turn else size
    return all(
        (preemption.used[own.key] + more - lost[own] + kept - own.guarantee) * other.weight
        <= (preemption.used[other.key] - lost[other] - other.guarantee) * own.weight
        for own, other in {_compared(project, victim.project) for victim in preemption.victims}
        if own is not other and other.weight and other.priority == own.priority
    )


def _compared(own: QuotaState, other: QuotaState) -> tuple[QuotaState, QuotaState]:
    """The two levels just below the common ancestor of two projects (R35)."""
    return (own, other) if own.parent is other.parent else (own.levels[-1], other.levels[-1])


def _depending_on(project: QuotaState, preemptions: Sequence[Preemption]) -> list[Preemption]:
    """Preemptions of a victim's department with victims in other departments: they may depend on this victim's loss."""
    department = project.parent
    if department is None:
        return []
    return [
        preemption
        for preemption in preemptions
        if preemption.preemptor.project.parent is department
        and any(one.project.parent is not department for one in preemption.victims)
    ]


def _may_fit(pool: PoolState, victims: Victims) -> bool:
    """Whether enough may be left over to replace what they free on schedulable devices; an estimate."""
    milli, ledger = sum([piece.gpu_milli for victim in victims for piece in victim.pieces]), pool.ledger
    if ledger.all_after(borrowed=True) < milli:
        return False
    return pool.room_came_back or sum(ledger.lendable_after(at) for at in ledger.draining) >= milli


def _fits_without(
    pool: PoolState, preemptions: Sequence[Preemption], reserved: Amounts, victims: Victims,
    elsewhere: tuple[Piece, ...] = (),
) -> bool:  # fmt: skip
    """Whether all preemptions fit with these victims restored: first those on their devices move, then all.

    ``elsewhere``: the pieces that were reserved for a victim that was to move.
    """
    devices = {piece.device for victim in victims for piece in victim.pieces}
    claims = [one for one in preemptions if not one.starts]
    touched = [one for one in claims if not devices.isdisjoint(piece.device for piece in one.pieces)]
    if Replacement(pool, touched, reserved).succeeds_with(victims, elsewhere):
        return True
    largest_first = sorted(claims, key=lambda one: -one.preemptor.request.gpu_milli)
    replacement = Replacement(pool, largest_first, reserved)
    return len(claims) <= MAX_REPLACED and replacement.succeeds_with(victims, elsewhere)
