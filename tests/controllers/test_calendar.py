"""The scheduling controller over time: calendar windows and past use."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.plan import Plan
from tests.controllers.setups.scheduling import QUOTA, World

HALF_PAST = 1_800_000
"""00:30 of the first of January 1970; the world begins at 00:16:40."""
NIGHTS = """
calendar:
  - name: nights
    when: {from: "00:30", to: "01:00", timezone: UTC}
    projects: {vision: {train: {training: 1}}, speech: {train: {training: 3}}}
"""
DAY_MS = 86_400_000


# R63
def test_a_claim_pauses_other_work_within_one_tick_of_a_calendar_window() -> None:
    world = World()
    world.apply_quota(QUOTA + NIGHTS)
    world.submit("bob", "b1", "b2")
    world.submit("patty", "p1", "p2", "p3")
    world.turn(3)
    assert world.executor.running() == {"b1", "b2", "p1", "p2"}
    world.now = HALF_PAST - 1
    world.turn(1, every_ms=1)
    assert world.state("p3") is JobState.QUEUED and world.executor.running() == {"b1", "b2", "p1", "p2"}
    assert world.now == HALF_PAST
    world.turn(1)
    assert len({"b1", "b2"} & world.executor.running()) == 1, "one was paused at once, and ended"
    world.turn(2)
    assert "p3" in world.executor.running()


def test_the_start_of_a_calendar_window_evicts_no_work_by_itself() -> None:
    world = World()
    world.apply_quota(QUOTA + NIGHTS)
    world.submit("bob", "b1", "b2", "b3", "b4")
    world.turn(3)
    world.now = HALF_PAST - 1
    world.turn(10, every_ms=1000)
    assert world.executor.running() == {"b1", "b2", "b3", "b4"}
    world.submit("patty", "p1", "p2", "p3")
    world.turn(4)
    assert {"p1", "p2", "p3"} < world.executor.running()
    world.now = 2 * HALF_PAST - 1
    world.turn(1, every_ms=1)
    assert {"p1", "p2", "p3"} < world.executor.running(), "the window is open to its last instant"
    world.turn(4)
    assert len({"p1", "p2", "p3"} & world.executor.running()) == 2, "vision has its second GPU back"


def test_a_boundary_without_demand_triggers_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.apply_quota(QUOTA + NIGHTS)
    world.submit("bob", "b1")
    world.turn(3)
    world.now = HALF_PAST - 5000
    world.turn(1)  # the lease has expired; its new fencing number makes the controller read all again
    calls = []
    monkeypatch.setattr("jupyter_gpu_quota.controllers.scheduling.decide", lambda *given: calls.append(given))
    world.turn(20)
    assert calls == []


def test_the_calendar_is_kept_ahead_without_any_event() -> None:
    world, new_year = World(), 978_307_200_000  # 2001
    world.now += new_year
    world.apply_quota(QUOTA + NIGHTS.replace("timezone", "dates: [2001-04-01, 2001-04-02], timezone"))
    world.submit("bob", "b1", "b2", time_limit_s=400 * 86_400)
    world.submit("patty", "p1", "p2", "p3", time_limit_s=400 * 86_400)
    world.turn(3)
    assert world.controller.policy is not None and world.controller.policy.windows == ()
    for day in range(1, 90):
        world.now = new_year + HALF_PAST - 1000 + day * DAY_MS
        world.turn(1)
    assert world.executor.running() == {"b1", "b2", "p1", "p2"}
    assert world.now == new_year + HALF_PAST + 89 * DAY_MS
    world.now += DAY_MS
    world.turn(3)
    assert "p3" in world.executor.running(), "the window of the first of April is open"


HISTORY = QUOTA + "  history: {k: 1, half_life: 1h, window: 1d}\n"


def test_past_use_of_surplus_lowers_the_present_share_of_it() -> None:
    def surplus_of_patty(quota: str) -> int:
        world = World()
        world.apply_quota(quota.replace("training: 2}", "training: 0}"))
        world.submit("bob", "b1", "b2", "b3", "b4")
        world.turn(2)
        world.turn(60, every_ms=60_000)
        for job in ("b1", "b2", "b3", "b4"):
            world.executor.end(job, 0, completed=True)
        world.submit("bob", *(f"b{n}" for n in range(5, 9)))
        world.submit("patty", "p1", "p2", "p3", "p4")
        world.turn(5)
        return len({"p1", "p2", "p3", "p4"} & world.executor.running())

    assert surplus_of_patty(HISTORY) > surplus_of_patty(QUOTA) == 2


@pytest.mark.parametrize("jobs", [4, 5], ids=["no job waits", "a job waits"])
def test_past_use_is_read_once_a_minute_and_causes_a_decision(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.apply_quota(HISTORY)
    world.submit("bob", *(f"b{n}" for n in range(jobs)))
    world.turn(3)
    seen = []
    monkeypatch.setattr(
        "jupyter_gpu_quota.controllers.scheduling.decide",
        lambda s, p, _: seen.append(s.usage) or Plan(seen_version=s.version, now=s.now),
    )
    world.now = world.now // 60_000 * 60_000 + 60_000
    world.turn(180)
    assert len(seen) == len(set(seen)) == 3
    assert [usage[0].project for usage in seen] == ["vision"] * 3
