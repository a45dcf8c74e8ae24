"""The quota file: what is read, what it means, and what is said of everything else."""

from __future__ import annotations

import json
import re
import textwrap
import tracemalloc

import jsonschema
import pytest
import yaml

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.core.model import (
    Amounts,
    Change,
    Department,
    Device,
    History,
    Policy,
    Preemption,
    Project,
    Window,
)
from jupyter_gpu_quota.quotafile import QuotaFile

WHOLE = textwrap.dedent("""\
    version: 1
    revision: 17                     # written by export
    pools:
      - {name: big, selector: {gpu_model: [H100, A100]}, uses: [training, inference]}
      - {name: small, selector: {gpu_model: [T4]}, uses: [notebook, inference]}
      - {name: lab, selector: {node: [ws-1], gpu_model: [RTX 4090]}}
      - {name: rest}
    projects:
      - name: fraud
        priority: 60                 # of the project, in dividing the surplus
        members: {groups: [fraud-ds], users: [ann], leads: [bob]}
        quota:
          big:   {training: 2, limit: 6, weight: 2}
          small: {notebook: 0.3, training: 0.25, limit: null}
        defaults: {environment: torch-2, pool: {notebook: small, training: big, inference: small}, time_limit: 90m}
      - {name: risk, members: {users: [bob]}, quota: {big: {training: 1.125}}}
    environments:
      - {name: torch-2, python: /opt/torch-2/bin/python, projects: [fraud]}
      - {name: plain, python: /usr/bin/python3}
    policy:
      idle: {mode: report, gpu_idle_after: 20m, kernel_idle_after: 20m, when_nobody_waits: 2h, warn_for: 5m,
             keep_at_most: 3, release_after: 2h, stop_server_after: 12h, maximum_lease: null}
      preemption: {min_runtime: 10m, grace: 60s, lent_grace: 10s, max_pauses: 4, per: 24h}
      enforcement: {memory: none, compute: none}
      history: {k: 0, half_life: 2d, window: 7d}
      within_project: first_come
      tick_max: 500ms
    """)

LEAST = "version: 1\npools: []\nprojects: []\n"


def read(text: str) -> QuotaFile:
    found = quotafile.parse(text)
    assert isinstance(found, QuotaFile), found
    return found


def refused(text: str) -> list[tuple[int, str]]:
    found = quotafile.parse(text)
    assert isinstance(found, list), "the file was accepted"
    return [(error.line, error.message) for error in found]


def project(body: str) -> str:
    """A file with pool a, and one project whose keys are these lines; ``body`` begins on line 4."""
    return "version: 1\npools: [{name: a}]\nprojects:\n" + textwrap.indent(
        "- name: p\n" + textwrap.indent(body, "  "), "  "
    )


# --- what it means ------------------------------------------------------------------------------------------------
def test_the_whole_file_becomes_the_policy() -> None:
    assert read(WHOLE).policy(18) == Policy(
        revision=18,
        pools=("big", "small", "lab", "rest"),
        projects=(
            Project(
                name="fraud",
                priority=60,
                amounts={
                    "big": Amounts(training_milli=2000, limit_milli=6000, weight=2),
                    "small": Amounts(notebook_milli=300, training_milli=250),
                },
            ),
            Project(name="risk", amounts={"big": Amounts(training_milli=1125)}),
        ),
        preemption=Preemption(min_runtime_s=600, grace_s=60, lent_grace_s=10, max_pauses=4, per_s=86_400),
        within_project="first_come",
    )


def test_the_least_file_is_one() -> None:
    file = read(LEAST)
    assert file.policy(1) == Policy(revision=1)
    assert file.tick_max_ms == 1000


def test_the_rest_of_the_file_is_at_hand() -> None:
    file = read(WHOLE)
    assert file.revision == 17
    assert file.tick_max_ms == 500
    assert file.time_limit_s("fraud") == 5400
    assert file.time_limit_s("risk") == 86_400
    assert file.default_environment("fraud") == "torch-2"
    assert file.environments_of("fraud") == ("torch-2", "plain")
    assert file.environments_of("risk") == ("plain",)
    assert file.python_of("torch-2") == "/opt/torch-2/bin/python"
    assert file.python_of("gone") is None


