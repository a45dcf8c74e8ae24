"""The controllers of a machine whose devices are read through NVML, run by the test, with real jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.controllers import main
from jupyter_gpu_quota.controllers.loop import Loop
from jupyter_gpu_quota.controllers.main import now_ms
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.deployment.selected_backend import backend_of
from jupyter_gpu_quota.settings import GPUQuota, database_url
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.commands import ApplyQuota, ChangeJob, JobSpec, Recorded, SubmitJob
from tests.patience import until

SAMPLE_EVERY_MS = 100


class Machine:
    """The scheduling and the enforcement controller, whose clock is ``ahead_ms`` ahead, with a reading in each turn."""

    controller: SchedulingController
    enforcement: Loop

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now(self) -> int:
        return now_ms() + self.ahead_ms

    def turn(self) -> None:
        self.controller.run_once(self.now())
        if self.controller.due.get("sample", 0) > self.now() + SAMPLE_EVERY_MS:
            self.controller.due["sample"] = self.now() + SAMPLE_EVERY_MS

    def until(self, found: Callable[[], object], what: str) -> None:
        def turned() -> object:
            self.turn()
            return found()

        until(turned, what=what)

    def ask(self, *requests: object) -> None:
        found = self.controller.store.record(list(requests), now=self.now())  # type: ignore[arg-type]
        assert all(isinstance(each, Recorded) for each in found), found

    def apply(self, text: str) -> None:
        parsed = quotafile.parse(text)
        assert not isinstance(parsed, list), parsed
        self.ask(
            ApplyQuota(
                actor="system:controller", text=text, document=parsed.to_document(), policy=parsed.policy(1),
                expected_revision=None,
            )
        )  # fmt: skip

    def submit(self, name: str, *command: str, gpu_milli: int = 1000) -> None:
        user = self.controller.store.user_id("bob", now=self.now())
        spec = JobSpec(
            name=name, project="vision", pool="train", gpu_asked=f"{gpu_milli}m", gpu_milli=gpu_milli, command=command,
        )  # fmt: skip
        self.ask(SubmitJob(job=name, user=user, account=None, spec=spec))

    def runs_on(self, name: str) -> str | None:
        record = self.controller.mirror.jobs.get(name)
        held = [part.device for part in self.controller.mirror.allocations() if part.workload == name]
        return held[0] if record is not None and record.job.state is JobState.RUNNING and held else None

    def sample(self, device: str) -> DeviceSample | None:
        return self.controller.store.latest_samples().get(device)

    def pids(self, name: str) -> frozenset[int]:
        return self.controller.executor.pids().get(name, frozenset())

    def end_all(self) -> None:
        jobs = [name for name, record in self.controller.mirror.jobs.items() if record.ended_at is None]
        self.ask(*(ChangeJob(job=name, actor="bob", change="cancel") for name in jobs))
        self.until(lambda: not self.controller.mirror.allocations(), "an end of all jobs")


@contextmanager
def controllers_of(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The controllers of this machine's devices, on a new database."""
    machine = Machine()
    monkeypatch.setattr(main, "now_ms", machine.now)
    config = GPUQuota(state_dir=str(state_dir), simulated_devices=[])
    state_dir.mkdir(mode=0o700)
    with closing(open_store(database_url(config))) as store:
        controllers = main.build(config, backend_of(config), store, store)
        controller = controllers.scheduling.make()
        assert isinstance(controller, SchedulingController)
        machine.controller = controller
        machine.enforcement = next(loop for loop in controllers.others if loop.name == "enforcement")
        yield machine
        machine.end_all()
        assert isinstance(controller.executor, LocalJobs)
        controllers.close()
        controller.executor.close()
