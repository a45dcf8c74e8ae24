"""A small world to put into any store: two projects, four devices, and short functions for events."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.facts import Fact, RankFact
from jupyter_gpu_quota.core.model import Amounts, Device, JobTarget, Node, Placement, Policy, PreemptionPolicy, Project
from jupyter_gpu_quota.core.plan import Action, Pause, Plan, Resume, Start, Stop
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import Committed, Lease, Stale
from jupyter_gpu_quota.store.records.commands import (
    ApplyQuota,
    ChangeJob,
    JobSpec,
    Recorded,
    RequestNotebook,
    SetInventory,
    SubmitJob,
)
from jupyter_gpu_quota.store.records.rows import JobRecord, NotebookRecord
from jupyter_gpu_quota.store.transactions import Store
from tests.store.database.empty_database import make_empty_database
from tests.store.database.postgresql_server import emptied_database, why_missing

T0 = 1_800_000_000_000
MEMORY_MIB = 80_000
POLICY = Policy(
    revision=1,
    pools=("train",),
    projects=(
        Project(name="bob-lab", amounts={"train": Amounts(training_milli=2000)}),
        Project(name="patty-lab", amounts={"train": Amounts(training_milli=2000)}),
    ),
    preemption=PreemptionPolicy(max_pauses=4, per_s=3600),
)
NODE = Node(id="n1", name="machine", cpu_milli=16_000, memory_mib=64_000)
DEVICES = tuple(
    Device(id=f"d{number}", node="n1", index=number, model="H100", memory_mib=MEMORY_MIB, pool="train")
    for number in range(4)
)


def counted_ids() -> Callable[[int], str]:
    """Ids that two stores make alike."""
    numbers = itertools.count(1)
    return lambda now: f"id-{next(numbers):06d}"


def spec(project: str = "bob-lab", *, milli: int = 1000, ranks: int = 1, retries: int = 0, **more: object) -> JobSpec:
    values: dict[str, object] = {"command": ("python", "train.py"), "name": "train", "pool": "train", "gpu_asked": "1"}
    return JobSpec(project=project, gpu_milli=milli, ranks=ranks, retries=retries, **(values | more))  # type: ignore[arg-type]


def submit(job: str, user: str = "bob", **more: object) -> SubmitJob:
    key = more.pop("key", None)
    secrets = more.pop("secrets", {})
    return SubmitJob(job=job, user=user, account=None, spec=spec(**more), secrets=secrets, idempotency_key=key)  # type: ignore[arg-type]


def placements(*devices: str, milli: int = 1000, memory: int = 1000) -> tuple[Placement, ...]:
    return tuple(
        Placement(rank=rank, device=device, gpu_milli=milli, memory_mib=memory) for rank, device in enumerate(devices)
    )


WITHIN = reason_from(ReasonCode.WITHIN_GUARANTEE, (("guarantee_milli", 2000),))
TAKEN = reason_from(ReasonCode.RECLAIMED, (("preemptor", "patty's job"),))


class World:
    """One store with the inventory and policy in it, a leader, and a clock that is set by hand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = T0
        self.policy = POLICY
        quota = ApplyQuota(
            actor="admin", text="version: 1", document={"version": 1}, policy=POLICY, expected_revision=0
        )
        self.record(SetInventory(nodes=(NODE,), devices=DEVICES), quota)
        self.lease = self.lead("leader")
        self.submit("patty's job", "patty", project="patty-lab")

    def lead(self, holder: str) -> Lease:
        lease = self.store.acquire_lease(holder, clock=lambda: self.now, ttl_ms=3000)
        assert lease is not None
        return lease

    def record(self, *requests: object) -> list[Recorded]:
        answers = self.store.record(requests, now=self.now)  # type: ignore[arg-type]
        assert all(isinstance(answer, Recorded) for answer in answers), answers
        return answers  # type: ignore[return-value]

    def submit(self, job: str, user: str = "bob", **more: object) -> None:
        self.record(submit(job, user, **more))

    def change(self, job: str, change: str) -> object:
        [answer] = self.store.record([ChangeJob(job=job, actor="bob", change=change)], now=self.now)
        return answer

    def ask_notebook(
        self, notebook: str, user: str = "bob", *, server: str = "", milli: int = 125, token_digest: str = ""
    ) -> Recorded:
        request = RequestNotebook(
            notebook=notebook, user=user, server=server, project="bob-lab", pool="train", gpu_milli=milli,
            token_digest=token_digest,
        )  # fmt: skip
        return self.record(request)[0]

    def plan(self, *actions: Action, seen: int | None = None) -> Plan:
        return Plan(seen_version=self.store.version() if seen is None else seen, now=self.now, actions=actions)

    def commit(self, *actions: Action, seen: int | None = None, lease: Lease | None = None) -> Committed | Stale:
        return self.store.commit(
            self.plan(*actions, seen=seen),
            policy=self.policy,
            snapshot_digest="snapshot",
            lease=lease or self.lease,
            now=self.now,
        )

    def start(self, job: str, *devices: str, milli: int = 1000, borrower: bool = False) -> None:
        attempt = self.job(job).job.attempt + 1
        kind = Start if attempt == 1 else Resume
        parts = placements(*devices, milli=milli)
        action = kind(workload=job, attempt=attempt, placements=parts, borrower=borrower, reason=WITHIN)
        self.committed(action)

    def committed(self, *actions: Action) -> None:
        answer = self.commit(*actions)
        assert isinstance(answer, Committed), answer

    def run(self, job: str, *devices: str) -> None:
        """Start the job and see all its ranks running."""
        self.start(job, *devices)
        self.see(*(self.fact(job, rank=rank) for rank in range(len(devices))))

    def pause(self, job: str, preemptor: str = "patty's job") -> None:
        self.committed(Pause(workload=job, preemptor=preemptor, grace_s=60, reason=TAKEN))

    def stop(self, job: str, target: JobTarget) -> None:
        self.committed(Stop(workload=job, target=target, grace_s=60, reason=reason_from(ReasonCode.TIME_LIMIT)))

    def fact(self, job: str, *, rank: int = 0, **more: object) -> RankFact:
        values: dict[str, object] = {"handle": str(100 + rank), "started_at": T0 + 1}
        values |= {"attempt": self.job(job).job.attempt} | more
        return RankFact(job=job, rank=rank, **values)  # type: ignore[arg-type]

    def gone(
        self, job: str, exit_status: int | None, *, asked: bool = False, rank: int = 0, **more: object
    ) -> RankFact:
        """The rank ended and no process of it is left."""
        return self.fact(
            job,
            rank=rank,
            ended_at=self.now,
            exit_status=exit_status,
            tree_gone=True,
            pause_requested=asked,
            **more,
        )

    def see(self, *facts: Fact) -> int:
        answer = self.store.observe(facts, lease=self.lease, now=self.now)
        assert isinstance(answer, int), answer
        return answer

    def job(self, job: str) -> JobRecord:
        record = self.store.job(job)
        assert record is not None
        return record

    def state(self, job: str) -> str:
        """State and target of the job, as in "pausing -> held"."""
        record = self.job(job)
        return f"{record.job.state} -> {record.job.target}"

    def notebook(self, notebook: str) -> NotebookRecord:
        record = self.store.notebook(notebook)
        assert record is not None
        return record

    def held(self) -> dict[str, int]:
        """Milli-GPU given out, by device."""
        carried: dict[str, int] = {}
        for allocation in self.store.changes(0).allocations:
            carried[allocation.device] = carried.get(allocation.device, 0) + allocation.gpu_milli
        return carried

    def audited(self) -> list[str]:
        """Kind and subject of every audit row, oldest first."""
        rows, _ = self.store.audit()
        return [f"{row.kind} {row.subject}" for row in reversed(rows)]


POSTGRESQL = pytest.param(
    "postgresql", marks=pytest.mark.skipif(why_missing() is not None, reason=why_missing() or "there is one")
)
KINDS = ("memory", "sqlite", "cached", POSTGRESQL)
"""``cached``: SQLite, with live rows kept in memory as the controllers do."""


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Store]:
    """A store of this kind, new and empty."""
    with ExitStack() as stack:
        if kind == "memory":
            store: Store = MemoryStore()
        elif kind == "postgresql":
            store = open_store(emptied_database())
        else:
            path = folder / "store.sqlite"
            make_empty_database(path)
            store = open_store(f"sqlite:///{path}", cache_rows=kind == "cached")
        stack.callback(store.close)
        yield store