@pytest.mark.parametrize(
    ("user", "groups", "roles"),
    [
        pytest.param("ann", [], {"fraud": "member"}, id="a named user is a member"),
        pytest.param("zoe", ["fraud-ds", "other"], {"fraud": "member"}, id="a group of the hub brings its people"),
        pytest.param(
            "bob", ["fraud-ds"], {"fraud": "lead", "risk": "member"}, id="a lead is a lead, and a member elsewhere"
        ),
        pytest.param("mallory", ["other"], {}, id="nobody else is anything"),
        pytest.param("fraud-ds", [], {}, id="a user who is called like a group is not the group"),
    ],
)
def test_membership(user: str, groups: list[str], roles: dict[str, str]) -> None:
    assert read(WHOLE).membership(user, groups) == roles


def device(model: str, node: str = "n1") -> Device:
    return Device(id="d", node=node, index=0, model=model, memory_mib=1, pool=None)


@pytest.mark.parametrize(
    ("found", "pool"),
    [
        pytest.param(device("NVIDIA H100 80GB HBM3"), "big", id="an H100 is big"),
        pytest.param(device("Tesla T4"), "small", id="a T4 is small"),
        pytest.param(device("NVIDIA GeForce RTX 4090", "ws-1"), "lab", id="model and node both match"),
        pytest.param(device("NVIDIA GeForce RTX 4090", "ws-2"), "rest", id="the node does not match"),
        pytest.param(device("NVIDIA A10"), "rest", id="A10 is no A100"),
    ],
)
def test_a_device_is_in_the_first_pool_that_takes_it(found: Device, pool: str) -> None:
    assert read(WHOLE).pool_of(found) == pool


def test_a_node_is_known_by_its_name_too() -> None:
    assert read(WHOLE).pool_of(device("RTX 4090", "01J"), "ws-1") == "lab"


def test_a_device_that_no_selector_takes_is_in_no_pool() -> None:
    file = read("version: 1\npools: [{name: a, selector: {gpu_model: [H100]}}]\nprojects: []")
    assert file.pool_of(device("Tesla T4")) is None


@pytest.mark.parametrize(
    ("body", "kind", "pool"),
    [
        pytest.param("quota: {}", "training", None, id="several pools and nothing said"),
        pytest.param("quota: {b: {training: 1}}", "training", "b", id="the only one with quota"),
        pytest.param("quota: {a: {training: 1}, b: {training: 1}}", "training", None, id="quota in both"),
        pytest.param(
            "quota: {a: {training: 1}}\ndefaults: {pool: {training: b}}", "training", "b", id="the default counts"
        ),
        pytest.param("quota: {}", "notebook", "a", id="the only pool for notebooks"),
    ],
)
def test_where_work_goes_that_names_no_pool(body: str, kind: str, pool: str | None) -> None:
    pools = "[{name: a, selector: {gpu_model: [x]}}, {name: b, uses: [training]}]"
    file = read(project(body).replace("[{name: a}]", pools))
    assert file.default_pool("p", kind) == pool  # type: ignore[arg-type]


def test_a_pool_is_for_what_it_says() -> None:
    file = read(WHOLE)
    assert file.allows("big", "training")
    assert not file.allows("big", "notebook")
    assert file.allows("rest", "notebook")
    assert not file.allows("gone", "training")


def test_amounts_are_exact() -> None:
    quota = read(project("quota: {a: {notebook: 0.1, training: 0.2, limit: 0.3}}")).projects[0].quota["a"]
    assert (quota.notebook, quota.training, quota.limit) == (100, 200, 300)


# --- departments, ceilings, history, calendar ---------------------------------------------------------------------
BANK = textwrap.dedent("""\
    version: 1
    pools:
      - {name: big, selector: {gpu_model: [H100]}, uses: [training, inference]}
      - {name: small}
    departments:
      - {name: risk, priority: 70, quota: {big: {training: 8, limit: 12, weight: 3}, small: {notebook: 2}}}
      - {name: fraud, quota: {}}
    projects:
      - name: fraud
        department: risk
        quota:
          big:   {training: 2, per_user: {jobs: 4}}
          small: {notebook: 0.5, per_user: {notebook: 0.25, jobs: null}}
      - {name: churn, department: risk, quota: {big: {training: 5.5}}}
      - {name: idle, department: fraud, quota: {small: {}}}
    calendar:
      - name: nights
        when: {from: "20:00", to: "06:00", days: [mon, tue], timezone: Europe/London, except_holidays: GB-ENG}
        projects: {fraud: {big: {training: 2.5, weight: 0}, small: {per_user: {notebook: 1}}}}
      - name: exam weeks
        when: {dates: ["2027-01-11/2027-01-29", "2027-02-02"], timezone: Europe/London}
        departments: {risk: {big: {training: 9.125, limit: 10}}}
    policy:
      history: {k: 0.125, half_life: 1d, window: 3d}
    """)
