"""What a preview warns of: ceilings and limits below what runs, now and while windows are open that open later."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jupyter_gpu_quota.api.quota_edits.ceilings import MAX_LISTED, ceiling_edits
from jupyter_gpu_quota.core.model import (
    Amounts,
    Change,
    Department,
    Job,
    JobState,
    Notebook,
    NotebookState,
    Policy,
    Project,
    Snapshot,
    Window,
)
from tests.api.world import QUOTA, service_world
from tests.patience import cpu_s


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


NOON, NIGHT, MORNING = at("2027-01-15T12:00"), at("2027-01-15T20:00"), at("2027-01-16T06:00")


def window(name: str, begins_at: int = NIGHT, ends_at: int = MORNING, **amounts: object) -> Window:
    change = Change(owner="vision", pool="train", **amounts)  # type: ignore[arg-type]
    return Window(name=name, begins_at=begins_at, ends_at=ends_at, changes=(change,))


def policy(*windows: Window, **amounts: object) -> Policy:
    row = Amounts(**{"training_milli": 1000, "notebook_milli": 1000, **amounts})  # type: ignore[arg-type]
    vision = Project(name="vision", department="sight", amounts={"train": row})
    return Policy(
        revision=1,
        pools=("train",),
        departments=(Department(name="sight", amounts={"train": Amounts(training_milli=4000)}),),
        projects=(vision,),
        windows=windows,
    )


def warnings_of(old: Policy, new: Policy, now: int = NOON) -> list[str]:
    """What is said while bob runs two jobs of one GPU each and a notebook of a half."""
    jobs = tuple(
        Job(
            id=f"j{n}",
            project="vision",
            user="bob",
            pool="train",
            gpu_milli=1000,
            submitted_at=0,
            state=JobState.RUNNING,
        )
        for n in range(2)
    )
    notebook = Notebook(
        id="n",
        user="bob",
        project="vision",
        pool="train",
        gpu_milli=500,
        state=NotebookState.BOOKED,
        requested_at=0,
    )
    snapshot = Snapshot(version=1, now=now, nodes=(), devices=(), jobs=jobs, notebooks=(notebook,), allocations=())
    return list(ceiling_edits(snapshot, old, new, str.title))


JOBS = "The jobs of Bob have 2 GPU of vision in pool train, and its ceiling for each user's jobs becomes"
SLICE = "The notebooks of Bob have 0.5 GPU of vision in pool train, and its ceiling for each user's notebooks becomes"
LIMIT = "vision has 2.5 GPU in use in pool train, and its limit becomes"
RUN_ON, GOES_ON = (
    "they continue, and nothing more starts above that.",
    "running work continues, and nothing more starts above that.",
)
TONIGHT = "while nights is open, from 2027-01-15T20:00:00Z"
LATER = at("2027-02-01T00:00")


@pytest.mark.parametrize(
    ("old", "new", "now", "said"),
    [
        pytest.param(
            policy(),
            policy(window("nights", user_jobs_milli=1000)),
            NOON,
            [f"{JOBS} 1 {TONIGHT}: {RUN_ON}"],
            id="a window that opens tonight lowers the ceiling for each user's jobs",
        ),
        pytest.param(
            policy(),
            policy(window("nights", user_notebook_milli=250)),
            NOON,
            [f"{SLICE} 0.25 {TONIGHT}: {RUN_ON}"],
            id="a window that opens tonight lowers the ceiling for each user's notebooks",
        ),
        pytest.param(
            policy(),
            policy(window("nights", limit_milli=2000)),
            NOON,
            [f"{LIMIT} 2 {TONIGHT}: {GOES_ON}"],
            id="a window that opens tonight lowers the limit",
        ),
        pytest.param(
            policy(),
            policy(window("nights", limit_milli=2000)),
            NIGHT,
            [f"{LIMIT} 2 while nights is open: {GOES_ON}"],
            id="a window that is open lowers the limit",
        ),
        pytest.param(
            policy(window("nights", limit_milli=2000)),
            policy(window("nights", limit_milli=2000)),
            NOON,
            [],
            id="a window that was there already",
        ),
        pytest.param(
            policy(window("nights", limit_milli=2200)),
            policy(window("nights", limit_milli=2000)),
            NOON,
            [f"{LIMIT} 2 {TONIGHT}: {GOES_ON}"],
            id="a window that was there already lowers it further",
        ),
        pytest.param(
            policy(),
            policy(window("nights", limit_milli=2500)),
            NOON,
            [],
            id="a limit of exactly what is in use",
        ),
        pytest.param(
            policy(limit_milli=4000),
            policy(window("nights", limit_milli=2200), limit_milli=2000),
            NOON,
            [f"{LIMIT} 2: {GOES_ON}"],
            id="the usual limit is lowered, and a window raises it a little again",
        ),
        pytest.param(
            policy(limit_milli=4000),
            policy(window("nights", limit_milli=1500), limit_milli=2000),
            NOON,
            [f"{LIMIT} 2: {GOES_ON}", f"{LIMIT} 1.5 {TONIGHT}: {GOES_ON}"],
            id="the usual limit is lowered, and a window lowers it further",
        ),
        pytest.param(
            policy(limit_milli=4000),
            policy(window("nights", training_milli=500), limit_milli=2000),
            NOON,
            [f"{LIMIT} 2: {GOES_ON}"],
            id="a window that leaves the limit alone says nothing of it again",
        ),
        pytest.param(
            policy(limit_milli=4000),
            policy(window("nights", NOON, NIGHT, limit_milli=3000), limit_milli=2000),
            NOON,
            [f"{LIMIT} 2 from 2027-01-15T20:00:00Z on: {GOES_ON}"],
            id="the usual limit is lowered, and a window keeps it up for now",
        ),
        pytest.param(
            policy(window("campaign", NIGHT, LATER, limit_milli=4000), limit_milli=2600),
            policy(window("campaign", MORNING, LATER, limit_milli=2000), limit_milli=2600),
            NOON,
            [f"{LIMIT} 2 while campaign is open, from 2027-01-16T06:00:00Z: {GOES_ON}"],
            id="a window is moved and lowered, shown as it becomes",
        ),
        pytest.param(
            policy(),
            policy(window("nights", limit_milli=2000), window("exam", MORNING, LATER, limit_milli=1000)),
            NOON,
            [
                f"{LIMIT} 2 {TONIGHT}: {GOES_ON}",
                f"{LIMIT} 1 while exam is open, from 2027-01-16T06:00:00Z: {GOES_ON}",
            ],
            id="two windows lower it, each by its own",
        ),
        pytest.param(
            policy(),
            policy(
                window("nights", limit_milli=2000),
                window("nights", NIGHT + 86_400_000, MORNING + 86_400_000, limit_milli=2000),
            ),
            NOON,
            [f"{LIMIT} 2 {TONIGHT}: {GOES_ON}"],
            id="a window that opens every night is listed once",
        ),
        pytest.param(
            policy(),
            policy(window("nights", limit_milli=1000), window("exam", limit_milli=2000)),
            NOON,
            [f"{LIMIT} 2 while exam is open, from 2027-01-15T20:00:00Z: {GOES_ON}"],
            id="of two that are open together the last one wins",
        ),
        pytest.param(
            policy(),
            policy(window("over", at("2026-01-01T00:00"), at("2026-02-01T00:00"), limit_milli=1000)),
            NOON,
            [],
            id="a window that is over",
        ),
        pytest.param(
            policy(),
            policy(window("nights", user_jobs_milli=0), user_jobs_milli=5000),
            NOON,
            [
                "vision has a training quota of 1 GPU in pool train, and its ceiling for each user's jobs is 0"
                f" {TONIGHT}: no job starts.",
                f"{JOBS} 0 {TONIGHT}: {RUN_ON}",
            ],
            id="a window leaves quota to nobody",
        ),
        pytest.param(
            policy(training_milli=0, user_jobs_milli=0),
            policy(window("nights", training_milli=2000), training_milli=0, user_jobs_milli=0),
            NOON,
            [
                "vision has a training quota of 2 GPU in pool train, and its ceiling for each user's jobs is 0"
                f" {TONIGHT}: no job starts."
            ],
            id="a window brings quota that a ceiling of 0 leaves to nobody",
        ),
        pytest.param(
            policy(),
            policy(
                Window(
                    name="nights",
                    begins_at=NIGHT,
                    ends_at=MORNING,
                    changes=(Change(owner="sight", pool="train", department=True, limit_milli=2000),),
                )
            ),
            NOON,
            [f"department sight has 2.5 GPU in use in pool train, and its limit becomes 2 {TONIGHT}: {GOES_ON}"],
            id="a window lowers the limit of the department",
        ),
    ],
)
def test_an_amount_lowered_below_the_use_is_reported_with_its_window(
    old: Policy, new: Policy, now: int, said: list[str]
) -> None:
    assert warnings_of(old, new, now) == said


def test_a_limited_number_of_windows_is_listed() -> None:
    steps = [window(f"w{n}", NIGHT + n, NIGHT + n + 1, limit_milli=2000 - n) for n in range(MAX_LISTED + 5)]
    assert len(warnings_of(policy(), policy(*steps))) == MAX_LISTED


NIGHTS = """\
calendar:
  - name: nights
    when: {dates: [2099-01-01/2099-12-31], timezone: UTC}
    projects: {vision: {train: {limit: 1, training: 1}}}
