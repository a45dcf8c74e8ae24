"""The reasons that ``decide`` gives, each with the figures that a sentence needs."""

from __future__ import annotations

from collections.abc import Sequence

from .model import Job, Notebook, Policy
from .placement import Request
from .plan import Reason, ReasonCode
from .pool import NO_LIMIT, Holder, Pool, Right, Standing, could_start_alone
from .reclaim import Asker, Claimed

Figures = tuple[tuple[str, int | str], ...]


def _books(standing: Standing, asked_milli: int, used_milli: int) -> Figures:
    return (
        ("project", standing.name),
        ("asked_milli", asked_milli),
        ("used_milli", used_milli),
        ("guarantee_milli", standing.guarantee),
        ("fair_milli", standing.fair),
    )


def started(standing: Standing, size: int, counted: int, right: Right, *, lent: bool) -> Reason:
    """Why a job starts. ``counted`` is what of its size the project's use does not count yet."""
    used = standing.use + counted - size
    code = ReasonCode.BORROWS_NOTEBOOK_QUOTA if lent else _STARTED[right]
    return Reason(code=code, figures=_books(standing, size, used))


_STARTED = {
    Right.GUARANTEE: ReasonCode.WITHIN_GUARANTEE,
    Right.FAIR: ReasonCode.WITHIN_FAIR_SHARE,
    Right.SURPLUS: ReasonCode.IDLE_SURPLUS,
}


def slice_started(pool: Pool, notebook: Notebook) -> Reason:
    """Why a notebook gets its slice."""
    standing = pool.standing(notebook.project)
    figures: Figures = (
        ("project", standing.name),
        ("asked_milli", notebook.gpu_milli),
        ("used_milli", standing.booked - notebook.gpu_milli),
        ("quota_milli", standing.notebook_quota),
    )
    return Reason(code=ReasonCode.WITHIN_NOTEBOOK_QUOTA, figures=figures)


def paused(claimed: Claimed, victim: Holder, grace_s: int) -> Reason:
    """Why a running job is asked to leave: claimer, rule and figures."""
    asker = claimed.asker
    claimer, owner = asker.standing, victim.project
    figures: Figures = (
        ("claimer", asker.id),
        ("claimer_project", claimer.name),
        ("asked_milli", asker.request.size),
        ("claimer_used_milli", claimed.used[claimer.name]),
        ("claimer_guarantee_milli", claimer.guarantee),
        ("claimer_fair_milli", claimer.fair),
        ("project", owner.name),
        ("used_milli", claimed.used[owner.name]),
        ("guarantee_milli", owner.guarantee),
        ("fair_milli", owner.fair),
        ("priority", victim.priority),
        ("claimer_priority", asker.priority),
        ("grace_s", grace_s),
    )
    return Reason(code=_pause_code(asker, victim), figures=figures)


def _pause_code(asker: Asker, victim: Holder) -> ReasonCode:
    if victim.borrower and asker.right is Right.NOTEBOOK:
        return ReasonCode.BORROWER_RETURNS
    if victim.project is asker.standing and asker.right is not Right.NOTEBOOK:
        return ReasonCode.PREEMPTED_IN_PROJECT
    return ReasonCode.RECLAIMED if asker.right <= Right.GUARANTEE else ReasonCode.FAIR_SHARE_RECLAIMED


def reserved(asker: Asker, victims: Sequence[Holder], grace_s: int) -> Reason:
    """What a claim waits for on the places that are kept for it."""
    figures: Figures = (
        ("project", asker.standing.name),
        ("asked_milli", asker.request.size),
        ("leaving", sum(not victim.promised for victim in victims)),
        ("grace_s", grace_s),
    )
    taken = tuple(("took_over_from", victim.id) for victim in victims if victim.promised)
    return Reason(code=ReasonCode.WAITS_FOR_DRAIN, figures=(*figures, *taken))


def waits_for_drain(pool: str, asked_milli: int, victims: Sequence[Holder]) -> Reason:
    """It has its place, and somebody is still leaving it."""
    figures: Figures = (("pool", pool), ("asked_milli", asked_milli))
    if victims:
        figures = (*figures, ("leaving", sum(not victim.promised for victim in victims)))
    return Reason(code=ReasonCode.WAITS_FOR_DRAIN, figures=figures)


def no_room(standing: Standing, size: int, code: ReasonCode) -> Reason:
    """It fits nowhere now, by this rule."""
    figures = _books(standing, size, standing.use)
    if standing.limit != NO_LIMIT:
        figures = (*figures, ("limit_milli", standing.limit), ("notebook_milli", standing.limit - standing.ceiling))
    return Reason(code=code, figures=figures)


def above_training_quota(standing: Standing, size: int) -> Reason:
    """A non-preemptible job must fit inside the training quota, whatever else is idle."""
    figures: Figures = (
        ("project", standing.name),
        ("asked_milli", size),
        ("used_milli", standing.fixed_use),
        ("quota_milli", standing.quota),
    )
    return Reason(code=ReasonCode.ABOVE_TRAINING_QUOTA, figures=figures)


def pauses_used_up(standing: Standing, size: int, policy: Policy) -> Reason:
    """It was paused as often as it may be, so it starts only where no guarantee can take its place."""
    figures = _books(standing, size, standing.use)
    limits: Figures = (("max_pauses", policy.preemption.max_pauses), ("per_s", policy.preemption.per_s))
    return Reason(code=ReasonCode.PAUSES_USED_UP, figures=(*figures, *limits))


def behind_others(standing: Standing, size: int) -> Reason:
    """Nothing forbids it; others come first."""
    return Reason(code=ReasonCode.BEHIND_OTHERS, figures=_books(standing, size, standing.use))


def hopeless(pool: Pool, job: Job) -> Reason:
    """Why a job could not start in the empty pool either."""
    standing = pool.standing(job.project)
    request = Request(job.gpu_milli, job.ranks, job.gpu_model)
    capacity = sum(pool.ledger.capacity)
    books: Figures = (("project", job.project), ("pool", pool.name), ("asked_milli", request.size))
    if not standing.known:
        return Reason(code=ReasonCode.NO_SUCH_PROJECT, figures=books)
    if request.size > standing.ceiling:
        limits: Figures = (
            ("used_milli", 0),
            ("limit_milli", standing.limit),
            ("notebook_milli", standing.limit - standing.ceiling),
        )
        return Reason(code=ReasonCode.ABOVE_LIMIT, figures=(*books, *limits))
    if not could_start_alone(pool, standing, request, preemptible=True):
        room: Figures = (("capacity_milli", capacity), ("ranks", job.ranks), ("possible_ranks", _ranks(pool, request)))
        model: Figures = (("gpu_model", job.gpu_model),) if job.gpu_model else ()
        return Reason(code=ReasonCode.NEVER_FITS, figures=(*books, *room, *model))
    return above_training_quota(standing, request.size)


def _ranks(pool: Pool, request: Request) -> int:
    return pool.empty.ranks(request) if request.gpu_milli > 0 else 0
