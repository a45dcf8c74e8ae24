"""Gangs from the command line to the processes: the real API, store, controller, executor, and ranks that communicate.

Simulated are the devices, and the hub. Time is real, so whatever is waited for has a deadline.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.backends.job_files.outputs import JobOutputs
from jupyter_gpu_quota.backends.job_files.paths import job_directory
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.controllers.main import build
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.core.scheduling import elastic
from jupyter_gpu_quota.deployment.selected_backend import backend_of
from jupyter_gpu_quota.store.records.rows import JobRecord
from tests.api.world import ServiceWorld
from tests.backends.worlds import is_alive
from tests.patience import PATIENCE_S, until

DEVICES = [{"model": "Simulated 80G", "memory_mib": 81_920, "count": 4}]
QUOTA = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training]}
projects:
  - {name: vision, members: {users: [bob]}, quota: {train: {training: 2}}}
  - {name: speech, members: {users: [patty]}, quota: {train: {training: 2}}}
policy:
  preemption: {min_runtime: 0s, grace: 60s, lent_grace: 60s, max_pauses: 4, per: 24h}
"""

ADD_UP = """\
import os, socket, sys, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(where) as listener:
        others = [listener.accept()[0] for _ in range(size - 1)]
    total = 1 + sum(int(other.recv(16)) for other in others)
    for other in others:
        other.sendall(b"%d" % total)
else:
    for _ in range(1000):
        try:
            first = socket.create_connection(where, timeout=120)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    first.sendall(b"%d" % (rank + 1))
    total = int(first.recv(16))
print(f"rank {rank} of {size} at {where[0]}:{where[1]}, all together {total}", flush=True)
if "stay" in sys.argv:
    time.sleep(600)
if "lean" in sys.argv:
    sys.exit(3 if not (first if rank else others[0]).recv(16) else 0)
"""


IMPORTS_AND_TRAINS_S = 240
"""For three processes that import scikit-learn at once on one slow core."""