MONDAY = 1_799_625_600_000
"""2027-01-11, midnight in London."""
HOUR = 3_600_000


def drain(instant: str) -> str:
    """The bank with a drain deadline, on line 25."""
    return bank("window: 3d}", f"window: 3d}}\n  drain_by: '{instant}'")


@pytest.mark.parametrize("instant", ["2000-01-01T00:00:00Z", "1999-12-31T18:00:00-06:00", "2100-12-31T23:59:59Z"])
def test_the_first_and_last_instants_that_are_taken_are_stored_as_they_are_read(instant: str) -> None:
    file = read(drain(instant))
    document = file.as_kept()
    assert not isinstance(document, str), document
    assert QuotaFile.from_document(document) == file


def test_a_file_that_would_not_be_read_back_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    file = read(BANK).model_copy(update={"revision": 7})
    assert file.as_kept() == file.to_document()
    monkeypatch.setattr(QuotaFile, "to_document", lambda self: {"version": 1, "pools": [], "projects": []})
    assert file.as_kept() == "the file would be read back from the database as another one"
    monkeypatch.setattr(QuotaFile, "to_document", lambda self: {"version": 1, "pools": []})
    assert "would not be read back" in str(file.as_kept())


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


def test_a_policy_that_looks_back_knows_the_windows_of_the_past() -> None:
    later = MONDAY + 8 * 24 * HOUR
    now, back = (read(BANK.replace("k: 0.125", k)).policy(3, later).windows for k in ("k: 0", "k: 1"))
    assert min(window.begins_at for window in back) <= later - 3 * 24 * HOUR < min(w.begins_at for w in now)


