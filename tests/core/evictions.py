"""Checkers of victims and preemptors: P5, P6, and every rule of section 4, at both levels."""

from __future__ import annotations

import dataclasses as dc
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from fractions import Fraction

from jupyter_gpu_quota.core.model import Job, JobState, JobTarget, NotebookState, Placement, Reservation
from jupyter_gpu_quota.core.plan import Action, Pause, Plan, Refuse, Reserve, Resume, Start, Stop, Unreserve
from jupyter_gpu_quota.core.reason_figures import figures_of
from jupyter_gpu_quota.core.scheduling.decide import BackfillPlacement
from tests.core.accounting import WAITS, Books, least, takes_model

ROUNDED = 4
"""Milli: a share is rounded once for each priority and level that it was divided at."""
EXACTLY = 0
"""What another set of victims is judged by: what rounding excuses in a plan must not be held against it here."""
CANDIDATES = 10
"""So many jobs at most are looked at in every combination."""


def started_of(actions: Iterable[Action]) -> list[Start | Resume]:
    return [action for action in actions if isinstance(action, (Start, Resume))]


def started(plan: Plan) -> dict[str, Start | Resume]:
    return {action.workload: action for action in started_of(plan.actions)}


def reserved_after(books: Books, plan: Plan) -> dict[str, tuple[Placement, ...]]:
    kept = {one.workload: one.placements for one in books.snapshot.reservations if one.starts_at is None}
    for action in plan.actions:
        if isinstance(action, Unreserve):
            kept.pop(action.workload, None)
        elif isinstance(action, Reserve) and action.starts_at is None:
            kept[action.workload] = action.placements
        elif isinstance(action, (Start, Resume)):
            kept.pop(action.workload, None)
    return kept


def starting_again(actions: Iterable[Action]) -> set[str]:
    """Jobs that are paused and start again in the same plan: moved, or elastic with more ranks or fewer."""
    actions = list(actions)
    kept = {action.workload for action in actions if isinstance(action, Reserve) and action.starts_at is None}
    return {action.workload for action in actions if isinstance(action, Pause)} & kept


def stays_and_leaves(books: Books, plan: Plan) -> tuple[Counter[str], Counter[str]]:
    """Per device: the work that stays or starts there, and the work that stops, after the plan."""
    stays, leaves = Counter[str](), Counter[str]()
    asked = {action.workload for action in plan.actions if isinstance(action, (Pause, Stop))}
    booked = {n.id for n in books.snapshot.notebooks if n.state is NotebookState.BOOKED}
    for one in books.snapshot.allocations:
        job = books.jobs.get(one.workload)
        firm = one.workload in booked or (job is not None and books.stays(job) and job.id not in asked)
        (stays if firm else leaves)[one.device] += one.gpu_milli
    for action in started(plan).values():
        for placement in action.placements:
            stays[placement.device] += placement.gpu_milli
    return stays, leaves


def check_evictions(books: Books, plan: Plan) -> None:
    """P5: each pause is legal in the state before it, those already picked counted; protection is kept."""
    for broken in _Walk(books, plan.actions).run():
        raise AssertionError(f"P5: {broken}")