"""


def test_preview_and_apply_warn_about_a_window_that_opens_later(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.run(world.services.store_view.refresh())
        jobs = [world.submit("bob")["id"] for _ in range(2)]
        world.step()
        for job in jobs:
            world.see_running(job)
        world.run(world.services.store_view.refresh())
        world.services.store_view.now = lambda: at("2097-12-01T00:00")
        [warning] = world.post("quota/preview", "ann", {"text": QUOTA + NIGHTS}).json["warnings"]
        assert warning.startswith("vision has 2 GPU in use in pool train, and its limit becomes 1 while nights is open")
        assert ", from 2099-01-01T00:00:00Z: running work continues" in warning
        assert world.put_quota(QUOTA + NIGHTS).json["warnings"] == [warning]
        world.services.store_view.now = lambda: at("2099-02-01T00:00")
        assert world.post("quota/preview", "ann", {"text": QUOTA + NIGHTS}).json["warnings"] == [], "nothing is changed"


def test_windows_with_thousands_of_overlaps_are_checked_quickly_for_many_users() -> None:
    hour, kinds = 3_600_000, ("user_jobs_milli", "limit_milli")
    windows = tuple(
        window(f"w{entry:02}", NOON + hours * hour, NOON + (hours + 7) * hour, **{kinds[entry % 2]: 500 + entry})
        for entry in range(40)
        for hours in range(entry, 6000, 31 + entry)
    )
    jobs = tuple(
        Job(
            id=f"j{n}",
            project="vision",
            user=f"u{n:02}",
            pool="train",
            gpu_milli=1000,
            submitted_at=0,
            state=JobState.RUNNING,
        )
        for n in range(60)
    )
    snapshot = Snapshot(version=1, now=NOON, nodes=(), devices=(), jobs=jobs)
    before = time.process_time()
    assert len(ceiling_edits(snapshot, policy(), policy(*windows), str)) == 2 * MAX_LISTED
    nothing = policy(*windows, limit_milli=9000)
    lower = replace(nothing, windows=tuple(replace(one, name=f"{one.name} late") for one in windows))
    ceiling_edits(snapshot, nothing, lower, str)
    assert time.process_time() - before < cpu_s(2), "each user was checked with all of them again: that took 4 s"


def test_an_unchanged_calendar_is_compared_once_for_all_users() -> None:
    day = 86_400_000
    windows = tuple(
        window(f"w{entry}", NOON + days * day + entry, NOON + days * day + entry + day // 2, user_jobs_milli=500)
        for entry in range(100)
        for days in range(730)
    )
    jobs = tuple(
        Job(
            id=f"j{n}",
            project="vision",
            user=f"u{n}",
            pool="train",
            gpu_milli=1000,
            submitted_at=0,
            state=JobState.RUNNING,
        )
        for n in range(10_000)
    )
    snapshot = Snapshot(version=1, now=NOON, nodes=(), devices=(), jobs=jobs)
    before = time.process_time()
    assert ceiling_edits(snapshot, policy(*windows), policy(*windows), str) == ()
    assert time.process_time() - before < cpu_s(3), "both calendars were compared for each person: that took 10 s"


def test_quota_without_users_is_found_quickly_among_thousands_of_windows() -> None:
    hour = 3_600_000
    windows = tuple(
        window(f"w{entry:02}", NOON + hours * hour, NOON + (hours + 7) * hour, user_jobs_milli=0, limit_milli=1000)
        for entry in range(40)
        for hours in range(entry, 24_000, 31 + entry)
    )
    nobody = policy(*windows, training_milli=0)
    before = time.process_time()
    assert warnings_of(nobody, nobody) == []
    assert time.process_time() - before < cpu_s(1.5), "all windows were laid over each other each time: that took 2 s"


def test_an_unchanged_calendar_is_not_reported_with_a_shorter_look_ahead(tmp_path: Path) -> None:
    text = QUOTA + NIGHTS.replace("dates: [2099-01-01/2099-12-31], ", 'from: "20:00", to: "06:00", days: [sat], ')
    with service_world(tmp_path) as world:
        jobs = [world.submit("bob")["id"] for _ in range(2)]
        world.step()
        for job in jobs:
            world.see_running(job)
        assert world.put_quota(text).status == 200
        begins_at = world.services.store_view.now()
        world.services.store_view.now = lambda: begins_at + 30 * 86_400_000
        assert world.post("quota/preview", "ann", {"text": text + "# reviewed\n"}).json["warnings"] == []
