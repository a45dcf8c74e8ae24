"""The controller of the contract suite, and the backends that the suite tests."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from jupyter_gpu_quota.backends.clusters.backend import ClustersBackend
from jupyter_gpu_quota.backends.clusters.members import Member, Members
from jupyter_gpu_quota.backends.clusters.routes import JobRoutes
from jupyter_gpu_quota.backends.local.backend import LocalBackend
from jupyter_gpu_quota.backends.protocol import (
    Backend,
    LogPart,
    LogUnavailable,
    StartOrder,
    StopNotebookOrder,
    StopOrder,
)
from jupyter_gpu_quota.backends.simulated.backend import SimulatedBackend
from jupyter_gpu_quota.backends.simulated.jobs import Behaviour, SimulatedJobs
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import OWN_CLUSTER, Device, Node, Placement
from tests.backends.fake_executor import FakeJobs
from tests.backends.remote import Agent, Clock, Network, RemoteBackend
from tests.backends.worlds import ACTS, KINDS, TRAPS, order, stop
from tests.patience import until

T = TypeVar("T")
Rank = tuple[str, int, int]
Order = StartOrder | StopOrder
FOREVER_MS = 10**9
AGAIN_MS = 1_000
"""An order whose effect is not seen is repeated after so long."""

CONDUCT: Mapping[str, Behaviour] = {
    "runs on": Behaviour(work_ms=FOREVER_MS),
    "ends with 0": Behaviour(work_ms=0, completes=False),
    "ends with 3": Behaviour(work_ms=0, exit_status=3),
    "completes and ends": Behaviour(work_ms=0),
    "saves and stops": Behaviour(work_ms=FOREVER_MS, saves_in_ms=0),
    "ignores SIGTERM": Behaviour(work_ms=FOREVER_MS, saves_in_ms=FOREVER_MS),
    "completes when stopped": Behaviour(work_ms=FOREVER_MS, saves_in_ms=0, saved_exit_status=0),
    "writes and runs on": Behaviour(work_ms=FOREVER_MS, outputs={"notes": b"n"}),
    "writes": Behaviour(work_ms=0, log=b"one\ntwo\n", outputs={"a/model": b"weights", "notes": b"n"}),
}
"""What each job of ACTS does on a virtual clock."""

REAL = Device(id="GPU-0", node="here", index=0, model="H200", memory_mib=8000, pool=None, uuid="GPU-0")


class World(Protocol):
    """One backend, and its clock.

    ``stopped`` are the notebooks whose stop orders were carried out; None: that cannot be seen. ``wait_ms`` is long
    enough for an order that must have no effect to have had one.
    """

    backend: Backend
    wait_ms: int

    def now(self) -> int: ...
    def pass_ms(self, duration_ms: int) -> None: ...
    def restart(self) -> None: ...
    def another(self) -> Backend: ...
    def until(self, seen: Callable[[], T]) -> T: ...
    def stopped(self) -> Sequence[str] | None: ...
    def close(self) -> None: ...


class Controller:
    """The controller of the tests: it repeats orders until their effect is observed, and keeps the newest facts."""

    def __init__(self, world: World, placed: Callable[[Order], Order] = lambda order: order) -> None:
        self.world, self.placed = world, placed
        self.facts: dict[Rank, RankFact] = {}
        self.orders: list[StartOrder | StopOrder | StopNotebookOrder] = []
        self._again_at = 0

    @property
    def backend(self) -> Backend:
        return self.world.backend

    def start(self, job: str, acts: str, **more: Any) -> None:
        self.give(self.placed(order(job, acts, **more)))

    def stop(self, job: str, **more: Any) -> None:
        self.give(self.placed(stop(job, **more)))

    def give(self, made: StartOrder | StopOrder | StopNotebookOrder) -> None:
        """Send an order now and repeatedly; a job that is to stop is no longer ordered to start."""
        if isinstance(made, StopOrder):
            self.orders = [each for each in self.orders if _name(each) != (made.job, made.attempt)]
        self.orders.append(made)
        self._send(made)

    def _send(self, made: StartOrder | StopOrder | StopNotebookOrder) -> None:
        match made:
            case StartOrder():
                self.backend.jobs.start(made)
            case StopOrder():
                self.backend.jobs.stop(made)
            case StopNotebookOrder():
                self.backend.enforcement.stop_notebook(made)

    def observe_once(self) -> None:
        """Observe; no fact may be older than one before it."""
        if self.world.now() >= self._again_at:
            self._again_at = self.world.now() + AGAIN_MS
            for made in self.orders:
                self._send(made)
        for fact in self.backend.jobs.observe():
            before = self.facts.get((fact.job, fact.attempt, fact.rank))
            assert before is None or not _goes_back(before, fact), (before, fact)
            self.facts[fact.job, fact.attempt, fact.rank] = fact

    def until(self, seen: Callable[[RankFact], object]) -> RankFact:
        """Wait for a fact; returns the first that matches."""

        def found() -> list[RankFact]:
            self.observe_once()
            return [fact for fact in self.facts.values() if seen(fact)]

        return self.world.until(found)[0]

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, and observe."""
        until_at = self.world.now() + duration_ms
        while self.world.now() < until_at:
            self.world.pass_ms(50)
            self.observe_once()

    def forget(self, job: str) -> None:
        """Have the data of a job removed; repeated as by retention, since its attempts may still be settled."""

        def is_forgotten() -> bool:
            try:
                self.backend.jobs.forget(job)
            except OSError:
                return False
            return True

        self.world.until(is_forgotten)

    def remove_outputs(self, job: str) -> None:
        """Order the removal; a backend may refuse it, or drop the order."""
        with suppress(OSError):
            self.backend.jobs.remove_outputs(job)

    def wait(self) -> None:
        """Wait long enough for an order to have had an effect."""
        self.pass_ms(self.world.wait_ms)

    def began(self, job: str, acts: str) -> RankFact:
        """Wait until a job started, and set its trap if it has one."""
        fact = self.until(lambda fact: fact.job == job and fact.started_at is not None)
        if acts in TRAPS:
            self.world.until(lambda: self._log(job, fact.attempt).startswith(b"ready"))
        return fact

    def _log(self, job: str, attempt: int) -> bytes:
        """The log of a job, empty while it cannot be read."""
        try:
            return self.backend.outputs.log(job, attempt, 0).data
        except LogUnavailable:
            return b""

    def gone(self, job: str) -> RankFact:
        return self.until(lambda fact: fact.job == job and fact.tree_gone)

    def seen(self) -> list[RankFact]:
        return list(self.facts.values())

    def take_over(self, fencing: int) -> None:
        """Another controller takes over; it knows no fact."""
        self.world.restart()
        self._begin_term(fencing)

    def take_over_by(self, standby: Backend, fencing: int) -> None:
        """A controller that has waited takes over, by the client that it made long ago."""
        self.world.backend = standby
        self._begin_term(fencing)

    def _begin_term(self, fencing: int) -> None:
        self.facts.clear()
        self.orders.clear()
        self.backend.jobs.fence(fencing)