def bank(old: str, new: str) -> str:
    assert old in BANK
    return BANK.replace(old, new, 1)


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
        pytest.param(bank("name: fraud, quota", "name: risk, quota"), 7, "risk stands twice", id="two of one name"),
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
            bank("window: 3d}", "window: 3d}\n  drain_by: 2027-01-31"), 25, "2027-01-31 is no instant; write one",
            id="a drain deadline without a time of day",
        ),
        pytest.param(
            bank("window: 3d}", "window: 3d}\n  drain_by: 18:00"), 25, "write \"18:00\"",
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
        pytest.param(bank("k: 0.125", "k: 0.0625"), 24, "'0.0625' is no k", id="a k with four decimals"),
        pytest.param(bank("k: 0.125", "k: 10.001"), 24, "from 0 to 10", id="a k above ten"),
        pytest.param(bank("k: 0.125", "k: -1"), 24, "from 0 to 10", id="a k below zero"),
        pytest.param(bank("half_life: 1d", "half_life: 0s"), 24, "0 leaves no past to count", id="no half-life"),
        pytest.param(bank("window: 3d", "window: 0"), 24, "0 leaves no past to count", id="no window of the past"),
        pytest.param(bank('"20:00"', "20:00"), 18, 'write "20:00"', id="an hour without quotes"),
        pytest.param(bank('"06:00"', '"6:00"'), 18, "no time of day", id="an hour of one digit"),
        pytest.param(bank('"06:00"', '"25:00"'), 18, "no time of day", id="an hour that no day has"),
        pytest.param(bank('"20:00"', '"24:00"'), 18, 'begins at "00:00"', id="a window that begins at midnight"),
        pytest.param(bank(', to: "06:00"', ""), 18, "when has from alone", id="a beginning without an end"),
        pytest.param(bank("[mon, tue]", "[monday]"), 18, "none of", id="a day by its whole name"),
        pytest.param(bank("[mon, tue]", "[]"), 18, "at least 1", id="no day at all"),
        pytest.param(
            bank("Europe/London, except", "Europe/Londn, except"), 18, "did you mean Europe/London?",
            id="a misspelt time zone",
        ),
        pytest.param(bank("timezone: Europe/London, e", "e"), 18, "has no timezone, and needs it", id="no time zone"),
        pytest.param(bank("GB-ENG", "GB-EGN"), 18, "did you mean GB-ENG?", id="a misspelt part of a country"),
        pytest.param(bank("GB-ENG", "gb-eng"), 18, "did you mean GB-ENG?", id="a region in small letters"),
        pytest.param(bank("GB-ENG", "Narnia"), 18, "holidays of 'Narnia' are not known", id="a country that is none"),
        pytest.param(bank("GB-ENG", "NO"), 18, 'write "NO"', id="Norway without quotes"),
        pytest.param(bank("2027-01-29", "2027-01-02"), 21, "ends before it begins", id="dates in the wrong order"),
        pytest.param(bank("2027-01-29", "2027-01-32"), 21, "no day 2027-01-32", id="a day that no month has"),
        pytest.param(bank("2027-01-29", "2027-1-29"), 21, "no date", id="a date of another form"),
        pytest.param(bank("{training: 9.125, limit: 10}", "{limit: null}"), 22, "changes nothing", id="no limit"),
        pytest.param(bank("{training: 9.125, limit: 10}", "{}"), 20, "changes nothing", id="a window without amounts"),
        pytest.param(bank("{risk: {big: {training: 9", "{rissk: {big: {training: 9"), 22, "did you mean risk?",
                     id="a window for a department that is not there"),
        pytest.param(bank("small: {per_user: {n", "smal: {per_user: {n"), 19, "did you mean small?",
                     id="a window for a pool that is not there"),
        pytest.param(bank("{fraud: {big: {training: 2.5", "{frad: {big: {training: 2.5"), 19, "did you mean fraud?",
                     id="a window for a project that is not there"),
        pytest.param(bank("big: {training: 2.5", "big: {notebook: 2.5"), 19, "add notebook to them",
                     id="notebooks at night in a pool for training"),
        pytest.param(bank("name: exam weeks", "name: nights"), 20, "nights stands twice", id="two windows of one name"),
    ],
)  # fmt: skip
def test_departments_and_calendars_are_refused_at_their_line(text: str, line: int, words: str) -> None:
    found = refused(text)
    assert any(at == line and words in message for at, message in found), found


def test_a_department_and_a_project_may_have_the_same_name() -> None:
    assert {"fraud"} == {d.name for d in read(BANK).departments} & {p.name for p in read(BANK).projects}


WINDOW = "  - {name: n%d, when: {timezone: UTC}, projects: {p: {a: {training: 1}}}}"
EVERY_POOL = "{name: a%d, selector: {node: [node-1]}}"


def many(count: int, text: str, between: str = "\n") -> str:
    """A text so many times, with the number for ``%d``."""
    return between.join(text.replace("%d", str(number)) for number in range(count))


def pools_and(count: int, rest: str) -> str:
    return f"version: 1\npools: [{many(count, EVERY_POOL, ', ')}]\n{rest}"


CALENDAR = project("quota: {}") + "\ncalendar:\n"
DATES = f"dates: [{many(300, '2027-01-01', ', ')}], timezone"
FIFTY_QUOTAS = many(50, "a%d: {limit: 1}", ", ")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        pytest.param(CALENDAR + many(102, WINDOW), 107, "calendar: there are 102, and 100 are", id="windows"),
        pytest.param(
            pools_and(1, "projects:\n" + many(1003, "  - {name: p%d, quota: {}}")),
            1004,
            "projects: there are 1003, and 1000 are",
            id="projects",
        ),
        pytest.param(pools_and(51, "projects: []"), 2, "pools: there are 51, and 50 are", id="pools"),
        pytest.param(
            CALENDAR + many(4, WINDOW.replace("timezone", DATES)),
            10,
            "there are 1200 dates in the calendar, and 1000 are",
            id="dates",
        ),
        pytest.param(
            pools_and(50, "projects:\n" + many(101, f"  - {{name: p%d, quota: {{{FIFTY_QUOTAS}}}}}")),
            104,
            "there are 5050 quotas of projects and departments, one for each pool, and 5000 are",
            id="quotas",
        ),
        pytest.param(
            pools_and(50, "projects: [{name: p, quota: {}}]\ncalendar:\n")
            + many(41, WINDOW.replace("{a: {training: 1}}", f"{{{FIFTY_QUOTAS}}}")),
            45,
            "there are 2050 changes of quotas in the calendar, and 2000 are",
            id="changes",
        ),
    ],
)
def test_a_file_that_is_too_large_is_refused_with_line_limit_and_amount(text: str, line: int, said: str) -> None:
    assert refused(text) == [(line, f"{said} the most that a quota file may have")]


