"""Departments, ceilings, past use and the calendar of the quota file: their policy, and their errors."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.model import (
    Amounts,
    Change,
    Department,
    History,
    Window,
)
from jupyter_gpu_quota.quotafile import QuotaFile
from tests.quotafile.texts import BANK, HOUR, MONDAY, bank, project, read, refused


def drain(instant: str) -> str:
    """The bank with a drain deadline, on line 25."""
    return bank("window: 3d}", f"window: 3d}}\n  drain_by: '{instant}'")


@pytest.mark.parametrize("instant", ["2000-01-01T00:00:00Z", "1999-12-31T18:00:00-06:00", "2100-12-31T23:59:59Z"])
def test_the_first_and_last_instants_that_are_taken_are_stored_as_they_are_read(instant: str) -> None:
    file = read(drain(instant))
    document = file.stored_document()
    assert not isinstance(document, str), document
    assert QuotaFile.from_document(document) == file


def test_a_file_that_would_not_be_read_back_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    file = read(BANK).model_copy(update={"revision": 7})
    assert file.stored_document() == file.to_document()
    monkeypatch.setattr(QuotaFile, "to_document", lambda self: {"version": 1, "pools": [], "projects": []})
    assert file.stored_document() == "the file would be read back from the database as another one"
    monkeypatch.setattr(QuotaFile, "to_document", lambda self: {"version": 1, "pools": []})
    assert "would not be read back" in str(file.stored_document())


def test_departments_ceilings_and_history_become_the_policy() -> None:
    policy = read(BANK).policy(3)
    assert policy.departments == (
        Department(
            name="risk",
            priority=70,
            amounts={
                "big": Amounts(training_milli=8000, limit_milli=12_000, weight=3),
                "small": Amounts(notebook_milli=2000),
            },
        ),
        Department(name="fraud"),
    )
    fraud = policy.projects[0]
    assert [project.department for project in policy.projects] == ["risk", "risk", "fraud"]
    assert fraud.amounts["big"] == Amounts(training_milli=2000, user_jobs_milli=4000)
    assert fraud.amounts["small"] == Amounts(notebook_milli=500, user_notebook_milli=250)
    assert policy.history == History(k_milli=125, half_life_s=86_400, window_s=3 * 86_400)
    assert policy.windows == (), "without an instant there is no calendar"
    assert policy.drain_by_at is None


def test_a_departments_ceilings_for_one_user_and_a_drain_deadline_become_the_policy_and_come_back() -> None:
    file = read(
        BANK.replace("weight: 3}", "weight: 3, per_user: {jobs: 2, notebook: 0.5}}")
        + "  drain_by: '2027-01-31T18:00:00+01:00'\n"
    )
    policy = file.policy(3)
    assert policy.departments[0].amounts["big"].user_jobs_milli == 2000
    assert policy.departments[0].amounts["big"].user_notebook_milli == 500
    assert policy.drain_by_at == 1_801_414_800_000
    assert QuotaFile.from_document(file.to_document()) == file
    assert file.to_document()["policy"]["drain_by"] == "2027-01-31T17:00:00Z"  # type: ignore[index]


def test_the_calendar_becomes_instants_sixty_days_ahead() -> None:
    windows = read(BANK.replace("k: 0.125", "k: 0")).policy(3, MONDAY + 12 * HOUR).windows
    night = (
        Change(owner="fraud", pool="big", training_milli=2500, weight=0),
        Change(owner="fraud", pool="small", user_notebook_milli=1000),
    )
    exam = (Change(owner="risk", pool="big", department=True, training_milli=9125, limit_milli=10_000),)
    assert windows[0] == Window(name="nights", begins_at=MONDAY + 20 * HOUR, ends_at=MONDAY + 30 * HOUR, changes=night)
    days = [window for window in windows if window.name == "exam weeks"]
    assert days[0] == Window(name="exam weeks", begins_at=MONDAY, ends_at=MONDAY + 24 * HOUR, changes=exam)
    assert len(days) == 20
    assert [window.name for window in windows] == sorted((w.name for w in windows), reverse=True), "in the file's order"
    assert MONDAY + 50 * 24 * HOUR < max(window.begins_at for window in windows) < MONDAY + 61 * 24 * HOUR


# R20
@pytest.mark.parametrize("k", ["k: 0", "k: 1"])
def test_a_policy_includes_the_windows_of_the_past_that_counts(k: str) -> None:
    later, text = MONDAY + 8 * 24 * HOUR, BANK.replace("k: 0.125", k)
    texts = text, text.replace("window: 3d", "window: 1d")
    three, one = (min(window.begins_at for window in read(each).policy(3, later).windows) for each in texts)
    assert three <= later - 3 * 24 * HOUR and three < one <= later - 24 * HOUR


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param(
            bank("    department: risk\n", ""), 9, "project fraud has no department, and needs one: risk, fraud",
            id="a project without a department, where there are some",
        ),
        pytest.param(
            bank("department: risk\n", "department: rsik\n"), 10, "there is no department rsik; did you mean risk?",
            id="a misspelt department",
        ),
        pytest.param(
            project("quota: {}\ndepartment: risk"), 6, "the file has no departments",
            id="a department, where there are none",
        ),
        pytest.param(bank("name: fraud, quota", "name: risk, quota"), 7, "risk occurs twice", id="two of one name"),
        pytest.param(
            bank("training: 5.5", "training: 6.125"), 6,
            "the training quotas of its projects are 2 (fraud) + 6.125 (churn) = 8.125, and its own is 8; raise it to"
            " 8.125 at least, or lower theirs by 0.125",
            id="projects that have more than their department",
        ),
        pytest.param(
            bank("{small: {}}", "{small: {notebook: 0.5}}"), 7,
            "department fraud, pool small: the notebook quotas of its projects are 0.5 (idle), and its own is 0",
            id="a quota in a pool where the department has none",
        ),
        pytest.param(bank("limit: 12", "limit: 7.5"), 6, "0 + 8 = 8; raise it to 8", id="a limit below its quotas"),
        pytest.param(bank("small: {notebook: 2}", "smal: {}"), 6, "did you mean small?", id="a pool that is not there"),
        pytest.param(
            bank("big: {training: 8", "big: {notebook: 1, training: 8"), 6, "department risk has a notebook quota in",
            id="notebooks in a pool for training",
        ),
        pytest.param(
            bank("weight: 3}", "per_user: {job: 1}}"), 6, "did you mean 'jobs'?", id="a misspelt ceiling"
        ),
        pytest.param(
            bank("window: 3d}", "window: 3d}\n  drain_by: 2027-01-31"), 25, "2027-01-31 is not an instant; write one",
            id="a drain deadline without a time of day",
        ),
        pytest.param(
            bank("window: 3d}", "window: 3d}\n  drain_by: 18:00"), 25, "18:00 without quotes is 1080",
            id="a drain deadline without a day",
        ),
        pytest.param(
            drain("0001-01-01T00:00:00Z"), 25,
            "0001-01-01T00:00:00Z is in the year 1; write an instant from 2000 to 2100 in UTC",
            id="a drain deadline in the year 1",
        ),
        pytest.param(drain("0001-01-01T00:00:00+14:00"), 25, "in the year 1", id="an instant before the year 1"),
        pytest.param(drain("0202-01-31T18:00:00Z"), 25, "in the year 202;", id="a year with a digit too few"),
        pytest.param(drain("1999-12-31T23:59:59Z"), 25, "in the year 1999", id="the last second before the bound"),
        pytest.param(drain("2000-01-01T00:00:00+14:00"), 25, "2000 to 2100 in UTC", id="1999 in UTC"),
        pytest.param(drain("2101-01-01T00:00:00Z"), 25, "in the year 2101", id="the first second after the bound"),
        pytest.param(drain("9999-12-31T23:59:59Z"), 25, "in the year 9999", id="a drain deadline that never comes"),
        pytest.param(drain("9999-12-31T23:59:59-14:00"), 25, "in the year 9999", id="an instant after the year 9999"),
        pytest.param(
            bank('"2027-02-02"', '"0202-02-02"'), 21, "0202-02-02 is in the year 0202; write days from 2000 to 2100",
            id="a date with a digit too few",
        ),
        pytest.param(bank("2027-01-29", "2127-01-29"), 21, "in the year 2127", id="dates that end in another century"),
        pytest.param(bank("timezone: Europe/London, e", "timezone: localtime, e"), 18, "on every machine",
                     id="a time zone that depends on the machine"),
        pytest.param(bank("jobs: 4", "job: 4"), 12, "did you mean 'jobs'?", id="a misspelt ceiling"),
        pytest.param(bank("k: 0.125", "k: 0.0625"), 24, "'0.0625' is not a value of k", id="a k with four decimals"),
        pytest.param(bank("k: 0.125", "k: 10.001"), 24, "from 0 to 10", id="a k above ten"),
        pytest.param(bank("k: 0.125", "k: -1"), 24, "from 0 to 10", id="a k below zero"),
        pytest.param(bank("half_life: 1d", "half_life: 0s"), 24, "0 leaves no past to count", id="no half-life"),
        pytest.param(bank("window: 3d", "window: 0"), 24, "0 leaves no past to count", id="no window of the past"),
        pytest.param(bank('"20:00"', "20:00"), 18, 'in quotes, as "20:00"', id="an hour without quotes"),
        pytest.param(bank('"06:00"', '"6:00"'), 18, "not a time of day", id="an hour of one digit"),
        pytest.param(bank('"06:00"', '"25:00"'), 18, "not a time of day", id="an hour that no day has"),
        pytest.param(bank('"20:00"', '"24:00"'), 18, 'begins at "00:00"', id="a window that begins at midnight"),
        pytest.param(bank(', to: "06:00"', ""), 18, "when has from alone", id="a beginning without an end"),
        pytest.param(bank("[mon, tue]", "[monday]"), 18, "none of", id="a day by its whole name"),
        pytest.param(bank("[mon, tue]", "[]"), 18, "it is empty", id="no day at all"),
        pytest.param(
            bank("Europe/London, except", "Europe/Londn, except"), 18, "did you mean Europe/London?",
            id="a misspelt time zone",
        ),
        pytest.param(bank("timezone: Europe/London, e", "e"), 18, "has no timezone, which it needs", id="no time zone"),
        pytest.param(bank("GB-ENG", "GB-EGN"), 18, "did you mean GB-ENG?", id="a misspelt part of a country"),
        pytest.param(bank("GB-ENG", "gb-eng"), 18, "did you mean GB-ENG?", id="a region in small letters"),
        pytest.param(bank("GB-ENG", "Narnia"), 18, "holidays of 'Narnia' are not known", id="a country that is none"),
        pytest.param(bank("GB-ENG", "NO"), 18, 'write "NO"', id="Norway without quotes"),
        pytest.param(bank("2027-01-29", "2027-01-02"), 21, "ends before it begins", id="dates in the wrong order"),
        pytest.param(bank("2027-01-29", "2027-01-32"), 21, "no day 2027-01-32", id="a day that no month has"),
        pytest.param(bank("2027-01-29", "2027-1-29"), 21, "not a date", id="a date of another form"),
        pytest.param(bank("{training: 9.125, limit: 10}", "{limit: null}"), 22, "null is not allowed", id="no limit"),
        pytest.param(bank("{training: 9.125, limit: 10}", "{}"), 20, "changes nothing", id="a window without amounts"),
        pytest.param(bank("{risk: {big: {training: 9", "{rissk: {big: {training: 9"), 22, "did you mean risk?",
                     id="a window for a department that is not there"),
        pytest.param(bank("small: {per_user: {n", "smal: {per_user: {n"), 19, "did you mean small?",
                     id="a window for a pool that is not there"),
        pytest.param(bank("{fraud: {big: {training: 2.5", "{frad: {big: {training: 2.5"), 19, "did you mean fraud?",
                     id="a window for a project that is not there"),
        pytest.param(bank("big: {training: 2.5", "big: {notebook: 2.5"), 19, "add notebook to them",
                     id="notebooks at night in a pool for training"),
        pytest.param(bank("name: exam weeks", "name: nights"), 20, "nights occurs twice", id="two windows of one name"),
    ],
)  # fmt: skip
def test_departments_and_calendars_are_refused_at_their_line(text: str, line: int, words: str) -> None:
    found = refused(text)
    assert any(at == line and words in message for at, message in found), found


def test_a_department_and_a_project_may_have_the_same_name() -> None:
    assert {"fraud"} == {d.name for d in read(BANK).departments} & {p.name for p in read(BANK).projects}
