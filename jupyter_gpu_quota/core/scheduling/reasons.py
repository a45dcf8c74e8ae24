"""The reasons that ``decide`` gives, each with the figures that a sentence needs."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Job, Notebook, NotebookState, Policy
from ..placement.place import Piece, Request, request_of
from ..plan import Reason, ReasonCode
from ..preemption.rules import Asker
from ..preemption.search import Claimed
from ..queue.pool_state import Pool, could_start_alone
from ..queue.quota_state import NO_LIMIT, SECOND, Holder, Right, Standing
from .backfill import Kept

Figures = tuple[tuple[str, int | str], ...]


def _claimable(standing: Standing) -> int:
    """The fair share as people are told it: never below the guarantee, which is there for the asking."""
    return max(standing.fair, standing.guarantee)


def _books(standing: Standing, asked_milli: int, used_milli: int) -> Figures:
    return (
        ("project", standing.name),
        ("asked_milli", asked_milli),
        ("used_milli", used_milli),
        ("guarantee_milli", standing.guarantee),
        ("fair_milli", _claimable(standing)),
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
    was: Figures = (("was", "lent"),) if notebook.state is NotebookState.LENT else ()
    return Reason(code=ReasonCode.WITHIN_NOTEBOOK_QUOTA, figures=(*figures, *was))


def no_device(pool: Pool, notebook: Notebook) -> Reason | None:
    """Why a slice can never start: its pool has no device at all, whatever their state; None where it has some."""
    if pool.devices:
        return None
    figures: Figures = (("project", notebook.project), ("pool", pool.name), ("asked_milli", notebook.gpu_milli))
    return Reason(code=ReasonCode.NO_DEVICE, figures=figures)


def no_slice(pool: Pool, notebook: Notebook) -> Reason:
    """Why a slice within its quota waits."""
    standing = pool.standing(notebook.project)
    return no_room(standing, notebook.gpu_milli, ReasonCode.NO_FREE_GPU, standing.use)


def paused(pool: Pool, claimed: Claimed, victim: Holder, grace_s: int) -> Reason:
    """Why a running job is asked to leave: claimer, rule and figures."""
    asker = claimed.asker
    claimer, owner = asker.standing, victim.project
    figures: Figures = (
        ("claimer", asker.id),
        ("claimer_project", claimer.name),
        ("asked_milli", asker.request.size),
        ("claimer_used_milli", claimed.used[claimer.name]),
        ("claimer_guarantee_milli", claimer.guarantee),
        ("claimer_fair_milli", _claimable(claimer)),
        ("project", owner.name),
        ("used_milli", claimed.used[owner.name]),
        ("guarantee_milli", owner.guarantee),
        ("fair_milli", _claimable(owner)),
        ("priority", victim.priority),
        ("claimer_priority", asker.priority),
        ("grace_s", grace_s),
    )
    code = _pause_code(asker, victim)
    lifted = _lifted(pool, victim) if victim.protected and code is not ReasonCode.BORROWER_RETURNS else ()
    return Reason(code=code, figures=(*figures, *lifted))


def _lifted(pool: Pool, victim: Holder) -> Figures:
    """The protection that a claim within a guarantee was allowed to pass over: nothing else could satisfy it."""
    rules, ran_s = pool.policy.preemption, (pool.now - victim.started_at) // SECOND
    if ran_s < rules.min_runtime_s:
        return (("ran_s", ran_s), ("min_runtime_s", rules.min_runtime_s))
    return (("max_pauses", rules.max_pauses), ("per_s", rules.per_s))


def shrunk(claimed: Claimed, above: Holder, grace_s: int) -> Reason:
    """Why an elastic job starts again smaller."""
    asker, base = claimed.asker, above.base
    figures: Figures = (
        ("claimer", asker.id),
        ("claimer_project", asker.standing.name),
        ("asked_milli", asker.request.size),
        ("project", above.project.name),
        ("given_milli", above.size),
        ("kept_milli", base.size if base else 0),
        ("grace_s", grace_s),
    )
    return Reason(code=ReasonCode.SHRUNK, figures=figures)


def moved(claimed: Claimed, holder: Holder, grace_s: int) -> Reason:
    """Why a job starts again on other devices."""
    asker = claimed.asker
    figures: Figures = (
        ("claimer", asker.id),
        ("claimer_project", asker.standing.name),
        ("asked_milli", asker.request.size),
        ("project", holder.project.name),
        ("grace_s", grace_s),
    )
    return Reason(code=ReasonCode.MOVED, figures=figures)


def grown(pool: Pool, job: Job, pieces: Sequence[Piece]) -> Reason:
    """Why an elastic job starts again larger."""
    size = sum(piece.gpu_milli for piece in pieces)
    figures: Figures = (
        ("project", job.project),
        ("given_milli", size - job.held_milli),
        ("kept_milli", size),
        ("grace_s", pool.policy.preemption.grace_s),
    )
    return Reason(code=ReasonCode.GROWN, figures=figures)


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


def no_room(standing: Standing, size: int, code: ReasonCode, used: int) -> Reason:
    """It fits nowhere now, by this rule. ``used``: what its project used when that was found."""
    figures = _books(standing, size, used)
    if code is ReasonCode.ABOVE_LIMIT and (above := _department_above(standing, size)) is not None:
        return Reason(code=code, figures=(*_books(standing, size, above.use), *_limits(above)))
    if standing.limit != NO_LIMIT:
        figures = (*figures, *_limits(standing))
    return Reason(code=code, figures=figures)


def _department_above(standing: Standing, size: int) -> Standing | None:
    """The department whose limit forbids ``size`` more, where the project's own does not."""
    levels = [level for level in standing.levels if level.limit != NO_LIMIT]
    short = next((level for level in levels if level.use + level.leaving + size > level.ceiling), standing)
    return short if short.is_department else None


