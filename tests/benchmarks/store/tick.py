"""One tick of the controller by its steps, on large worlds in an SQLite file: observe, decide, digest, commit.

A world has devices on nodes of 8, a running job on each, and queued jobs, of 40 projects. In each tick every running
job is reported, and one has ended, so that the next in the queue starts. One process builds the world and another opens
it as the scheduler does, so that the measured memory is the highest of a controller alone.
``python -m tests.benchmarks.store.tick`` prints the figures.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from jupyter_gpu_quota.controllers.main import reduce_garbage_collection
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import Policy
from jupyter_gpu_quota.core.scheduling.cache.decision_cache import DecisionCache
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import Committed
from jupyter_gpu_quota.store.records.plan_chunks import chunks_of
from jupyter_gpu_quota.store.transactions import Store
from tests.benchmarks.figures import Figure, print_plainly, spread
from tests.benchmarks.service.processes import peak_mib
from tests.benchmarks.store import store as worlds

TICKS = 10
STARTED_AT = worlds.NOW + 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a world and its bounds: milliseconds of CPU, milliseconds, MiB."""

    devices: int
    queued: int
    decide_ms: float | None = None
    tick_ms: float | None = None
    memory_mib: float | None = None

    @property
    def name(self) -> str:
        return f"{self.devices:,} devices, {self.queued:,} queued"


SMALL = Size(devices=1_000, queued=10_000)
USUAL = Size(devices=4_000, queued=10_000, decide_ms=250, memory_mib=300)
LARGE = Size(devices=10_000, queued=100_000, decide_ms=1_500, tick_ms=3_000, memory_mib=1_024)
SIZES = (SMALL, USUAL, LARGE)


def figures(sizes: tuple[Size, ...] = SIZES) -> list[Figure]:
    """Each size in fresh processes, and the cost of the largest by that of the smallest."""
    found = {size: _played(size) for size in sizes}
    steps = [figure for size, rows in found.items() for figure in _steps(size, rows)]
    return [*steps, *(_growth(found[SMALL], found[LARGE]) if {SMALL, LARGE} <= found.keys() else [])]


Rows = dict[str, list[float]]
"""The times of each tick, by step."""


def _played(size: Size) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", __name__ if __name__ != "__main__" else "tests.benchmarks.store.tick"]
        for verb in ("build", "measure"):
            command = [*words, verb, folder, json.dumps(asdict(size))]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def database(folder: str) -> str:
    return f"sqlite:///{Path(folder) / 'store.sqlite'}"


# --- in processes of their own --------------------------------------------------------------------------------------
def build(folder: str, size: Size) -> None:
    """Make the world."""
    store = open_store(database(folder), cache_rows=True)
    with contextlib.redirect_stdout(io.StringIO()):
        lease = worlds.prepare(store, size.devices)
        worlds.submissions(store, size.devices + size.queued, 1000)
        worlds.running(store, lease, size.devices)
    store.close()


def measure(folder: str, size: Size) -> Rows:
    """Open the world as the scheduler does, and run the ticks."""
    reduce_garbage_collection()
    times = _Times()
    store = open_store(database(folder), cache_rows=True)
    mirror, cache = Mirror(), DecisionCache()
    times.step("begin")
    mirror.update(store)
    policy = mirror.policy_at(STARTED_AT)
    assert policy is not None
    times.step("read everything")
    decide(mirror.snapshot(STARTED_AT), policy, cache)
    times.step("decide for the first time")
    mirror.digest(mirror.snapshot(STARTED_AT))
    times.step("digest for the first time")
    for number in range(TICKS):
        _tick(store, mirror, cache, policy, number, times)
    store.close()
    return {**times.taken, "memory": [peak_mib()]}


class _Times:
    """Milliseconds by step: wall clock and CPU."""

    def __init__(self) -> None:
        self.taken: Rows = {}
        self._begun = time.perf_counter(), time.process_time()

    def step(self, name: str) -> None:
        now = time.perf_counter(), time.process_time()
        for label, before, after in zip((name, f"{name}, CPU"), self._begun, now, strict=True):
            self.taken.setdefault(label, []).append((after - before) * 1000)
        self._begun = now

    def whole(self, steps: tuple[str, ...]) -> None:
        """Record the sum of the last time of these steps as one step."""
        for label in ("", ", CPU"):
            taken = sum(self.taken[f"{step}{label}"][-1] for step in steps)
            self.taken.setdefault(f"whole tick{label}", []).append(taken)


