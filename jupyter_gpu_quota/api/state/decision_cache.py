"""The decision for the store view, kept for a moment, and the explanations and quota states that rest on it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from ...core.explain import why_waiting as core_explain
from ...core.explain.binding_reasons import decide_with_reasons
from ...core.explain.explanation import Explanation
from ...core.model import Policy, Snapshot
from ...core.plan import Plan, Start, gives_devices
from ...core.quota.in_force import in_force
from ...core.reasons import Reason
from ...core.scheduling.decide import Decision, UndecidedPools
from .generations import differing
from .quota_states import NO_QUOTA_STATES, QuotaStates, Shares, quota_states_of, shares_of
from .store_view import StoreView

log = logging.getLogger(__name__)

FRESH_S = 1.0
EXPLAINED_FRESH_S = 2.0
MAX_EXPLAINED = 500


@dataclass(frozen=True, slots=True)
class _Decided:
    moment: tuple[int, ...]
    at: float
    decision: Decision


class DecisionCache:
    """The result of ``decide`` for the mirror, kept for a second; computed outside the event loop.

    Requests during a computation share its result, so that a slow one has no queue behind it.
    """

    def __init__(self, store_view: StoreView) -> None:
        self._store_view = store_view
        self._last: _Decided | None = None
        self._deciding: asyncio.Task[Decision | None] | None = None
        self._explained: dict[str, tuple[tuple[int, ...], float, Explanation]] = {}
        self._explaining: dict[str, asyncio.Task[Explanation]] = {}
        self._shares: tuple[tuple[int, ...], float, Shares] | None = None
        self._dividing: asyncio.Task[Shares] | None = None
        self._undecided = ""

    async def latest(self) -> Decision | None:
        """The decision for the present state, at most a second old; None while no quota file is in force."""
        store_view, last = self._store_view, self._last
        if store_view.quota is None:
            return None
        now = asyncio.get_running_loop().time()
        if last and (last.moment == store_view.moment() or now - last.at < FRESH_S):
            return last.decision
        if self._deciding is None or self._deciding.done():
            self._deciding = store_view.in_background(self._decide(now))
        return await asyncio.shield(self._deciding)

    async def _decide(self, now: float) -> Decision | None:
        quota = self._store_view.quota
        if quota is None:
            return None
        moment, snapshot = self._store_view.moment(), self.snapshot()
        try:
            decision = await self._store_view.compute(decide_with_reasons, snapshot, quota.policy)
        except UndecidedPools as error:  # pages are shown, without reasons
            if str(error) != self._undecided:
                log.exception("the reasons of waiting jobs are not known")
            decision, self._undecided = Decision(plan=error.plan), str(error)
        self._last = _Decided(moment, now, decision)
        view = self._store_view
        waits, estimates = view.waits, view.estimates
        view.waits, view.estimates = {}, {}
        if not view.is_held:
            view.waits = {**decision.waits, **_next_to_start(decision.plan)}
            view.estimates = {one.workload: one.starts_at for one in decision.backfill}
        view.view_changes += 1
        view.generations.count_jobs(view.mirror, {*differing(waits, view.waits), *differing(estimates, view.estimates)})
        return decision

    def snapshot(self) -> Snapshot:
        return self._store_view.mirror.snapshot(self._store_view.now())

    async def explain(self, workload: str, policy: Policy, least_milli: int = 1) -> Explanation:
        """The core's explanation, at most 2 s old unless nothing changed. Raises KeyError for ended work."""
        known = self._explained.get(workload)
        if known and self._is_fresh(known[0], known[1], EXPLAINED_FRESH_S):
            return known[2]
        explaining = self._explaining.get(workload)
        if explaining is None:
            explaining = self._store_view.in_background(self._explain(workload, policy, least_milli))
            self._explaining[workload] = explaining
            explaining.add_done_callback(lambda _: self._explaining.pop(workload, None))
        return await asyncio.shield(explaining)

    async def _explain(self, workload: str, policy: Policy, least_milli: int) -> Explanation:
        moment = self._store_view.moment()
        snapshot = self.snapshot()
        found = await self._store_view.compute_slow(core_explain.explain, snapshot, policy, workload, least_milli)
        if len(self._explained) >= MAX_EXPLAINED:
            self._explained.clear()
        self._explained[workload] = (moment, asyncio.get_running_loop().time(), found)
        return found

    def _is_fresh(self, moment: tuple[int, ...], at: float, fresh_s: float) -> bool:
        """Whether nothing changed since a moment, or it was computed less than some seconds ago."""
        return moment == self._store_view.moment() or asyncio.get_running_loop().time() - at < fresh_s

    async def quota_states(self) -> tuple[QuotaStates, QuotaStates]:
        """Each project, and each department, in each of its pools; guarantees and fair shares at most a second old."""
        quota, shares = self._store_view.quota, await self.shares()
        if quota is None or shares is None:
            return NO_QUOTA_STATES
        return quota_states_of(self._store_view, in_force(quota.policy, self._store_view.now()), shares)

    async def shares(self) -> Shares | None:
        """The division of every pool and the order of its queue, at most a second old; None without a quota file."""
        quota = self._store_view.quota
        if quota is None:
            return None
        known = self._shares
        if known and self._is_fresh(known[0], known[1], FRESH_S):
            return known[2]
        if self._dividing is None or self._dividing.done():
            self._dividing = self._store_view.in_background(self._divide(quota.policy))
        return await asyncio.shield(self._dividing)

    async def _divide(self, policy: Policy) -> Shares:
        view, moment = self._store_view, self._store_view.moment()
        shares = await view.compute(shares_of, self.snapshot(), policy)
        moved = differing(view.positions, shares.positions)
        view.positions = shares.positions
        self._shares = moment, asyncio.get_running_loop().time(), shares
        view.generations.count_jobs(view.mirror, moved)
        view.view_changes += 1
        return shares


def _next_to_start(plan: Plan) -> dict[str, Reason]:
    """The reasons of the plan's starts and of the devices that it frees for claims, as explanations give them."""
    jobs = (one for one in plan.actions if not (isinstance(one, Start) and one.attempt == 0))
    return {one.workload: one.reason for one in jobs if gives_devices(one)}