def test_a_pool_is_given_a_million_gpus_at_most() -> None:
    rows = many(11, "  - {name: p%d, quota: {a: {notebook: 100000}, b: {training: 100000}}}")
    text = f"version: 1\npools: [{{name: a, selector: {{node: [one]}}}}, {{name: b}}]\nprojects:\n{rows}"
    told = (
        "the quotas in pool {} add up to 1100000 GPUs, and 1000000 are the most that a quota file may give in one pool"
    )
    assert refused(text) == [(14, told.format("a")), (14, told.format("b"))]
    read(text.replace("{name: p10, quota: {a: {notebook: 100000}, b: {training: 100000}}}", "{name: z, quota: {}}"))


# --- what is refused ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("", 1, "is empty", id="an empty file"),
        pytest.param("# nothing\n", 1, "is empty", id="a file of comments"),
        pytest.param("- 1", 1, "keys and values", id="a list"),
        pytest.param("version: 1\npools: []", 1, "has no projects", id="a required section is missing"),
        pytest.param(LEAST.replace("1", "2"), 1, "version: 1", id="a version of the future"),
        pytest.param(LEAST.replace("1", "true"), 1, "version: 1", id="a version that is no number"),
        pytest.param(LEAST + "polices: {}", 4, "did you mean 'policy'?", id="an unknown key names the nearest"),
        pytest.param(LEAST + "xyzzy: {}", 4, "it knows version, revision, pools", id="an unknown key near nothing"),
        pytest.param(LEAST + "version: 1", 4, "stands twice", id="a key that stands twice"),
        pytest.param(LEAST + "pools: []", 4, "stands twice", id="a section that stands twice"),
        pytest.param(project("quotas: {}"), 5, "did you mean 'quota'?", id="a misspelt key of a project"),
        pytest.param(
            project("quota:\n  a:\n    trainig: 1"), 7, "did you mean 'training'?", id="a misspelt key deep inside"
        ),
        pytest.param(project("priority: 5"), 4, "projects.p has no quota", id="a project without quota"),
        pytest.param(project("quota:\n  a:\n    training: 0.0005"), 7, "up to three", id="half a milli"),
        pytest.param(project("quota:\n  a:\n    training: -1"), 7, "below zero", id="a negative amount"),
        pytest.param(project("quota:\n  a:\n    training: .nan"), 7, "no amount", id="not a number"),
        pytest.param(project("quota:\n  a:\n    training: .inf"), 7, "no amount", id="infinity"),
        pytest.param(project("quota:\n  a:\n    training: 1e9"), 7, "no amount", id="an exponent"),
        pytest.param(project("quota:\n  a:\n    training: 1000000000"), 7, "more than", id="a thousand million"),
        pytest.param(project("quota:\n  a:\n    training: [1]"), 7, "no amount", id="a list for an amount"),
        pytest.param(project("quota:\n  a:\n    training: null"), 7, "no amount", id="nothing for an amount"),
        pytest.param(project("quota:\n  a:\n    training: true"), 7, "no amount", id="a truth value for an amount"),
        pytest.param(project("quota:\n  a:\n    weight: 1.5"), 7, "3 and 2", id="a fractional weight"),
        pytest.param(project("quota:\n  a:\n    weight: -1"), 7, "greater than or equal to 0", id="a negative weight"),
        pytest.param(project("priority: 101\nquota: {}"), 5, "less than or equal to 100", id="a priority above 100"),
        pytest.param(project("priority: '50'\nquota: {}"), 5, "no whole number", id="a priority in quotes"),
        pytest.param(project("quota:\n  b: {}"), 6, "no pool b", id="quota in a pool that is not there"),
        pytest.param(
            project("quota:\n  a:\n    notebook: 1\n    training: 2\n    limit: 2.999"),
            9,
            "1 + 2 = 3",
            id="a limit below the quotas",
        ),
        pytest.param(
            project("quota: {}\ndefaults: {time_limit: 20:00}"),
            6,
            'write "20:00"',
            id="a time that YAML counts in sixties",
        ),
        pytest.param(
            project('quota: {}\ndefaults: {time_limit: "20:00"}'), 6, "no duration", id="a time of day is no duration"
        ),
        pytest.param(project("quota: {}\ndefaults: {time_limit: 0s}"), 6, "would end every job", id="no time at all"),
        pytest.param(
            project("quota: {}\ndefaults: {environment: x}"),
            6,
            "no environment x",
            id="an environment that is not there",
        ),
        pytest.param(
            project("quota: {}\ndefaults: {pool: {training: b}}"), 6, "no pool b", id="a default pool that is not there"
        ),
        pytest.param(project("quota: {}\nmembers: {users: [NO]}"), 6, 'write "NO"', id="a user called NO"),
        pytest.param(project("quota: {}\nmembers: {users: [y]}"), 6, 'write "y"', id="a user called y"),
        pytest.param(project("quota: {}\nmembers: {users: [true]}"), 6, "put quotes", id="a user called true"),
        pytest.param(project("quota: {}\nmembers: {users: [12]}"), 6, "put quotes", id="a user called 12"),
        pytest.param(project("quota: {}\nmembers: {users: [1_2]}"), 6, '"1_2"', id="a user called 1_2"),
        pytest.param(
            project("quota: {}\nmembers: {users: ann}"), 6, "a list is expected", id="one user without a list"
        ),
        pytest.param(LEAST.replace("[]\n", "[{name: NO}]\n", 1), 2, 'write "NO"', id="a pool called NO"),
        pytest.param(LEAST.replace("[]\n", "[{name: a/b}]\n", 1), 2, "characters", id="a pool with a slash"),
        pytest.param(
            LEAST.replace("[]\n", "[{name: a}, {name: a}]\n", 1), 2, "stands twice", id="two pools of one name"
        ),
        pytest.param(
            LEAST.replace("[]\n", "[{name: a}, {name: b}]\n", 1),
            2,
            "never have a device",
            id="a pool behind one that takes all",
        ),
        pytest.param(LEAST.replace("[]\n", "[{name: a, uses: [train]}]\n", 1), 2, "none of", id="a use that is none"),
        pytest.param(LEAST + "policy: {tick_max: 2s}", 4, "1s at most", id="a tick above a second"),
        pytest.param(LEAST + "policy: {within_project: fair}", 4, "none of", id="an order that is none"),
        pytest.param(LEAST + "revision: -1", 4, "greater than or equal to 0", id="a negative revision"),
        pytest.param("a: &x 1\nb: *x", 1, "anchors", id="an anchor"),
        pytest.param("a: !!python/object:os.system x", 1, "tags", id="a tag"),
        pytest.param("a: !!float 1", 1, "tags", id="even a harmless tag"),
        pytest.param("version: 1\n---\nversion: 1", 3, "second document", id="two documents"),
        pytest.param("a: b: c", 1, "not YAML", id="no YAML"),
        pytest.param("a:\n\tb: 1", 2, "not YAML", id="a tab"),
        pytest.param("a: b\n\x00", 2, "U+0000", id="a null character"),
        pytest.param("a: \ud800", 1, "U+D800", id="half a character"),
        pytest.param("? [a]\n: b", 1, "a key is a word", id="a list as a key"),
    ],
)
def test_a_file_is_refused_at_its_line(text: str, line: int, words: str) -> None:
    found = refused(text)
    assert any(at == line and words in message for at, message in found), found