STEPS = ("observe", "decide", "digest", "commit")


def _tick(store: Store, mirror: Mirror, cache: DecisionCache, policy: Policy, number: int, times: _Times) -> None:
    now = STARTED_AT + 1000 * (number + 1)
    facts = _facts(len(mirror.devices), number, now)
    lease = store.acquire_lease("bench", clock=lambda: now, ttl_ms=3000)
    assert lease is not None
    times.step("between ticks")
    store.observe(facts, lease=lease, now=now)
    mirror.update(store)
    snapshot = mirror.snapshot(now)
    times.step("observe")
    plan = decide(snapshot, policy, cache)
    times.step("decide")
    seen = mirror.digest(snapshot)
    times.step("digest")
    for chunk in chunks_of(plan):
        outcome = store.commit(chunk, policy=policy, snapshot_digest=seen, lease=lease, now=now)
        assert isinstance(outcome, Committed), outcome
    mirror.update(store)
    times.step("commit")
    times.whole(STEPS)
    assert plan.actions


def _facts(devices: int, number: int, now: int) -> list[RankFact]:
    """One job has ended; the others continue."""
    ended = replace(worlds.fact(number, 1), ended_at=now, exit_status=0, tree_gone=True)
    return [ended, *(worlds.fact(n, 1) for n in range(number + 1, devices))]


# --- the figures ----------------------------------------------------------------------------------------------------
EVERY_TICK = {
    "observe": "a fact of every running job, one of them an end, recorded; mirror and Snapshot brought up to date",
    "decide": "Snapshot object to Plan, with the caches of the previous decision",
    "digest": "SHA-256 of the canonical Snapshot, for the audit row; unchanged parts are cached",
    "commit": "plan of the starts written to disk (synchronous FULL), mirror",
    "whole tick": "the four steps together",
}
ONCE = {
    "read everything": "the whole queue from the file, at the start of a scheduler",
    "decide for the first time": "Snapshot object to Plan, with empty caches",
    "digest for the first time": "of everything",
}


def _steps(size: Size, rows: Rows) -> list[Figure]:
    bounds = {"decide": size.decide_ms, "whole tick": size.tick_ms}
    ticks = [
        figure
        for step, timed in EVERY_TICK.items()
        for label, bound in (("", bounds.get(step)), (", CPU", None))
        for figure in spread(f"{size.name}: {step}{label}", rows[step + label], "ms", timed, median_at_most=bound)
    ]
    once = [
        Figure(name=f"{size.name}: {step}", value=rows[f"{step}, CPU"][0], unit="ms CPU", timed=timed,
               bound=size.decide_ms if step.startswith("decide") else None)
        for step, timed in ONCE.items()
    ]  # fmt: skip
    timed = "highest resident memory of the process"
    memory = Figure(
        name=f"{size.name}: memory", value=rows["memory"][0], unit="MiB", timed=timed, bound=size.memory_mib
    )
    return [*ticks, *once, memory]


def _growth(small: Rows, large: Rows) -> list[Figure]:
    """The cost of a ten times larger world, in CPU time, which other load on the machine does not change."""
    times = LARGE.devices / SMALL.devices
    least: Callable[[Rows, str], float] = lambda rows, step: min(rows[f"{step}, CPU"])  # noqa: E731
    return [
        Figure(
            name=f"{times:.0f} times the world: {step}", value=least(large, step) / least(small, step), unit="times",
            timed=f"least CPU time with {LARGE.name}, by that with {SMALL.name}",
        )
        for step in (*EVERY_TICK, *ONCE)
    ]  # fmt: skip


def main(words: list[str]) -> None:
    if not words:
        print_plainly(figures())
        return
    verb, folder, size = words[0], words[1], Size(**json.loads(words[2]))
    if verb == "build":
        build(folder, size)
    else:
        json.dump(measure(folder, size), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
