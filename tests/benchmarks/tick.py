"""One tick of the controller by its steps, on large worlds in an SQLite file: observe, decide, digest, commit.

A world has so many devices on nodes of 8, a running job on each, and so many queued ones, of 40 projects. In each tick
every running job is told of, and one has ended, so that the next in the queue starts. The world is made by one process
and opened by another as the scheduler opens it, so that its memory is that of a controller and nothing else: the
highest that it ever was. ``python -m tests.benchmarks.tick`` prints the figures.
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

from jupyter_gpu_quota.controllers.main import collect_seldom
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import Policy
from jupyter_gpu_quota.core.scheduling.cache.decision_cache import DecisionCache
from jupyter_gpu_quota.core.scheduling.decide import decide
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.plan_chunks import chunks_of
from jupyter_gpu_quota.store.records.protocol import Committed
from jupyter_gpu_quota.store.transactions import TransactionalStore
from tests.benchmarks import store as worlds
from tests.benchmarks.figures import Figure, print_plainly, spread
from tests.benchmarks.processes import peak_mib

TICKS = 10
STARTED_AT = worlds.NOW + 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a world is, and what was promised of it: milliseconds of CPU, milliseconds, MiB."""

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
    """Each size in fresh processes; what the largest costs by what the smallest does."""
    found = {size: _played(size) for size in sizes}
    told = [figure for size, rows in found.items() for figure in _steps(size, rows)]
    return [*told, *(_growth(found[SMALL], found[LARGE]) if {SMALL, LARGE} <= found.keys() else [])]


Rows = dict[str, list[float]]
"""What each tick took, by step."""


def _played(size: Size) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", __name__ if __name__ != "__main__" else "tests.benchmarks.tick"]
        for verb in ("build", "measure"):
            told = [*words, verb, folder, json.dumps(asdict(size))]
            done = subprocess.run(told, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
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
    collect_seldom()
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
    """Milliseconds by step: of the clock, and of the processor."""

    def __init__(self) -> None:
        self.taken: Rows = {}
        self._begun = time.perf_counter(), time.process_time()

    def step(self, name: str) -> None:
        now = time.perf_counter(), time.process_time()
        for label, before, after in zip((name, f"{name}, CPU"), self._begun, now, strict=True):
            self.taken.setdefault(label, []).append((after - before) * 1000)
        self._begun = now

    def whole(self, steps: tuple[str, ...]) -> None:
        """The last of each of these steps together, as one."""
        for label in ("", ", CPU"):
            taken = sum(self.taken[f"{step}{label}"][-1] for step in steps)
            self.taken.setdefault(f"whole tick{label}", []).append(taken)


STEPS = ("observe", "decide", "digest", "commit")


def _tick(
    store: TransactionalStore, mirror: Mirror, cache: DecisionCache, policy: Policy, number: int, times: _Times
) -> None:
    now = STARTED_AT + 1000 * (number + 1)
    facts = _facts(len(mirror.devices), number, now)
    lease = store.acquire_lease("bench", now=now, ttl_ms=3000)
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
    """One job has ended; the others go on as they did."""
    ended = replace(worlds.fact(number, 1), ended_at=now, exit_status=0, tree_gone=True)
    return [ended, *(worlds.fact(n, 1) for n in range(number + 1, devices))]


# --- what is told ---------------------------------------------------------------------------------------------------
TOLD = {
    "observe": "a fact of every running job, one of them an end, recorded; mirror and Snapshot brought up to date",
    "decide": "Snapshot object to Plan, with what the decision before left",
    "digest": "SHA-256 of the canonical Snapshot, for the audit row; what did not change is not read again",
    "commit": "plan of the starts written to disk (synchronous FULL), mirror",
    "whole tick": "the four together",
}
ONCE = {
    "read everything": "the whole queue from the file, when a scheduler begins",
    "decide for the first time": "Snapshot object to Plan, with nothing left from before",
    "digest for the first time": "of everything",
}


def _steps(size: Size, rows: Rows) -> list[Figure]:
    bounds = {"decide": size.decide_ms, "whole tick": size.tick_ms}
    ticks = [
        figure
        for step, timed in TOLD.items()
        for label, bound in (("", bounds.get(step)), (", CPU", None))
        for figure in spread(f"{size.name}: {step}{label}", rows[step + label], "ms", timed, median_at_most=bound)
    ]
    once = [
        Figure(name=f"{size.name}: {step}", value=rows[f"{step}, CPU"][0], unit="ms CPU", timed=timed,
               bound=size.decide_ms if step.startswith("decide") else None)
        for step, timed in ONCE.items()
    ]  # fmt: skip
    told = "the most that the process ever had, resident"
    memory = Figure(name=f"{size.name}: memory", value=rows["memory"][0], unit="MiB", timed=told, bound=size.memory_mib)
    return [*ticks, *once, memory]


def _growth(small: Rows, large: Rows) -> list[Figure]:
    """What ten times the world costs: by the processor's time, which other work on the machine leaves alone."""
    times = LARGE.devices / SMALL.devices
    least: Callable[[Rows, str], float] = lambda rows, step: min(rows[f"{step}, CPU"])  # noqa: E731
    return [
        Figure(
            name=f"{times:.0f} times the world: {step}", value=least(large, step) / least(small, step), unit="times",
            timed=f"least CPU time with {LARGE.name}, by that with {SMALL.name}",
        )
        for step in (*TOLD, *ONCE)
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
