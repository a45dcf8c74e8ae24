"""Calendar windows: the amounts in force at each instant; the time alone pauses no job."""

from __future__ import annotations

import dataclasses as dc
from datetime import UTC, datetime, timedelta

import pytest

from jupyter_gpu_quota.core.model import Change
from jupyter_gpu_quota.core.plan import Pause, Start
from jupyter_gpu_quota.quotafile.calendar import Entry, When, expand
from tests.core.world import BEGIN, World, world


def claims_at(made: World, at: int) -> bool:
    """Whether a plan of this instant pauses any job."""
    made.now = at
    return any(isinstance(action, Pause) for action in made.decide().plan.actions)


@pytest.mark.parametrize(
    ("at_ms", "in_force"),
    [
        pytest.param(BEGIN + 4_999, False, id="one millisecond before it opens"),
        pytest.param(BEGIN + 5_000, True, id="when it opens"),
        pytest.param(BEGIN + 7_999, True, id="one millisecond before it closes"),
        pytest.param(BEGIN + 8_000, False, id="when it closes"),
    ],
)
def test_a_windows_amounts_are_in_force(at_ms: int, in_force: bool) -> None:
    made = world("pool t 2\na 0 of t\nb 2 of t\nb runs 2 of 1\na queues 1\nwindow w from 5 to 8: a 1 of t; b 1 of t")
    assert claims_at(made, at_ms) is in_force


# R63
def test_of_two_open_windows_the_later_one_wins() -> None:
    made = world(
        "pool t 4\na 0 of t\nb 4 of t\nb runs 4 of 1\na queues 4 of 1\n"
        "window first from 0 to 9: a 3 of t; b 1 of t\nwindow second from 0 to 9: a 1 of t"
    )
    made.settle()
    assert made.picture() == "a 2 / b 2"  # quotas 1 and 1, and the rest by weight


def test_a_window_of_a_department_changes_the_shares_of_its_projects() -> None:
    made = world(
        "pool t 4\ndepartment D 0 of t\ndepartment E 4 of t\na 0 of t in D\nb 4 of t in E\nb runs 4 of 1\n"
        "a queues 2 of 1\nwindow w from 3 to 60: department D 2 of t; department E 2 of t; b 2 of t"
    )
    made.tick()
    assert made.picture() == "a 0 / b 4"
    for _ in range(6):
        made.tick()
    assert made.picture() == "a 2 / b 2"


# R63
def test_a_calendar_boundary_without_demand_pauses_no_job() -> None:
    made = world("pool t 4\na 4 of t\nb 0 of t\na runs 4 of 1\nwindow w from 2 to 5: a 1 of t; b 3 of t")
    assert [made.tick().actions for _ in range(8)] == [()] * 8


def test_a_boundary_inside_a_grace_period_does_not_change_the_pause() -> None:
    made = world("pool t 2\na 0 of t\nb 1 of t\nb runs 2 of 1\na queues 1\nwindow w from 0 to 3: a 1 of t")
    made.drain_ticks = 4
    assert [type(action).__name__ for action in made.tick().actions] == ["Pause", "Reserve"]
    assert [made.tick().actions for _ in range(3)] == [(), (), ()]  # the window closes in between
    assert [type(action) for action in made.tick().actions] == [Start]
    made.settle()
    assert (made.picture(), len(made.paused())) == ("a 1 / b 1", 1)


def test_a_window_that_opens_in_a_grace_period_pauses_only_necessary_victims() -> None:
    made = world("pool t 4\na 1 of t\nb 2 of t\nb runs 4 of 1\na queues 2 of 1\nwindow w from 2 to 60: a 2 of t")
    made.drain_ticks = 3
    for _ in range(10):
        made.tick()
    assert (made.picture(), [len(job.paused_at) for job in made.jobs.values() if job.paused_at]) == (
        "a 2 / b 2",
        [1, 1],
    )


def test_non_preemptible_work_above_a_quota_lowered_by_a_window_continues_and_does_not_grow() -> None:
    made = world("pool t 4\na 2 of t\na runs 2 of 1 fixed\na queues 1 fixed\nwindow w from 1 to 60: a 1 of t")
    made.settle()
    assert made.picture() == "a 2"
    made.end("a1")
    made.settle()
    assert made.picture() == "a 1"  # at the lowered quota; the third would be above it


# -- expanded from local time ----------------------------------------------------------------------------------------

NIGHT = When(timezone="Europe/Berlin", begins=22 * 60, ends=6 * 60)


def opening(when: When, day: datetime) -> tuple[datetime, datetime]:
    """The opening that belongs to a local day, in UTC."""
    noon = int(day.replace(hour=12, tzinfo=UTC).timestamp() * 1000)
    windows = expand([Entry(name="night", when=when, changes=())], noon, noon + 86_400_000)
    later = [window for window in windows if window.begins_at >= noon]
    begins, ends = later[0].begins_at, later[0].ends_at
    return datetime.fromtimestamp(begins / 1000, UTC), datetime.fromtimestamp(ends / 1000, UTC)


# R63
@pytest.mark.parametrize(
    ("day", "hours"),
    [
        pytest.param(datetime(2026, 1, 10), 8, id="a window over midnight"),
        pytest.param(datetime(2026, 3, 28), 7, id="the night in which clocks go forward"),
        pytest.param(datetime(2026, 10, 24), 9, id="the night in which clocks go back"),
    ],
)
def test_amounts_change_at_the_right_instant_of(day: datetime, hours: int) -> None:
    begins, ends = opening(NIGHT, day)
    assert ends - begins == timedelta(hours=hours)
    made = world("pool t 2\na 0 of t\nb 2 of t\nb runs 2 of 1\na queues 1")
    changes = (Change(owner="a", pool="t", training_milli=1000), Change(owner="b", pool="t", training_milli=1000))
    first, last = (int(at.timestamp() * 1000) for at in (begins, ends))
    windows = expand([Entry(name="night", when=NIGHT, changes=changes)], first - 86_400_000, last + 86_400_000)
    made.policy = dc.replace(made.policy, windows=windows)
    for name in ("b1", "b2"):
        made.jobs[name] = dc.replace(made.jobs[name], started_at=first - 10_000, time_limit_s=86_400)
    found = [claims_at(made, at) for at in (first - 1, first, last - 1, last)]
    assert found == [False, True, True, False]
