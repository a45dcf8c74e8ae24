"""Kill a process that writes to a database, several times, and check that only whole transactions are left."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import JobFilter, Page
from jupyter_gpu_quota.store.transactions import Store
from tests.store.worlds import T0, World


def kill_again_and_again(url: str, times: int = 3) -> None:
    """The database has a world in it whose lease was released."""
    chance = random.Random(3)
    for number in range(times):
        _killed_after(url, number * 1000, chance.uniform(0, 0.3))
        store = open_store(url)
        _assert_whole(store)
        _finish(World.__new__(World), store, number)
        store.close()


def _killed_after(url: str, first: int, delay_s: float) -> None:
    """Run the writing process until it has begun, then a little longer, then kill -9."""
    script = Path(__file__).with_name("killed_process.py")
    process = subprocess.Popen(
        [sys.executable, str(script), url, str(first)], stdout=subprocess.PIPE, cwd=script.parents[2]
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"begun\n"
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline:
            pass
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


def _assert_whole(store: Store) -> None:
    """Batches of 20 were queued, started and ended in one transaction each: all of a batch is in one state."""
    assert isinstance(store.audit_verify(), int)
    states: dict[str, Counter[str]] = {}
    for record in store.jobs(JobFilter(user="bob"), Page(limit=1_000_000))[0]:
        states.setdefault(record.job.id[:11], Counter())[record.job.state] += 1
    assert states
    assert all(list(batch.values()) == [20] for batch in states.values()), states
    starting = sum(20 for batch in states.values() if JobState.STARTING in batch)
    assert len(store.changes(0).allocations) == starting


def _finish(world: World, store: Store, number: int) -> None:
    """A successor takes the lease and ends what the killed process had started, so that the device is free."""
    world.store, world.now = store, T0 + number * 4_000_000 + 3001
    world.lease = world.lead("successor")
    starting = store.jobs(JobFilter(states=(JobState.STARTING,)), Page(limit=1000))[0]
    world.see(*(world.gone(record.job.id, 0) for record in starting))
    store.release_lease(world.lease)
    assert store.changes(0).allocations == ()
