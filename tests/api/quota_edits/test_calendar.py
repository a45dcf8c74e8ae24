"""What a preview says of an edit of the calendar: which amounts a window brings to whom, and when it opens next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.api.quota_edits.arithmetic import arithmetic_of_file
from jupyter_gpu_quota.api.quota_edits.calendar import MAX_LISTED, calendar_edits
from jupyter_gpu_quota.api.quota_edits.edit import Edit
from jupyter_gpu_quota.core.model import Policy, Snapshot
from jupyter_gpu_quota.messages.quota.edits import edit_sentence
from jupyter_gpu_quota.quotafile import QuotaFile
from tests.api.world import QUOTA, ServiceWorld, service_world, train_devices
from tests.patience import cpu_s

BASE = """\
version: 1
pools: [{name: big, uses: [training, notebook]}]
projects:
  - {name: fraud, quota: {big: {training: 3}}}
  - {name: churn, quota: {big: {training: 1, limit: 4}}}
"""
GROUPED = """\
version: 1
pools: [{name: big}]
departments: [{name: risk, quota: {big: {training: 3}}}]
projects: [{name: fraud, department: risk, quota: {big: {training: 1}}}]
"""
TWO_POOLS = """\
version: 1
pools: [{name: big, selector: {gpu_model: [A100]}}, {name: small}]
projects: [{name: fraud, quota: {big: {training: 3}}}]
"""
NOON = "2026-11-23T12:00"  # a Monday
NIGHT = "2026-11-23T22:00"
OPENS = "it opens next at 2026-11-23T20:00 Europe/London (2026-11-23T20:00:00Z), until 2026-11-24T06:00 Europe/London"
OPEN_NOW = (
    "it is open now, until 2026-11-24T06:00 Europe/London, and opens next at 2026-11-24T20:00 Europe/London"
    " (2026-11-24T20:00:00Z)"
)


def window(
    amounts: str = "projects: {fraud: {big: {training: 2}}}",
    when: str = 'from: "20:00", to: "06:00", timezone: Europe/London',
    name: str = "nights",
) -> str:
    return f"  - {{name: {name}, when: {{{when}}}, {amounts}}}\n"


def dated(*windows: str, base: str = BASE) -> str:
    return base + "calendar:\n" + "".join(windows) if windows else base


def read(text: str) -> QuotaFile:
    found = quotafile.parse(text)
    assert isinstance(found, QuotaFile), found
    return found


def edit_of(old: QuotaFile | None, new: QuotaFile, at: str = NOON) -> Edit:
    now = int(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()) * 1000
    nothing = Snapshot(version=1, now=now, nodes=(), devices=())
    return Edit(file=new, present=old, old=Policy(revision=0), snapshot=nothing, nodes={}, now=now)


def sentences(old: str | None, new: str, at: str = NOON) -> list[str]:
    return list(calendar_edits(edit_of(read(old) if old else None, read(new), at)))


EXAM = window(
    "projects: {fraud: {big: {training: 1}}}", "dates: [2027-01-11/2027-01-29], timezone: Europe/London", "exam"
)
ALWAYS = window("projects: {fraud: {big: {training: 0.5}}}", "timezone: Europe/London", "always")


@pytest.mark.parametrize(
    ("old", "new", "at", "said"),
    [
        pytest.param(
            dated(),
            dated(window()),
            NOON,
            [f"nights is new: {OPENS}", "nights, project fraud, pool big: training quota 3 now, 2 while it is open"],
            id="a window is added",
        ),
        pytest.param(
            dated(),
            dated(window()),
            NIGHT,
            [f"nights is new: {OPEN_NOW}", "nights, project fraud, pool big: training quota 3 now, 2 while it is open"],
            id="a window is added that is open",
        ),
        pytest.param(
            dated(window()),
            dated(),
            NOON,
            [
                f"nights is removed. Without this edit {OPENS}",
                "nights, project fraud, pool big: training quota 3 now, 2 while it was open",
            ],
            id="a window is taken out",
        ),
        pytest.param(
            dated(window()),
            dated(),
            NIGHT,
            [
                f"nights is removed. Without this edit {OPEN_NOW}",
                "nights, project fraud, pool big: training quota 2 now, 3 once this is in force",
            ],
            id="a window is taken out while it is open",
        ),
        pytest.param(
            dated(window("projects: {churn: {big: {weight: 7}}, fraud: {big: {training: 2}}}")),
            dated(window("projects: {churn: {big: {weight: 7}}, fraud: {big: {training: 3, limit: 5}}}")),
            NOON,
            [
                f"nights is changed: {OPENS}",
                "nights, project fraud, pool big: training quota 3 now, 3 instead of 2 while it is open; limit none"
                " now, 5 instead of none while it is open",
            ],
            id="one project's amounts in a window are edited: the other's are not shown",
        ),
        pytest.param(
            dated(window()),
            dated(window(when='from: "20:00", to: "07:00", timezone: Europe/Berlin')),
            NOON,
            [
                "nights is changed: it opens next at 2026-11-23T20:00 Europe/Berlin (2026-11-23T19:00:00Z), until"
                f" 2026-11-24T07:00 Europe/Berlin. Without this edit {OPENS}",
                "nights, project fraud, pool big: training quota 3 now, 2 while it is open",
            ],
            id="a window's hours and zone are edited",
        ),
        pytest.param(
            dated(),
            dated(window("departments: {risk: {big: {notebook: 0.5, per_user: {jobs: 1}}}}"), base=GROUPED),
            NOON,
            [
                f"nights is new: {OPENS}",
                "nights, department risk, pool big: notebook quota 0 once this is in force, 0.5 while it is open; jobs"
                " ceiling for each user none once this is in force, 1 while it is open",
            ],
            id="a department that is new has amounts in a window",
        ),
        pytest.param(
            dated(),
            dated(EXAM),
            NOON,
            [
                "exam is new: it opens next at 2027-01-11T00:00 Europe/London (2027-01-11T00:00:00Z), until"
                " 2027-01-30T00:00 Europe/London",
                "exam, project fraud, pool big: training quota 3 now, 1 while it is open",
            ],
            id="the days of an exam week are one opening",
        ),
        pytest.param(
            dated(),
            dated(ALWAYS),
            NOON,
            [
                "always is new: it is open now, and stays open for at least two years",
                "always, project fraud, pool big: training quota 3 now, 0.5 while it is open",
            ],
            id="a window that never closes",
        ),
        pytest.param(
            dated(),
            dated(window(when="dates: [2020-01-01], timezone: UTC")),
            NOON,
            [
                "nights is new: it does not open within two years",
                "nights, project fraud, pool big: training quota 3 now, 2 while it is open",
            ],
            id="a window whose date is over",
        ),
        pytest.param(
            dated(window()),
            dated(window(), ALWAYS),
            NIGHT,
            [
                "always is new: it is open now, and stays open for at least two years",
                "always, project fraud, pool big: training quota 2 now, 0.5 while it is open (with nights open, too)",
            ],
            id="two windows change the same amount",
        ),
        pytest.param(
            TWO_POOLS,
            dated(window("projects: {fraud: {small: {training: 2}}}"), base=TWO_POOLS),
            NOON,
            [
                f"nights is new: {OPENS}",
                "nights, project fraud, pool small: training quota 0 now, 2 while it is open; limit 0 now, none while"
                " it is open; weight 0 now, 1 while it is open",
            ],
            id="a window opens a pool in which its project has nothing",
        ),
        pytest.param(dated(window()), dated(window()), NIGHT, [], id="nothing is edited"),
        pytest.param(
            dated(window()), dated(window(), base=BASE.replace("3}", "2}")), NOON, [], id="only the usual amounts are"
        ),
        pytest.param(
            dated(window("projects: {churn: {big: {weight: 7}}, fraud: {big: {weight: 2}}}")),
            dated(window("projects: {fraud: {big: {weight: 2}}, churn: {big: {weight: 7}}}")),
            NOON,
            [],
            id="a window names its projects in another order",
        ),
    ],
)
def test_an_edit_of_the_calendar_is_shown_with_its_amounts(old: str, new: str, at: str, said: list[str]) -> None:
    assert sentences(old, new, at) == [f"Calendar {each}." for each in said]


def test_the_first_file_lists_all_of_its_windows() -> None:
    assert sentences(None, dated(window())) == [
        f"Calendar nights is new: {OPENS}.",
        "Calendar nights, project fraud, pool big: training quota 3 once this is in force, 2 while it is open.",
    ]


def test_a_change_of_the_order_of_windows_is_shown() -> None:
    assert sentences(dated(window(), ALWAYS), dated(ALWAYS, window())) == [edit_sentence("order")]


def test_of_many_amounts_the_first_are_listed_and_the_others_counted() -> None:
    many = "".join(f"  - {{name: p{n}, quota: {{}}}}\n" for n in range(100))
    amounts = ", ".join(f"p{n}: {{big: {{weight: 2}}}}" for n in range(100))
    said = sentences(BASE + many, dated(window(f"projects: {{{amounts}}}"), base=BASE + many))
    assert len(said) == 1 + MAX_LISTED + 1 and said[-1] == "The calendar changes the amounts of 60 more."


def test_the_largest_calendar_is_compared_within_seconds() -> None:
    many = "".join(f"  - {{name: p{n}, quota: {{big: {{weight: 1}}}}}}\n" for n in range(900))
    amounts = ", ".join(f"p{n}: {{big: {{weight: 2}}}}" for n in range(20))
    hours = [f'from: "{n % 24:02}:00", to: "{n % 24:02}:30", timezone: Europe/London' for n in range(100)]
    windows = [window(f"projects: {{{amounts}}}", each, f"w{n}") for n, each in enumerate(hours)]
    old, new = read(BASE + many), read(dated(*windows, base=BASE + many))
    begun = time.process_time()
    assert len(calendar_edits(edit_of(old, new))) == 100 + MAX_LISTED + 1
    assert time.process_time() - begun < cpu_s(5)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        made.run(made.services.store_view.refresh())
        yield made


def test_a_preview_in_the_api_shows_it(world: ServiceWorld) -> None:
    nights = QUOTA + "calendar:\n" + window("projects: {speech: {train: {training: 1}}}")
    head, row = world.post("quota/preview", "ann", {"text": nights}).json["calendar"]
    assert head.startswith("Calendar nights is new: it ") and " Europe/London" in head
    assert row == "Calendar nights, project speech, pool train: training quota 2 now, 1 while it is open."
    assert world.put_quota(nights).status == 200
    assert world.post("quota/preview", "ann", {"text": nights}).json["calendar"] == []
    assert (
        world.post("quota/preview", "ann", {"text": QUOTA}).json["calendar"][0].startswith("Calendar nights is removed")
    )


@pytest.mark.parametrize(("at", "refused"), [("2027-01-20T12:00", True), ("2027-01-30T12:00", False)], ids=str)
def test_only_windows_that_are_not_over_are_added_up(at: str, refused: bool) -> None:
    more = EXAM.replace("training: 1}", "training: 5}")
    now = int(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()) * 1000
    found = arithmetic_of_file(read(dated(more)), [replace(device, pool="big") for device in train_devices(4)], now)
    assert bool(found.refusals) is refused
