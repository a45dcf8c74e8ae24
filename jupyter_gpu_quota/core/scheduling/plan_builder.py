"""The plan of one pool under construction: the decisions, in the order in which they are committed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import itemgetter

from ..backfill.patience import OverdueJobs
from ..backfill.planning import future_work
from ..backfill.reservation import BackfillReservation
from ..model import Job, JobState, Notebook
from ..placement.place import Piece, numbered, placements
from ..plan import Action, Lend, Pause, Refuse, Release, Reserve, Resume, Start, Unreserve
from ..preemption.result import Move, Preemption
from ..preemption.rules import Preemptor
from ..preemption.search.find import would_need_protected
from ..queue.job_queue import ClassQueue
from ..queue.pool_state import PoolState
from ..queue.quota_state import QuotaState, Running, Victim
from ..reason_codes import ReasonCode
from ..reasons import ClaimEnded, DrainTakenOver, Reason
from . import reasons


class PlanBuilder:
    """Collects decisions; :meth:`actions` puts them in order."""

    def __init__(self, pool: PoolState) -> None:
        self.pool = pool
        self.refused: list[tuple[Notebook, Reason]] = []
        self.lent_or_released: list[Lend | Release] = []
        self.failed: list[tuple[Preemptor, ClassQueue]] = []
        """Claims above guarantee without victims; :meth:`waits` finds out whether only protection prevented them."""
        self.backfill: BackfillReservation | None = None
        """The backfill reservation after this plan."""
        self.returning_borrowers: list[tuple[BackfillReservation, Victim]] = []
        """The borrowers of the backfill reservation that stop now, each with that reservation."""
        self.overdue_jobs: OverdueJobs | None = None
        """The overdue jobs that their projects do not overtake."""
        self.restarts: dict[str, tuple[Piece, ...]] = {}
        """The pieces of the jobs that grow."""
        self._steps: list[Action | Preemption] = []
        self._dropped: dict[str, Reason] = {}
        self._started: set[str] = set()
        self._preemptors: set[str] = set()
        self._beside: dict[str, Preemption] = {}
        """The starts beside claims of this plan, as claims without victims."""
        self._took_over: dict[str, Preemption] = {}
        """The starts on devices that they took over."""
        self._elastic: dict[str, tuple[Job, tuple[Piece, ...]]] = {}
        self._waits: dict[str, Reason] = {}

    def drop(self, workload: str, reason: Reason) -> None:
        self._dropped[workload] = reason

    def start(self, work: Job | Notebook, pieces: tuple[Piece, ...], *, borrowed: bool, reason: Reason) -> None:
        """Give a workload its devices now."""
        where = placements(self.pool.ledger, pieces)
        self._started.add(work.id)
        if isinstance(work, Notebook):
            self._steps.append(Start(workload=work.id, attempt=0, placements=where, borrower=False, reason=reason))
            return
        action = Resume if work.state is JobState.PAUSED else Start
        if work.min_ranks is not None:
            self._elastic[work.id] = work, pieces
        self._steps.append(
            action(workload=work.id, attempt=work.attempt + 1, placements=where, borrower=borrowed, reason=reason)
        )

    def started_elastic(self) -> list[tuple[Job, tuple[Piece, ...]]]:
        """The elastic jobs that start in this plan, in the order of the decisions, with their pieces."""
        return list(self._elastic.values())

    def extend_start(self, job: Job, pieces: tuple[Piece, ...]) -> None:
        """Start an elastic job with more ranks than its minimum."""
        where = placements(self.pool.ledger, pieces)
        self._steps = [
            replace(step, placements=where) if isinstance(step, Start | Resume) and step.workload == job.id else step
            for step in self._steps
        ]

    def restart(self, workload: str, pieces: tuple[Piece, ...], reason: Reason) -> None:
        """Pause a running job and reserve these pieces for its next start."""
        grace_s = self.pool.policy.preemption.grace_s
        self.restarts[workload] = pieces
        self._steps.append(Pause(workload=workload, preemptor=workload, grace_s=grace_s, reason=reason))
        where = placements(self.pool.ledger, numbered(pieces))
        self._steps.append(Reserve(workload=workload, placements=where, reason=reason))

    def shrink(self, preemption: Preemption) -> None:
        """Shrink elastic jobs for one that grows; its own restart reserves the devices."""
        self._steps += self._preemption_actions(preemption)[:-1]
        self.restarts |= {one.id: one.base.pieces for one in preemption.shrunk if one.base is not None}

    def preempt(self, preemption: Preemption) -> None:
        """Reserve devices for a workload, and pause its victims."""
        self._steps.append(preemption)
        self._preemptors.add(preemption.preemptor.id)

    def start_beside(self, found: Preemption) -> None:
        """Note the start of a job beside claims, which may need its devices."""
        self._beside[found.preemptor.id] = found

    def cancel(self, preemption: Preemption) -> None:
        """Take a claim without victims, or a start, out of the plan again."""
        name = preemption.preemptor.id
        if not preemption.starts:
            self._steps.remove(preemption)
            self._preemptors.discard(name)
            return
        self._steps = [step for step in self._steps if not (isinstance(step, Start | Resume) and step.workload == name)]
        self._started.discard(name)
        for rows in (self._beside, self._elastic):
            rows.pop(name, None)
        self.pool.remove_started(name)

    @property
    def claims_and_starts(self) -> list[Preemption]:
        """The claims so far, the starts beside them, and those on devices taken over, in the order of the decisions."""
        found, starts = list[Preemption](), self._beside | self._took_over
        for step in self._steps:
            if isinstance(step, Preemption):
                found.append(step)
            elif isinstance(step, Start | Resume) and step.workload in starts:
                found.append(starts[step.workload])
        return found

    def serves(self, workload: str) -> bool:
        """Whether a workload starts in this plan, or has a claim in it."""
        return workload in self._started or workload in self._preemptors

    def starts(self, workload: str) -> bool:
        """Whether a workload starts in this plan, whatever follows: a start beside claims may be taken out again."""
        return workload in self._started and workload not in self._beside

    @property
    def count_of_claims(self) -> int:
        """The number of claims so far."""
        return len(self._preemptors)

    def take_over(self, preemption: Preemption) -> None:
        """Drop the reservations that a claim takes over which starts at once."""
        preemption.starts = True
        self._took_over[preemption.preemptor.id] = preemption
        self._steps += [self._stop_action(preemption, victim) for victim in preemption.victims]
        self._wait_behind(preemption)

    def _wait_behind(self, preemption: Preemption) -> None:
        for victim in preemption.victims:
            if victim.reserved:
                self.wait(victim.id, reasons.behind_others(victim.project, victim.size))

    @property
    def preemptions(self) -> list[Preemption]:
        """The claims so far, in the order in which they were decided."""
        return [step for step in self._steps if isinstance(step, Preemption)]

    def future_work(self) -> list[Running]:
        """The work that runs from now on, as decided so far."""
        return future_work(self.pool, self.preemptions, self.restarts)

    def searches_ended_early(self) -> list[str]:
        """The claims whose search was ended by the bound on its work."""
        return [one.preemptor.id for one in self.preemptions if one.ended_early]

    def wait(self, workload: str, reason: Reason) -> None:
        self._waits[workload] = reason

    def actions(self) -> list[Action]:
        """Dropped reservations, refusals, then starts and preemptions as decided: each is legal after the last.

        A preemption is its pauses, then its reservation.
        """
        reserved = {preemption.preemptor.id for preemption in self.preemptions}
        dropped: list[Action] = [
            Unreserve(workload=workload, reason=reason)
            for workload, reason in sorted(self._dropped.items(), key=itemgetter(0))
            if workload not in reserved and workload not in self._started
        ]
        backfill = self._backfill_actions()
        returning = [self._return_action(reservation, victim) for reservation, victim in self.returning_borrowers]
        refused = [Refuse(workload=notebook.id, reason=reason) for notebook, reason in self.refused]
        steps: list[Action] = []
        for step in self._steps:
            steps += self._preemption_actions(step) if isinstance(step, Preemption) else [step]
        return [*dropped, *refused, *self.lent_or_released, *returning, *steps, *backfill]

    def _backfill_actions(self) -> list[Action]:
        """Record the backfill reservation, where it is another than the recorded one."""
        recorded, reservation, actions = self.pool.backfill, self.backfill, list[Action]()
        is_free = recorded is not None and not self.serves(recorded.workload)
        if recorded is not None and is_free and (reservation is None or reservation.job != recorded.workload):
            actions.append(Unreserve(workload=recorded.workload, reason=ClaimEnded()))
        if reservation is None:
            return actions
        where = placements(self.pool.ledger, reservation.pieces)
        same = (
            recorded is not None
            and recorded.workload == reservation.job
            and recorded.starts_at == reservation.starts_at
        )
        if not same or (recorded is not None and recorded.placements != where):
            reason = reasons.backfill_planned(reservation, self.pool.now)
            actions.append(
                Reserve(workload=reservation.job, placements=where, reason=reason, starts_at=reservation.starts_at)
            )
        return actions

    def _return_action(self, reservation: BackfillReservation, victim: Victim) -> Action:
        grace_s = self.pool.policy.preemption.grace_s
        reason = reasons.reservation_begins(reservation, victim, grace_s)
        return Pause(workload=victim.id, preemptor=reservation.job, grace_s=grace_s, reason=reason)

    def _preemption_actions(self, preemption: Preemption) -> list[Action]:
        limits = self.pool.policy.preemption
        preemptor = preemption.preemptor
        shrunk = preemption.shrunk
        actions: list[Action] = [
            self._stop_action(preemption, victim)
            for victim in preemption.victims
            if victim.base is None or victim in shrunk
        ]
        for victim in shrunk:
            assert victim.base is not None, "what is above a minimum has one"
            kept = placements(self.pool.ledger, numbered(victim.base.pieces))
            why = reasons.shrunk(preemption, victim, limits.grace_s)
            actions.append(Reserve(workload=victim.id, placements=kept, reason=why))
        for move in preemption.moves:
            actions += self._move_actions(preemption, move)
        graces_s = [limits.lent_grace_s if one.borrower else limits.grace_s for one in preemption.victims]
        waits_s = max(graces_s, default=0)
        reason = reasons.reserved(preemptor, preemption.victims, waits_s)
        where = placements(self.pool.ledger, preemption.pieces)
        return [*actions, Reserve(workload=preemptor.id, placements=where, reason=reason)]

    def _stop_action(self, preemption: Preemption, victim: Victim) -> Action:
        limits = self.pool.policy.preemption
        if victim.reserved:
            taken_over = DrainTakenOver(
                preemptor=preemption.preemptor.id, preemptor_project=preemption.preemptor.project.name
            )
            return Unreserve(workload=victim.id, reason=taken_over)
        grace_s = limits.lent_grace_s if victim.borrower else limits.grace_s
        if victim.base is not None:
            reason = reasons.shrunk(preemption, victim, grace_s)
        else:
            reason = reasons.paused(self.pool, preemption, victim, grace_s)
        return Pause(workload=victim.id, preemptor=preemption.preemptor.id, grace_s=grace_s, reason=reason)

    def _move_actions(self, preemption: Preemption, move: Move) -> list[Action]:
        grace_s = self.pool.policy.preemption.grace_s
        reason = reasons.moved(preemption, move.victim, grace_s)
        where = placements(self.pool.ledger, move.pieces)
        return [
            Pause(workload=move.victim.id, preemptor=preemption.preemptor.id, grace_s=grace_s, reason=reason),
            Reserve(workload=move.victim.id, placements=where, reason=reason),
        ]

    def waits(self) -> dict[str, Reason]:
        """Why each job of the pool that this plan does not start waits."""
        self._find_protected()
        for preemption in self.preemptions:
            self._wait_behind(preemption)
        waits = dict(self._waits)
        for job in self.pool.unstartable:
            waits[job.id] = reasons.unstartable(self.pool, job)
        for project in self.pool.projects.values():
            for queue in project.queue.classes.values():
                waits |= self._waits_of_class(project, queue)
        overdue = {} if self.overdue_jobs is None else self.overdue_jobs.found()
        for name in overdue.keys() & waits.keys():
            waits[name] = reasons.with_overdue_wait(self.pool, overdue[name], waits[name])
        if self.backfill is not None:
            name = self.backfill.job
            waits[name] = reasons.backfill_reserved(self.pool, self.backfill, waits[name])
        for preemption in self.preemptions:
            drain = reasons.waits_for_drain(self.pool.name, preemption.preemptor.request.size, preemption.victims)
            waits[preemption.preemptor.id] = drain
        return waits

    def _waits_of_class(self, project: QuotaState, queue: ClassQueue) -> dict[str, Reason]:
        """Why the queued jobs of a class wait: for their user's ceiling, an overdue job, or as the class does."""
        why = queue.blocked() if queue.blocked else reasons.behind_others(project, queue.size)
        why = reasons.beyond_guarantees(self.pool, project, queue, why)
        overdue_jobs = self.overdue_jobs if reasons.may_wait_for_overdue_job(why) else None
        if overdue_jobs is not None and not overdue_jobs.may_have_one(project):
            overdue_jobs = None
        found = dict[str, Reason]()
        for job in queue.jobs():
            if not queue.has_room_for(job.user):
                found[job.id] = reasons.above_user_ceiling(project, queue.size, job.user)
                continue
            overdue = None if overdue_jobs is None else overdue_jobs.that_holds_back(project, queue, job)
            behind = overdue and reasons.behind_overdue_job(self.pool, project, queue.size, overdue)
            found[job.id] = behind or why
        return found

    def release_references(self) -> None:
        """Drop references that form cycles."""
        self.overdue_jobs = None
        self.pool.release_references()

    def _find_protected(self) -> None:
        """Set the reason of classes whose claims failed only because the victims are protected."""
        for preemptor, queue in self.failed:
            if would_need_protected(self.pool, preemptor):
                asked, code = preemptor.request.size, ReasonCode.VICTIMS_PROTECTED
                queue.blocked = partial(reasons.no_room, preemptor.project, asked, code, preemptor.project.use)
        self.failed = []