class _Walk:
    """Applies a plan in its order to the sums of every owner, and asserts each rule."""

    def __init__(self, books: Books, actions: Sequence[Action], *, rounded: int = ROUNDED) -> None:
        self.books, self.actions, self.rounded = books, actions, rounded
        asked = [n for n in books.snapshot.notebooks if n.pool == books.pool and n.state is NotebookState.REQUESTED]
        refused = {action.workload for action in actions if isinstance(action, Refuse)}
        self.guarantee, self.fair = books.shares(sum(n.gpu_milli for n in asked if n.id not in refused))
        self.use = books.use()
        self.had = books.reserved()
        self.starts = {action.workload for action in actions if isinstance(action, (Start, Resume))}
        self.sizes = {
            action.workload: sum(part.gpu_milli for part in action.placements)
            for action in actions
            if isinstance(action, (Start, Resume, Reserve))
        }
        """Of what starts or gets a promise; everybody else's size is in the books. What starts grows last of all."""
        for name in self.sizes.keys() & books.jobs.keys() & {one.workload for one in started_of(actions)}:
            self.sizes[name] = min(self.sizes[name], least(books.jobs[name]))
        self.again = starting_again(actions)
        self.served: set[str] = set()
        self.victims: dict[str, list[Job]] = defaultdict(list)
        """The victims of each claim in this plan, in order."""
        for action in actions:
            if isinstance(action, Pause) and action.workload in books.jobs and action.preemptor != action.workload:
                self.victims[action.preemptor].append(books.jobs[action.workload])
        self.dropped: dict[str, list[Job]] = defaultdict(list)
        """The reservations that each claim takes over, each a loss of its owner like a pause."""
        for action in actions:
            if isinstance(action, Unreserve) and action.workload in books.jobs and _preemptor_of(action):
                self.dropped[_preemptor_of(action)].append(books.jobs[action.workload])
        self.before: dict[str, Counter[str]] = {}
        """The use of each project before each claim took anything."""
        self.after: dict[str, Counter[str]] = {}
        """By preemptor: the same once its claim is counted."""

    def run(self) -> Iterator[str]:
        dropped = {one.workload for one in self.actions if isinstance(one, Unreserve)}
        again = self.had & {one.workload for one in self.actions if isinstance(one, Reserve)} - dropped
        for name in again - self.books.kept:
            self._claims_again(name)
        kept_again = self.books.kept & (again | (self.had & self.dropped.keys()))
        for action in self.actions:
            for name in kept_again & self.had & {action.workload, _preemptor_of(action)}:
                self._claims_again(name)  # R25: at its turn
            job = self.books.jobs.get(action.workload)
            if job is None:
                continue
            match action:
                case Unreserve() if job.id in self.had:
                    if preemptor := _preemptor_of(action):
                        self.before.setdefault(preemptor, Counter(self.use))
                        yield from self._check_take_over(preemptor, job)
                    self._count(job, -1)
                case Start() | Resume() if job.id not in self.had:
                    self._count(job)
                case Start(placements=parts) | Resume(placements=parts):
                    self._count_missing(job, sum(part.gpu_milli for part in parts))
                case Reserve() if job.id in self.again:
                    pass  # counted with its pause
                case Reserve():
                    self._count(job)
                    self.after[job.id] = Counter(self.use)
                    yield from self._check_claim(job)
                case Pause() if action.preemptor == job.id:
                    if self._is_protected(job):
                        yield f"{job.id} restarts to grow, and is protected"
                    self._give_up(job)
                case Pause():
                    self.before.setdefault(action.preemptor, Counter(self.use))
                    yield from self._check_pause(action, job)
                    self._give_up(job)
                case _:
                    pass
            self.served.add(job.id)

    def _claims_again(self, name: str) -> None:
        """A job is promised another place: the first one is given up."""
        self._count(self.books.jobs[name], -1)
        self.had.discard(name)

    def _count(self, job: Job, sign: int = 1) -> None:
        milli = self.books.counted(job) if sign < 0 else self.sizes.get(job.id, self.books.size(job))
        for key in self.books.levels(job.project):
            self.use[key] += sign * milli

    def _count_missing(self, job: Job, started_milli: int) -> None:
        """Count out the ranks without which an elastic job starts, since their reserved devices are quarantined."""
        for key in self.books.levels(job.project):
            self.use[key] -= max(0, self.books.counted(job) - started_milli)

    def _give_up(self, job: Job) -> None:
        """Count out what a pause takes: of a job that starts again in the same plan only what it does not get back."""
        for key in self.books.levels(job.project):
            self.use[key] -= self._taken(job)

    # -- one pause ---------------------------------------------------------------------------------------------

    def _check_pause(self, pause: Pause, victim: Job) -> Iterator[str]:
        said = f"{pause.preemptor} paused {pause.workload} ({pause.reason.code})"
        if not victim.preemptible or not self.books.stays(victim):
            yield f"{said}, which may not be paused"
        if victim.id in self.starts:
            yield f"{said}, which the same plan starts"
        preemptor = self.books.jobs.get(pause.preemptor)
        inside = preemptor is not None and preemptor.project == victim.project
        if inside and preemptor and victim.priority >= preemptor.priority and victim.id not in self.again:
            yield f"{said}: job priority {victim.priority} >= {preemptor.priority}"
        for own, other in [] if inside or not self._gives_up(victim) else self._compared(pause.preemptor, victim):
            if not self._may_take(preemptor, own, other, victim):
                yield f"{said}: {other} uses {self.use[other]} of {self._shares(other)}, {own} {self._shares(own)}"
        back = preemptor is not None and preemptor.paused_for == victim.id and self._gives_up(victim)
        if back and preemptor and not self._is_within(preemptor, preemptor.project, self.rounded):
            yield f"{said}, for which it was paused itself"
        if self._is_protected(victim) and preemptor and not self._is_within(preemptor, preemptor.project, self.rounded):
            yield f"{said}, which is protected, and the claim is not within the guarantee"

    def _check_take_over(self, name: str, loser: Job) -> Iterator[str]:
        """Only a claim within guarantee takes over a reservation of another project, at every level between."""
        preemptor = self.books.jobs.get(name)
        for own, other in self._compared(name, loser) if preemptor and preemptor.project != loser.project else []:
            if preemptor and not self._is_within(preemptor, own, slack=self._slack(own)):
                yield f"{name} took the place of {loser.id} over from {other}: {own} {self._shares(own)}"

    def _compared(self, preemptor: str, victim: Job) -> list[tuple[str, str]]:
        """Preemptor and victim at every level below their common ancestor."""
        work = self.books.jobs.get(preemptor) or next(n for n in self.books.snapshot.notebooks if n.id == preemptor)
        own, other = self.books.levels(work.project), self.books.levels(victim.project)
        if len(own) != len(other):  # a project that is gone has no department any more
            return [(own[-1], other[-1])]
        pairs = list(zip(own, other, strict=True))
        return pairs[1:] if len(pairs) == 2 and own[0] == other[0] else pairs

    def _shares(self, key: str) -> str:
        if key not in self.guarantee:
            return "nothing"
        return f"guarantee {float(self.guarantee[key]):.1f} fair {float(self.fair[key]):.1f}"

    def _may_take(self, preemptor: Job | None, own: str, other: str, victim: Job) -> bool:
        """At one level: within guarantee from projects above quota, else within fair share from above fair share."""
        bar, fair = self.guarantee.get(other, Fraction(0)), self.fair.get(other, Fraction(0))
        from_quota = victim.borrower or other not in self.guarantee or self.use[other] > bar - self._slack(other)
        if preemptor is None:
            return from_quota
        if self._is_within(preemptor, own, slack=self._slack(own)) and from_quota:
            return True
        within_fair = self._with_claim(preemptor, own) <= self.fair[own] + self.rounded
        return within_fair and bool(self.books.amounts[own].weight) and self.use[other] > fair - self.rounded

    def _slack(self, key: str) -> int:
        """A guarantee is rounded only where it is reduced."""
        return 0 if self.guarantee.get(key) == self.books.amounts[key].training_milli else self.rounded

    def _with_claim(self, preemptor: Job, key: str) -> int:
        """What an owner uses with the whole claim, all its victims counted out."""
        had = self.books.size(preemptor) if preemptor.id in self.again else 0  # what grows has a part of it
        before = self.before.get(preemptor.id, self.use)[key] + self.sizes[preemptor.id] - had
        taken = sum(self._taken(job) for job in self.victims[preemptor.id] if key in self.books.levels(job.project))
        promised = [job for job in self.dropped[preemptor.id] if key in self.books.levels(job.project)]
        return before - taken - sum(map(self.books.counted, promised))

    def _gives_up(self, victim: Job) -> bool:
        """Whether a victim loses anything: one that is moved starts again in the same plan, within quota too."""
        return self._taken(victim) > 0

    def _taken(self, victim: Job) -> int:
        """What a victim gives up: all it has, or what an elastic job does not start again with."""
        return self.books.size(victim) - (self.sizes[victim.id] if victim.id in self.again else 0)

    def _is_within(self, preemptor: Job, key: str, slack: int = 0) -> bool:
        return self._with_claim(preemptor, key) <= self.guarantee[key] + slack

    def _is_protected(self, job: Job) -> bool:
        rules, now = self.books.policy.preemption, self.books.snapshot.now
        young = now - (job.started_at or 0) < rules.min_runtime_s * 1000
        recent = sum(at > now - rules.per_s * 1000 for at in job.paused_at)
        return young or recent >= rules.max_pauses

    # -- one claim ---------------------------------------------------------------------------------------------

    def _check_claim(self, preemptor: Job) -> Iterator[str]:
        """Claims above guarantee, afterwards: the imbalance is not reversed, and no victim could reclaim."""
        seen = set[tuple[str, str]]()
        for victim in self.victims[preemptor.id]:
            if victim.project == preemptor.project or not self._gives_up(victim):
                continue
            pairs = self._compared(preemptor.id, victim)
            for own, other in pairs:
                if (own, other) in seen or other not in self.guarantee or self._is_within(preemptor, own, self.rounded):
                    continue
                seen.add((own, other))
                if (own, other) == pairs[0] and not self._is_balanced(
                    own, other, self._left_to_others(preemptor, other)
                ):
                    yield f"{preemptor.id} leaves {own} further above its quota by weight than {other}"
                if back := self._claims_back(other) or self._fits_the_quota(preemptor, other):
                    yield f"{preemptor.id} brings {other} below its quota, and {back} could claim it back"

    def _left_to_others(self, preemptor: Job, key: str) -> int:
        """The ranks of elastic victims that other claims have got: of these a plan names the first only (R43)."""
        placed = {one.workload: one.placements for one in self.actions if isinstance(one, Reserve)}
        mine = {part.device for part in placed.get(preemptor.id, ())}
        others = {part.device for name in placed.keys() - self.again - {preemptor.id} for part in placed[name]}
        milli = 0
        for victim in self.victims[preemptor.id]:
            if victim.id not in self.again or key not in self.books.levels(victim.project):
                continue
            kept = Counter(part.device for part in placed.get(victim.id, ()))
            for part in self.books.snapshot.allocations:
                if part.workload == victim.id:
                    kept[part.device] -= 1
                    milli += part.gpu_milli if kept[part.device] < 0 and part.device in others - mine else 0
        return milli

    def _is_balanced(self, own: str, other: str, left_milli: int) -> bool:
        mine, theirs = self.books.amounts[own], self.books.amounts[other]
        if self.books.priority[own] != self.books.priority[other] or not theirs.weight:
            return True
        above = (self.use[own] - self.guarantee[own]) / mine.weight if mine.weight else Fraction(1 << 60)
        return above <= (self.use[other] + left_milli - self.guarantee[other]) / theirs.weight + self.rounded

    def _claims_back(self, key: str) -> str | None:
        if self.use[key] >= self.guarantee[key]:
            return None
        paused = ({job.id for row in self.victims.values() for job in row} & self.served) - self.again
        for job in self.books.jobs.values():
            waits = job.state in WAITS and job.target is JobTarget.RUNNING and job.id not in self.served
            waits = waits or (job.state is JobState.PAUSING and job.target is JobTarget.PAUSED)
            waits = (waits and job.id not in self.had) or job.id in paused
            could = waits and key in self.books.levels(job.project) and self.books.could_start(job)
            if could and self.use[key] + least(job) <= self.guarantee[key] - self.rounded:
                return job.id
        return None

    def _fits_the_quota(self, preemptor: Job, key: str) -> str | None:
        """Victims that fit their quota, though other work ran beside them on surplus and fills less of the quota."""
        bar = self.guarantee[key] - self._slack(key)
        for job in self.victims[preemptor.id]:
            whole = job.id not in self.again and not job.borrower and key in self.books.levels(job.project)
            if whole and self.use[key] + self.rounded < least(job) <= bar:
                return job.id
        return None


