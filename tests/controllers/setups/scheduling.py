"""A scheduling controller on a virtual clock, with the shipped core, the in-memory store and a fake job backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.backends.protocol import StartOrder
from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Device, JobState, Node
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.commands import (
    ApplyQuota,
    JobSpec,
    Recorded,
    SubmitJob,
)
from jupyter_gpu_quota.store.transactions import Store
from tests.backends.fake_executor import FakeJobs, Script

QUOTA = """
version: 1
pools:
  - {name: train, selector: {gpu_model: [Big]}, uses: [training]}
  - {name: build, selector: {gpu_model: [Small]}, uses: [notebook]}
projects:
  - {name: vision, quota: {train: {training: 2}, build: {notebook: 0.5}}, members: {users: [bob]}}
  - {name: speech, quota: {train: {training: 2}, build: {notebook: 0.5}}, members: {users: [patty]}}
environments:
  - {name: torch, python: /opt/torch/bin/python}
policy:
  preemption: {min_runtime: 0s, grace: 10s, lent_grace: 5s, max_pauses: 4, per: 24h}
"""
NODE = Node(id="n1", name="n1", cpu_milli=16_000, memory_mib=65_536)
DEVICES = tuple(
    Device(id=f"n1-{i}", node="n1", index=i, model="Big" if i < 4 else "Small", memory_mib=16_384, pool=None)
    for i in range(5)
)


@dataclass
class NoSampler:
    """A sampler without samples."""

    def samples(self, users: object, *, now: int) -> list[DeviceSample]:
        return []

    def device_facts(self) -> list[DeviceFact]:
        return []


class World:
    """One store and one job backend, for one controller after the other."""

    def __init__(
        self,
        script: Callable[[StartOrder], Script] = lambda order: Script(),
        *,
        store: Store | None = None,
    ) -> None:
        self.now = 1_000_000
        self.store: Store = store or MemoryStore()
        self.executor = FakeJobs(now=lambda: self.now, nodes=(NODE,), devices=DEVICES, script=script)
        self.versions: list[int] = []
        self.users = {name: self.store.user_id(name, now=self.now) for name in ("bob", "patty")}
        self.apply_quota(QUOTA)
        self.controller = self.another("first")

    def another(self, holder: str) -> SchedulingController:
        return SchedulingController(
            clock=lambda: self.now,
            store=self.store,
            executor=self.executor,
            sampler=NoSampler(),
            leadership=Leadership(self.store, lambda: self.now, holder=holder),
            notify=self.versions.append,
        )

    def apply_quota(self, text: str) -> None:
        file = quotafile.parse(text)
        assert not isinstance(file, list), file
        request = ApplyQuota(
            actor="system:controller",
            text=text,
            document=file.to_document(),
            policy=file.policy((revision.revision if (revision := self.store.quota()) else 0) + 1),
            expected_revision=None,
        )
        assert isinstance(self.store.record([request], now=self.now)[0], Recorded)

    def submit(self, user: str, *names: str, **spec: object) -> None:
        project = {"bob": "vision", "patty": "speech"}[user]
        for name in names:
            wanted = JobSpec(
                **{  # type: ignore[arg-type]
                    "command": ("train",), "project": project, "pool": "train", "gpu_asked": "1", "gpu_milli": 1000,
                    "name": name, **spec,
                }
            )  # fmt: skip
            request = SubmitJob(job=name, user=self.users[user], account=None, spec=wanted)
            assert isinstance(self.store.record([request], now=self.now)[0], Recorded)
            self.now += 1

    def turn(self, ticks: int = 1, every_ms: int = 1000) -> None:
        for _ in range(ticks):
            while self.controller.run_once(self.now) <= self.now:
                pass
            self.now += every_ms

    def states(self) -> dict[str, str]:
        listed = {}
        for name in self.names:
            record = self.store.job(name)
            listed[name] = str(record.job.state) if record else "gone"
        return listed

    @property
    def names(self) -> list[str]:
        return sorted({order.job for order in self.executor.starts} | set(self.controller.mirror.jobs))

    def state(self, job: str) -> JobState:
        record = self.store.job(job)
        assert record is not None
        return record.job.state
