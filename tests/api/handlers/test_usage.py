"""GPU hours in the API: sums of whole hours, their visibility, and unknown parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.api.access.permissions import Person, may_see_project
from jupyter_gpu_quota.api.access.work_in_progress import SLOW_WORK
from jupyter_gpu_quota.api.handlers import usage
from jupyter_gpu_quota.cli import listings, main
from jupyter_gpu_quota.core.samples import DeviceSample
from jupyter_gpu_quota.hub_api import HubUsers
from jupyter_gpu_quota.store.records.commands import RequestNotebook
from jupyter_gpu_quota.store.records.rows import UsageHour
from jupyter_gpu_quota.wire import UsageView
from tests.api.world import PREFIX, QUOTA, ServiceWorld, service_world

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
BEGIN = 1_800_000_000_000 // HOUR_MS * HOUR_MS


DEPARTMENT = """\
departments:
  - {name: risk, quota: {train: {training: 2}, build: {notebook: 0.5}}}
  - {name: retail, quota: {train: {training: 2}, build: {notebook: 0.5}}}
"""
QUOTA_WITH_DEPARTMENTS = (
    QUOTA.replace("name: vision\n", "name: vision\n    department: risk\n").replace(
        "name: speech\n", "name: speech\n    department: retail\n"
    )
    + DEPARTMENT
)


class Metered:
    """Bob's job has a device for two hours; for the first of them it is read, half of the time it is busy."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world, self.now = world, BEGIN
        world.clock = lambda: self.now
        world.apply(QUOTA_WITH_DEPARTMENTS)
        self.job = str(world.submit()["id"])
        world.step()
        world.see_running(self.job)
        (part,) = world.store.changes(0).allocations
        self.device = part.device
        for minute in range(61):
            self.read(minute, 100 if minute % 2 else 0)
        self.now = BEGIN + 2 * HOUR_MS

    def read(self, minute: int, percent: int) -> None:
        self.now = BEGIN + minute * MINUTE_MS
        found = DeviceSample(
            node="node-1", device=self.device, at=self.now, utilisation_percent=percent, memory_used_mib=None,
            coverage_permille=1000, simulated=True, workloads={self.job: percent},
        )  # fmt: skip
        assert self.world.store.add_samples("node-1", minute, [found], now=self.now)

    def usage(self, who: str = "bob", **asked: str) -> list[dict[str, Any]]:
        query = "&".join(f"{name}={value}" for name, value in asked.items())
        answer = self.world.get(f"usage?{query}", who)
        assert answer.status == 200, answer.body
        return list(answer.json["items"])


@pytest.fixture
def metered(tmp_path: Path) -> Iterator[Metered]:
    with service_world(tmp_path) as world:
        world.add("lea", groups=[])
        world.add("root", admin=True, scopes=("read", "submit", "admin"))
        yield Metered(world)


def test_a_project_s_hours(metered: Metered) -> None:
    (row,) = metered.usage()
    assert (row["name"], row["allocated_milli_h"], row["simulated"]) == ("vision", 2_000, True)
    assert (row["coverage_percent"], row["used_unknown"]) == (
        49,
        None,
    )  # the last minute is written with the next reading
    assert row["allocated_milli_s"] == 2_000 * 3600
    assert row["used_milli_h"] == row["used_milli_s"] // 3600
    assert 480 <= row["used_milli_h"] <= 500 and row["utilisation_percent"] in (49, 50, 51)


@pytest.mark.parametrize("by", ["pool", "device", "workload", "job", "user", "hour", "department", "group"])
def test_the_same_hours_by_another_key(metered: Metered, by: str) -> None:
    names = {"pool": ["train"], "device": [metered.device], "workload": [metered.job], "user": ["bob"],
             "job": [metered.job], "department": ["risk"], "group": [""],
             "hour": ["2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z"]}  # fmt: skip
    rows = metered.usage(by=by)
    assert [row["name"] for row in rows] == names[by]
    assert sum(row["allocated_milli_h"] for row in rows) == 2_000


def test_the_cost_is_the_allocated_time_at_the_present_price_of_the_pool(metered: Metered) -> None:
    assert metered.usage()[0]["costs"] == []
    price = "uses: [training], cost_per_gpu_hour: {amount: 0.405, currency: EUR}}"
    metered.world.apply(QUOTA_WITH_DEPARTMENTS.replace("uses: [training]}", price, 1))
    for by in ("project", "pool", "user"):
        assert metered.usage(by=by)[0]["costs"] == [{"currency": "EUR", "amount_milli": 810}], "two hours of one GPU"


