"""The plan of one pool while it is made: what was decided, put in the order in which it is committed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..model import Job, JobState, Notebook
from ..placement.place import Piece, numbered, placements
from ..plan import Action, Lend, Pause, Reason, ReasonCode, Refuse, Release, Reserve, Resume, Start, Unreserve
from ..preemption.defragmentation import Moved
from ..preemption.rules import Asker
from ..preemption.search import Claimed, would_need_protected
from ..queue.job_queue import Shape
from ..queue.pool_state import Pool
from ..queue.quota_state import Holder
from . import reasons
from .backfill import Kept


class Draft:
    """Collects decisions; :meth:`actions` puts them in order."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.refused: list[tuple[Notebook, Reason]] = []
        self.lent_or_released: list[Lend | Release] = []
        self.failed: list[Asker] = []
        """Claims above guarantee that found nobody; :meth:`waits` tells if only protection stood before them."""
        self.kept: Kept | None = None
        """The place of the first job that cannot start."""
        self._steps: list[Action | Claimed] = []
        self._dropped: dict[str, ReasonCode] = {}
        self._started: set[str] = set()
        self._claimers: set[str] = set()
        self._elastic: dict[str, tuple[Job, tuple[Piece, ...]]] = {}
        self._waits: dict[str, Reason] = {}

    def drop(self, workload: str, code: ReasonCode) -> None:
        """Give up a reservation."""
        self._dropped[workload] = code

    def start(self, work: Job | Notebook, pieces: tuple[Piece, ...], *, lent: bool, reason: Reason) -> None:
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
            action(workload=work.id, attempt=work.attempt + 1, placements=where, borrower=lent, reason=reason)
        )

    def started_elastic(self) -> list[tuple[Job, tuple[Piece, ...]]]:
        """The elastic jobs that start in this plan, in the order in which they were decided, with their places."""
        return list(self._elastic.values())

    def extend_start(self, job: Job, pieces: tuple[Piece, ...]) -> None:
        """Let an elastic job start with more ranks than it needs."""
        where = placements(self.pool.ledger, pieces)
        self._steps = [
            replace(step, placements=where) if isinstance(step, Start | Resume) and step.workload == job.id else step
            for step in self._steps
        ]

    def restart(self, workload: str, pieces: tuple[Piece, ...], reason: Reason) -> None:
        """Ask a running job to leave and start again on these places."""
        grace_s = self.pool.policy.preemption.grace_s
        self._steps.append(Pause(workload=workload, claimer=workload, grace_s=grace_s, reason=reason))
        where = placements(self.pool.ledger, numbered(pieces))
        self._steps.append(Reserve(workload=workload, placements=where, reason=reason))

    def claim(self, claimed: Claimed) -> None:
        """Keep a place for a workload, and ask its victims to leave."""
        self._steps.append(claimed)
        self._claimers.add(claimed.asker.id)
        self._wait_behind(claimed)

    def serves(self, workload: str) -> bool:
        """Whether a workload starts in this plan, or has a claim in it."""
        return workload in self._started or workload in self._claimers

    def take_over(self, claimed: Claimed) -> None:
        """Drop the reservations that a claim takes over, for one that starts at once."""
        self._steps += [self._leave(claimed, victim) for victim in claimed.victims]
        self._wait_behind(claimed)

    def _wait_behind(self, claimed: Claimed) -> None:
        for victim in claimed.victims:
            if victim.promised:
                self.wait(victim.id, reasons.behind_others(victim.project, victim.size))

    @property
    def claims(self) -> list[Claimed]:
        """The claims so far, in the order in which they were decided."""
        return [step for step in self._steps if isinstance(step, Claimed)]

    def wait(self, workload: str, reason: Reason) -> None:
        """Note why something waits."""
        self._waits[workload] = reason

    def actions(self) -> list[Action]:
        """Reservations dropped, refusals, then starts and claims as they were decided: each is legal after the last.

        A claim is its pauses, then what it reserves.
        """
        reserved = {claimed.asker.id for claimed in self.claims}
        dropped: list[Action] = [
            Unreserve(workload=workload, reason=Reason(code=code))
            for workload, code in sorted(self._dropped.items())
            if workload not in reserved and workload not in self._started
        ]
        refused = [Refuse(workload=notebook.id, reason=reason) for notebook, reason in self.refused]
        steps = [action for step in self._steps for action in self._spelled(step)]
        return [*dropped, *refused, *self.lent_or_released, *steps]

    def _spelled(self, step: Action | Claimed) -> list[Action]:
        return self._claim(step) if isinstance(step, Claimed) else [step]

    def _claim(self, claimed: Claimed) -> list[Action]:
        preemption = self.pool.policy.preemption
        asker = claimed.asker
        shrunk = claimed.shrunk
        leaving = [victim for victim in claimed.victims if victim.base is None or victim in shrunk]
        actions: list[Action] = [self._leave(claimed, victim) for victim in leaving]
        actions += [self._keep_minimum(claimed, victim) for victim in shrunk]
        for moved in claimed.moved:
            actions += self._move(claimed, moved)
        waits_s = max(
            (preemption.lent_grace_s if one.borrower else preemption.grace_s for one in claimed.victims), default=0
        )
        reason = reasons.reserved(asker, claimed.victims, waits_s)
        where = placements(self.pool.ledger, claimed.pieces)
        return [*actions, Reserve(workload=asker.id, placements=where, reason=reason)]

    def _leave(self, claimed: Claimed, victim: Holder) -> Action:
        preemption = self.pool.policy.preemption
        if victim.promised:
            figures = (("claimer", claimed.asker.id), ("claimer_project", claimed.asker.standing.name))
            reason = Reason(code=ReasonCode.DRAIN_TAKEN_OVER, figures=figures)
            return Unreserve(workload=victim.id, reason=reason)
        grace_s = preemption.lent_grace_s if victim.borrower else preemption.grace_s
        if victim.base is not None:
            reason = reasons.shrunk(claimed, victim, grace_s)
        else:
            reason = reasons.paused(self.pool, claimed, victim, grace_s)
        return Pause(workload=victim.id, claimer=claimed.asker.id, grace_s=grace_s, reason=reason)

    def _move(self, claimed: Claimed, moved: Moved) -> list[Action]:
        grace_s = self.pool.policy.preemption.grace_s
        reason = reasons.moved(claimed, moved.holder, grace_s)
        where = placements(self.pool.ledger, moved.pieces)
        return [
            Pause(workload=moved.holder.id, claimer=claimed.asker.id, grace_s=grace_s, reason=reason),
            Reserve(workload=moved.holder.id, placements=where, reason=reason),
        ]

    def _keep_minimum(self, claimed: Claimed, above: Holder) -> Reserve:
        assert above.base is not None, "what is above a minimum has one"
        reason = reasons.shrunk(claimed, above, self.pool.policy.preemption.grace_s)
        where = placements(self.pool.ledger, numbered(above.base.pieces))
        return Reserve(workload=above.id, placements=where, reason=reason)

    def waits(self) -> dict[str, Reason]:
        """Why each job of the pool that this plan does not start waits."""
        self._blame_protection()
        waits = dict(self._waits)
        for job in self.pool.hopeless:
            waits[job.id] = reasons.hopeless(self.pool, job)
        for standing in self.pool.standings.values():
            for line in standing.queue.lines.values():
                for job in line.jobs():
                    if not line.takes(job.user):
                        waits[job.id] = reasons.above_user_ceiling(standing, line.size, job.user)
                    else:
                        waits[job.id] = why() if (why := line.blocked) else reasons.behind_others(standing, line.size)
        if self.kept is not None:
            waits[self.kept.job] = reasons.place_kept(self.kept, waits[self.kept.job], self.pool.now)
        for claimed in self.claims:
            drain = reasons.waits_for_drain(self.pool.name, claimed.asker.request.size, claimed.victims)
            waits[claimed.asker.id] = drain
        return waits

    def _blame_protection(self) -> None:
        for asker in self.failed:
            if would_need_protected(self.pool, asker):
                shape = Shape(asker.request, asker.preemptible, asker.priority, exhausted=False)
                asked, code = asker.request.size, ReasonCode.VICTIMS_PROTECTED
                why = partial(reasons.no_room, asker.standing, asked, code, asker.standing.use)
                asker.standing.queue.lines[shape].blocked = why
        self.failed = []