def _preemptor_of(action: Unreserve) -> str:
    """Section 3: a claim within guarantee may take over another's drain, and the record says so."""
    return str(figures_of(action.reason).get("preemptor", ""))


# -- fewest victims, and no project below its quota where that can be avoided -----------------------------------------


def check_minimal(
    books: Books, plan: Plan, kept: Sequence[BackfillPlacement] = (), recorded: Sequence[Reservation] = ()
) -> None:
    """P6: with any one victim restored, not all claims of the plan are legal and have room.

    A place that is kept for the first job that cannot start is no room for others. ``recorded``: those before the plan.
    """
    again = starting_again(plan.actions)
    reserves = [a.workload for a in plan.actions if isinstance(a, Reserve) and a.workload in books.jobs]
    claims = [name for name in reserves if name not in again]
    pauses = [
        a for a in plan.actions if isinstance(a, Pause) and a.workload in books.jobs and a.preemptor != a.workload
    ]
    if not pauses or len(claims) > 4 or any(books.amounts[name].notebook_milli for name in books.projects):
        return
    preemptors = {books.jobs[name].project for name in claims}
    for pause in pauses:
        victim = books.jobs[pause.workload]
        without = dc.replace(plan, actions=tuple(one for one in plan.actions if not _is_of(one, pause)))
        if victim.project in preemptors or any(_Walk(books, without.actions, rounded=EXACTLY).run()):
            continue  # with it back, a claim of the same owner would have less right
        if _keeps_limits(books, without, claims) and _keeps_user_ceilings(books, without, victim):
            room = _room_for(books, without, claims, kept)
            is_free = min(room.values()) >= 0  # where it was, nobody is moved to
            fits = is_free and all_fit(books, room, [books.jobs[name] for name in claims])
            assert not fits, f"P6: {victim.id} need not leave"
    if len(claims) == 1 and not again and len({pause.preemptor for pause in pauses}) == 1:
        _check_below_quota(books, plan, books.jobs[claims[0]], pauses, (kept, recorded))


