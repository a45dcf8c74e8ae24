"""One tick of the controller by its steps, on a large world in an SQLite file: observe, decide, digest, commit.

500 nodes of 8 devices, 4,000 running and 10,000 queued jobs of 40 projects. Each tick sees one job end, so that the
next in the queue starts. ``python -m tests.benchmarks.tick`` prints the figures as JSON: a process of its own shows
the memory of a controller and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from jupyter_gpu_quota.core.canonical import digest
from jupyter_gpu_quota.core.schedule import decide
from jupyter_gpu_quota.store.ledger import LedgerStore
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.protocol import Committed
from jupyter_gpu_quota.store.snapshot import Mirror
from tests.benchmarks import store as worlds
from tests.benchmarks.figures import Figure, spread
from tests.benchmarks.processes import memory

TICKS = 10
DEVICES, QUEUED = 4_000, 10_000


def figures() -> list[Figure]:
    """Measured in a fresh process."""
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=True, timeout=600)
    return [Figure(**row) for row in json.loads(done.stdout)]


def measure() -> list[Figure]:
    """Build the world, run the ticks, read the memory."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'store.sqlite'}")
        with contextlib.redirect_stdout(io.StringIO()):
            lease = worlds.prepare(store, DEVICES)
            worlds.submissions(store, DEVICES + QUEUED, 500)
            worlds.running(store, lease, DEVICES)
        mirror = Mirror()
        mirror.update(store)
        rows = [_tick(store, mirror, number) for number in range(TICKS)]
        seen = memory(_own_pid())
        store.close()
    return [*_steps(rows), *_memory(seen.rss_mib, seen.uss_mib)]


def _tick(store: LedgerStore, mirror: Mirror, number: int) -> dict[str, float]:
    now, times = worlds.NOW + 1000 * (number + 1), dict[str, float]()
    lease = store.acquire_lease("bench", now=now, ttl_ms=3000)
    assert lease is not None
    begun = time.perf_counter()

    def step(name: str) -> None:
        nonlocal begun
        times[name], begun = (time.perf_counter() - begun) * 1000, time.perf_counter()

    ended = replace(worlds.fact(number, 0), ended_at=now, exit_status=0, tree_gone=True)
    store.observe([ended, *(worlds.fact(n, 0) for n in range(number + 1, DEVICES))], lease=lease, now=now)
    mirror.update(store)
    snapshot = mirror.snapshot(now)
    step("observe")
    plan = decide(snapshot, worlds.POLICY)
    step("decide")
    seen = digest(snapshot)
    step("digest")
    outcome = store.commit(plan, policy=worlds.POLICY, snapshot_digest=seen, lease=lease, now=now)
    mirror.update(store)
    step("commit")
    assert plan.actions and isinstance(outcome, Committed), (plan.actions[:3], outcome)
    return {**times, "whole tick": sum(times.values())}


def _steps(rows: list[dict[str, float]]) -> list[Figure]:
    told = {
        "observe": "4,000 facts recorded, one of them an end; mirror and Snapshot brought up to date",
        "decide": "Snapshot object to Plan",
        "digest": "SHA-256 of the canonical Snapshot, for the audit row",
        "commit": "plan of the starts written to disk (synchronous FULL), mirror",
        "whole tick": "the four together",
    }
    return [
        figure
        for name, timed in told.items()
        for figure in spread(f"tick of the large world: {name}", [row[name] for row in rows], "ms", timed,
                             median_at_most=250 if name == "decide" else None)
    ]  # fmt: skip


def _memory(rss_mib: float, uss_mib: float) -> list[Figure]:
    told = "a process that holds the large world and has run the ticks"
    return [
        Figure(name="memory with the large world, resident", value=rss_mib, unit="MiB", timed=told, bound=300),
        Figure(name="memory with the large world, unique", value=uss_mib, unit="MiB", timed=told),
    ]


def _own_pid() -> int:
    return int(Path("/proc/self").resolve().name)


if __name__ == "__main__":
    json.dump([asdict(figure) for figure in measure()], sys.stdout)
