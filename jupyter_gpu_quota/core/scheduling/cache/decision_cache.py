"""What a decide knows from the one before: the snapshot split by pool, and which pools need not be decided again.

It only saves work. With a memory or without, a plan is the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from ...model import Job, JobState, Node, Policy, Snapshot, Usage
from ...quota.in_force import in_force
from ..wakeups import next_instant
from .snapshot_index import Part, Parts


class Memory:
    """One reader's. Each decide that is given it must be of a later snapshot of the same world, or of another world.

    A pool that was decided without anything to do rests until something of it changes, or an instant is reached at
    which time alone could change its plan. ``lasts``: whether it is used again.
    """

    def __init__(self, *, lasts: bool = True) -> None:
        self._lasts = lasts
        self.parts = Parts((), (), ())
        self._policy: Policy | None = None
        self._inventory: tuple[object, ...] = ()
        self._usage: tuple[Usage, ...] = ()
        self._now = 0
        self._next: dict[str, int | None] = {}
        self._rests: set[str] = set()

    def follow(self, snapshot: Snapshot, policy: Policy) -> Policy:
        """Read what is new; returns the policy with the amounts of this instant."""
        policy = in_force(policy, snapshot.now)
        inventory = policy.pools, snapshot.devices, snapshot.nodes
        if inventory != self._inventory:
            self._inventory, self.parts = inventory, Parts(*inventory)
            self._rests.clear()
        if policy != self._policy or snapshot.usage != self._usage or snapshot.now < self._now:
            self._policy, self._usage = policy, snapshot.usage
            self._rests.clear()
        self._now = snapshot.now
        self.parts.follow(snapshot)
        return policy

    def unsettled(self) -> list[Part]:
        """The pools that have to be decided, in name order."""
        return [part for part in self.parts.of.values() if not self._is_settled(part)]

    def note(self, part: Part, policy: Policy, nodes: Iterable[Node], *, idle: bool) -> None:
        """A pool was decided; ``idle``: there is nothing to do in it."""
        if not self._lasts:
            return
        jobs = chain(part.busy.values(), part.paused.values())
        self._next[part.name] = next_instant(jobs, part.notebooks, nodes, policy, self._now, wanted=part.wants_more())
        (self._rests.add if idle else self._rests.discard)(part.name)
        part.has_changed = False

    def next_at(self) -> int | None:
        """The first instant at which time alone could change a plan; None where there is none."""
        nowhere = next_instant(self.parts.nowhere.busy.values(), (), (), Policy(revision=0), self._now, wanted=False)
        return min((at for at in (nowhere, *self._next.values()) if at is not None), default=None)

    def wants_more(self) -> bool:
        """Whether anybody in any pool wants more than they have."""
        return any(part.wants_more() for part in self.parts.of.values())

    def holding(self) -> Iterator[Job]:
        """The jobs that do not wait."""
        return (job for part in self.parts.everybody() for job in part.busy.values())

    def _is_settled(self, part: Part) -> bool:
        if part.has_changed or part.name not in self._rests or part.has_guests():
            return False
        at = self._next[part.name]
        return (at is None or self._now < at) and not any(map(_has_no_clock, part.busy.values()))


_HOLDS = frozenset({JobState.STARTING, JobState.RUNNING})


def _has_no_clock(job: Job) -> bool:
    """Whether a job was given devices and was not seen to run yet: what is planned around it moves with the time."""
    return job.started_at is None and job.state in _HOLDS
