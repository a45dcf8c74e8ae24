"""The speed of the store on this machine: ``python tests/benchmarks/store/store.py``. Timed inside one process."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import Amounts, Device, Node, Placement, Policy, Project
from jupyter_gpu_quota.core.plan import Plan, Start
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import Committed, Lease
from jupyter_gpu_quota.store.records.commands import ApplyQuota, JobSpec, SetInventory, SubmitJob
from jupyter_gpu_quota.store.transactions import Store

NOW = 1_800_000_000_000
PROJECTS = 40


def policy_of(devices: int) -> Policy:
    """Every project has the same training quota."""
    amounts = {"train": Amounts(training_milli=devices * 1000 // PROJECTS)}
    return Policy(
        revision=1, pools=("train",), projects=tuple(Project(name=f"p{n}", amounts=amounts) for n in range(PROJECTS))
    )


POLICY = policy_of(4_000)


def spec(project: str) -> JobSpec:
    return JobSpec(
        command=("python", "train.py", "--epochs", "30", "--data", "x" * 700),
        project=project,
        pool="train",
        gpu_asked="1",
        gpu_milli=1000,
        name="train",
        variables={"SEED": "1", "MODE": "full"},
        bundle="a" * 64,
    )


def submit(number: int) -> SubmitJob:
    project = f"p{number % PROJECTS}"
    return SubmitJob(
        job=f"01J{number:023d}",
        user=f"user-{number % 400}",
        account="ann",
        spec=spec(project),
        idempotency_key=f"k{number}",
    )


@contextmanager
def timed(what: str, count: int, unit: str) -> Iterator[None]:
    before = time.perf_counter()
    yield
    took = time.perf_counter() - before
    print(f"  {what:<58} {took * 1000:9.1f} ms  {count / took:12,.0f} {unit}/s")


def prepare(store: Store, devices: int) -> Lease:
    nodes = tuple(Node(id=f"n{n}", name=f"n{n}", cpu_milli=64_000, memory_mib=500_000) for n in range(devices // 8))
    cards = tuple(
        Device(id=f"d{n:05d}", node=f"n{n // 8}", index=n % 8, model="H100", memory_mib=80_000, pool="train")
        for n in range(devices)
    )
    policy = policy_of(devices)
    quota = ApplyQuota(actor="admin", text="version: 1", document={"version": 1}, policy=policy, expected_revision=0)
    store.record([SetInventory(nodes=nodes, devices=cards), quota], now=NOW)
    lease = store.acquire_lease("bench", clock=lambda: NOW, ttl_ms=3000)
    if lease is None:
        raise SystemExit("the lease was not given")
    return lease


def start(number: int, device: int) -> Start:
    placement = Placement(rank=0, device=f"d{device:05d}", gpu_milli=1000, memory_mib=80_000)
    reason = reason_from(ReasonCode.WITHIN_GUARANTEE, (("guarantee_milli", 100_000), ("used_milli", 3000)))
    return Start(workload=f"01J{number:023d}", attempt=1, placements=(placement,), borrower=False, reason=reason)


def fact(number: int, done: int) -> RankFact:
    return RankFact(
        job=f"01J{number:023d}",
        attempt=1,
        rank=0,
        handle=str(1000 + number),
        started_at=NOW,
        done=done,
        total=100,
        metrics={"loss": 0.25},
    )


def submissions(store: Store, count: int, batch: int) -> None:
    with timed(f"submit {count} jobs of 1 kB in transactions of {batch}", count, "jobs"):
        for first in range(0, count, batch):
            store.record([submit(n) for n in range(first, min(count, first + batch))], now=NOW)


def running(store: Store, lease: Lease, count: int) -> None:
    with timed(f"commit plans of 500 starts, {count} in all", count, "starts"):
        for first in range(0, count, 500):
            plan = Plan(
                seen_version=store.version(), now=NOW, actions=tuple(start(n, n) for n in range(first, first + 500))
            )
            answer = store.commit(plan, policy=POLICY, snapshot_digest="d", lease=lease, now=NOW + 1)
            if not isinstance(answer, Committed):
                raise SystemExit(f"the plan was refused: {answer}")
    with timed(f"observe {count} jobs seen running", count, "facts"):
        store.observe([fact(n, 0) for n in range(count)], lease=lease, now=NOW + 2)
    with timed(f"observe the same {count} facts again", count, "facts"):
        store.observe([fact(n, 0) for n in range(count)], lease=lease, now=NOW + 2)
    with timed(f"observe progress of {count} jobs", count, "facts"):
        store.observe([fact(n, 1) for n in range(count)], lease=lease, now=NOW + 2)


def reading(store: Store, count: int) -> None:
    mirror = Mirror()
    with timed(f"changes(0): {count} jobs", count, "jobs"):
        changes = store.changes(0)
    with timed("mirror, cold", count, "jobs"):
        mirror.update(store)
    with timed("snapshot, cold", count, "jobs"):
        mirror.snapshot(NOW)
    store.record([submit(10_000_000)], now=NOW)
    with timed("changes and snapshot after one submission", 1, "jobs"):
        mirror.update(store)
        mirror.snapshot(NOW)
    with timed("version() 1000 times", 1000, "calls"):
        for _ in range(1000):
            store.version()
    print(f"  {len(changes.jobs)} jobs, {len(changes.allocations)} allocations, version {changes.version}")
    with timed("audit_verify", changes.version, "versions"):
        print(" ", store.audit_verify(), "audit rows")


def run(name: str, make: Callable[[], Store]) -> None:
    print(name)
    store = make()
    lease = prepare(store, 4000)
    submissions(store, 14_000, 20)
    running(store, lease, 4000)
    reading(store, 14_000)
    store.close()


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        run("SQLite file, synchronous=FULL", lambda: open_store(f"sqlite:///{Path(folder) / 'store.sqlite'}"))
    run("memory", MemoryStore)


if __name__ == "__main__":
    main()
