"""Kueue's experiments in real time: the shipped controller on an SQLite file, beside a process that submits.

The executor is the simulated one on the real clock: jobs last as published, no process is started. The submitting
process records jobs at their submit times, in batches, as the API's writer does, and wakes the controller.
``python -m tests.benchmarks.scheduling.kueue_live [baseline|large-scale] [PART]`` prints the figures; PART is the
fraction of the jobs of each kind (1 is all).

A wave of large jobs comes every 1.2 s and runs 1 s: a job that starts between two waves is paused by the next. The
product's default allows four such pauses of a job; without a bound, as in the published experiment, it loses its work
until the waves are over. Both are measured.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from jupyter_gpu_quota.api.requests.writer import MAX_BATCH
from jupyter_gpu_quota.backends.simulated.jobs import Behaviour, SimulatedJobs
from jupyter_gpu_quota.controllers.leadership.lease import Leadership
from jupyter_gpu_quota.controllers.main import MAX_SCHEDULING_BACKOFF_MS, now_ms, reduce_garbage_collection
from jupyter_gpu_quota.controllers.scheduling import SchedulingController
from jupyter_gpu_quota.core.model import PreemptionPolicy
from jupyter_gpu_quota.simulate.replay import NoSampler, apply_quota, machines, submission
from jupyter_gpu_quota.simulate.tracefile import JobWork, Trace
from jupyter_gpu_quota.store import wakeup
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.commands import SubmitJob
from jupyter_gpu_quota.store.transactions import Store
from tests.benchmarks.figures import Figure
from tests.benchmarks.scheduling.kueue import BASELINE, LARGE_SCALE, WITHOUT_BOUND, Shape, quota_of, trace_of

SHAPES = {"baseline": BASELINE, "large-scale": LARGE_SCALE}
RUNS = {"baseline": 3, "large-scale": 1}
"""The speed of a machine varies by a quarter within an hour, and the smaller experiment is near its bound."""
BOUND_S = {"baseline": 80.0, "large-scale": 120.0}
PEERS = {
    "baseline": "Kueue: 351 s published; 417-443 s on two cores with a real API server",
    "large-scale": "Kueue: 1179 s published",
}


def part_of(shape: Shape, part: float) -> Shape:
    """The same shape with fewer jobs in each queue."""
    kinds = tuple(replace(kind, count=max(1, round(kind.count * part))) for kind in shape.kinds)
    return replace(shape, kinds=kinds)


def database(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.sqlite'}"


# --- the submitting process -----------------------------------------------------------------------------------------
def submit(folder: Path, name: str, part: float) -> None:
    """Wait for the start line on stdin, then submit every job at its time."""
    shape = part_of(SHAPES[name], part)
    trace, quota = trace_of(shape, at_once=False), quota_of(shape, "100ms")
    store = open_store(database(folder))
    user = store.user_id("runner", now=now_ms())
    due = [(work.submit_ms, submission(work, user, cohort(work), quota)) for work in trace.work]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    begins_at = int(sys.stdin.readline())
    for requests in _as_they_come(due, begins_at):
        _record(store, requests)
        wakeup.notify(folder / "controller.sock", b"{}")
    store.close()


def _record(store: Store, requests: list[SubmitJob]) -> None:
    """Try again while the store is unavailable, as a client does."""
    while True:
        try:
            store.record(requests, now=now_ms())
            return
        except StoreUnavailable:
            time.sleep(0.1)


def cohort(work: JobWork) -> str:
    return f"cohort-{work.project.split('-')[1]}"


def _as_they_come(due: list[tuple[int, SubmitJob]], begins_at: int) -> Iterator[list[SubmitJob]]:
    at = 0
    while at < len(due):
        passed = now_ms() - begins_at
        if due[at][0] > passed:
            time.sleep((due[at][0] - passed) / 1000)
            continue
        until = at
        while until < len(due) and due[until][0] <= passed and until - at < MAX_BATCH:
            until += 1
        yield [request for _, request in due[at:until]]
        at = until


# --- the controller -------------------------------------------------------------------------------------------------
def controller_of(folder: Path, trace: Trace, shape: Shape, pauses: int | None) -> SchedulingController:
    """The shipped controller on the database, its executor on the real clock."""
    behaviours = {str(work.id): Behaviour(work_ms=work.duration_ms) for work in trace.work}
    store = open_store(database(folder), cache_rows=True)
    apply_quota(store, quota_of(shape, "100ms", pauses=pauses), now=now_ms())
    executor = SimulatedJobs(now_ms, *machines(trace.nodes), lambda order: behaviours[order])
    return SchedulingController(
        clock=now_ms, store=store, executor=executor, sampler=NoSampler(),
        leadership=Leadership(store, now_ms, holder="live"),
    )  # fmt: skip


def run(controller: SchedulingController, wake: wakeup.WakeupSocket, submitter: subprocess.Popen[str]) -> None:
    """The scheduler's loop, until everything was submitted and has ended."""
    executor = controller.executor
    assert isinstance(executor, SimulatedJobs)
    while True:
        all_submitted = submitter.poll() is not None
        now = now_ms()
        try:
            next_at = controller.run_once(now)
        except StoreUnavailable:  # the submitting process had the lock
            wake.wait(MAX_SCHEDULING_BACKOFF_MS / 1000)
            continue
        if all_submitted and not controller.mirror.jobs:
            return
        if next_at > now:
            ahead = executor.next_event_at()
            wake.wait(max(0, min(next_at, next_at if ahead is None else ahead) - now_ms()) / 1000)


