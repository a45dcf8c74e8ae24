"""What the scheduler would do of the world as it is, kept for a moment, and the explanations that rest on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ...core.explain import why_waiting as core_explain
from ...core.model import Policy, Snapshot
from ...core.plan import Plan, Reserve, Resume, Start
from ...core.quota.in_force import in_force
from ...core.reasons import Reason
from ...core.scheduling.decide import Decision, decide_and_explain
from .quota_states import NO_STANDINGS, Shares, Standings, shares_of, standings_of, use_of
from .store_view import World

FRESH_S = 1.0
EXPLAINED_FRESH_S = 2.0
MOST_EXPLAINED = 500


@dataclass(frozen=True, slots=True)
class _Decided:
    moment: tuple[int, ...]
    at: float
    decision: Decision


class Foresight:
    """What ``decide`` says of the mirror, kept for a second; computed outside the event loop."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: _Decided | None = None
        self._thinking: asyncio.Task[Decision | None] | None = None
        self._explained: dict[str, tuple[tuple[int, ...], float, core_explain.Explanation]] = {}
        self._shares: tuple[tuple[int, ...], float, Shares] | None = None

    async def think(self) -> Decision | None:
        """The decision on the world as it is, at most a second old; None while no quota file is in force."""
        world, last = self._world, self._last
        if world.quota is None:
            return None
        now = asyncio.get_running_loop().time()
        if last and (last.moment == world.moment() or now - last.at < FRESH_S):
            return last.decision
        if self._thinking is None or self._thinking.done():
            self._thinking = asyncio.create_task(self._think(now))
        return await asyncio.shield(self._thinking)

    async def _think(self, now: float) -> Decision | None:
        quota = self._world.quota
        if quota is None:
            return None
        moment, snapshot = self._world.moment(), self.snapshot()
        decision = await self._world.think(decide_and_explain, snapshot, quota.policy)
        self._last = _Decided(moment, now, decision)
        self._world.waits = {**decision.waits, **_next_to_start(decision.plan)}
        return decision

    def snapshot(self) -> Snapshot:
        return self._world.mirror.snapshot(self._world.now())

    async def explain(self, workload: str, policy: Policy) -> core_explain.Explanation:
        """The core's explanation, at most 2 s old unless nothing changed. Raises KeyError for what has ended."""
        now, key = asyncio.get_running_loop().time(), self._world.moment()
        known = self._explained.get(workload)
        if known and (known[0] == key or now - known[1] < EXPLAINED_FRESH_S):
            return known[2]
        told = await self._world.ponder(core_explain.explain, self.snapshot(), policy, workload)
        if len(self._explained) >= MOST_EXPLAINED:
            self._explained.clear()
        self._explained[workload] = (key, now, told)
        return told

    async def standings(self) -> Standings:
        """Each project and each department in each of its pools, with the amounts of this instant."""
        quota = self._world.quota
        if quota is None:
            return NO_STANDINGS
        shares = await self._divided(quota.policy)
        return standings_of(in_force(quota.policy, self._world.now()), use_of(self._world), shares)

    async def _divided(self, policy: Policy) -> Shares:
        """Everybody's guarantee and fair share now; at most a second old."""
        now = asyncio.get_running_loop().time()
        key = self._world.moment()
        if self._shares is None or (self._shares[0] != key and now - self._shares[1] >= FRESH_S):
            self._shares = (key, now, await self._world.think(shares_of, self.snapshot(), policy))
        return self._shares[2]


def _next_to_start(plan: Plan) -> dict[str, Reason]:
    """Why the plan starts the jobs that it starts, or keeps a place for something: as explanations say it, too."""
    starts = {one.workload: one.reason for one in plan.actions if isinstance(one, (Start, Resume)) and one.attempt}
    return starts | {one.workload: one.reason for one in plan.actions if isinstance(one, Reserve)}
