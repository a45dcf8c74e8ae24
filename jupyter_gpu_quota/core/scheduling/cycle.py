"""One pool's part of a plan: reservations, slices, the division, and the queue until nothing moves."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from ..model import Job, Notebook, NotebookState
from ..placement.place import Fit, Piece, Refusal, Request, host_needs, occupy, place, promise, request_of
from ..plan import ReasonCode
from ..preemption.feasibility import is_own_enough
from ..preemption.minimize import trim
from ..preemption.rules import Asker
from ..preemption.search import Claimed, claim
from ..queue.division import divide_pool
from ..queue.job_queue import Line, Why
from ..queue.order import Offers, first_blocked, stands_before
from ..queue.pool_state import Pool
from ..queue.quota_state import NO_LIMIT, SECOND, Holder, Right, Running, Standing
from . import reasons
from .backfill import Kept, beside, is_taken, keep, may_be_kept
from .elastic import grow
from .lending import is_waking, lend_and_release
from .notebook_slices import (
    admit,
    find_slice,
    find_slice_anywhere,
    hold_lent,
    hold_unbooked,
    homes_of_slices,
    release_hold,
)
from .plan_builder import Draft
from .reservations import read_reservations, sort_borrowers

MOST_KEEPS = 4
"""Up to so many jobs of a pool are tried for the place that is kept."""


class Round:
    """Makes the draft of one pool. The pool is scratch paper: a round runs once."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.ledger = pool, pool.ledger
        self.draft = Draft(pool)
        self.slices: list[Notebook] = []
        """Those that are to have a device: admitted now, or lent and waking."""
        self.lent: list[Notebook] = []
        self.reserved_slices: list[tuple[Notebook, Piece]] = []
        self.may_claim = True
        self.keeps_left = MOST_KEEPS
        self.place_given_up = False
        self.kept: Kept | None = None
        """The place of the first job that cannot start, promised in the ledger while others are served."""

    def run(self) -> Draft:
        """Everything in order; the draft holds what was decided."""
        self._admit_notebooks()
        self.slices, self.reserved_slices = read_reservations(self.pool, self.draft, self.slices)
        for standing in (*self.pool.standings.values(), *self.pool.departments.values()):
            standing.begin()
        self._hold()
        self._divide()
        sort_borrowers(self.pool)
        self._settle_slices()
        self._start_reserved(Right.GUARANTEE)
        self._serve_queue()
        if self.draft.claims:
            self._trim()
            self._serve_what_claims_left()
        grow(self.pool, self.draft)
        self.draft.kept = self.kept
        return self.draft

    # -- notebooks and reservations ---------------------------------------------------------------------------

    def _admit_notebooks(self) -> None:
        pool, policy = self.pool, self.pool.policy
        admission = admit(pool)
        waking = sorted((one for one in pool.slices if is_waking(one, policy)), key=lambda one: one.id)
        self.slices = [*waking, *admission.admitted]
        self.lent = [one for one in pool.slices if one.state is NotebookState.LENT and one not in waking]
        self.draft.refused = list(admission.refused)
        self.draft.lent_or_released = lend_and_release(pool.slices, policy, pool.now)

    def _hold(self) -> None:
        booked = [(standing, standing.booked) for standing in self.pool.standings.values()]
        waking = [one for one in self.slices if one.state is NotebookState.LENT]
        homeless = hold_lent(self.pool, [*self.lent, *waking])
        asking = [one for one in self.slices if one.state is not NotebookState.LENT]
        waiting = [(self.pool.standing(notebook.project), -notebook.gpu_milli) for notebook in (*asking, *homeless)]
        hold_unbooked(self.pool, [*booked, *waiting])

    def _divide(self) -> None:
        pool = self.pool
        asked = sum(notebook.gpu_milli for notebook in self.slices)
        asked += sum(notebook.gpu_milli for notebook, _ in self.reserved_slices)
        amount = max(0, sum(self.ledger.capacity) - pool.booked_milli - asked)
        kept = sum(max(0, one.notebook_quota - one.booked) for one in pool.standings.values())
        kept += sum(notebook.gpu_milli for notebook in self.lent)
        divide_pool(pool, amount, amount - kept)

    def _settle_slices(self) -> None:
        for notebook, piece in self.reserved_slices:
            self._settle_reserved_slice(notebook, piece)
        for notebook in self.slices:
            self._settle_slice(notebook)

    def _settle_slice(self, notebook: Notebook) -> None:
        """On a home that has room now or once somebody left; else anywhere: one device more is one guarantee less."""
        pool, milli = self.pool, notebook.gpu_milli
        if self._comes_home(notebook):
            return
        found = find_slice(pool, milli)
        if found is None:
            if self._claim_slice(notebook, only=homes_of_slices(pool)):
                return
            found = find_slice_anywhere(pool, milli)
        if found is not None:
            occupy(self.ledger, [found], lent=False)
            release_hold(self.ledger, found.device, milli)
            self._start_slice(notebook, found)
        elif not self._claim_slice(notebook):
            self.draft.wait(notebook.id, reasons.no_slice(pool, notebook))

    def _comes_home(self, notebook: Notebook) -> bool:
        """A lent slice goes back to its device, now or once its borrowers have left."""
        at = self.ledger.number.get(notebook.device or "")
        if at is None:
            return False
        if self.ledger.lendable_now(at) < notebook.gpu_milli:
            return self._claim_slice(notebook, only={at})
        piece = Piece(0, at, notebook.gpu_milli)
        occupy(self.ledger, [piece], lent=False)
        release_hold(self.ledger, at, notebook.gpu_milli)
        self._start_slice(notebook, piece)
        return True

    def _settle_reserved_slice(self, notebook: Notebook, piece: Piece) -> None:
        if self.ledger.free_now(piece.device) < piece.gpu_milli:
            self.draft.wait(notebook.id, reasons.waits_for_drain(self.pool.name, notebook.gpu_milli, ()))
            return
        promise(self.ledger, [piece], lent=False, sign=-1)
        occupy(self.ledger, [piece], lent=False)
        self._start_slice(notebook, piece)

    def _start_slice(self, notebook: Notebook, piece: Piece) -> None:
        self.pool.home.add(piece.device)
        self.draft.start(notebook, (piece,), lent=False, reason=reasons.slice_started(self.pool, notebook))

    def _claim_slice(self, notebook: Notebook, *, only: Container[int] | None = None) -> bool:
        asker = Asker(
            id=notebook.id,
            standing=self.pool.standing(notebook.project),
            user=notebook.user,
            request=Request(notebook.gpu_milli),
            right=Right.NOTEBOOK,
            only=only,
        )
        claimed = claim(self.pool, asker)
        if claimed is None:
            return False
        release_hold(self.ledger, claimed.pieces[0].device, notebook.gpu_milli)
        self._keep(claimed)
        return True

    def _keep_or_start(self, claimed: Claimed, job: Job) -> None:
        """A claim for which nobody has to leave, because its places were only promised and are free, starts at once."""
        standing = claimed.asker.standing
        somebody_leaves = bool(claimed.moved) or not all(victim.promised for victim in claimed.victims)
        if somebody_leaves or standing.at_limit(0):
            self._keep(claimed)
            return
        mark = self.ledger.mark()
        promise(self.ledger, claimed.pieces, lent=claimed.lent, sign=-1)
        if not self._is_free(claimed.pieces):
            self.ledger.undo(mark)
            self._keep(claimed)
            return
        occupy(self.ledger, claimed.pieces, lent=claimed.lent)
        size = claimed.asker.request.size
        reason = reasons.started(standing, size, 0, claimed.asker.right, lent=claimed.lent)
        self.draft.take_over(claimed)
        self._move_users_up(claimed)
        self.draft.start(job, claimed.pieces, lent=claimed.lent, reason=reason)

    def _keep(self, claimed: Claimed) -> None:
        self.draft.claim(claimed)
        self._move_users_up(claimed)

    def _move_users_up(self, claimed: Claimed) -> None:
        """Users who lost something stand further in front of their lines, and may have room under a ceiling again."""
        for victim in claimed.victims:
            department = victim.project.parent
            shared = department is not None and department.user_ceiling != NO_LIMIT
            for standing in self.pool.standings.values() if shared else (victim.project,):
                if standing is victim.project or standing.parent is department:
                    standing.queue.moved_up(victim.user)

    def _start_reserved(self, weakest: Right) -> None:
        for holder in sorted(self.pool.promised, key=lambda one: one.id):
            if holder.project.right(0) <= weakest:
                self._settle_reserved(holder)

    def _settle_reserved(self, holder: Holder) -> None:
        """Start where it was promised once all of that is free, or elsewhere if room has come up sooner."""
        job, standing = self.pool.waiting[holder.id], holder.project
        mark = self.ledger.mark()
        promise(self.ledger, holder.pieces, lent=holder.borrower, sign=-1)
        pieces, lent = holder.pieces, holder.borrower
        if not self._is_free(pieces) and job.min_ranks is not None:
            pieces = ()
        elif not self._is_free(pieces):
            fit = place(self.ledger, request_of(job, job.ranks))
            pieces, lent = (fit.pieces, False) if isinstance(fit, Fit) else ((), False)
        if not pieces or not self._may_start_reserved(standing, holder):
            self.ledger.undo(mark)
            self.draft.wait(job.id, reasons.waits_for_drain(self.pool.name, holder.size, ()))
            return
        occupy(self.ledger, pieces, lent=lent)
        self.pool.promised.remove(holder)
        reason = reasons.started(standing, holder.size, 0, standing.right(0), lent=lent)
        self.draft.start(job, pieces, lent=lent, reason=reason)

    def _is_free(self, pieces: tuple[Piece, ...]) -> bool:
        wanted: dict[int, int] = {}
        for piece in pieces:
            wanted[piece.device] = wanted.get(piece.device, 0) + piece.gpu_milli
        hosts = host_needs(pieces, self.ledger)
        fits = all(self.ledger.hosts.unoccupied(node).covers(host) for node, host in hosts.items())
        return fits and all(self.ledger.free_now(at) >= milli for at, milli in wanted.items())

    @staticmethod
    def _may_start_reserved(standing: Standing, holder: Holder) -> bool:
        return (holder.preemptible or standing.fixed_fits(0)) and not standing.at_limit(0)

    # -- the queue -----------------------------------------------------------------------------------------------

    def _serve_queue(self) -> None:
        """Claims within guarantee come before what others were promised above theirs, the rest after it."""
        self._serve_offers(Right.GUARANTEE)
        self._start_reserved(Right.SURPLUS)
        self._serve_the_rest()
        while self.place_given_up:
            self.place_given_up = False
            for standing in self.pool.standings.values():
                standing.queue.reopen()
            self._serve_the_rest()

    def _serve_the_rest(self) -> None:
        for standing in self.pool.standings.values():
            self._close_idle(standing)
        if any(one.queue.open_lines() for one in self.pool.standings.values()):
            self._keep_place(first_blocked(self.pool))
        self._serve_offers(Right.SURPLUS)

    def _serve_offers(self, weakest: Right) -> None:
        """Serve the best offer of all projects, down to this right, until no line is open."""
        standings = self.pool.standings.values()
        offers = Offers(filter(_may_use_guarantee, standings) if weakest is Right.GUARANTEE else standings)
        while (found := offers.first(weakest)) is not None:
            self._serve(*found)
            self._forget_place_of_served()
            offers.renew()

    def _close_idle(self, standing: Standing) -> None:
        """Close the lines that could start on idle devices only, while none fits: they are not even sorted.

        Without claims room only shrinks in a round; after claims everybody is asked once more.
        """
        for line in standing.queue.open_lines():
            if standing.right(line.size) is not Right.SURPLUS or self._may_preempt(standing, line):
                continue
            if self._fits_nowhere(line):
                forbidden = self._forbidden(standing, line, Right.SURPLUS)
                line.blocked = forbidden or self._no_room(standing, line.size, self._idle_code(standing, line))

    def _fits_nowhere(self, line: Line) -> bool:
        """Not even in the place that is kept, where who ends before its planned start may overtake."""
        request, lent = line.shape.request, line.shape.preemptible
        is_refused = isinstance(place(self.ledger, request, lent=lent), Refusal)
        if not is_refused or self.kept is None or not self._place_has_room():
            return is_refused
        with self._place_lent(given_up=False):
            return isinstance(place(self.ledger, request, lent=lent), Refusal)

    def _place_has_room(self) -> bool:
        """Whether a device of the place that is kept is not all occupied now."""
        pieces, free_now = self.kept.pieces if self.kept else (), self.ledger.free_now
        return any(free_now(one.device) > 0 for one in pieces)

    @staticmethod
    def _idle_code(standing: Standing, line: Line) -> ReasonCode:
        at_limit = standing.at_limit(line.size)
        return ReasonCode.ABOVE_LIMIT if at_limit else ReasonCode.ABOVE_FAIR_SHARE

    def _may_preempt(self, standing: Standing, line: Line) -> bool:
        if not self.may_claim:
            return False
        if standing.lowest < line.shape.priority or standing.movable.has_elastic:
            return True
        borrowers = self.pool.borrowers
        return bool(borrowers) and any(holder.project is standing for holder in borrowers)

    def _serve_what_claims_left(self) -> None:
        """A victim may free more than its claimer needs, so that something free now is promised to nobody any more."""
        self.may_claim = False
        for standing in self.pool.standings.values():
            standing.queue.reopen()
            self._close_idle(standing)
        self._serve_offers(Right.SURPLUS)

    def _serve(self, standing: Standing, line: Line) -> None:
        right = standing.right(line.size)
        if (forbidden := self._forbidden(standing, line, right)) is not None:
            line.blocked = forbidden
            return
        at_limit = standing.at_limit(line.size)
        if at_limit and not standing.over_limit(line.size):  # it is under the limit when who leaves is gone
            line.blocked = self._no_room(standing, line.size, ReasonCode.ABOVE_LIMIT)
            return
        lent_too = line.shape.preemptible and right is not Right.GUARANTEE
        before = self._goes_before(standing, line, right)
        if not at_limit and self._start_unkept(standing, line, right, before=before, lent_too=lent_too):
            return
        within = self._within(standing, line, right)
        claimed = self._claim(standing, line, right, within, before=before)
        if claimed is not None:
            self._keep_or_start(claimed, line.take())
            return
        may_borrow = line.shape.preemptible and not line.shape.exhausted and not at_limit
        before = self.kept is not None  # within its guarantee it goes before any
        if (
            may_borrow
            and right is Right.GUARANTEE
            and self._start_unkept(standing, line, right, before=before, lent_too=True)
        ):
            return
        line.blocked = self._why_blocked(standing, line, right, within, at_limit=at_limit)
        if right <= Right.FAIR and not at_limit:
            self._keep_place((standing, line))

    def _claim(
        self, standing: Standing, line: Line, right: Right, within: Standing | None, *, before: bool
    ) -> Claimed | None:
        """The place that is kept stops neither a claim within guarantee nor one that stands before its job."""
        if not self.may_claim:
            return None
        if within is standing and not is_own_enough(self.pool, standing, line.shape.priority, line.size):
            return None
        asker = self._asker(standing, line, right, within)
        if not before:
            return claim(self.pool, asker)
        with self._place_lent():
            return claim(self.pool, asker)

    def _start_unkept(self, standing: Standing, line: Line, right: Right, *, before: bool, lent_too: bool) -> bool:
        """Start beside the place that is kept for another, or in it where that may be overtaken."""
        if not before and self._start_free(standing, line, right, lent_too=lent_too):
            return True
        if self.kept is None or not (self._place_has_room() or self.kept.takes_host):  # to lend it gives nothing
            return before and self._start_free(standing, line, right, lent_too=lent_too)
        job = None if before or self._may_overtake(standing, line) else line.first_within(self._time_left_s())
        if not before and job is None and not self._may_overtake(standing, line):
            return False
        with self._place_lent(given_up=before):
            return self._start_free(standing, line, right, lent_too=lent_too, job=job)

    def _time_left_s(self) -> int:
        """How long something may run in the kept place and end before the planned start."""
        return (self.kept.starts_at - self.pool.now) // SECOND if self.kept else 0

    def _goes_before(self, standing: Standing, line: Line, right: Right) -> bool:
        if self.kept is None:
            return False
        if right is Right.GUARANTEE or line is self.kept.line:  # the place is its own, or does not stop it
            return True
        return stands_before(standing, line, self.kept.standing, self.kept.line)

    def _may_overtake(self, standing: Standing, line: Line) -> bool:
        assert self.kept is not None, "there is a place to overtake in"
        return self.kept.may_be_overtaken(self.pool, standing, line, line.first().time_limit_s)

    @contextmanager
    def _place_lent(self, *, given_up: bool = True, only: Container[int] | None = None) -> Iterator[None]:
        """Do something as if no place were kept (``only``: on these devices).

        ``given_up``: it is kept no longer where that was taken.
        """
        pieces = [piece for piece in self.kept.pieces if only is None or piece.device in only] if self.kept else []
        before = [beside(self.ledger, piece) for piece in pieces if given_up]
        promise(self.ledger, pieces, lent=False, sign=-1)
        mark = self.ledger.mark()
        yield
        given_up = given_up and self.ledger.mark() != mark
        promise(self.ledger, pieces, lent=False)
        if given_up and any(is_taken(self.ledger, *row) for row in zip(pieces, before, strict=True)):
            self._give_place_up()

    def _give_place_up(self) -> None:
        promise(self.ledger, self.kept.pieces if self.kept else (), lent=False, sign=-1)
        self.kept = None
        self.place_given_up = self.pool.room_came_back = True

    def _trim(self) -> None:
        """Who is put back may stay on a place that was planned behind it; no claim goes to one in its stead."""
        claims = self.draft.claims
        leaving = {
            piece.device
            for claimed in claims
            for holder in (*claimed.victims, *(moved.holder for moved in claimed.moved))
            for piece in holder.pieces
        }
        with self._place_lent(only=leaving):
            trim(self.pool, claims)
        if self.place_given_up:
            trim(self.pool, claims)  # on the room of the place that is kept no more
            self._keep_place(first_blocked(self.pool))

    def _forget_place_of_served(self) -> None:
        """Who was given another place needs the one that is kept no more."""
        if self.kept is not None and self.draft.serves(self.kept.job):
            self._give_place_up()

    def _keep_place(self, blocked: tuple[Standing, Line] | None) -> None:
        """Keep a place for the first job of a line, unless one is kept for a job that stands before it."""
        kept = self.kept
        if blocked is None or not self.keeps_left or not may_be_kept(*blocked):
            return
        if kept is not None and not stands_before(*blocked, kept.standing, kept.line):
            return
        self.keeps_left -= 1
        promise(self.ledger, kept.pieces if kept else (), lent=False, sign=-1)
        planned = keep(self.pool, *blocked)
        self.place_given_up |= kept is not None and planned is not None
        self.pool.room_came_back |= self.place_given_up
        self.kept = planned or kept
        promise(self.ledger, self.kept.pieces if self.kept else (), lent=False)

    def _forbidden(self, standing: Standing, line: Line, right: Right) -> Why | None:
        if not line.shape.preemptible and not standing.fixed_fits(line.size):
            return partial(reasons.above_training_quota, standing, line.size, standing.fixed_use)
        if line.shape.exhausted and right is not Right.GUARANTEE:
            return partial(reasons.pauses_used_up, standing, line.size, standing.use, self.pool.policy)
        return None

    def _start_free(
        self, standing: Standing, line: Line, right: Right, *, lent_too: bool, job: Job | None = None
    ) -> bool:
        """Start the first job of a line, or the given one, where it is free now."""
        for lent in (False, True) if lent_too and self.ledger.holds else (False,):
            fit = place(self.ledger, line.shape.request, lent=lent)
            if isinstance(fit, Fit):
                job = line.take() if job is None else line.pick(job)
                reason = reasons.started(standing, line.size, line.size, right, lent=lent)
                occupy(self.ledger, fit.pieces, lent=lent)
                standing.add(line.size, job.user, fixed=not job.preemptible)
                self.draft.start(job, fit.pieces, lent=lent, reason=reason)
                begins = job if job.started_at is None else replace(job, started_at=None)
                self.pool.running.append(Running(begins, fit.pieces, standing, line.size))
                return True
        return False

    @staticmethod
    def _asker(standing: Standing, line: Line, right: Right, within: Standing | None) -> Asker:
        job, shape = line.first(), line.shape
        return Asker(
            id=job.id,
            standing=standing,
            user=job.user,
            request=shape.request,
            right=right,
            priority=shape.priority,
            preemptible=shape.preemptible,
            lent_too=shape.preemptible and right is not Right.GUARANTEE,
            spares=None if right is Right.GUARANTEE else job.paused_for,
            within=within,
        )

    @staticmethod
    def _within(standing: Standing, line: Line, right: Right) -> Standing | None:
        """Whose work it may take: a weak right reaches its own project only, a limit only what is below it."""
        if right is Right.SURPLUS or (right is Right.FAIR and (standing.weight == 0 or not line.shape.preemptible)):
            return standing
        return next((one for one in standing.levels if one.use + one.leaving + line.size > one.ceiling), None)

    def _why_blocked(
        self, standing: Standing, line: Line, right: Right, within: Standing | None, *, at_limit: bool
    ) -> Why:
        code = ReasonCode.NO_FREE_GPU
        if at_limit:
            code = ReasonCode.ABOVE_LIMIT
        elif right is Right.SURPLUS:
            code = ReasonCode.ABOVE_FAIR_SHARE
        elif right is Right.FAIR and within is not standing:
            self.draft.failed.append(self._asker(standing, line, right, within))
        return self._no_room(standing, line.size, code)

    @staticmethod
    def _no_room(standing: Standing, size: int, code: ReasonCode) -> Why:
        """It is told with the books of now, and only where somebody asks."""
        return partial(reasons.no_room, standing, size, code, standing.use)


def _may_use_guarantee(standing: Standing) -> bool:
    """Whether anybody in its lines could start within its guarantee."""
    left = standing.guarantee - standing.use
    return left > 0 and any(line.size <= left for line in standing.queue.open_lines())