def play(name: str, part: float, folder: Path, pauses: int | None = None) -> tuple[float, int, float]:
    """Seconds from the first submission to the last end, the number of jobs, and the controller's CPU seconds."""
    shape = part_of(SHAPES[name], part)
    trace = trace_of(shape, at_once=False)
    reduce_garbage_collection()
    controller = controller_of(folder, trace, shape, pauses)
    with wakeup.WakeupSocket(folder / "controller.sock") as wake, _submitter(folder, name, part) as submitter:
        assert submitter.stdin is not None and submitter.stdout is not None
        submitter.stdout.readline()
        begins_at, cpu = now_ms(), time.process_time()
        submitter.stdin.write(f"{begins_at}\n")
        submitter.stdin.flush()
        run(controller, wake, submitter)
        cpu = time.process_time() - cpu
        submitter.wait(30)
    executor = controller.executor
    assert isinstance(executor, SimulatedJobs)
    last = max(run.stopped_at for run in executor.runs)
    controller.store.close()
    return (last - begins_at) / 1000, len(trace.work), cpu


def _submitter(folder: Path, name: str, part: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", __name__ if __name__ != "__main__" else "tests.benchmarks.scheduling.kueue_live"]
    return subprocess.Popen(
        [*words, "submit", str(folder), name, str(part)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def figures(name: str, part: float = 1.0) -> list[Figure]:
    """One experiment, in real time: with the product's default bound on pauses, and without one."""
    shipped = PreemptionPolicy().max_pauses
    return [
        *_figures(name, part, None, f"at most {shipped} pauses a job, the default"),
        *_figures(name, part, WITHOUT_BOUND, "pauses without a bound, as in the published experiment"),
    ]


def _figures(name: str, part: float, pauses: int | None, rule: str) -> list[Figure]:
    runs = sorted(_run(name, part, pauses) for _ in range(RUNS[name]))
    (took_s, jobs, cpu_s), every = runs[0], ", ".join(f"{run[0]:.1f}" for run in runs)
    timed = f"{jobs} jobs, first submission to last end, SQLite file, fake executor, real time; {rule}"
    timed += f"; the best of {every} s" if len(runs) > 1 else ""
    label = f"kueue {name}, " if pauses is None else f"kueue {name} without a bound on pauses, "
    bound = BOUND_S[name] if part == 1 else None
    return [
        Figure(name=f"{label}real time", value=took_s, unit="s", timed=timed, bound=bound, peers=PEERS[name]),
        Figure(name=f"{label}the controller's CPU", value=cpu_s, unit="s", timed=f"{jobs} jobs"),
    ]


def _run(name: str, part: float, pauses: int | None) -> tuple[float, int, float]:
    with tempfile.TemporaryDirectory() as folder:
        return play(name, part, Path(folder), pauses)


def main(words: list[str]) -> None:
    if words[:1] == ["submit"]:
        submit(Path(words[1]), words[2], float(words[3]))
        return
    for figure in figures(words[0] if words else "baseline", float(words[1]) if len(words) > 1 else 1.0):
        sys.stdout.write(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.timed})\n")


if __name__ == "__main__":
    main(sys.argv[1:])
