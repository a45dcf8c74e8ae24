"""A small world around ``decide``: written as text, stepped by ticks, nothing in it but what a plan says.

::

    pool train 4                          # four devices on one node; `pool train 2x8` is two nodes of eight
    bob 2 of train, notebooks 0.25        # quotas; also: weight 2, priority 60, limit 4
    bob runs 3 of 1                       # three running jobs of one GPU: bob1, bob2, bob3
    bob queues 2 of 0.5 by ann fixed      # two waiting ones; also: priority 70, ranks 2, model A100, minutes 5
    bob notebook 0.125                    # a requested slice
"""

from __future__ import annotations

import dataclasses as dc
import re
from collections import Counter
from decimal import Decimal

from jupyter_gpu_quota.core.model import (
    Allocation,
    Amounts,
    Device,
    Health,
    Job,
    JobState,
    JobTarget,
    Node,
    Notebook,
    NotebookState,
    Placement,
    Policy,
    Preemption,
    Project,
    Reservation,
    Snapshot,
)
from jupyter_gpu_quota.core.plan import Pause, Plan, Refuse, Reserve, Resume, Start, Stop, Unreserve
from jupyter_gpu_quota.core.schedule import Decision, decide_and_explain

HOLDS = (JobState.STARTING, JobState.RUNNING, JobState.PAUSING)
GENTLE = Preemption(min_runtime_s=0, grace_s=3, lent_grace_s=1, max_pauses=1000, per_s=86_400)
TICK_MS = 1000


def milli(text: str) -> int:
    return int(Decimal(text) * 1000)


