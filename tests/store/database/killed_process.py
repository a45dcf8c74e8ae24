"""A process to be killed: it submits, starts and ends jobs in a database for as long as it is let.

``python killed_process.py URL FIRST``: prints a line when it has begun.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from jupyter_gpu_quota.core.plan import Plan, Start
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import Committed
from tests.store.worlds import POLICY, T0, WITHIN, World, placements, submit

BATCH = 20


def main(url: str, first: int) -> None:
    store = open_store(url)
    world = World.__new__(World)
    world.store, world.now, world.policy = store, T0 + first * 4000, POLICY
    world.lease = world.lead(f"holder-{first}")
    number = first
    while True:
        jobs = [f"job-{number:07d}-{part:02d}" for part in range(BATCH)]
        world.record(*(submit(job, milli=50) for job in jobs))
        starts = tuple(
            Start(workload=job, attempt=1, placements=placements("d0", milli=50), borrower=False, reason=WITHIN)
            for job in jobs
        )
        plan = Plan(seen_version=store.version(), now=world.now, actions=starts)
        answer = store.commit(plan, policy=POLICY, snapshot_digest="d", lease=world.lease, now=world.now)
        assert isinstance(answer, Committed), answer
        if number == first:
            print("begun", flush=True)
        world.see(*(world.gone(job, 0) for job in jobs))
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