def _is_of(action: Action, pause: Pause) -> bool:
    """Whether it is this pause, or the place on which the job starts again after it."""
    return action is pause or (isinstance(action, Reserve) and action.workload == pause.workload)


def _room_for(
    books: Books, plan: Plan, claims: Collection[str], kept: Sequence[BackfillPlacement | Reservation]
) -> dict[str, int]:
    """The free devices for these claims after all drains, beside the reservations of others."""
    taken, _ = stays_and_leaves(books, plan)
    for name, where in reserved_after(books, plan).items():
        for placement in where if name not in claims else ():
            taken[placement.device] += placement.gpu_milli
    for part in [part for place in kept if place.workload not in claims for part in place.placements]:
        taken[part.device] += part.gpu_milli
    return {name: 1000 - device.foreign_milli - taken[name] for name, device in books.devices.items()}


def _keeps_limits(books: Books, plan: Plan, claims: Iterable[str]) -> bool:
    """Whether every preemptor, with all that then runs, is under its limits after all drains."""
    asked = {action.workload for action in plan.actions if isinstance(action, (Pause, Stop))}
    kept = reserved_after(books, plan) | {name: action.placements for name, action in started(plan).items()}
    given = {name: sum(part.gpu_milli for part in where) for name, where in kept.items()}
    use = Counter[str]()
    for job in books.jobs.values():
        if (books.stays(job) and job.id not in asked) or job.id in kept:
            for key in books.levels(job.project):
                use[key] += given.get(job.id, books.size(job))
    owners = {key for name in claims for key in books.levels(books.jobs[name].project)}
    return all(use[key] <= books.ceiling(key) for key in owners)