class World:
    """Everything that a store and executors would hold; ``drain_ticks`` is how long a job takes to leave."""

    def __init__(self, *, preemption: Preemption = GENTLE, within_project: str = "users_in_turn") -> None:
        self.now = 1_000_000
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
        self.log: list[str] = []

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

    def project(self, name: str, pool: str, *, priority: int | None = None, **amounts: int | None) -> None:
        rows = {project.name: project for project in self.policy.projects}
        project = rows.get(name) or Project(name=name)
        mine = dict(project.amounts) | {pool: Amounts(**amounts)}  # type: ignore[arg-type]
        rows[name] = dc.replace(project, amounts=mine, priority=project.priority if priority is None else priority)
        self.policy = dc.replace(self.policy, projects=tuple(rows.values()))

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

    def ask(self, project: str, gpu: int, *, id: str = "", pool: str = "") -> Notebook:
        name = id or f"nb-{project}{sum(n.project == project for n in self.notebooks.values()) + 1}"
        notebook = Notebook(
            id=name,
            project=project,
            user=project,
            pool=pool or self.policy.pools[0],
            gpu_milli=gpu,
            requested_at=self.now + len(self.notebooks),
        )
        self.notebooks[name] = notebook
        return notebook

    def put(self, job: Job, devices: list[str], *, ran_s: int = 3600, borrower: bool = False) -> None:
        """Let a job run on these devices already."""
        each = min(job.gpu_milli, 1000)
        self.owned[job.id] = [self._allocation(job.id, 0, name, each, at) for at, name in enumerate(devices)]
        self.jobs[job.id] = dc.replace(
            job, state=JobState.RUNNING, attempt=1, started_at=self.now - ran_s * 1000, borrower=borrower
        )

    def _allocation(self, workload: str, rank: int, device: str, amount: int, at: int) -> Allocation:
        memory = self.devices[device].memory_mib * amount // 1000
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
            jobs=tuple(self.jobs.values()),
            notebooks=tuple(self.notebooks.values()),
            allocations=tuple(one for rows in self.owned.values() for one in rows),
            reservations=tuple(self.reserved.values()),
        )

    def decide(self) -> Decision:
        return decide_and_explain(self.snapshot(), self.policy)

    def tick(self) -> Plan:
        """Time passes, who was leaving may have left, a plan is made and applied."""
        self.now += TICK_MS
        self._let_leave()
        for name, job in self.jobs.items():
            if job.state is JobState.STARTING:
                self.jobs[name] = dc.replace(job, state=JobState.RUNNING)
        plan = self.decide().plan
        self.apply(plan)
        return plan

    def settle(self, most: int = 200) -> int:
        """Tick until nothing moves; returns how many ticks that took."""
        for count in range(most):
            if not self.tick().actions and not self.leaves_at:
                return count
        raise AssertionError(f"not at rest after {most} ticks: {self.picture()}")

    def apply(self, plan: Plan) -> None:
        self.version += 1
        said = [f"{type(one).__name__} {one.workload} {one.reason.code}" for one in plan.actions]
        said = [
            f"{text} for {a.claimer}" if isinstance(a, Pause) else text
            for text, a in zip(said, plan.actions, strict=True)
        ]
        self.log.append(f"{self.now} {self.picture()}: {'; '.join(said)}")
        for action in plan.actions:
            match action:
                case Start() | Resume():
                    self._start(action)
                case Pause():
                    self._leave(action.workload, JobTarget.PAUSED, action.claimer)
                case Stop():
                    self._leave(action.workload, action.target, None)
                case Refuse():
                    self.notebooks[action.workload] = dc.replace(
                        self.notebooks[action.workload], state=NotebookState.REFUSED
                    )
                    self.refused[action.workload] = action.reason.code
                case Reserve():
                    self.reserved[action.workload] = Reservation(
                        workload=action.workload, placements=action.placements, reserved_at=self.now
                    )
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
            self.notebooks[name] = dc.replace(self.notebooks[name], state=NotebookState.BOOKED)
            return
        job = self.jobs[name]
        assert isinstance(action, Resume) == (job.state is JobState.PAUSED), f"{name} is {job.state}: {action}"
        assert job.state in (JobState.QUEUED, JobState.PAUSED), f"{name} is {job.state}"
        self.jobs[name] = dc.replace(
            job, state=JobState.STARTING, attempt=action.attempt, started_at=self.now, borrower=action.borrower
        )

    def _leave(self, name: str, target: JobTarget, claimer: str | None) -> None:
        job = self.jobs[name]
        assert job.state in (JobState.STARTING, JobState.RUNNING), f"{name} is {job.state}"
        counted = (*job.paused_at, self.now) if target is JobTarget.PAUSED else job.paused_at
        self.jobs[name] = dc.replace(
            job,
            state=JobState.PAUSING,
            target=target,
            pausing_since_at=self.now,
            paused_for=claimer,
            paused_at=counted,
            checkpoint_at=self.now,
        )
        self.leaves_at[name] = self.now + self.drain_ticks * TICK_MS

    def _let_leave(self) -> None:
        for name in [name for name, at in self.leaves_at.items() if at <= self.now]:
            del self.leaves_at[name]
            del self.owned[name]
            job = self.jobs[name]
            if job.target is JobTarget.PAUSED:
                self.jobs[name] = dc.replace(
                    job, state=JobState.PAUSED, target=JobTarget.RUNNING, borrower=False, paused_for=None
                )
            elif job.target is JobTarget.HELD:
                self.jobs[name] = dc.replace(job, state=JobState.HELD)
            else:
                self.end(name)

    # -- outside events ------------------------------------------------------------------------------------

    def end(self, name: str) -> None:
        """A job is over."""
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
        """A notebook is given back."""
        del self.notebooks[name]
        self.owned.pop(name, None)

    def health(self, device: str, health: Health) -> None:
        self.devices[device] = dc.replace(self.devices[device], health=health)

    # -- looking -------------------------------------------------------------------------------------------

    def running(self, project: str) -> int:
        """Milli-GPU that a project's jobs run on, and are not asked to leave."""
        return sum(
            job.gpu_milli * job.ranks
            for job in self.jobs.values()
            if job.project == project and job.state in (JobState.STARTING, JobState.RUNNING)
        )

    def picture(self) -> str:
        """Who runs how much: ``bob 2 / patty 2``, in GPUs, by name."""
        names = sorted(project.name for project in self.policy.projects)
        return " / ".join(f"{name} {Decimal(self.running(name)) / 1000:f}" for name in names)

    def dump(self) -> str:
        """Everything, a line each, for a failure's report."""
        rows = [str(self.policy.preemption)]
        rows += [f"{p.name} priority {p.priority} {dict(p.amounts)}" for p in self.policy.projects]
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
        rows += [f"{book.id} {book.gpu_milli} {book.state}" for book in self.notebooks.values()]
        rows += self.log[-15:]
        return "\n".join(rows)

    def paused(self) -> list[str]:
        return sorted(name for name, job in self.jobs.items() if job.paused_at)


