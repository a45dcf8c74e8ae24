"""A small cluster around ``decide``, stepped by ticks: only plans change it.

:mod:`.world` writes one as text.
"""

from __future__ import annotations

import dataclasses as dc
from collections import Counter
from decimal import Decimal

from jupyter_gpu_quota.core import transitions
from jupyter_gpu_quota.core.amounts import memory_share_mib
from jupyter_gpu_quota.core.canonical import canonical
from jupyter_gpu_quota.core.lifecycle import JobEvent
from jupyter_gpu_quota.core.model import (
    Activity,
    Allocation,
    Amounts,
    Change,
    Department,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Lending,
    Node,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    PreemptionPolicy,
    Project,
    Reservation,
    Snapshot,
    Upkeep,
    Usage,
    Window,
)
from jupyter_gpu_quota.core.plan import (
    Action,
    Lend,
    Pause,
    Plan,
    Refuse,
    Release,
    Reserve,
    Resume,
    Start,
    Stop,
    Unreserve,
)
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import figures_of
from jupyter_gpu_quota.core.scheduling.cache.decision_cache import DecisionCache
from jupyter_gpu_quota.core.scheduling.decide import Decision, decide, decide_and_explain

HOLDS = (JobState.STARTING, JobState.RUNNING, JobState.PAUSING)
BEGIN = 1_000_000
"""When a world begins; windows and ticks count from here."""
GENTLE = PreemptionPolicy(min_runtime_s=0, grace_s=3, lent_grace_s=1, max_pauses=1000, per_s=86_400)
TICK_MS = 1000


