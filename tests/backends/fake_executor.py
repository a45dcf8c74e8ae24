"""A fake job backend: in memory, on a virtual clock, with scripted jobs. It passes the contract suite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jupyter_gpu_quota.backends.protocol import Inventory, StartOrder, StopOrder
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import Device, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The behaviour of a fake job. ``runs_for_ms`` None: until it is paused. ``on_stop`` None: ignores SIGTERM.

    ``starts_after_ms`` delays its first process, ``stops_after_ms`` its answer to SIGTERM, ``lingers_ms`` the end
    of its last process after the exit.
    """

    runs_for_ms: int | None = None
    exit_status: int = 0
    on_stop: int | None = 75
    starts_after_ms: int = 0
    stops_after_ms: int = 0
    lingers_ms: int = 0
    completes: bool = False
    outputs_mib: int | None = None


@dataclass(slots=True, kw_only=True)
class _Run:
    fact: RankFact
    script: Script
    fencing: int
    begins_at: int
    ends_at: int | None
    end_status: int | None
    left_at: int | None = None
    kill_at: int | None = None
    settled: bool = False


@dataclass(slots=True)
class FakeJobs:
    """A job backend in memory. ``now`` is the virtual clock; ``script`` has the behaviour of a job (default: runs on).

    ``starts`` and ``stops`` list the orders carried out, ``refusals`` the reasons of the others.
    """

    now: Callable[[], int]
    nodes: tuple[Node, ...] = ()
    devices: tuple[Device, ...] = ()
    script: Callable[[StartOrder], Script] = lambda order: Script()
    starts: list[StartOrder] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    unforgettable: dict[str, str] = field(default_factory=dict)
    """Why the data of a job cannot be removed now."""
    outputs_mib: dict[str, int] = field(default_factory=dict)
    removed_outputs: list[str] = field(default_factory=list)
    removal_is_slow: bool = False
    unreadable_outputs: set[str] = field(default_factory=set)
    unremovable_outputs: dict[str, str] = field(default_factory=dict)
    """Why the outputs of a job cannot be removed now."""
    lost_bundles: set[str] = field(default_factory=set)
    stops: list[StopOrder] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    fencing: int = 0
    stop_is_delayed: bool = False
    """A stop order does not reach the nodes."""
    stop_orders_at: dict[tuple[str, int], int] = field(default_factory=dict)
    _runs: dict[tuple[str, int, int], _Run] = field(default_factory=dict)
    _next_pid: int = 1_000_000

    # --- the job backend ------------------------------------------------------------------------------------------
    def inventory(self) -> Inventory:
        return Inventory(self.nodes, self.devices)

    def start(self, order: StartOrder) -> None:
        if self._refuses(order):
            return
        for rank in range(order.ranks):
            if (order.job, order.attempt, rank) not in self._runs:
                self._begin(order, rank)

    def stop(self, order: StopOrder) -> None:
        if self._refuses(order):
            return
        runs = [run for key, run in self._runs.items() if key[:2] == (order.job, order.attempt)]
        if not self.stop_is_delayed:
            self.stop_orders_at.setdefault((order.job, order.attempt), self.now())
        if not runs:
            self._never_starts(order)
        for run in runs:
            self._ask_to_leave(run, order)

    def has_code(self, job: str, bundle: str) -> bool:
        return bundle not in self.lost_bundles

    def stop_ordered_at(self, job: str, attempt: int) -> int | None:
        return self.stop_orders_at.get((job, attempt))

    def observe(self) -> Sequence[RankFact]:
        self._pass_time()
        return [run.fact for run in self._runs.values() if not run.settled and run.begins_at <= self.now()]

    def settled(self, job: str, attempt: int) -> None:
        for key, run in self._runs.items():
            if key[:2] == (job, attempt):
                run.settled = True

    def forget(self, job: str) -> None:
        if job in self.unforgettable:
            raise OSError(self.unforgettable[job])
        self._check_ended(job)
        self.forgotten.append(job)
        for key in [key for key, run in self._runs.items() if key[0] == job and run.fact.tree_gone]:
            del self._runs[key]

    def output_sizes(self, jobs: Collection[str]) -> Mapping[str, int | None]:
        unknown = dict.fromkeys(self.unreadable_outputs.intersection(jobs))
        return {job: mib for job, mib in self.outputs_mib.items() if job in jobs} | unknown

    def remove_outputs(self, job: str) -> None:
        if job in self.unremovable_outputs:
            raise OSError(self.unremovable_outputs[job])
        self._check_ended(job)
        self.removed_outputs.append(job)
        if not self.removal_is_slow:
            self.outputs_mib[job] = 0

    def pids(self) -> Mapping[str, frozenset[int]]:
        self._pass_time()
        held: dict[str, frozenset[int]] = {}
        for run in self._runs.values():
            if run.fact.handle is not None and not run.fact.tree_gone:
                held[run.fact.job] = held.get(run.fact.job, frozenset()) | {int(run.fact.handle)}
        return held

    def fence(self, fencing: int) -> None:
        self.fencing = max(self.fencing, fencing)

    # --- events that a test causes --------------------------------------------------------------------------------
    def end(
        self, job: str, exit_status: int | None, *, completed: bool = False, rank: int | None = None,
        why_lost: str | None = None,
    ) -> None:  # fmt: skip
        """The newest attempt's processes end now, on one or every rank; None is lost with its supervisor."""
        self._pass_time()
        for run in [run for run in self._newest(job) if rank in (None, run.fact.rank)]:
            done = completed or run.fact.completed
            ended = replace(run.fact, completed=done, why_lost=why_lost)
            run.ends_at, run.end_status, run.fact = self.now(), exit_status, ended
        self._pass_time()

    def progress(self, job: str, done: int, total: int, saved_at: int | None = None, **metrics: float) -> None:
        """The newest attempt reports progress, and perhaps a checkpoint."""
        self._pass_time()
        for run in self._newest(job):
            saved = run.fact.saved_at if saved_at is None else saved_at
            run.fact = replace(run.fact, done=done, total=total, metrics=metrics, saved_at=saved)

    def running(self) -> set[str]:
        """Jobs that have a process now."""
        return set(self.pids())

    # --- inside ---------------------------------------------------------------------------------------------------
    def _check_ended(self, job: str) -> None:
        self._pass_time()
        if any(key[0] == job and not run.fact.tree_gone for key, run in self._runs.items()):
            raise OSError(f"job {job} still runs")

    def _refuses(self, order: StartOrder | StopOrder) -> bool:
        newest = max([self.fencing] + [run.fencing for key, run in self._runs.items() if key[0] == order.job])
        if order.fencing < newest:
            self.refusals.append(f"an order of leader {order.fencing} for job {order.job}; leader {newest} is newer")
        return order.fencing < newest

    def _begin(self, order: StartOrder, rank: int) -> None:
        script = self.script(order)
        begins_at = self.now() + script.starts_after_ms
        ends_at = None if script.runs_for_ms is None else begins_at + script.runs_for_ms
        self._runs[order.job, order.attempt, rank] = _Run(
            fact=_fact(order, rank),
            script=script,
            fencing=order.fencing,
            begins_at=begins_at,
            ends_at=ends_at,
            end_status=script.exit_status,
        )
        if script.outputs_mib is not None:
            self.outputs_mib[order.job] = script.outputs_mib
        if rank == 0:
            self.starts.append(order)

    def _never_starts(self, order: StopOrder) -> None:
        now = self.now()
        for rank in range(order.ranks):
            fact = replace(_fact(order, rank), ended_at=now, exit_status=-15, tree_gone=True, pause_requested=True)
            self._runs[order.job, order.attempt, rank] = _Run(
                fact=fact, script=Script(), fencing=order.fencing, begins_at=now, ends_at=now, end_status=-15,
                left_at=now,
            )  # fmt: skip
        self.stops.append(order)

    def _ask_to_leave(self, run: _Run, order: StopOrder) -> None:
        self._pass_time()
        if run.fact.ended_at is not None:
            return
        run.fencing, kill_at = max(run.fencing, order.fencing), self.now() + order.grace_s * 1000
        run.kill_at = kill_at if run.kill_at is None else min(run.kill_at, kill_at)
        if run.left_at is None:
            run.left_at, run.fact = self.now(), replace(run.fact, pause_requested=True)
            self.stops.append(order)
        self._plan_end(run)

    def _plan_end(self, run: _Run) -> None:
        assert run.left_at is not None and run.kill_at is not None
        obeys_at = run.left_at + run.script.stops_after_ms
        if run.script.on_stop is not None and obeys_at <= run.kill_at:
            planned, status = obeys_at, run.script.on_stop
        else:
            planned, status = run.kill_at, -9
        if run.ends_at is None or planned < run.ends_at:
            run.ends_at, run.end_status = planned, status

    def _pass_time(self) -> None:
        now = self.now()
        for run in self._runs.values():
            if run.fact.handle is None and run.begins_at <= now and run.fact.ended_at is None:
                self._next_pid += 1
                run.fact = replace(run.fact, handle=str(self._next_pid), started_at=run.begins_at)
            if run.ends_at is not None and run.ends_at <= now:
                run.fact = _ended(run, run.ends_at, now)

    def _newest(self, job: str) -> list[_Run]:
        attempts = [key[1] for key in self._runs if key[0] == job]
        return [run for key, run in self._runs.items() if key[0] == job and key[1] == max(attempts)]


def _ended(run: _Run, ended_at: int, now: int) -> RankFact:
    completed = run.fact.completed or (run.script.completes and run.end_status == 0)
    gone = now >= ended_at + run.script.lingers_ms
    return replace(run.fact, ended_at=ended_at, exit_status=run.end_status, completed=completed, tree_gone=gone)


def _fact(order: StartOrder | StopOrder, rank: int) -> RankFact:
    return RankFact(job=order.job, attempt=order.attempt, rank=rank, handle=None, started_at=None)