def world(text: str, *, preemption: Preemption = GENTLE, within_project: str = "users_in_turn") -> World:
    """Read a world; see the module's docstring."""
    made = World(preemption=preemption, within_project=within_project)
    for line in text.strip().splitlines():
        words = line.split("#")[0].strip()
        if words:
            _read(made, words)
    return made


def _read(made: World, line: str) -> None:
    if found := re.fullmatch(r"pool (\S+) (?:(\d+)x)?(\d+)(?: (\S+))?", line):
        name, nodes, each, model = found.groups()
        made.pool(name, int(nodes or 1), int(each), model or "X")
    elif found := re.fullmatch(r"(\S+) (runs|queues) (?:(\d+) of )?([\d.]+)(.*)", line):
        name, verb, count, gpu, rest = found.groups()
        for _ in range(int(count or 1)):
            _read_job(made, name, verb == "runs", milli(gpu), rest)
    elif found := re.fullmatch(r"(\S+) notebook ([\d.]+)", line):
        made.ask(found[1], milli(found[2]))
    elif found := re.fullmatch(r"(\S+) ([\d.]+) of (\w+)(.*)", line):
        name, quota, pool, rest = found.groups()
        amount = dict(re.findall(r"(notebooks|weight|priority|limit) ([\d.]+)", rest))
        made.project(
            name,
            pool,
            training_milli=milli(quota),
            notebook_milli=milli(amount.get("notebooks", "0")),
            limit_milli=milli(amount["limit"]) if "limit" in amount else None,
            weight=int(amount.get("weight", "1")),
            priority=int(amount.get("priority", "50")),
        )
    else:
        raise ValueError(f"not a line of a world: {line}")


def _read_job(made: World, project: str, runs: bool, gpu: int, rest: str) -> None:
    words = dict(re.findall(r"(by|priority|ranks|model|minutes|on|ran|pool|saved) (\S+)", rest))
    extra: dict[str, object] = {"pool": words.get("pool", "")}
    if "model" in words:
        extra["gpu_model"] = words["model"]
    if "minutes" in words:
        extra["time_limit_s"] = int(words["minutes"]) * 60
    job = made.submit(
        project,
        gpu,
        user=words.get("by", project),
        priority=int(words.get("priority", "50")),
        ranks=int(words.get("ranks", "1")),
        preemptible="fixed" not in rest,
        **extra,  # type: ignore[arg-type]
    )
    if runs:
        need = max(1, gpu // 1000)
        named = words["on"].split(",") if "on" in words else []
        free = named or [name for name in made.devices if made.free(name) >= min(gpu, 1000)][:need]
        assert len(free) == need, f"no room for {job}"
        made.put(job, free, ran_s=int(words.get("ran", "3600")), borrower="lent" in rest)


def placed(plan: Plan, workload: str) -> tuple[Placement, ...]:
    """Where a plan starts a workload; empty where it does not."""
    for action in plan.actions:
        if isinstance(action, (Start, Resume)) and action.workload == workload:
            return action.placements
    return ()
