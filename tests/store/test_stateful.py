"""After any sequence of events, SQLite, SQLite with cached rows and the store in memory are equal.

Requests of people arrive through the api: for the store with cached rows, that is another process on the same file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpu_quota.core.facts import DeviceFact, Fact, NotebookFact, RankFact
from jupyter_gpu_quota.core.frozen import with_changes
from jupyter_gpu_quota.core.lifecycle import HOLDS_GPU, WAITING
from jupyter_gpu_quota.core.model import JobTarget
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
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import Committed, JobFilter, Page
from jupyter_gpu_quota.store.records.commands import (
    ApplyQuota,
    ChangeJob,
    ChangeNode,
    KeepBundle,
    Request,
    RequestNotebook,
    ReturnNotebook,
    SetInventory,
)
from jupyter_gpu_quota.store.records.rows import JobRecord
from jupyter_gpu_quota.store.transactions import Store
from tests.store.database.empty_database import make_empty_database
from tests.store.worlds import (
    DEVICES,
    NODE,
    POLICY,
    T0,
    TAKEN,
    WITHIN,
    World,
    counted_ids,
    placements,
    submit,
)

JOBS = ["j1", "j2", "j3", "j4", "j5", "j6"]
NOTEBOOKS = ["n1", "n2", "n3"]
DEVICE_IDS = [device.id for device in DEVICES[:3]]
EVERYTHING = Page(limit=10_000)

jobs, notebooks, devices = st.sampled_from(JOBS), st.sampled_from(NOTEBOOKS), st.sampled_from(DEVICE_IDS)
workloads = st.sampled_from(JOBS + NOTEBOOKS)
users = st.sampled_from(["bob", "patty"])
milli = st.sampled_from([125, 500, 1000])
parts = st.builds(lambda ids, amount: placements(*ids, milli=amount), st.lists(devices, max_size=2, unique=True), milli)

submissions = st.builds(
    lambda job, user, retries, ranks, key, secret: submit(
        job, user, retries=retries, ranks=ranks, key=key, secrets={"T": "x"} if secret else {}
    ),
    jobs,
    users,
    st.integers(0, 1),
    st.integers(1, 2),
    st.sampled_from([None, "k1", "k2"]),
    st.booleans(),
)
requests: st.SearchStrategy[Request] = st.one_of(
    submissions,
    st.builds(ChangeJob, job=jobs, actor=users, change=st.sampled_from(["hold", "release", "cancel"])),
    st.builds(
        RequestNotebook,
        notebook=notebooks,
        user=users,
        server=st.sampled_from(["", "second"]),
        project=st.just("bob-lab"),
        pool=st.just("train"),
        gpu_milli=milli,
    ),
    st.builds(ReturnNotebook, notebook=notebooks, actor=users, why=st.just("stopped")),
    st.builds(
        ApplyQuota,
        actor=users,
        text=st.just("version: 1"),
        document=st.just({"version": 1}),
        policy=st.just(POLICY),
        expected_revision=st.sampled_from([None, 1, 2]),
    ),
    st.builds(SetInventory, nodes=st.just((NODE,)), devices=st.sampled_from([DEVICES, DEVICES[:2]])),
    st.builds(
        ChangeNode,
        node=st.sampled_from(["n1", "n9"]),
        actor=users,
        change=st.sampled_from(["cordon", "uncordon", "drain"]),
        drain_by_at=st.sampled_from([None, T0]),
    ),
    st.builds(KeepBundle, digest=st.sampled_from(["a" * 64, "b" * 64]), user=users, size_bytes=st.just(1)),
)


def first_or_next(kind: type[Start] | type[Resume]) -> st.SearchStrategy[Start | Resume]:
    return st.builds(
        kind, workload=workloads, attempt=st.just(1), placements=parts, borrower=st.booleans(), reason=st.just(WITHIN)
    )


actions: st.SearchStrategy[Action] = st.one_of(
    first_or_next(Start),
    first_or_next(Resume),
    st.builds(Pause, workload=jobs, preemptor=workloads, grace_s=st.just(60), reason=st.just(TAKEN)),
    st.builds(Stop, workload=jobs, target=st.sampled_from(JobTarget), grace_s=st.just(60), reason=st.just(TAKEN)),
    st.builds(Refuse, workload=notebooks, reason=st.just(TAKEN)),
    st.builds(Lend, workload=notebooks, reason=st.just(TAKEN)),
    st.builds(Release, workload=notebooks, reason=st.just(TAKEN)),
    st.builds(Reserve, workload=workloads, placements=parts, reason=st.just(WITHIN)),
    st.builds(Unreserve, workload=workloads, reason=st.just(WITHIN)),
)
rank_facts = st.builds(
    RankFact,
    job=jobs,
    attempt=st.integers(1, 2),
    rank=st.integers(0, 1),
    handle=st.sampled_from([None, "10"]),
    started_at=st.sampled_from([None, T0 + 1]),
    ended_at=st.sampled_from([None, T0 + 2]),
    exit_status=st.sampled_from([None, 0, 1, 75, -15]),
    tree_gone=st.booleans(),
    pause_requested=st.booleans(),
    completed=st.booleans(),
    saved_at=st.sampled_from([None, T0 + 1]),
    done=st.sampled_from([None, 1]),
    total=st.sampled_from([None, 10]),
    metrics=st.sampled_from([{}, {"loss": 0.5}]),
    refused=st.sampled_from([None, None, None, "no such account"]),
)
device_facts = st.builds(
    DeviceFact,
    device=devices,
    health=st.sampled_from([None, "healthy", "unhealthy", "quarantined"]),
    foreign_milli=st.sampled_from([None, 0, 300]),
    uuid=st.sampled_from([None, "GPU-1"]),
    trouble=st.sampled_from([None, "XID 79"]),
)
notebook_facts = st.builds(
    NotebookFact,
    notebook=notebooks,
    activity=st.sampled_from(["unknown", "busy", "idle"]),
    seen_empty=st.booleans(),
)
samples = st.builds(
    DeviceSample,
    node=st.just("n1"),
    device=devices,
    at=st.integers(T0, T0 + 3),
    utilisation_percent=st.sampled_from([None, 0, 50]),
    memory_used_mib=st.none(),
    coverage_permille=st.none(),
    simulated=st.booleans(),
    workloads=st.just({"j1": None}),
    workload_memory_mib=st.sampled_from([{}, {"j1": 5}, {"j1": None}]),
    foreign_mib=st.sampled_from([None, 0, 9]),
    why=st.sampled_from([{}, {"j1": "MPS"}]),
)


def listed(store: Store) -> dict[str, object]:
    """Everything a store can be asked."""
    changes = store.changes(0)
    by_id = {
        "jobs": sorted(changes.jobs, key=lambda record: record.job.id),
        "notebooks": sorted(changes.notebooks, key=lambda record: record.notebook.id),
        "devices": sorted(changes.devices, key=lambda device: device.id),
        "allocations": sorted(changes.allocations, key=lambda allocation: allocation.id),
        "reservations": sorted(changes.reservations, key=lambda reservation: reservation.workload),
    }
    return {
        **by_id,
        "version": changes.version,
        "quota": (changes.quota, store.quota_revisions(EVERYTHING)),
        "listed": (store.jobs(JobFilter(), EVERYTHING), store.notebooks(page=EVERYTHING)),
        "live": store.jobs(JobFilter(live=True, user="bob"), EVERYTHING),
        "ranks": [store.ranks(job) for job in JOBS],
        "secrets": [store.secrets(job) for job in JOBS],
        "audit": store.audit(page=EVERYTHING),
        "bundles": (store.bundles_in_use(), store.bundle_owned("a" * 64, "bob")),
        "samples": store.latest_samples(),
    }


class AllStores(RuleBasedStateMachine):
    """One history on all stores, and on a mirror of each that reads only what changed.

    ``commits``: plans with actions that were committed, in all examples; ``removals``: calls that removed a job.
    """

    commits = removals = 0

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        paths = [Path(self.folder.name) / name for name in ("read.sqlite", "remembered.sqlite")]
        for path in paths:
            make_empty_database(path)
        read, remembered = (f"sqlite:///{path}" for path in paths)
        self.stores: tuple[Store, ...] = (
            open_store(read),
            MemoryStore(),
            open_store(remembered, cache_rows=True),
        )
        self.api_stores: tuple[Store, ...] = (*self.stores[:2], open_store(remembered))
        for store, other in zip(self.stores, self.api_stores, strict=True):
            store._new_id = other._new_id = counted_ids()
        self.worlds = [World(store) for store in self.stores]
        for world in self.worlds:
            for job in JOBS[:4]:
                world.submit(job)
            world.run("j1", "d0")
            world.change("j4", "cancel")
        self.mirrors = [Mirror() for _ in self.stores]
        self.now = T0 + 1
        self.lease = self.worlds[0].lease
        self.seen_before = 0

    def teardown(self) -> None:
        for store in getattr(self, "stores", ()):
            assert isinstance(store.audit_verify(), int)
        for store in {*getattr(self, "stores", ()), *getattr(self, "api_stores", ())}:
            store.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def all(self, call: Callable[[Store], object], *, through_api: bool = False) -> object:
        """The answer of all stores, or the class and message of the error that all raised."""
        answers: list[object] = []
        for store in self.api_stores if through_api else self.stores:
            try:
                answers.append(call(store))
            except ValueError as error:
                answers.append((type(error).__name__, str(error)))
        assert answers[0] == answers[1] == answers[2]
        return answers[0]

    @rule(batch=st.lists(requests, max_size=4), through_api=st.booleans())
    def people_ask(self, batch: list[Request], through_api: bool) -> None:
        self.all(lambda store: store.record(batch, now=self.now), through_api=through_api)

    @rule(chosen=st.lists(actions, max_size=3), late=st.booleans())
    def a_leader_commits_any_plan(self, chosen: list[Action], late: bool) -> None:
        seen = self.seen_before if late else self.stores[0].version()
        self.commit([self.next_attempt(action) for action in chosen], seen)

    @rule(data=st.data(), amount=milli, borrower=st.booleans())
    def a_leader_starts_what_waits(self, data: st.DataObject, amount: int, borrower: bool) -> None:
        waiting = [record.job for record in self.live_jobs() if record.job.state in WAITING]
        if waiting:
            self.somebody_leads("leader")
            job = data.draw(st.sampled_from(waiting))
            ids = data.draw(st.lists(devices, min_size=job.ranks, max_size=job.ranks, unique=True))
            chosen = placements(*ids, milli=amount)
            start = Start(workload=job.id, attempt=1, placements=chosen, borrower=borrower, reason=WITHIN)
            self.commit([self.next_attempt(start)], self.stores[0].version())

    def next_attempt(self, action: Action) -> Action:
        """The action, with the number of the next attempt where it starts a job."""
        record = self.stores[1].job(action.workload) if isinstance(action, Start | Resume) else None
        return action if record is None else with_changes(action, attempt=record.job.attempt + 1)

    def live_jobs(self) -> list[JobRecord]:
        return self.stores[1].jobs(JobFilter(live=True), EVERYTHING)[0]

    def commit(self, chosen: list[Action], seen: int) -> None:
        plan = Plan(seen_version=seen, now=self.now, actions=tuple(chosen))
        quota = self.stores[1].quota()
        assert quota is not None
        answer = self.all(
            lambda store: store.commit(plan, policy=quota.policy, snapshot_digest="d", lease=self.lease, now=self.now)
        )
        AllStores.commits += bool(chosen) and isinstance(answer, Committed)

    @rule(facts=st.lists(st.one_of(rank_facts, device_facts, notebook_facts), max_size=4))
    def the_world_is_seen(self, facts: list[Fact]) -> None:
        self.all(lambda store: store.observe(facts, lease=self.lease, now=self.now))

    @rule(facts=st.lists(rank_facts, min_size=1, max_size=3))
    def the_present_attempt_is_seen(self, facts: list[RankFact]) -> None:
        present = {job: record.job.attempt for job in JOBS if (record := self.stores[1].job(job)) is not None}
        listed = [
            RankFact(**{name: getattr(fact, name) for name in RankFact.__slots__} | {"attempt": present[fact.job]})
            for fact in facts
            if fact.job in present
        ]
        self.all(lambda store: store.observe(listed, lease=self.lease, now=self.now))

    @rule(data=st.data(), exit_status=st.sampled_from([0, 1, 75]))
    def the_present_attempt_ends(self, data: st.DataObject, exit_status: int) -> None:
        allocated = [record for record in self.live_jobs() if record.job.state in HOLDS_GPU]
        if allocated:
            self.somebody_leads("leader")
            job = data.draw(st.sampled_from(allocated)).job
            ends = [
                RankFact(
                    job=job.id, attempt=job.attempt, rank=rank.rank, handle="10", started_at=T0 + 1,
                    ended_at=self.now, exit_status=exit_status, tree_gone=True,
                )
                for rank in self.stores[1].ranks(job.id)
                if rank.attempt == job.attempt
            ]  # fmt: skip
            self.all(lambda store: store.observe(ends, lease=self.lease, now=self.now))

    @rule(sequence=st.integers(0, 2), rows=st.lists(samples, max_size=3))
    def samples_arrive(self, sequence: int, rows: list[DeviceSample]) -> None:
        self.all(lambda store: store.add_samples("n1", sequence, rows, now=self.now))

    @rule(holder=st.sampled_from(["leader", "second"]))
    def somebody_leads(self, holder: str) -> None:
        lease = self.all(lambda store: store.acquire_lease(holder, clock=lambda: self.now, ttl_ms=3000))
        self.lease = lease or self.lease  # type: ignore[assignment]

    @rule(after_ms=st.sampled_from([1, 1000, 4000]))
    def time_passes(self, after_ms: int) -> None:
        self.seen_before = self.stores[0].version()
        self.now += after_ms

    @rule(back_ms=st.sampled_from([0, 2000]))
    def old_rows_are_forgotten(self, back_ms: int) -> None:
        before = self.now - back_ms
        removed = self.all(
            lambda store: sorted(store.forget(now=self.now, jobs_ended_before=before, samples_before=before))
        )
        AllStores.removals += bool(removed)

    @precondition(lambda self: hasattr(self, "stores"))
    @invariant()
    def all_say_the_same(self) -> None:
        self.all(listed)

    @precondition(lambda self: hasattr(self, "stores"))
    @invariant()
    def no_device_carries_more_than_it_has(self) -> None:
        assert all(carried <= 1000 for carried in self.worlds[1].held().values())

    @precondition(lambda self: hasattr(self, "stores"))
    @invariant()
    def a_mirror_that_reads_changes_is_a_fresh_one(self) -> None:
        for store, mirror in zip(self.stores, self.mirrors, strict=True):
            fresh = Mirror()
            mirror.update(store)
            fresh.update(store)
            assert mirror.snapshot(self.now) == fresh.snapshot(self.now)
            assert (mirror.policy, mirror.jobs, mirror.notebooks) == (fresh.policy, fresh.jobs, fresh.notebooks)


class TestAllStores(AllStores.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=int(os.environ.get("STORE_EXAMPLES", "15")), stateful_step_count=20, deadline=None)

    @classmethod
    def tearDownClass(cls) -> None:
        assert AllStores.commits and AllStores.removals, "the histories start jobs and forget rows"