def _keeps_user_ceilings(books: Books, plan: Plan, victim: Job) -> bool:
    """Whether a victim's user then has no more than the ceiling for each user, or than before the plan."""
    asked = {action.workload for action in plan.actions if isinstance(action, (Pause, Stop))}
    kept = reserved_after(books, plan) | {name: action.placements for name, action in started(plan).items()}
    before, after = Counter[str](), Counter[str]()
    for job in books.jobs.values():
        if job.user != victim.user:
            continue
        given = sum(part.gpu_milli for part in kept.get(job.id, ()))
        for key in books.levels(job.project):
            before[key] += books.size(job) if books.stays(job) or job.id in books.reserved() else 0
            after[key] += (
                given if job.id in kept else books.size(job) if books.stays(job) and job.id not in asked else 0
            )
    return all(after[key] <= max(books.user_ceiling(key), before[key]) for key in books.levels(victim.project))


def _check_below_quota(
    books: Books, plan: Plan, preemptor: Job, pauses: Sequence[Pause],
    kept: Sequence[Sequence[BackfillPlacement | Reservation]],
) -> None:  # fmt: skip
    """A victim's owner ends below its quota only when no other legal set avoids it.

    Devices of the backfill reservation are in use for the claim: of the one before the plan and of that after it (R43).
    """
    done = _Walk(books, plan.actions)
    list(done.run())
    taken = [books.jobs[pause.workload] for pause in pauses]
    if not _below(done, taken) or preemptor.project in {job.project for job in taken}:
        return
    young = any(done._is_protected(job) for job in taken)
    candidates = [
        job
        for job in books.jobs.values()
        if books.stays(job) and job.preemptible and job.project != preemptor.project and job.target is JobTarget.RUNNING
        if young or not done._is_protected(job)
    ]
    if len(candidates) > CANDIDATES:
        return
    others = tuple(action for action in plan.actions if not isinstance(action, Pause))
    for count in range(1, len(candidates) + 1):
        for chosen in itertools.combinations(candidates, count):
            if _avoids(books, plan, others, preemptor, chosen, kept):
                names = [job.id for job in chosen]
                raise AssertionError(f"section 4: {_below(done, taken)} end below quota, pausing {names} avoids it")