class World:
    """The state that a store and executors would have; ``drain_ticks`` is how long a job takes to stop."""

    def __init__(self, *, preemption: PreemptionPolicy = GENTLE, within_project: str = "users_in_turn") -> None:
        self.now = BEGIN
        self.version = 1
        self.policy = Policy(revision=1, preemption=preemption, within_project=within_project)
        self.nodes: list[Node] = []
        self.devices: dict[str, Device] = {}
        self.jobs: dict[str, Job] = {}
        self.notebooks: dict[str, Notebook] = {}
        self.owned: dict[str, list[Allocation]] = {}
        self.reserved: dict[str, Reservation] = {}
        self.drain_ticks = 1
        self.leaves_at: dict[str, int] = {}
        self.ended: Counter[str] = Counter()
        self.refused: dict[str, str] = {}
        self.used: dict[tuple[str, str], float] = {}
        """Milli-GPU times seconds above quota, decayed, by project and pool."""
        self.frozen = False
        """No use is counted any more."""
        self.log: list[str] = []
        self.decision_cache = DecisionCache()

    # -- building ------------------------------------------------------------------------------------------

    def pool(self, name: str, nodes: int, each: int, model: str = "X") -> None:
        if name not in self.policy.pools:
            self.policy = dc.replace(self.policy, pools=(*self.policy.pools, name))
        for _ in range(nodes):
            node = f"n{len(self.nodes) + 1}"
            self.nodes.append(Node(id=node, name=node, cpu_milli=64_000, memory_mib=512_000))
            for index in range(each):
                device = Device(id=f"{node}g{index}", node=node, index=index, model=model, memory_mib=16_001, pool=name)
                self.devices[device.id] = device

    def project(
        self, name: str, pool: str, *, priority: int | None = None, department: str | None = None, **amounts: int | None
    ) -> None:
        rows = {project.name: project for project in self.policy.projects}
        project = rows.get(name) or Project(name=name)
        mine = dict(project.amounts) | {pool: Amounts(**amounts)}  # type: ignore[arg-type]
        priority = project.priority if priority is None else priority
        rows[name] = dc.replace(project, amounts=mine, priority=priority, department=department or project.department)
        self.policy = dc.replace(self.policy, projects=tuple(rows.values()))

    def department(self, name: str, pool: str, *, priority: int | None = None, **amounts: int | None) -> None:
        rows = {department.name: department for department in self.policy.departments}
        department = rows.get(name) or Department(name=name)
        mine = dict(department.amounts) | {pool: Amounts(**amounts)}  # type: ignore[arg-type]
        priority = department.priority if priority is None else priority
        rows[name] = dc.replace(department, amounts=mine, priority=priority)
        self.policy = dc.replace(self.policy, departments=tuple(rows.values()))

    def window(self, name: str, begins_s: int, ends_s: int, *changes: Change) -> None:
        """A calendar window from one second of the world up to another."""
        begins_at, ends_at = BEGIN + begins_s * 1000, BEGIN + ends_s * 1000
        made = Window(name=name, begins_at=begins_at, ends_at=ends_at, changes=changes)
        self.policy = dc.replace(self.policy, windows=(*self.policy.windows, made))

    def submit(self, project: str, gpu: int, *, id: str = "", pool: str = "", **fields: object) -> Job:
        count = sum(job.project == project for job in self.jobs.values()) + self.ended[project]
        job = Job(
            id=id or f"{project}{count + 1}",
            project=project,
            pool=pool or self.policy.pools[0],
            gpu_milli=gpu,
            user=str(fields.pop("user", project)),
            submitted_at=self.now + len(self.jobs),
            **fields,  # type: ignore[arg-type]
        )
        self.jobs[job.id] = job
        return job

    def ask(self, project: str, gpu: int, *, id: str = "", pool: str = "", user: str = "") -> Notebook:
        name = id or f"nb-{project}{sum(n.project == project for n in self.notebooks.values()) + 1}"
        notebook = Notebook(
            id=name,
            project=project,
            user=user or project,
            pool=pool or self.policy.pools[0],
            gpu_milli=gpu,
            requested_at=self.now + len(self.notebooks),
        )
        self.notebooks[name] = notebook
        return notebook

    def put(self, job: Job, devices: list[str], *, ran_s: int = 3600, borrower: bool = False) -> None:
        """Let a job run on these devices already, rank after rank."""
        each, many = min(job.gpu_milli, 1000), max(1, job.gpu_milli // 1000)
        self.owned[job.id] = [self._allocation(job.id, at // many, name, each, at) for at, name in enumerate(devices)]
        self.jobs[job.id] = dc.replace(
            job,
            state=JobState.RUNNING,
            attempt=1,
            started_at=self.now - ran_s * 1000,
            borrower=borrower,
        )

    def book(self, notebook: Notebook, device: str) -> None:
        """Let a notebook have its slice on this device already."""
        self.owned[notebook.id] = [self._allocation(notebook.id, 0, device, notebook.gpu_milli, 0)]
        self.notebooks[notebook.id] = dc.replace(notebook, state=NotebookState.BOOKED)

    def _allocation(self, workload: str, rank: int, device: str, amount: int, at: int) -> Allocation:
        memory = memory_share_mib(self.devices[device].memory_mib, amount)
        return Allocation(
            id=f"{workload}/{at}", workload=workload, rank=rank, device=device, gpu_milli=amount, memory_mib=memory
        )

    def free(self, device: str) -> int:
        used = sum(one.gpu_milli for rows in self.owned.values() for one in rows if one.device == device)
        return 1000 - self.devices[device].foreign_milli - used

    # -- stepping ------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return Snapshot(
            version=self.version,
            now=self.now,
            nodes=tuple(self.nodes),
            devices=tuple(self.devices.values()),
            jobs=tuple(map(self._with_held_ranks, self.jobs.values())),
            notebooks=tuple(self.notebooks.values()),
            allocations=tuple(one for rows in self.owned.values() for one in rows),
            reservations=tuple(self.reserved.values()),
            usage=tuple(
                Usage(project=project, pool=pool, milli_s=round(used)) for (project, pool), used in self.used.items()
            ),
        )

    def _with_held_ranks(self, job: Job) -> Job:
        if job.min_ranks is None or job.id not in self.owned:
            return job
        return dc.replace(job, held_ranks=len({one.rank for one in self.owned[job.id]}))

    def decide(self) -> Decision:
        """Decide without a cache, and with the cache of the last decision: the plans must be equal."""
        snapshot = self.snapshot()
        decision = decide_and_explain(snapshot, self.policy)
        remembered = decide(snapshot, self.policy, self.decision_cache)
        assert canonical(remembered) == canonical(decision.plan), f"a memory changed the plan: {remembered}"
        return decision

    def tick(self) -> Plan:
        """Time passes, stopping jobs may have ended, a plan is made and applied.

        Returns the plan without the records of backfill reservations, which :attr:`backfill` has.
        """
        self.pass_time()
        plan, recorded = self.decide().plan, {one.workload for one in self.backfill}
        self.apply(plan)
        actions = tuple(one for one in plan.actions if not is_backfill(one, recorded, set()))
        return dc.replace(plan, actions=actions)

    @property
    def backfill(self) -> list[Reservation]:
        """The recorded backfill reservations."""
        return [one for one in self.reserved.values() if one.starts_at is not None]

    def pass_time(self) -> None:
        """Use is counted, stopping jobs may have ended, starting ones run."""
        self.now += TICK_MS
        if not self.frozen:
            self._count_use()
        self._let_leave()
        for name, job in self.jobs.items():
            if job.state is JobState.STARTING:
                self.jobs[name] = dc.replace(job, state=JobState.RUNNING)

    def _count_use(self) -> None:
        """What each project used above its quota in the last tick, older use decayed."""
        fade = 0.5 ** (TICK_MS / 1000 / self.policy.history.half_life_s)
        for project in self.policy.projects:
            for pool in self.policy.pools:
                quota = project.amounts.get(pool, Amounts()).training_milli
                above = max(0, self.holding(project.name, pool) - quota) * TICK_MS / 1000
                self.used[project.name, pool] = self.used.get((project.name, pool), 0) * fade + above

    def settle(self, most: int = 200) -> int:
        """Tick until no plan has an action; returns the number of ticks."""
        for count in range(most):
            if not self.tick().actions and not self.leaves_at:
                return count
        raise AssertionError(f"not at rest after {most} ticks: {self.picture()}")

    def apply(self, plan: Plan) -> None:
        self.version += 1
        self.log.append(f"{self.now} {self.picture()}: {'; '.join(map(_in_words, plan.actions))}")
        for action in plan.actions:
            match action:
                case Start() | Resume():
                    self._start(action)
                case Pause():
                    per_s = self.policy.preemption.per_s
                    self._leave(transitions.paused(self.jobs[action.workload], action, per_s=per_s, now=self.now))
                case Stop():
                    self._leave(transitions.stopped(self.jobs[action.workload], action, now=self.now))
                case Lend():
                    (held,) = self.owned.pop(action.workload)
                    lent = transitions.lent(self.notebooks[action.workload], device=held.device, now=self.now)
                    self.notebooks[action.workload] = lent
                case Release():
                    self._move(action.workload, "return")
                case Refuse():
                    self._move(action.workload, "refuse")
                    self.refused[action.workload] = action.reason.code
                case Reserve():
                    self.reserved[action.workload] = transitions.reserved(action, now=self.now)
                case Unreserve():
                    self.reserved.pop(action.workload)

    def _start(self, action: Start | Resume) -> None:
        name = action.workload
        assert name not in self.owned, f"{name} would run twice"
        self.owned[name] = [
            self._allocation(name, one.rank, one.device, one.gpu_milli, at) for at, one in enumerate(action.placements)
        ]
        assert [one.memory_mib for one in self.owned[name]] == [one.memory_mib for one in action.placements]
        self.reserved.pop(name, None)
        if name in self.notebooks:
            self._move(name, "book")
            return
        job = self.jobs[name]
        assert isinstance(action, Resume) == (job.state is JobState.PAUSED), f"{name} is {job.state}: {action}"
        assert job.state in (JobState.QUEUED, JobState.PAUSED), f"{name} is {job.state}"
        self.jobs[name] = dc.replace(transitions.started(job, action), started_at=self.now)

    def _move(self, name: str, event: str) -> None:
        self.notebooks[name] = transitions.notebook_changed(self.notebooks[name], event)

    def _leave(self, job: Job) -> None:
        self.jobs[job.id] = dc.replace(job, checkpoint_at=self.now)
        self.leaves_at[job.id] = self.now + self.drain_ticks * TICK_MS

    def _let_leave(self) -> None:
        for name in [name for name, at in self.leaves_at.items() if at <= self.now]:
            del self.leaves_at[name]
            del self.owned[name]
            job = self.jobs[name]
            if job.target is JobTarget.PAUSED:
                self.jobs[name] = transitions.attempt_ended(job, JobEvent.LEFT)
            elif job.target is JobTarget.HELD:
                self.jobs[name] = transitions.attempt_ended(job, JobEvent.HOLD_DONE)
            else:
                self.end(name)

    # -- outside events ------------------------------------------------------------------------------------

    def end(self, name: str) -> None:
        """End a job."""
        job = self.jobs.pop(name)
        self.ended[job.project] += 1
        self.owned.pop(name, None)
        self.leaves_at.pop(name, None)

    def cancel(self, name: str) -> None:
        job = self.jobs[name]
        if job.state in HOLDS:
            self.jobs[name] = dc.replace(job, target=JobTarget.CANCELLED)
        else:
            self.end(name)

    def hold(self, name: str) -> None:
        job = self.jobs[name]
        resting = job.state in (JobState.QUEUED, JobState.PAUSED)
        self.jobs[name] = dc.replace(job, target=JobTarget.HELD, state=JobState.HELD if resting else job.state)

    def release(self, name: str) -> None:
        self.jobs[name] = dc.replace(self.jobs[name], target=JobTarget.RUNNING, state=JobState.QUEUED)

    def close(self, name: str) -> None:
        """Return a notebook's slice."""
        del self.notebooks[name]
        self.owned.pop(name, None)

    def set_activity(self, name: str, activity: Activity, *, empty: bool = False) -> None:
        """Set the activity of a notebook, and whether none of its processes is on its device."""
        self.notebooks[name] = dc.replace(self.notebooks[name], activity=activity, seen_empty=empty)

    def idle(self, *names: str) -> None:
        """Make notebooks idle, without processes on their devices."""
        for name in names:
            self.set_activity(name, Activity.IDLE, empty=True)

    def lend_for(self, seconds: int) -> None:
        """Slices of idle notebooks are lent, and returned to their quota after so long."""
        self.policy = dc.replace(self.policy, lending=Lending(enabled=True, release_after_s=seconds))

    def health(self, device: str, health: Health) -> None:
        self.devices[device] = dc.replace(self.devices[device], health=health)

    def keep_up(self, node: str, upkeep: Upkeep, *, by_s: int | None = None) -> None:
        """Set the maintenance of a node; ``by_s`` is the deadline of a drain, in seconds of the world."""
        by = None if by_s is None else BEGIN + by_s * 1000
        self.nodes = [dc.replace(one, upkeep=upkeep, drain_by_at=by) if one.id == node else one for one in self.nodes]

    def lose(self, *devices: str) -> None:
        """Devices fail: their work is queued again."""
        for name in devices:
            self.health(name, Health.UNHEALTHY)
        for name in [name for name, rows in self.owned.items() if any(row.device in devices for row in rows)]:
            if name in self.jobs:
                self.requeue(name)

    def requeue(self, name: str) -> None:
        """A job's processes are gone without a pause request."""
        job = self.jobs[name]
        self.leaves_at.pop(name, None)
        if job.target in (JobTarget.HELD, JobTarget.CANCELLED, JobTarget.FAILED):
            self.end(name)
            return
        del self.owned[name]
        self.jobs[name] = dc.replace(
            job, state=JobState.QUEUED, target=JobTarget.RUNNING, borrower=False, paused_for=None, held_ranks=None
        )

    # -- looking -------------------------------------------------------------------------------------------

    def running(self, project: str) -> int:
        """Milli-GPU of a project's running jobs that are not being paused."""
        here = [job.id for job in self.jobs.values() if job.project == project and job.state in HOLDS[:2]]
        return sum(one.gpu_milli for name in here for one in self.owned[name])

    def holding(self, project: str, pool: str) -> int:
        """Milli-GPU that a project's jobs occupy in a pool, with jobs that are stopping."""
        jobs = [job.id for job in self.jobs.values() if job.project == project and job.pool == pool]
        return sum(one.gpu_milli for name in jobs for one in self.owned.get(name, ()))

    def picture(self) -> str:
        """The GPUs that each project runs on, by name: ``bob 2 / patty 2``."""
        names = sorted(project.name for project in self.policy.projects)
        return " / ".join(f"{name} {Decimal(self.running(name)) / 1000:f}" for name in names)

    def dump(self) -> str:
        """The whole state, a line for each row, for the report of a failure."""
        rows = [str(self.policy.preemption)]
        rows += [f"{p.name} priority {p.priority} {dict(p.amounts)}" for p in self.policy.departments]
        rows += [
            f"{p.name} of {p.department} priority {p.priority} {dict(p.amounts)} used {self.used}"
            for p in self.policy.projects
        ]
        rows += [f"now {self.now}, {window}" for window in self.policy.windows]
        for name, device in self.devices.items():
            held = [f"{a.workload}:{a.gpu_milli}" for own in self.owned.values() for a in own if a.device == name]
            kept = [
                f"{r.workload}:{p.gpu_milli}" for r in self.reserved.values() for p in r.placements if p.device == name
            ]
            rows.append(f"{name} {device.health} holds {held} keeps {kept}")
        for job in self.jobs.values():
            kind = "" if job.preemptible else " fixed"
            lent = " lent" if job.borrower else ""
            rows.append(
                f"{job.id} {job.user} {job.gpu_milli}x{job.ranks} {job.state}>{job.target} p{job.priority}{kind}{lent} "
                f"paused {len(job.paused_at)} for {job.paused_for}"
            )
        decision = self.decide()
        rows += [f"{name} waits as {reason.code} {figures_of(reason)}" for name, reason in decision.waits.items()]
        rows += [f"kept: {kept}" for kept in decision.backfill]
        rows += [f"{book.id} {book.gpu_milli} {book.state}" for book in self.notebooks.values()]
        rows += self.log[-15:]
        rows += [f"next: {_in_words(action)}" for action in decision.plan.actions]
        return "\n".join(rows)

    def paused(self) -> list[str]:
        return sorted(name for name, job in self.jobs.items() if job.paused_at)


def is_backfill(action: Action, recorded: set[str], planned: set[str]) -> bool:
    """Whether an action records a backfill reservation, drops a recorded one, or ends a loan of its devices."""
    if isinstance(action, Unreserve):
        return action.workload in recorded
    if isinstance(action, Pause):
        return action.reason.code is ReasonCode.RESERVATION_BEGINS and action.preemptor in planned
    return isinstance(action, Reserve) and action.starts_at is not None


def _in_words(action: Action) -> str:
    text = f"{type(action).__name__} {action.workload} {action.reason.code}"
    if isinstance(action, Pause):
        text += f" for {action.preemptor}"
    if isinstance(action, (Start, Resume, Reserve)):
        text += f" on {','.join(part.device for part in action.placements)}"
    return text


def placed(plan: Plan, workload: str) -> tuple[Placement, ...]:
    """Where a plan starts a workload; empty where it does not."""
    for action in plan.actions:
        if isinstance(action, (Start, Resume)) and action.workload == workload:
            return action.placements
    return ()
