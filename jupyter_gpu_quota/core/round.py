"""One pool's part of a plan: reservations, slices, the division, and the queue until nothing moves."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from . import reasons
from .draft import Draft
from .model import Job, Notebook, Reservation
from .notebooks import admit, find_slice, hold_unbooked, release_hold
from .placement import Fit, Piece, Refusal, Request, occupy, place, promise
from .plan import Reason, ReasonCode
from .pool import Holder, Pool, Right, Standing, demand, enqueue
from .queue import Line
from .quota import Claim, divide
from .reclaim import Asker, Claimed, claim
from .trim import trim

OfferKey = tuple[int, bool, int, int, int, str]
"""Between projects: right, weight 0, -priority, (use + job) / entitlement, first submit time, name."""
RATIO = 1 << 32


class Round:
    """Makes the draft of one pool. The pool is scratch paper: a round runs once."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.ledger = pool, pool.ledger
        self.draft = Draft(pool)
        self.slices: list[Notebook] = []
        self.reserved_slices: list[tuple[Notebook, Piece]] = []
        self.may_claim = True

    def run(self) -> Draft:
        """Everything in order; the draft holds what was decided."""
        self._admit_notebooks()
        self._read_reservations()
        self._hold()
        self._divide()
        self._sort_reserved_borrowers()
        self._settle_slices()
        self._start_reserved(Right.GUARANTEE)
        self._serve_queue()
        if self.draft.claims:
            trim(self.pool, self.draft.claims)
            self._serve_what_claims_left()
        return self.draft

    # -- notebooks and reservations ---------------------------------------------------------------------------

    def _admit_notebooks(self) -> None:
        admission = admit(self.pool)
        self.slices = list(admission.admitted)
        self.draft.refused = list(admission.refused)

    def _read_reservations(self) -> None:
        slices = {notebook.id: notebook for notebook in self.slices}
        for reservation in self.pool.reservations:
            pieces = self._pieces(reservation)
            known = reservation.workload in slices or reservation.workload in self.pool.waiting
            if not known:
                self.draft.drop(reservation.workload, ReasonCode.CLAIM_ENDED)
            elif pieces is None or not self._has_room(pieces):
                self.draft.drop(reservation.workload, ReasonCode.RESERVED_DEVICE_LOST)
                self._queue_again(reservation.workload)
            elif reservation.workload in slices:
                promise(self.ledger, pieces, lent=False)
                self.reserved_slices.append((slices[reservation.workload], pieces[0]))
            else:
                self._promise_job(reservation.workload, pieces)
        placed = {notebook.id for notebook, _ in self.reserved_slices}
        self.slices = [notebook for notebook in self.slices if notebook.id not in placed]

    def _pieces(self, reservation: Reservation) -> tuple[Piece, ...] | None:
        number = self.ledger.number
        if not reservation.placements or any(part.device not in number for part in reservation.placements):
            return None
        return tuple(sorted(Piece(part.rank, number[part.device], part.gpu_milli) for part in reservation.placements))

    def _has_room(self, pieces: tuple[Piece, ...]) -> bool:
        wanted: dict[int, int] = {}
        for piece in pieces:
            wanted[piece.device] = wanted.get(piece.device, 0) + piece.gpu_milli
        return all(self.ledger.lendable_after(at) >= milli for at, milli in wanted.items())

    def _queue_again(self, workload: str) -> None:
        if workload in self.pool.waiting:
            enqueue(self.pool, [self.pool.waiting[workload]])

    def _promise_job(self, workload: str, pieces: tuple[Piece, ...]) -> None:
        job = self.pool.waiting[workload]
        standing = self.pool.standing(job.project)
        size = job.gpu_milli * job.ranks
        over = not job.preemptible and standing.fixed_use + size > standing.quota
        if not standing.known or over or standing.use + size > standing.ceiling:
            self.draft.drop(workload, ReasonCode.CLAIM_ENDED)
            self._queue_again(workload)
            return
        promise(self.ledger, pieces, lent=False)
        standing.add(size, job.user, fixed=not job.preemptible)
        standing.wanted += size
        standing.wanted_fixed += 0 if job.preemptible else size
        self.pool.promised.append(
            Holder(
                id=job.id,
                project=standing,
                user=job.user,
                size=size,
                pieces=pieces,
                preemptible=job.preemptible,
                priority=job.priority,
                lost_ms=0,
                started_at=self.pool.now,
                promised=True,
            )
        )

    def _hold(self) -> None:
        booked = [(standing, standing.booked) for standing in self.pool.standings.values()]
        waiting = [(self.pool.standing(notebook.project), -notebook.gpu_milli) for notebook in self.slices]
        hold_unbooked(self.pool, [*booked, *waiting])

    def _divide(self) -> None:
        pool = self.pool
        asked = sum(notebook.gpu_milli for notebook in self.slices)
        asked += sum(notebook.gpu_milli for notebook, _ in self.reserved_slices)
        amount = max(0, sum(self.ledger.capacity) - pool.booked_milli - asked)
        unbooked = sum(max(0, one.notebook_quota - one.booked) for one in pool.standings.values())
        claims = [
            Claim(
                name=one.name,
                quota_milli=one.quota,
                wanted_milli=demand(one),
                weight=one.weight,
                priority=one.priority,
            )
            for one in pool.standings.values()
        ]
        for name, share in divide(claims, amount, firm_milli=amount - unbooked).items():
            pool.standings[name].guarantee = share.guarantee_milli
            pool.standings[name].fair = share.fair_milli

    def _sort_reserved_borrowers(self) -> None:
        """A promised place that reaches into held room is a borrower's, unless a guarantee stands behind it.

        Then less is held until somebody drains: what was promised is kept.
        """
        for holder in sorted(self.pool.promised, key=lambda one: one.id):
            short = [piece.device for piece in holder.pieces if self.ledger.plain_after(piece.device) < 0]
            firm = not holder.preemptible or holder.project.use <= holder.project.guarantee
            if short and not firm:
                promise(self.ledger, holder.pieces, lent=False, sign=-1)
                promise(self.ledger, holder.pieces, lent=True)
                holder.borrower = True
        for at in {piece.device for holder in self.pool.promised for piece in holder.pieces}:
            short_milli = -self.ledger.plain_after(at)
            if short_milli > 0:
                self.ledger.shift(at, held=-min(short_milli, self.ledger.held[at]))

    def _settle_slices(self) -> None:
        for notebook, piece in self.reserved_slices:
            self._settle_reserved_slice(notebook, piece)
        for notebook in self.slices:
            found = find_slice(self.pool, notebook.gpu_milli)
            if found is not None:
                occupy(self.ledger, [found], lent=False)
                release_hold(self.ledger, found.device, found.gpu_milli)
                self._start_slice(notebook, found)
            else:
                self._claim_slice(notebook)

    def _settle_reserved_slice(self, notebook: Notebook, piece: Piece) -> None:
        if self.ledger.free_now(piece.device) < piece.gpu_milli:
            self.draft.wait(notebook.id, reasons.waits_for_drain(self.pool.name, notebook.gpu_milli, ()))
            return
        promise(self.ledger, [piece], lent=False, sign=-1)
        occupy(self.ledger, [piece], lent=False)
        self._start_slice(notebook, piece)

    def _start_slice(self, notebook: Notebook, piece: Piece) -> None:
        self.draft.start(notebook, (piece,), lent=False, reason=reasons.slice_started(self.pool, notebook))

    def _claim_slice(self, notebook: Notebook) -> None:
        asker = Asker(
            id=notebook.id,
            standing=self.pool.standing(notebook.project),
            user=notebook.user,
            request=Request(notebook.gpu_milli),
            right=Right.NOTEBOOK,
        )
        claimed = claim(self.pool, asker)
        if claimed is None:
            self.draft.wait(notebook.id, reasons.no_room(asker.standing, asker.request.size, ReasonCode.NO_FREE_GPU))
            return
        release_hold(self.ledger, claimed.pieces[0].device, notebook.gpu_milli)
        self._keep(claimed)

    def _keep_or_start(self, claimed: Claimed, job: Job) -> None:
        """A claim for which nobody has to leave, because its places were only promised and are free, starts at once."""
        mark, standing = self.ledger.mark(), claimed.asker.standing
        promise(self.ledger, claimed.pieces, lent=claimed.lent, sign=-1)
        if not all(victim.promised for victim in claimed.victims) or not self._is_free(claimed.pieces):
            self.ledger.undo(mark)
            self._keep(claimed)
            return
        occupy(self.ledger, claimed.pieces, lent=claimed.lent)
        size = claimed.asker.request.size
        reason = reasons.started(standing, size, 0, claimed.asker.right, lent=claimed.lent)
        self.draft.take_over(claimed)
        self.draft.start(job, claimed.pieces, lent=claimed.lent, reason=reason)

    def _keep(self, claimed: Claimed) -> None:
        """Put a claim in the draft; users who lost something stand further in front of their lines."""
        self.draft.claim(claimed)
        for victim in claimed.victims:
            victim.project.queue.moved_up(victim.user)

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
        if not self._is_free(pieces):
            fit = place(self.ledger, Request(job.gpu_milli, job.ranks, job.gpu_model))
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
        return all(self.ledger.free_now(at) >= milli for at, milli in wanted.items())

    @staticmethod
    def _may_start_reserved(standing: Standing, holder: Holder) -> bool:
        within_quota = holder.preemptible or standing.fixed_use <= standing.quota
        return within_quota and standing.use + standing.leaving <= standing.ceiling

    # -- the queue -----------------------------------------------------------------------------------------------

    def _serve_queue(self) -> None:
        """Claims within guarantee come before what others were promised above theirs, the rest after it."""
        self._serve_offers(Right.GUARANTEE)
        self._start_reserved(Right.SURPLUS)
        for standing in self.pool.standings.values():
            self._close_idle(standing)
        self._serve_offers(Right.SURPLUS)

    def _serve_offers(self, weakest: Right) -> None:
        """Serve the best offer of all projects, down to this right, until no line is open."""
        offers = [self._offer(standing) for standing in self.pool.standings.values()]
        heap = [offer for offer in offers if offer is not None]
        heapify(heap)
        while heap and heap[0][0][0] <= weakest:
            key, line = heap[0]
            standing = self.pool.standings[key[-1]]
            self._serve(standing, line)
            offer = self._offer(standing)
            if offer is None:
                heappop(heap)
            else:
                heapreplace(heap, offer)

    def _close_idle(self, standing: Standing) -> None:
        """Close the lines that could start on idle devices only, while none fits: they are not even sorted.

        Without claims room only shrinks in a round; after claims everybody is asked once more.
        """
        for line in standing.queue.open_lines():
            if standing.right(line.size) is not Right.SURPLUS or self._may_preempt(standing, line):
                continue
            if isinstance(place(self.ledger, line.shape.request, lent=line.shape.preemptible), Refusal):
                forbidden = self._forbidden(standing, line, Right.SURPLUS)
                line.blocked = forbidden or reasons.no_room(standing, line.size, self._idle_code(standing, line))

    @staticmethod
    def _idle_code(standing: Standing, line: Line) -> ReasonCode:
        at_limit = standing.use + standing.leaving + line.size > standing.ceiling
        return ReasonCode.ABOVE_LIMIT if at_limit else ReasonCode.ABOVE_FAIR_SHARE

    def _may_preempt(self, standing: Standing, line: Line) -> bool:
        lowest = min((one.priority for one in standing.holders[:1]), default=line.shape.priority)
        borrowed = any(holder.project is standing for holder in self.pool.borrowers)
        return self.may_claim and (borrowed or lowest < line.shape.priority)

    def _serve_what_claims_left(self) -> None:
        """A victim may free more than its claimer needs, so that something free now is promised to nobody any more."""
        self.may_claim = False
        for standing in self.pool.standings.values():
            standing.queue.reopen()
            self._close_idle(standing)
        self._serve_offers(Right.SURPLUS)

    @staticmethod
    def _offer(standing: Standing) -> tuple[OfferKey, Line] | None:
        """The first job that fits the guarantee, else the first within the fair share, else the first; with its key."""
        found = [(standing.right(line.size), line.first_key(), line) for line in standing.queue.open_lines()]
        if not found:
            return None
        right, order, line = min(found)
        total = standing.use + line.size
        ratio = total * RATIO // standing.fair if standing.fair else total * RATIO * RATIO
        weightless = right is not Right.GUARANTEE and standing.weight == 0
        return (right, weightless, -standing.priority, ratio, order[2], standing.name), line

    def _serve(self, standing: Standing, line: Line) -> None:
        right = standing.right(line.size)
        if (forbidden := self._forbidden(standing, line, right)) is not None:
            line.blocked = forbidden
            return
        at_limit = standing.use + standing.leaving + line.size > standing.ceiling
        lent_too = line.shape.preemptible and right is not Right.GUARANTEE
        if not at_limit and self._start_free(standing, line, right, lent_too=lent_too):
            return
        asker = self._asker(standing, line, right, at_limit=at_limit)
        claimed = claim(self.pool, asker) if self.may_claim else None
        if claimed is not None:
            self._keep_or_start(claimed, line.take())
            return
        may_borrow = line.shape.preemptible and not line.shape.exhausted and not at_limit
        if may_borrow and right is Right.GUARANTEE and self._start_free(standing, line, right, lent_too=True):
            return
        line.blocked = self._why_blocked(asker, at_limit=at_limit)

    def _forbidden(self, standing: Standing, line: Line, right: Right) -> Reason | None:
        if not line.shape.preemptible and standing.fixed_use + line.size > standing.quota:
            return reasons.above_training_quota(standing, line.size)
        if line.shape.exhausted and right is not Right.GUARANTEE:
            return reasons.pauses_used_up(standing, line.size, self.pool.policy)
        return None

    def _start_free(self, standing: Standing, line: Line, right: Right, *, lent_too: bool) -> bool:
        for lent in (False, True) if lent_too else (False,):
            fit = place(self.ledger, line.shape.request, lent=lent)
            if isinstance(fit, Fit):
                job = line.take()
                reason = reasons.started(standing, line.size, line.size, right, lent=lent)
                occupy(self.ledger, fit.pieces, lent=lent)
                standing.add(line.size, job.user, fixed=not job.preemptible)
                self.draft.start(job, fit.pieces, lent=lent, reason=reason)
                return True
        return False

    def _asker(self, standing: Standing, line: Line, right: Right, *, at_limit: bool) -> Asker:
        job, shape = line.first(), line.shape
        weak = right is Right.SURPLUS or (right is Right.FAIR and (standing.weight == 0 or not shape.preemptible))
        return Asker(
            id=job.id,
            standing=standing,
            user=job.user,
            request=shape.request,
            right=right,
            priority=shape.priority,
            preemptible=shape.preemptible,
            lent_too=shape.preemptible and right is not Right.GUARANTEE,
            own_only=at_limit or weak,
        )

    def _why_blocked(self, asker: Asker, *, at_limit: bool) -> Reason:
        code = ReasonCode.NO_FREE_GPU
        if at_limit:
            code = ReasonCode.ABOVE_LIMIT
        elif asker.right is Right.SURPLUS:
            code = ReasonCode.ABOVE_FAIR_SHARE
        elif asker.right is Right.FAIR and not asker.own_only:
            self.draft.failed.append(asker)
        return reasons.no_room(asker.standing, asker.request.size, code)
