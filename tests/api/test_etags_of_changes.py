"""Equal ETags mean equal answers, whatever changes; and changes of other projects leave the ETag as it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.lifecycle import FINAL, HOLDS_GPU
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.store.records.calls import JobFilter, Page
from jupyter_gpu_quota.store.records.commands import AllocationLabel, RecordEnforcementLabels
from jupyter_gpu_quota.store.records.rows import JobRecord
from tests.api.test_etags import again, refresh
from tests.api.world import QUOTA, ServiceWorld, build_devices, service_world, train_devices

READERS = ("bob", "olga", "patty", "lea", "outsider")
PATHS = ("me", "jobs", "jobs?live=1&sort=priority", "jobs?project=vision")
CHANGES = 45


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.hold_clock()
        yield made


def settle(world: ServiceWorld) -> None:
    """The view has all that the store has, and the decision is that of the view: no read computes a newer one."""
    refresh(world)
    decisions = world.services.decisions
    decisions._last = decisions._shares = None
    world.run(decisions.latest())
    world.run(decisions.shares())


class Changes:
    """Random changes of every kind that the answers show, and of some that they do not."""

    def __init__(self, world: ServiceWorld, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.sequence = 0

    def _job(self, *, holds: bool = False) -> JobRecord:
        """A random job that has not ended. Raises IndexError without one."""
        found = [each for each in self.world.store.jobs(JobFilter(), Page(limit=500))[0] if each.job.state not in FINAL]
        return self.random.choice([each for each in found if each.job.state in HOLDS_GPU or not holds])

    def submit(self) -> None:
        more = {"gpu": str(self.random.randint(1, 2)), "private": self.random.random() < 0.3}
        self.world.submit(self.random.choice(["bob", "olga", "patty"]), **more)

    def schedule(self) -> None:
        self.world.step()

    def change(self) -> None:
        name = self.random.choice(["hold", "release", "cancel"])
        self.world.post(f"jobs/{self._job().job.id}/actions/{name}", self.random.choice(["lea", "ann"]))

    def progress(self) -> None:
        job = self._job(holds=True).job
        self.world.see_running(job.id, job.attempt, done=self.random.randint(1, 9), total=9, metrics={"loss": 0.5})

    def end(self) -> None:
        job, now = self._job(holds=True).job, self.world.clock()
        self.world.see(RankFact(job=job.id, attempt=job.attempt, rank=0, handle="100", started_at=now, ended_at=now,
                                exit_status=self.random.randint(0, 1), tree_gone=True, completed=True))  # fmt: skip

    def sample(self) -> None:
        self.sequence += 1
        part = self.random.choice(self.world.store.changes(0).allocations)
        percent = self.random.choice([20, 40])
        row = DeviceSample(
            node="node-1", device=part.device, at=self.world.clock(), utilisation_percent=percent, memory_used_mib=1,
            coverage_permille=1000, simulated=True, workloads={part.workload: percent},
        )  # fmt: skip
        self.world.store.add_samples("node-1", self.sequence, [row], now=self.world.clock())

    def label(self) -> None:
        part, memory = self.random.choice(self.world.store.changes(0).allocations), self.random.choice(["mps", "none"])
        label = AllocationLabel(allocation=part.id, memory=memory, compute="none", why="", read_at=self.world.clock())
        self.world.record(RecordEnforcementLabels(labels=(label,)))

    def request_slice(self) -> None:
        asked = {"user": self.random.choice(["bob", "olga", "patty"]), "gpu": "1/8", "server": ""}
        asked["project"] = "speech" if asked["user"] == "patty" else "vision"
        with self.world.stepping():
            self.world.post("notebooks", "hub", asked)

    def return_slice(self) -> None:
        self.world.post(f"notebooks/{self.random.choice(self.world.store_live())}/actions/return", "hub")

    def edit_quota(self) -> None:
        now = self.random.choice(["0.5", "0.25"])
        self.world.apply(QUOTA.replace("notebook: 0.5", f"notebook: {now}"))

    def change_devices(self) -> None:
        train = [replace(device, uuid=f"{device.uuid}{self.random.randint(0, 9)}") for device in train_devices()]
        self.world.inventory((*train[: self.random.randint(3, 4)], *build_devices()))

    def forget(self) -> None:
        self.world.store.forget(now=self.world.clock(), jobs_ended_before=self.world.clock() + 1, samples_before=0)

    def wait(self) -> None:
        later = self.world.clock() + self.random.choice([1_000, 61_000])
        self.world.clock = lambda: later

    def one(self) -> str:
        kinds: list[Callable[[], None]] = [
            self.submit, self.submit, self.schedule, self.schedule, self.change, self.progress, self.end, self.sample,
            self.sample, self.label, self.label, self.request_slice, self.return_slice, self.edit_quota,
            self.change_devices, self.forget, self.wait,
        ]  # fmt: skip
        kind = self.random.choice(kinds)
        with suppress(IndexError):  # nothing to change
            kind()
        return kind.__name__


@pytest.mark.parametrize("seed", [1, 2])
def test_equal_etags_mean_equal_answers(world: ServiceWorld, seed: int) -> None:
    changes, known, made = Changes(world, seed), dict[tuple[str, str, str], bytes](), list[str]()
    unchanged = 0
    for _ in range(CHANGES):
        made.append(changes.one())
        settle(world)
        for who in READERS:
            for path in PATHS:
                answer = world.get(path, who)
                key = who, path, answer.headers.get("etag", "")
                if answer.status == 200:
                    unchanged += key in known
                    assert known.setdefault(key, answer.body) == answer.body, (who, path, made)
    assert unchanged > CHANGES * len(READERS)


def test_changes_of_other_projects_leave_the_etag(world: ServiceWorld) -> None:
    world.post(f"jobs/{world.submit('patty')['id']}/actions/hold", "leo")
    for name in ("bob", "olga"):
        world.submit(name)
    settle(world)
    world.get("jobs", "ann")
    before = {path: world.get(path, "patty").headers["etag"] for path in ("me", "jobs")}
    world.submit("olga", gpu="2")
    world.step()
    changes = Changes(world, 1)
    changes.sample()
    changes.label()
    settle(world)
    for path, etag in before.items():
        assert again(world, path, etag, "patty").status == 304