def _limits(level: Standing) -> Figures:
    """The limit of a project or its department, and what of it is kept for notebooks."""
    figures: Figures = (("limit_milli", level.limit), ("notebook_milli", level.limit - level.ceiling))
    return (*figures, ("department", level.name)) if level.is_department else figures


def above_training_quota(standing: Standing, size: int, used: int) -> Reason:
    """A non-preemptible job must fit inside the training quota, of which so much is used, whatever else is idle."""
    figures: Figures = (
        ("project", standing.name),
        ("asked_milli", size),
        ("used_milli", used),
        ("quota_milli", standing.quota),
    )
    return Reason(code=ReasonCode.ABOVE_TRAINING_QUOTA, figures=figures)


def above_user_ceiling(standing: Standing, size: int, user: str) -> Reason:
    """A user's jobs are at the ceiling that the project, or its department, has for each user."""
    above = (level for level in standing.levels if level.by_user.get(user, 0) + size > level.user_ceiling)
    level = next(above, standing)
    return _user_ceiling(level, user, size, level.by_user.get(user, 0), level.user_ceiling)


def above_user_notebooks(standing: Standing, notebook: Notebook, used_milli: int) -> Reason:
    """A user's notebooks are at the ceiling that a project or department has for each user."""
    return _user_ceiling(standing, notebook.user, notebook.gpu_milli, used_milli, standing.user_notebooks)


def _user_ceiling(standing: Standing, user: str, asked: int, used: int | None, ceiling: int) -> Reason:
    """``used``: None where it does not matter, because the ceiling is below what was asked for."""
    uses: Figures = () if used is None else (("used_milli", used),)
    figures: Figures = (
        ("project", f"department {standing.name}" if standing.is_department else standing.name),
        ("user", user),
        ("asked_milli", asked),
        *uses,
        ("ceiling_milli", ceiling),
    )
    return Reason(code=ReasonCode.ABOVE_USER_CEILING, figures=figures)


def pauses_used_up(standing: Standing, size: int, used: int, policy: Policy) -> Reason:
    """It was paused as often as it may be, so it starts only where no guarantee can take its place."""
    figures = _books(standing, size, used)
    limits: Figures = (("max_pauses", policy.preemption.max_pauses), ("per_s", policy.preemption.per_s))
    return Reason(code=ReasonCode.PAUSES_USED_UP, figures=(*figures, *limits))


def behind_others(standing: Standing, size: int) -> Reason:
    """Nothing forbids it; others come first."""
    return Reason(code=ReasonCode.BEHIND_OTHERS, figures=_books(standing, size, standing.use))


def place_kept(kept: Kept, why: Reason, now: int) -> Reason:
    """A place is kept, and the work there ends by its time limit within so many seconds; a rule is told before that."""
    size = sum(piece.gpu_milli for piece in kept.pieces)
    within: Figures = (("within_s", -(-(kept.starts_at - now) // SECOND)),)
    if why.code is not ReasonCode.NO_FREE_GPU:
        return Reason(code=why.code, figures=(*why.figures, *within))
    return Reason(code=ReasonCode.PLACE_KEPT, figures=(*_books(kept.standing, size, kept.standing.use), *within))


def hopeless(pool: Pool, job: Job) -> Reason:
    """Why a job could not start in the empty pool either."""
    standing = pool.standing(job.project)
    request = request_of(job, job.least_ranks)
    capacity = sum(pool.ledger.capacity)
    books: Figures = (("project", job.project), ("pool", pool.name), ("asked_milli", request.size))
    if not standing.known:
        return Reason(code=ReasonCode.NO_SUCH_PROJECT, figures=books)
    short = next((level for level in standing.levels if request.size > level.ceiling), None)
    if short is not None:
        return Reason(code=ReasonCode.ABOVE_LIMIT, figures=(*books, *_limits(short)))
    lowest = min(standing.levels, key=lambda level: level.user_ceiling)
    if request.size > lowest.user_ceiling:
        return _user_ceiling(lowest, job.user, request.size, None, lowest.user_ceiling)
    if not could_start_alone(pool, standing, request, preemptible=True):
        room: Figures = (
            ("capacity_milli", capacity),
            ("ranks", request.ranks),
            ("possible_ranks", _ranks(pool, request)),
        )
        model: Figures = (("gpu_model", ", ".join(job.gpu_models)),) if job.gpu_models else ()
        return Reason(code=ReasonCode.NEVER_FITS, figures=(*books, *room, *model))
    return above_training_quota(standing, request.size, standing.fixed_use)


def _ranks(pool: Pool, request: Request) -> int:
    return pool.empty.ranks(request) if request.gpu_milli > 0 else 0