def _avoids(
    books: Books,
    plan: Plan,
    others: tuple[Action, ...],
    preemptor: Job,
    chosen: Sequence[Job],
    kept: Sequence[Sequence[BackfillPlacement | Reservation]],
) -> bool:
    """Whether these victims instead would be allowed and enough, with every project at its quota."""
    reason = next(action.reason for action in plan.actions if isinstance(action, Reserve))
    pauses = [
        Pause(workload=job.id, preemptor=preemptor.id, grace_s=0, reason=reason)
        for job in sorted(chosen, key=books.size)
    ]
    at = next(at for at, one in enumerate(others) if isinstance(one, Reserve) and one.workload == preemptor.id)
    instead = dc.replace(plan, actions=(*others[:at], *pauses, *others[at:]))
    walk = _Walk(books, instead.actions, rounded=EXACTLY)
    if any(walk.run()) or _below(walk, chosen) or not _keeps_limits(books, instead, [preemptor.id]):
        return False
    return all(all_fit(books, _room_for(books, instead, [preemptor.id], one), [preemptor]) for one in kept)


def _below(walk: _Walk, victims: Iterable[Job]) -> list[str]:
    """The owners that end below their quota because of these victims."""
    found = []
    for victim in victims:
        preemptor = next(name for name, row in walk.victims.items() if victim in row)
        for _, key in walk._compared(preemptor, victim):
            use = walk.after[preemptor][key]
            if key in walk.guarantee and use < walk.guarantee[key] - ROUNDED and not victim.borrower:
                found.append(key)
    return found


# -- room ------------------------------------------------------------------------------------------------------------


def all_fit(books: Books, room: dict[str, int], jobs: list[Job]) -> bool:
    """Whether all these jobs, an elastic one with its fewest ranks, find room together."""
    ranks = [job for job in jobs for _ in range(job.min_ranks or job.ranks)]
    return _fit_ranks(books, room, ranks)


def _fit_ranks(books: Books, room: dict[str, int], ranks: list[Job]) -> bool:
    if not ranks:
        return True
    job, rest = ranks[0], ranks[1:]
    for chosen in _spots(books, room, job):
        left = dict(room)
        for name in chosen:
            left[name] -= min(job.gpu_milli, 1000)
        if _fit_ranks(books, left, rest):
            return True
    return False


def _spots(books: Books, room: dict[str, int], job: Job) -> Iterator[tuple[str, ...]]:
    """Where one rank fits; devices that are alike are tried once."""
    fitting = [
        name for name in room if room[name] >= min(job.gpu_milli, 1000) and takes_model(job, books.devices[name])
    ]
    by_node: dict[str, list[str]] = defaultdict(list)
    for name in fitting:
        by_node[books.devices[name].node].append(name)
    seen = set[tuple[object, ...]]()
    for node, names in by_node.items():
        for chosen in itertools.combinations(names, max(1, job.gpu_milli // 1000)):
            kind = (node, *sorted((room[name], books.devices[name].model) for name in chosen))
            if kind not in seen:
                seen.add(kind)
                yield chosen