def test_an_hour_without_readings_is_unknown(metered: Metered) -> None:
    row = metered.usage(by="hour")[1]
    assert (row["used_milli_h"], row["utilisation_percent"], row["coverage_percent"]) == (None, None, 0)
    assert row["used_milli_s"] is None
    assert row["used_unknown"] == "none of its devices was read in this time"


def view(**found: Any) -> UsageView:
    plain = {"allocated_milli_h": 0, "used_milli_h": 0, "utilisation_percent": 0, "used_unknown": None}
    return UsageView.model_validate({"name": "vision", "coverage_percent": 0, "simulated": False} | plain | found)


@pytest.mark.parametrize(
    ("expected", "row"),
    [
        pytest.param(
            {"allocated_milli_s": 60_000, "used_milli_s": 90, "allocated_milli_h": 16},
            ("0.016", "<0.001", "<1 %", "<1 %"),
            id="a minute, and hardly used",
        ),
        pytest.param(
            {"allocated_milli_s": 1_200, "used_milli_s": 0, "simulated": True},
            ("<0.001 (simulated)", "0", "0 %", "<1 %"),
            id="a second, and not used at all",
        ),
        pytest.param(
            {"allocated_milli_s": 7_200_000, "used_milli_s": 3_600_000, "utilisation_percent": 50,
             "coverage_percent": 99},
            ("2", "1", "50 %", "99 %"),
            id="hours",
        ),
        pytest.param(
            {"allocated_milli_s": 60_000, "used_milli_h": None, "utilisation_percent": None, "used_unknown": "why"},
            ("0.016", "unknown", "unknown", "0 %"),
            id="a minute that nobody read",
        ),
        pytest.param(
            {"allocated_milli_h": 1_500, "used_milli_h": 250, "utilisation_percent": 16, "coverage_percent": 100},
            ("1.5", "0.25", "16 %", "100 %"),
            id="a service that tells hours alone",
        ),
    ],
)  # fmt: skip
def test_small_use_is_never_printed_as_zero(expected: dict[str, Any], row: tuple[object, ...]) -> None:
    assert listings._usage_cells(view(**expected)) == row


@pytest.mark.parametrize(
    ("who", "by", "seen"),
    [
        pytest.param("olga", "project", True, id="a member sees what their project used"),
        pytest.param("olga", "user", False, id="a member does not see what another used"),
        pytest.param("olga", "workload", False, id="nor by workload"),
        pytest.param("olga", "job", False, id="nor by job"),
        pytest.param("olga", "group", False, id="nor by a group that may be one person"),
        pytest.param("olga", "department", True, id="but the part of a department that they may see"),
        pytest.param("patty", "department", False, id="another project's member sees nothing of its department"),
        pytest.param("lea", "user", True, id="a lead does"),
        pytest.param("root", "user", True, id="an admin does"),
        pytest.param("patty", "project", False, id="another project's member sees nothing of it"),
        pytest.param("patty", "device", False, id="nor by device"),
    ],
)
def test_usage_is_limited_to_visible_work(metered: Metered, who: str, by: str, seen: bool) -> None:
    assert bool(metered.usage(who, by=by)) is seen


def read_hours(metered: Metered, monkeypatch: pytest.MonkeyPatch, who: str, by: str) -> list[UsageHour]:
    """The hours that the store returns for one sum."""
    found, usage_of = list[UsageHour](), metered.world.store.usage

    def noted(*period: int, **more: Any) -> list[UsageHour]:
        found[:] = usage_of(*period, **more)
        return found

    monkeypatch.setattr(metered.world.store, "usage", noted)
    metered.usage(who, by=by)
    monkeypatch.undo()
    return found


def former_rule(person: Person, row: UsageHour, by: str) -> bool:
    """Whether a person sees an hour, as it was decided when each hour was read for everybody."""
    if person.admin or row.user == person.id:
        return True
    return person.roles.get(row.project) == "lead" or (
        by not in usage.PERSONAL and may_see_project(person, row.project)
    )


