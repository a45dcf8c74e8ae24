"""Trials: ``decide`` on changed snapshots and policies of one workload, within a bound on the work.

The work of a trial is counted in rows read, searches and actions, and not in time, so that equal snapshots give equal
explanations.
"""

from __future__ import annotations

from ..model import Policy, Snapshot
from ..plan import Plan
from ..scheduling.cache.decision_cache import DecisionCache
from ..scheduling.decide import decide_about
from ..scheduling.early_stop import EarlyStop
from .counterfactual import WhatIf

SMALL, SMALL_DEVICES = 20, 64
"""With this many jobs and notebooks, and devices, at most, nothing bounds the work."""
WORK_OF_ALL = 120_000
"""The work of all searches for one workload in a larger pool, in rows."""
WORK_OF_TRIAL, WORK_OF_ACTION, WORK_OF_TEST = 60, 40, 20
"""The work of a trial beside its rows, of each action of its plan, and of a test of room in it."""


class Trials:
    """Runs trials of one workload. ``ended_early``: the present search needed more work than it was allowed."""

    def __init__(self, what_if: WhatIf) -> None:
        self.what_if = what_if
        snapshot = what_if.snapshot
        is_few = len(snapshot.jobs) + len(snapshot.notebooks) <= SMALL
        self.is_small = is_few and len(snapshot.devices) <= SMALL_DEVICES
        self.ended_early = False
        self._cache = DecisionCache()
        self._left_of_all, self._left = WORK_OF_ALL, 0

    def allow(self, work: int) -> None:
        """Begin a search; in a larger pool with this much work, and not more than is left of all."""
        self._left_of_all, self._left = self._left_of_all + self._left, 0
        self._left = min(work, self._left_of_all)
        self._left_of_all -= self._left
        self.ended_early = False

    def starts(self, *, snapshot: Snapshot | None = None, policy: Policy | None = None) -> bool:
        """Whether the next plan for a changed snapshot or policy starts the workload or pauses others for it.

        False, too, when no work is left: what was not tried is not known to start it.
        """
        return self.plan(snapshot=snapshot, policy=policy) is not None

    def plan(self, *, snapshot: Snapshot | None = None, policy: Policy | None = None) -> Plan | None:
        """The next plan for a changed snapshot or policy, up to the workload's start; None where that is not known."""
        if not self.is_small and self._left <= 0:
            self.ended_early = True
            return None
        snapshot = snapshot or self.what_if.snapshot
        same_devices = snapshot.devices is self.what_if.snapshot.devices
        rows = len(snapshot.jobs) + len(snapshot.devices) + len(snapshot.notebooks)
        most = None if self.is_small else self._left // WORK_OF_TEST
        early_stop = EarlyStop(workload=self.what_if.id, most_work=most)
        plan = decide_about(snapshot, policy or self.what_if.policy, self._cache if same_devices else None, early_stop)
        self.ended_early |= early_stop.gave_up
        self._left -= WORK_OF_TRIAL + rows + WORK_OF_ACTION * len(plan.actions) + WORK_OF_TEST * early_stop.work
        return None if early_stop.gave_up or self.what_if.placed_by(plan) is None else plan