def _name(made: StartOrder | StopOrder | StopNotebookOrder) -> tuple[str, int]:
    return (made.notebook, 0) if isinstance(made, StopNotebookOrder) else (made.job, made.attempt)


def _goes_back(before: RankFact, fact: RankFact) -> bool:
    began = before.started_at is not None and fact.started_at is None
    ended = before.ended_at is not None and fact.ended_at is None
    return began or ended or (before.tree_gone and not fact.tree_gone)


# --- the backends -----------------------------------------------------------------------------------------------------
class LocalContract:
    """Real processes in a folder of their own, on simulated devices."""

    wait_ms = 400

    def __init__(self, folder: Path) -> None:
        self.folder, self.others = folder, list[Backend]()
        self.backend: Backend = LocalBackend(folder, simulated_devices=KINDS)

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def pass_ms(self, duration_ms: int) -> None:
        until_at = self.now() + duration_ms
        until(lambda: self.now() >= until_at)

    def restart(self) -> None:
        self.backend.close()
        self.backend = LocalBackend(self.folder, simulated_devices=KINDS)

    def another(self) -> Backend:
        self.others.append(self.backend)
        return LocalBackend(self.folder, simulated_devices=KINDS)

    def until(self, seen: Callable[[], T]) -> T:
        return until(seen, what=self.backend.jobs.observe)

    def stopped(self) -> Sequence[str] | None:
        return None

    def close(self) -> None:
        """End everything that still runs."""
        for each in self.others:
            each.close()
        self.restart()
        jobs = self.backend.jobs
        for fact in jobs.observe():
            if not fact.tree_gone:
                jobs.stop(stop(fact.job, attempt=fact.attempt, fencing=10**6, grace_s=0))
        until(lambda: all(fact.tree_gone for fact in jobs.observe()), what=jobs.observe)
        self.backend.close()


def _simulated(now: Callable[[], int], acts: Mapping[str, str]) -> SimulatedBackend:
    node = Node(id="here", name="here", cpu_milli=8000, memory_mib=64_000)
    device = Device(id="d0", node="here", index=0, model="S", memory_mib=1000, pool=None, simulated=True)
    jobs = _RecordingJobs(now, (node,), (device,), lambda job: _conduct(acts[job]))
    jobs.acts = acts  # type: ignore[assignment]
    return SimulatedBackend(jobs, use_of=lambda workload: 40 if workload in acts else None)


def _conduct(acts: str) -> Behaviour:
    return replace(CONDUCT[acts], log=b"ready\n") if acts in TRAPS else CONDUCT[acts]


class _RecordingJobs(SimulatedJobs):
    """Simulated jobs that do what their command names."""

    acts: dict[str, str]

    def start(self, order: StartOrder) -> None:
        self.acts[order.job] = order.command[3]
        super().start(order)

    def stop(self, order: StopOrder) -> None:
        self.acts.setdefault(order.job, "runs on")
        super().stop(order)