@pytest.mark.parametrize(
    ("section", "words"),
    [
        pytest.param("data: [{name: transactions}]", "data cannot be enforced", id="data"),
        pytest.param("policy: {idle: {maximum_lease: 8h}}", "maximum_lease cannot be enforced", id="a maximum lease"),
    ],
)
def test_what_this_release_cannot_enforce_is_refused_by_name(section: str, words: str) -> None:
    assert [words in message for line, message in refused(LEAST + section) if line == 4] == [True]


@pytest.mark.parametrize("level", ["hardware", "driver", "mps", "policed", "cooperative", "none"])
def test_the_weakest_enforcement_that_is_accepted(level: str) -> None:
    least = read(LEAST + f"policy: {{enforcement: {{memory: {level}, compute: none}}}}").least
    assert (least.memory, least.compute) == (level, "none")
    assert least.polices == (level in ("hardware", "driver", "mps", "policed"))


def test_an_enforcement_of_no_such_name_is_refused() -> None:
    assert refused(LEAST + "policy: {enforcement: {memory: strong}}")


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("storage", "quota: {}\nstorage: {outputs: 50GiB}"),
    ],
)
def test_what_a_project_cannot_have_yet_is_refused_by_name(key: str, body: str) -> None:
    assert any(f"{key} cannot be enforced by this release" in message for _, message in refused(project(body)))