class Live:
    """The API in a thread, a scheduling controller that the test runs, and real processes."""

    def __init__(self, folder: Path) -> None:
        self.code = folder / "code"
        self.code.mkdir()
        (self.code / "add_up.py").write_text(ADD_UP)
        self.service = ServiceWorld(folder, simulated_devices=DEVICES)
        for name in ("bob", "patty"):
            self.service.add(name)
        self.service.apply(QUOTA, devices=())
        settings, store = self.service.settings, self.service.store
        self.controllers = build(settings, backend_of(settings), store, store)
        controller = self.controllers.scheduling.make()
        assert isinstance(controller, SchedulingController)
        self.controller = controller
        self.controllers.scheduling.make = lambda: controller
        self.controller.notify = lambda version: self.service.loop.call_soon_threadsafe(
            self.service.services.store_view.notify
        )
        self.until(lambda: len(self.controller.mirror.devices) == 4)

    def until(self, holds: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
        turn = lambda: holds() or (self.controllers.scheduling.run(), None)[1]  # noqa: E731
        return until(turn, within_s, what=self.state_text)

    def state_text(self) -> str:
        jobs = self.controller.mirror.jobs.values()
        states = [f"{r.job.id} {r.job.state} of {r.job.held_ranks}, attempt {r.job.attempt}" for r in jobs]
        return "; ".join(states) + "\n" + "\n".join(self.log(r.job.id, r.job.attempt) for r in jobs)

    def type(self, who: str, *words: str) -> str:
        """Run a command; returns its output."""
        url = f"http://127.0.0.1:{self.service.port}"
        environment = {"JUPYTER_GPU_QUOTA_URL": url, "JUPYTERHUB_API_TOKEN": f"token-{who}"}
        done = CliRunner().invoke(main, list(words), env=environment, catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()

    def submit(self, who: str, *words: str) -> str:
        """Run ``submit``; returns the id that it prints."""
        return self.type(who, "submit", "--dir", str(self.code), *words)

    def job(self, id: str) -> JobRecord:
        record = self.service.store.job(id)
        assert record is not None
        return record

    def view(self, id: str, who: str = "bob") -> Any:
        return self.service.get(f"jobs/{id}", who).json

    def log(self, id: str, attempt: int = 1, rank: int = 0) -> str:
        return JobOutputs(self.service.state_dir).log(id, attempt, rank, 0, 100_000).data.decode()

    def pids(self, id: str, attempt: int) -> list[int]:
        ranks = [rank for rank in self.service.store.ranks(id) if rank.attempt == attempt]
        return [int(rank.handle) for rank in sorted(ranks, key=lambda rank: rank.rank) if rank.handle is not None]

    def close(self) -> None:
        """Cancel everything, and wait until all processes ended."""
        for id in list(self.controller.mirror.jobs):
            self.service.post(f"jobs/{id}/actions/cancel", "ann")
        self.until(lambda: not self.controller.mirror.jobs)
        self.controllers.close()
        self.controller.executor.close()  # type: ignore[attr-defined]
        self.service.close()


@pytest.fixture
def live() -> Iterator[Live]:
    with tempfile.TemporaryDirectory(prefix="gpu-quota-", ignore_cleanup_errors=True) as folder:
        world = Live(Path(folder))
        world.service.add("ann", admin=True, scopes=("read", "submit", "admin"))
        try:
            yield world
        finally:
            world.close()


def test_three_ranks_communicate(live: Live) -> None:
    job = live.submit("bob", "--nodes", "3", "--", sys.executable, "add_up.py")
    live.until(lambda: live.job(job).job.state == "succeeded")
    logs = [live.log(job, rank=rank).strip() for rank in range(3)]
    [where] = {re.sub(r".* at (\S+),.*", r"\1", log) for log in logs}
    assert logs == [f"rank {rank} of 3 at {where}, all together 6" for rank in range(3)]
    assert where.startswith("127.0.0.1:")
    assert [rank["exit_status"] for rank in live.view(job)["rank_records"]] == [0, 0, 0]


def test_two_processes_of_a_node_share_its_gpu(live: Live) -> None:
    job = live.submit("bob", "--processes", "2", "--gpu", "0.5", "--", sys.executable, "add_up.py", "stay")
    live.until(lambda: "all together 3" in live.log(job))
    view = live.view(job)
    assert (view["ranks"], view["gpu_milli"], [part["gpu_milli"] for part in view["allocations"]]) == (
        2,
        250,
        [250, 250],
    )


@pytest.mark.parametrize("retries", [0, 1])
def test_one_killed_rank_ends_the_attempt_and_each_retry_is_used_once(live: Live, retries: int) -> None:
    job = live.submit("bob", "--nodes", "3", "--retries", str(retries), "--", sys.executable, "add_up.py", "stay")
    for attempt in range(1, retries + 2):
        live.until(lambda attempt=attempt: all("together 6" in live.log(job, attempt, rank) for rank in range(3)))
        pids = live.until(lambda attempt=attempt: len(found := live.pids(job, attempt)) == 3 and found)
        os.kill(pids[1], signal.SIGKILL)
        live.until(lambda attempt=attempt: live.job(job).job.attempt > attempt or live.job(job).ended_at is not None)
        assert not [pid for pid in pids if is_alive(pid)]
    record = live.job(job)
    assert (record.job.state, record.job.attempt, record.retries_left) == ("failed", retries + 1, 0)
    assert (record.exit_status, record.pauses, live.view(job)["reason"]["code"]) == (-9, 0, "command_killed")


def test_a_gang_whose_ranks_fail_during_a_pause_counts_as_paused(
    live: Live,
) -> None:
    job = live.submit("bob", "--nodes", "3", "--", sys.executable, "add_up.py", "lean")
    live.until(lambda: live.job(job).job.state == "running" and "together 6" in live.log(job, rank=2))
    claim = live.submit("patty", "--gpu", "2", "--", "sleep", "600")
    live.until(lambda: live.job(claim).job.state == "running")
    assert (live.job(job).job.state, live.job(job).pauses) == ("paused", 1)
    live.service.post(f"jobs/{claim}/actions/cancel", "patty")
    live.until(lambda: "together 6" in live.log(job, 2, rank=2))


def test_the_example_ends_with_the_same_loss_on_three_ranks_as_on_one(live: Live) -> None:
    losses = []
    for words in (("--nodes", "3", "--", "digits_ranks"), ("--", "digits")):
        module = f"jupyter_gpu_quota.examples.{words[-1]}"
        job = live.submit("bob", *words[:-1], sys.executable, "-m", module, "--epochs", "4", "--width", "16")
        live.until(lambda job=job: live.job(job).ended_at is not None, within_s=IMPORTS_AND_TRAINS_S)
        assert live.job(job).job.state == "succeeded", live.log(job)
        result = Path(job_directory(str(live.service.state_dir), job), "outputs", "result.json")
        losses.append(json.loads(result.read_text())["final_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_an_elastic_job_shrinks_for_another_project_and_grows_back(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "GRACES_BEFORE_GROWTH", 0)  # ten graces are ten minutes here
    learn = ("-m", "jupyter_gpu_quota.examples.digits_ranks", "--epochs", "9999", "--step-ms", "2", "--width", "16")
    job = live.submit("bob", "--nodes", "4", "--min-nodes", "2", "--", sys.executable, *learn)
    live.until(lambda: "\nepoch 3 " in live.log(job))
    assert live.log(job).startswith("rank 0 of 4 begins at epoch 0\n")
    assert ranks_of(live, job) == (4, 2, 4, 4)

    # One claim of two GPUs: two claims may end in different ticks, and the job would grow after each.
    claim = live.submit("patty", "--gpu", "2", "--", "sleep", "600")
    live.until(lambda: "\nepoch " in live.log(job, 2))  # one epoch is done, and saved
    assert ranks_of(live, job) == (4, 2, 2, 2)
    live.until(lambda: live.job(claim).job.state == "running")
    assert "2 of 2-4 ranks" in live.type("bob", "job", job)

    live.service.post(f"jobs/{claim}/actions/cancel", "patty")
    live.until(lambda: "\nepoch " in live.log(job, 3))
    assert ranks_of(live, job) == (4, 2, 4, 4)

    begun = [re.match(r"rank 0 of (\d) begins at epoch (\d+)", live.log(job, attempt)) for attempt in (1, 2, 3)]
    sizes, epochs = zip(*[(int(found[1]), int(found[2])) for found in begun if found], strict=True)
    assert sizes == (4, 2, 4)
    assert epochs[0] < epochs[1] < epochs[2], "each attempt continues from the previous checkpoint"
    record = live.job(job)
    assert (record.job.paused_at, record.pauses, record.retries_left) == ((), 0, 0)
    assert Path(job_directory(str(live.service.state_dir), job), "checkpoint", "digits.npz").exists()


def ranks_of(live: Live, job: str) -> tuple[int, int, int, int]:
    """The ranks of a job, their minimum, the running ones, and the number of allocations."""
    view = live.view(job)
    return view["ranks"], view["min_ranks"], view["held_ranks"], len(view["allocations"])
