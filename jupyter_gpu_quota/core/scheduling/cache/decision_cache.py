"""The decision cache: the snapshot split by pool, and the pools that need no new decision.

The cache only saves work: plans are equal with and without it, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...lifecycle import RUNS
from ...model import Job, Policy, Snapshot, Usage
from ...quota.in_force import in_force
from .snapshot_index import PoolSnapshot, SnapshotIndex


class DecisionCache:
    """The cache of one reader, used for snapshots of one cluster in the order of their versions, or of several.

    A pool whose last plan was empty is not decided again before something in it changes, or before its wakeup, the
    first instant at which time alone could change its plan. ``enabled=False``: nothing is kept between decisions.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.index = SnapshotIndex((), (), ())
        self._policy: Policy | None = None
        self._inventory: tuple[object, ...] = ()
        self._usage: tuple[Usage, ...] = ()
        self._now = 0
        self._wakeups: dict[str, int | None] = {}
        self._idle_pools: set[str] = set()

    def follow(self, snapshot: Snapshot, policy: Policy) -> Policy:
        """Read the changes of a snapshot. Returns the policy with the amounts in force at its instant."""
        policy = in_force(policy, snapshot.now)
        inventory = policy.pools, snapshot.devices, snapshot.nodes
        if not self.enabled or inventory != self._inventory:
            self._inventory, self.index = inventory, SnapshotIndex(*inventory)
            self._idle_pools.clear()
            self._wakeups.clear()
        if policy != self._policy:
            for pool in self.index.of.values():
                pool.checked.clear()
        if policy != self._policy or snapshot.usage != self._usage or snapshot.now < self._now:
            self._policy, self._usage = policy, snapshot.usage
            self._idle_pools.clear()
        self._now = snapshot.now
        self.index.update(snapshot)
        return policy

    def pools_to_decide(self) -> list[PoolSnapshot]:
        """The pools whose plan may differ from the last one, in name order."""
        return [pool for pool in self.index.of.values() if not self._is_unchanged(pool)]

    def record(self, pool: PoolSnapshot, *, idle: bool, wakeup: int | None) -> None:
        """Record that a pool was decided. ``idle``: its plan is empty; ``wakeup``: None where time changes nothing."""
        self._wakeups[pool.name] = wakeup
        (self._idle_pools.add if idle else self._idle_pools.discard)(pool.name)
        pool.has_changed = False

    def next_at(self) -> int | None:
        """The first instant at which time alone could change a plan; None where there is none."""
        return min((at for at in self._wakeups.values() if at is not None), default=None)

    def wants_more(self) -> bool:
        """Whether any work in any pool wants more than it has."""
        return any(pool.wants_more() for pool in self.index.of.values())

    def holding(self) -> Iterator[Job]:
        """The jobs that do not wait."""
        return (job for pool in self.index.all_pools() for job in pool.busy.values())

    def _is_unchanged(self, pool: PoolSnapshot) -> bool:
        """Whether the last plan was empty and nothing changed since. A plan beside a starting job changes with time."""
        if pool.has_changed or pool.name not in self._idle_pools or pool.has_work_of_other_pools():
            return False
        at = self._wakeups[pool.name]
        is_starting = any(job.started_at is None and job.state in RUNS for job in pool.busy.values())
        return (at is None or self._now < at) and not is_starting