def test_the_interface_s_own_example_is_refused_for_its_later_sections_alone() -> None:
    example = LATER
    found = refused(example)
    assert {re.match(r"(\w+)", message.split(": ", 1)[1])[1] for _, message in found} == {  # type: ignore[index]
        "cost_per_gpu_hour",
        "storage",
        "image",
        "data",
    }


LATER = """\
version: 1
pools:
  - {name: big, selector: {gpu_model: [H100, A100]}, uses: [training, inference]}
  - {name: small, uses: [notebook, inference], cost_per_gpu_hour: {amount: 0.4, currency: EUR}}
departments:
  - {name: risk, priority: 50, quota: {big: {training: 8, limit: 12, weight: 1}, small: {notebook: 2, training: 1}}}
projects:
  - name: fraud
    department: risk
    quota:
      big:   {training: 2, limit: 6, weight: 2, per_user: {jobs: 4}}
    storage: {outputs: 50GiB, keep: 30d}
environments:
  - {name: torch-2, image: "registry/torch:2", python: /opt/torch-2/bin/python, projects: [fraud]}
data:
  - {name: transactions, path: /data/transactions, mount: /data/transactions, read_only: true, until: 2027-01-31}
calendar:
  - name: nights
    when: {from: "20:00", to: "06:00", days: [mon, tue], timezone: Europe/London, except_holidays: GB-ENG}
    projects: {fraud: {big: {training: 6}}}
"""


def test_every_error_is_told_at_once_in_the_order_of_lines() -> None:
    found = refused(project("priority: high\nquota: {a: {weight: 1.5, trainng: 2}}\nmembers: {users: [NO]}") + "\nx: 1")
    assert [line for line, _ in found] == [5, 6, 6, 7, 8]


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    bomb = "a: &a [x,x]\n" + "\n".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)},*{chr(97 + i)}]" for i in range(20)
    )
    assert refused(bomb) == [(1, "anchors (&name) and aliases (*name) are not read here; write the values out")]


@pytest.mark.parametrize("text", ["[" * 900_000, "{a: " * 200_000, "- " * 400_000], ids=["lists", "mappings", "dashes"])
def test_deep_nesting_ends_early(text: str) -> None:
    tracemalloc.start()
    assert any("nested deeper" in message for _, message in refused(text))
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_a_huge_file_is_not_read() -> None:
    assert "1000001 characters" in refused("#" * 1_000_001)[0][1]


def test_a_file_of_very_many_parts_is_not_read() -> None:
    assert "more than 100000 parts" in refused("[" + "a," * 200_000 + "]")[0][1]


def test_a_thousand_errors_are_not_all_told() -> None:
    many = "version: 1\npools: []\nprojects: [" + ", ".join("{name: p, quota: {}, x: 1}" for _ in range(1000)) + "]"
    assert len(refused(many)) == 100


# --- out again ----------------------------------------------------------------------------------------------------
def test_a_document_reads_back() -> None:
    file = read(WHOLE)
    document = json.loads(json.dumps(file.to_document()))
    again = QuotaFile.from_document(document)
    assert again.policy(1) == file.policy(1)
    assert again.to_document() == document
    assert "revision" not in document


@pytest.mark.parametrize("text", [WHOLE, BANK], ids=["a plain file", "departments and a calendar"])
def test_a_file_is_written_anew_and_reads_as_the_same(text: str) -> None:
    file = read(text)
    document = json.loads(json.dumps(file.to_document()))
    again = read(quotafile.text_of(file))
    assert again.to_document() == document == QuotaFile.from_document(document).to_document()
    assert again.policy(1, MONDAY) == file.policy(1, MONDAY)
    jsonschema.validate(yaml.safe_load(text), quotafile.schema())
    jsonschema.validate(document, quotafile.schema())