@pytest.mark.parametrize("by", usage.KEYS)
def test_the_hours_that_are_read_are_those_that_the_reader_may_see(
    metered: Metered, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    world = metered.world
    for who, more in (("olga", {}), ("lea", {}), ("patty", {"gpu": "0.5"}), ("leo", {"gpu": "0.5"})):
        world.submit(who, **more)
    world.step()
    metered.now += 90 * MINUTE_MS
    hours = world.store.usage(BEGIN - 24 * HOUR_MS, BEGIN + 4 * HOUR_MS, now=metered.now)
    assert {row.project for row in hours} == {"vision", "speech"} and len({row.user for row in hours}) == 5
    for who in ("bob", "olga", "lea", "patty", "leo", "outsider", "audrey", "ann", "root"):
        person = world.run(world.services.people.by_name(who))
        assert person is not None
        expected = {row for row in hours if former_rule(person, row, by)}
        assert set(read_hours(metered, monkeypatch, who, by)) == expected, who


def test_only_the_hours_that_are_asked_for(metered: Metered) -> None:
    (row,) = metered.usage(**{"from": "2027-01-15T09:00:00Z", "to": "2027-01-15T10:00:00Z"})
    assert row["allocated_milli_h"] == 1_000
    assert (row["begins_at"], row["ends_at"]) == ("2027-01-15T09:00:00Z", "2027-01-15T10:00:00Z")


@pytest.mark.parametrize("edge", ["08:00:00Z", "08:00:01Z", "08:30:00Z", "08:59:59Z", "09:00:00Z"])
def test_each_hour_is_in_one_of_two_consecutive_periods(metered: Metered, edge: str) -> None:
    first = metered.usage(**{"from": "2027-01-15T07:00:00Z", "to": f"2027-01-15T{edge}"})
    second = metered.usage(**{"from": f"2027-01-15T{edge}", "to": "2027-01-15T11:00:00Z"})
    assert sum(row["allocated_milli_h"] for row in (*first, *second)) == 2_000
    assert sum(row["started_jobs"] for row in (*first, *second)) == 1


def test_work_is_counted_in_each_group_of_its_owner(metered: Metered) -> None:
    metered.world.hub.users["bob"].groups[:] = ["vision-team", "night-shift"]
    rows = metered.usage(by="group")
    assert [(row["name"], row["allocated_milli_h"]) for row in rows] == [("night-shift", 2_000), ("vision-team", 2_000)]


def test_the_groups_are_requested_once_for_several_reports(metered: Metered) -> None:
    metered.world.services.people.accounts._clock = lambda: 0.0
    metered.world.hub.asked.clear()
    assert metered.usage(by="group") == metered.usage(by="group")
    assert metered.world.hub.asked.count("users") == 1


def test_many_hours_are_summed_in_threads(metered: Metered, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, names = dict[str, str](), ("_seen_hours", "summed", "_csv_file")

    def noted(name: str, compute: Callable[..., Any], *given: Any) -> Any:
        threads[name] = threading.current_thread().name.rpartition("_")[0]
        return compute(*given)

    for name in names:
        monkeypatch.setattr(usage, name, partial(noted, name, getattr(usage, name)))
    assert metered.world.get("usage?csv=1").status == 200
    assert threads == dict.fromkeys(names, "compute-slow")


def test_one_user_has_few_sums_of_usage_in_progress(metered: Metered) -> None:
    user = metered.world.store.user_id("bob", now=metered.now)
    counts = metered.world.services.in_progress._counts
    counts[SLOW_WORK.reason, user] = SLOW_WORK.most
    refused = metered.world.get("usage")
    assert (refused.status, refused.json["reason"]) == (429, "too_many_computations")
    assert "bob has 6 dry runs, explanations, previews or sums of usage in progress" in refused.json["message"]
    counts[SLOW_WORK.reason, user] -= 1
    assert metered.usage() and counts[SLOW_WORK.reason, user] == SLOW_WORK.most - 1


def test_without_the_hub_s_groups_no_sum_by_group_is_shown(metered: Metered, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hub_users() -> HubUsers:
        return HubUsers(users=frozenset({"bob"}), groups_of=None)

    monkeypatch.setattr(metered.world.services.people.accounts, "hub_users", hub_users)
    refused = metered.world.get("usage?by=group")
    assert (refused.status, refused.json["message"]) == (
        503,
        "GET /services/gpu-quota/api/v1/usage could not be answered: the hub does not show its groups to this service's"
        " token, which lacks the scope read:users:groups; an admin of the hub must grant it.",
    )


def test_a_wait_is_from_the_submit_to_the_first_start(metered: Metered) -> None:
    world = metered.world
    metered.now = BEGIN + 2 * HOUR_MS
    waiting = str(world.submit()["id"])
    metered.now += 90_000
    world.step()
    metered.now += 30_000
    world.see_running(waiting)
    metered.now += MINUTE_MS
    assert waits(metered.usage(by="job")) == {metered.job: (1, 0, 0), waiting: (1, 120, 120)}
    assert waits(metered.usage()) == {"vision": (2, 60, 120)}
    later = metered.usage(**{"from": "2027-01-15T09:00:00Z", "to": "2027-01-15T10:00:00Z"})
    assert waits(later) == {"vision": (0, None, None)}


def waits(rows: list[dict[str, Any]]) -> dict[str, tuple[int | None, ...]]:
    return {row["name"]: (row["started_jobs"], row["wait_mean_s"], row["wait_max_s"]) for row in rows}


def test_a_notebook_is_not_a_job(metered: Metered) -> None:
    metered.world.record(
        RequestNotebook(
            notebook="N1", user=metered.world.store.user_id("bob", now=metered.now), server="", project="vision",
            pool="build", gpu_milli=250,
        )
    )  # fmt: skip
    metered.world.step()
    metered.now += MINUTE_MS
    assert [row["name"] for row in metered.usage(by="job")] == [metered.job]
    assert [row["name"] for row in metered.usage(by="workload")] == sorted([metered.job, "N1"])


@pytest.mark.parametrize(
    "query",
    ["by=colour", "from=yesterday", "from=2027-01-15T09:00:00",
     "from=2027-01-16T00:00:00Z&to=2027-01-15T00:00:00Z", "from=2026-01-01T00:00:00Z",
     "from=2027-01-15T09:01:00Z&to=2027-01-15T09:59:00Z"],
    ids=["a key that there is not", "no instant", "no time zone", "the wrong order", "over a month", "no whole hour"],
)  # fmt: skip
def test_invalid_queries_are_refused(metered: Metered, query: str) -> None:
    refused = metered.world.get(f"usage?{query}")
    assert (refused.status, refused.json["reason"]) == (400, "invalid")


# --- on the command line --------------------------------------------------------------------------------------------
CSV_HEADER = (
    "by,name,begins_at,ends_at,allocated_milli_s,used_milli_s,utilisation_percent,coverage_percent,used_unknown,"
    "started_jobs,wait_mean_s,wait_max_s,simulated,cost,job_name"
)


def printed(metered: Metered, *words: str) -> str:
    url = f"http://127.0.0.1:{metered.world.port}{PREFIX}"
    done = CliRunner().invoke(main, ["usage", "--url", url, "--token", "token-lea", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("by", [*listings.USAGE_KEYS])
def test_every_key_is_a_table_of_80_columns(metered: Metered, by: str) -> None:
    metered.world.hub.users["bob"].groups[:] = ["the-group-of-all-who-look-at-pictures-at-night"]
    lines = printed(metered, "--by", by).splitlines()
    assert lines[0].split() == [by.upper(), "GPU", "HOURS", "USED", "HOURS", "UTILISED", "KNOWN"]
    assert len(lines) > 1 and max(map(len, lines)) <= 80


def test_a_wide_table_has_the_waits(metered: Metered) -> None:
    header, row = printed(metered, "--wide").splitlines()
    assert header.split()[-6:] == ["STARTED", "MEAN", "WAIT", "MAX", "WAIT", "COST"]
    assert row.split()[-6:] == ["1", "0", "s", "0", "s", "-"]


def test_csv_has_the_same_header_for_every_key_and_no_zero_for_what_is_unknown(metered: Metered) -> None:
    header, first, second = printed(metered, "--by", "hour", "--csv", "--from", "2027-01-15T08:00:00Z").splitlines()
    assert header == CSV_HEADER
    assert second == (
        "hour,2027-01-15T09:00:00Z,2027-01-15T08:00:00Z,2027-01-15T10:00:00Z,3600000,,,0,"
        "none of its devices was read in this time,0,,,True,,"
    )
    assert first.split(",")[4] == "3600000" and first.split(",")[9:] == ["1", "0", "0", "True", "", ""]
    empty = printed(metered, "--csv", "--by", "job", "--from", "2027-01-10T08:00:00Z", "--to", "2027-01-11T08:00:00Z")
    assert empty == f"{CSV_HEADER}\n"


def test_a_job_is_listed_by_the_end_of_its_id_and_its_name(metered: Metered) -> None:
    assert metered.usage(by="job")[0]["job_name"] == "python train.py"
    assert printed(metered, "--by", "job").splitlines()[1].startswith(f"{metered.job[-8:]} python train.py ")
    assert printed(metered, "--by", "job", "--csv").splitlines()[1].endswith(",python train.py")


def test_the_file_of_the_api_has_the_bytes_of_the_command(metered: Metered) -> None:
    file = metered.world.get("usage?by=job&csv=1", "lea")
    assert file.headers["content-type"] == "text/csv; charset=utf-8"
    assert file.headers["content-disposition"] == 'attachment; filename="usage-by-job_2027-01-14_2027-01-15.csv"'
    assert file.body.decode() == printed(metered, "--by", "job", "--csv")


def test_the_keys_of_the_command_are_those_of_the_service() -> None:
    assert set(listings.USAGE_KEYS) == set(usage.KEYS)