class SimulatedContract:
    """The simulated backend, on a clock that advances when a test waits."""

    wait_ms = 20_000

    def __init__(self) -> None:
        self.clock = Clock()
        self.backend: Backend = _simulated(self.clock, {})

    def now(self) -> int:
        return self.clock.now

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.now += duration_ms

    def restart(self) -> None:
        """The simulated jobs keep their state for the next controller."""

    def another(self) -> Backend:
        """All controllers have the same simulated jobs."""
        return self.backend

    def until(self, seen: Callable[[], T]) -> T:
        for _ in range(20_000):
            if found := seen():
                return found
            self.pass_ms(10)
        raise AssertionError(f"never seen: {seen()}")

    def stopped(self) -> Sequence[str] | None:
        assert isinstance(self.backend, SimulatedBackend)
        return self.backend.enforcement.stopped

    def close(self) -> None:
        """Nothing to end."""


class ScriptedBackend:
    """The scripted jobs of other tests; they have no other part but logs that say ready."""

    def __init__(self, now: Callable[[], int]) -> None:
        node = Node(id="here", name="here", cpu_milli=8000, memory_mib=64_000)
        device = Device(id="d0", node="here", index=0, model="S", memory_mib=1000, pool=None, simulated=True)
        self.jobs = FakeJobs(now, (node,), (device,), lambda order: ACTS[order.command[3]][1])
        self.outputs = self

    def log(self, job: str, attempt: int, rank: int) -> LogPart:
        return LogPart(0, b"ready", 5)


class ScriptedContract(SimulatedContract):
    """Scripted jobs on the same clock."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = ScriptedBackend(self.clock)  # type: ignore[assignment]


class RemoteContract(SimulatedContract):
    """The simulated backend behind an unreliable network."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.network = Network(self.clock, random.Random(seed))
        assert isinstance(self.backend, SimulatedBackend)
        self.there = self.backend
        self.agent = Agent(self.there, self.network)
        self.backend = RemoteBackend(self.agent)

    def pass_ms(self, duration_ms: int) -> None:
        self.network.pass_ms(duration_ms)

    def restart(self) -> None:
        self.backend = RemoteBackend(self.agent)

    def another(self) -> Backend:
        """A second client; the agent sends its messages to the one that fenced last."""
        receive, made = self.agent.receive, RemoteBackend(self.agent)
        self.agent.receive = receive
        return made

    def stopped(self) -> Sequence[str] | None:
        return self.there.enforcement.stopped


class ClustersContract(SimulatedContract):
    """Two simulated clusters, as one backend after the other; ``west`` has the jobs that ``in_west`` placed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.members = folder, {OWN_CLUSTER: self.backend, "west": _simulated(self.clock, {})}
        self.restart()

    def restart(self) -> None:
        self.backend = self.another()

    def another(self) -> Backend:
        members = Members([Member(name, each) for name, each in self.members.items()])  # type: ignore[arg-type]
        return ClustersBackend(members, JobRoutes(self.folder, ["west"], later=lambda task: task()))

    def stopped(self) -> Sequence[str] | None:
        own = self.members[OWN_CLUSTER]
        assert isinstance(own, SimulatedBackend)
        return own.enforcement.stopped


def in_west(order: Order) -> Order:
    """The order on the same devices of the cluster ``west``."""
    if isinstance(order, StopOrder):
        return replace(order, devices=("west:d0",))
    devices = tuple(replace(each, id=f"west:{each.id}", node=f"west:{each.node}") for each in order.devices)
    return replace(order, devices=devices, placements=tuple(_in_west(part) for part in order.placements))


def _in_west(part: Placement) -> Placement:
    return replace(part, device=f"west:{part.device}")


def opened(kind: str) -> Iterator[Controller]:
    """A controller of one kind of backend: ``local``, ``simulated``, ``scripted``, ``remote <seed>``, or two clusters.

    With ``clusters west`` the jobs are in a further cluster, with ``clusters own`` in the hub's own.
    """
    if kind == "local":
        with tempfile.TemporaryDirectory(prefix="gpu-quota-", ignore_cleanup_errors=True) as folder:
            world = LocalContract(Path(folder))
            yield Controller(world)
            world.close()
    elif kind.startswith("clusters"):
        with tempfile.TemporaryDirectory(prefix="gpu-quota-") as folder:
            world = ClustersContract(Path(folder))
            yield Controller(world, in_west) if kind.endswith("west") else Controller(world)
    elif kind == "simulated":
        yield Controller(SimulatedContract())
    elif kind == "scripted":
        yield Controller(ScriptedContract())
    else:
        yield Controller(RemoteContract(int(kind.rpartition(" ")[2])))


__all__ = ["ACTS", "REAL", "Controller", "RemoteContract", "opened"]