def test_a_document_that_is_none_raises() -> None:
    with pytest.raises(ValueError, match="no pool b"):
        QuotaFile.from_document({"version": 1, "pools": [], "projects": [{"name": "p", "quota": {"b": {}}}]})


def test_a_binary_float_is_no_amount() -> None:
    document = {"version": 1, "pools": [{"name": "a"}], "projects": [{"name": "p", "quota": {"a": {"training": 0.1}}}]}
    with pytest.raises(ValueError, match="no amount"):
        QuotaFile.from_document(document)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "version: 1 # a\nrevision: 3 # b\npools: []\nprojects: []\n",
            ("version: 1 # a\nrevision: 9 # b\npools: []\nprojects: []\n"),
            id="replaced where it stood",
        ),
        pytest.param(
            "# head\nversion: 1\npools: []\nprojects: []",
            ("# head\nrevision: 9\nversion: 1\npools: []\nprojects: []"),
            id="added, comments kept",
        ),
        pytest.param(
            "{version: 1, pools: [], projects: []}",
            ("{revision: 9, version: 1, pools: [], projects: []}"),
            id="added to a file of braces",
        ),
        pytest.param(
            "---\n  version: 1\n  pools: []\n  projects: []\n",
            ("---\n  revision: 9\n  version: 1\n  pools: []\n  projects: []\n"),
            id="added where it is indented",
        ),
        pytest.param(
            "version: 1\r\npools: []\r\nprojects: []\r\n",
            ("revision: 9\nversion: 1\r\npools: []\r\nprojects: []\r\n"),
            id="added to a file from Windows",
        ),
        pytest.param(
            "\ufeffversion: 1\npools: []\nprojects: []\n",
            ("revision: 9\nversion: 1\npools: []\nprojects: []\n"),
            id="a byte order mark goes",
        ),
    ],
)
def test_export_writes_the_revision_into_the_author_s_text(text: str, expected: str) -> None:
    assert quotafile.export(text, 9) == expected
    assert read(expected).revision == 9
    assert read(expected).policy(1) == read(text).policy(1)


def test_export_changes_nothing_else_of_the_whole_file() -> None:
    assert quotafile.export(WHOLE, 17) == WHOLE
    assert quotafile.export(WHOLE, 18) == WHOLE.replace("revision: 17", "revision: 18")


def test_a_made_file_is_written_and_reads_back() -> None:
    text = quotafile.text_of(read(WHOLE))
    assert read(text).policy(1) == read(WHOLE).policy(1)
    assert "notebook: 0.3\n" in text


# --- the schema ---------------------------------------------------------------------------------------------------
def test_the_schema_accepts_what_the_reader_accepts() -> None:
    jsonschema.validate(yaml.safe_load(WHOLE), quotafile.schema())
    jsonschema.validate(read(WHOLE).to_document(), quotafile.schema())


@pytest.mark.parametrize(
    "change",
    [
        {"polices": {}},
        {"version": 2},
        {"departments": [{"name": "x"}]},
        {"projects": [{"name": "p"}]},
        {"pools": [{"name": ""}]},
    ],
    ids=["unknown key", "another version", "departments", "no quota", "no name"],
)
def test_the_schema_refuses_what_the_reader_refuses(change: dict[str, object]) -> None:
    document = {**yaml.safe_load(LEAST), **change}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, quotafile.schema())
    assert isinstance(quotafile.parse(json.dumps(document)), list)


@pytest.mark.parametrize("told", ["30s", "13h", "0"], ids=["too short", "longer than readings are kept", "at once"])
def test_a_notice_that_cannot_be_given_is_refused(told: str) -> None:
    found = quotafile.parse(MINIMAL_IDLE.format(told))
    assert isinstance(found, list) and "from 1m to 12h" in str(found)


def test_a_busy_notice_is_that_of_the_judge() -> None:
    found = quotafile.parse(MINIMAL_IDLE.format("90m"))
    assert isinstance(found, QuotaFile) and found.idle.busy_notify_after_s == 5_400
    assert quotafile.QuotaFile.from_document(found.to_document()).idle == found.idle


MINIMAL_IDLE = """
version: 1
pools: [{{name: train}}]
projects: [{{name: vision, quota: {{train: {{training: 1}}}}}}]
policy: {{idle: {{busy_notify_after: {0}}}}}
"""
