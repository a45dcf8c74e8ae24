"""Gangs and elastic jobs on every kind of store: the ranks of an attempt, and the count of size changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from jupyter_gpu_quota.core.model import JobTarget
from jupyter_gpu_quota.core.plan import Pause, Reserve, Resume, Start
from jupyter_gpu_quota.core.reason_codes import ReasonCode
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.core.reasons import Reason
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.commands import Refusal
from jupyter_gpu_quota.store.transactions import Store
from tests.store.worlds import KINDS, WITHIN, World, opened, placements, submit

SHRUNK = reason_from(ReasonCode.SHRUNK, (("kept_milli", 2000),))
GROWN = reason_from(ReasonCode.GROWN, (("kept_milli", 3000),))


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def elastic(world: World, *devices: str) -> None:
    """A job of two to four ranks that runs with one on each of these devices."""
    world.submit("j", ranks=4, min_ranks=2)
    world.run("j", *devices)


def resize(world: World, *devices: str, reason: Reason = SHRUNK) -> None:
    """Pause the job, and reserve these devices for its return."""
    world.committed(
        Pause(workload="j", preemptor="patty's job", grace_s=60, reason=reason),
        Reserve(workload="j", placements=placements(*devices), reason=reason),
    )


def seen(world: World) -> tuple[int | None, int | None]:
    """The fewest and the present ranks of the job in a snapshot."""
    mirror = Mirror()
    mirror.update(world.store)
    [job] = [job for job in mirror.snapshot(world.now).jobs if job.id == "j"]
    return job.min_ranks, job.held_ranks


# --- the ranks of an attempt ------------------------------------------------------------------------------------------
def test_an_elastic_job_has_the_ranks_it_was_started_with_until_they_are_gone(world: World) -> None:
    elastic(world, "d0", "d1", "d2")
    assert seen(world) == (2, 3)
    assert [rank.rank for rank in world.store.ranks("j")] == [0, 1, 2]
    resize(world, "d0", "d1")
    assert seen(world) == (2, 3), "its processes still hold three"
    world.see(*(world.gone("j", 75, asked=True, rank=rank) for rank in range(3)))
    assert (world.state("j"), seen(world)) == ("paused -> running", (2, None))


def test_the_host_resources_and_models_of_a_job_are_stored(world: World) -> None:
    world.submit("j", gpu_model="A100,H100", cpu_milli=4000, memory_mib=64_000)
    world.submit("k")
    mirror = Mirror()
    mirror.update(world.store)
    asked = {job.id: (job.gpu_models, job.cpu_milli, job.memory_mib) for job in mirror.snapshot(world.now).jobs}
    assert {name: asked[name] for name in "jk"} == {"j": (("A100", "H100"), 4000, 64_000), "k": ((), 0, 0)}


def test_a_fixed_gang_has_all_its_ranks_and_no_range_in_views(world: World) -> None:
    world.submit("j", ranks=2)
    world.run("j", "d0", "d1")
    assert seen(world) == (None, None)


def test_an_ended_job_holds_no_ranks(world: World) -> None:
    elastic(world, "d0", "d1")
    world.see(world.gone("j", 0, rank=0), world.gone("j", 0, rank=1))
    assert (world.state("j"), world.job("j").job.held_ranks) == ("succeeded -> running", None)


@pytest.mark.parametrize(
    ("ranks", "devices"),
    [
        # R9
        pytest.param(None, ("d0",), id="a gang starts with all its ranks"),
        pytest.param(2, ("d0",), id="an elastic job starts with its minimum at least"),
        pytest.param(2, ("d0", "d1", "d2", "d3"), id="and with no more than it has"),
    ],
)
def test_a_plan_with_another_number_of_ranks_is_a_bug(
    world: World, ranks: int | None, devices: tuple[str, ...]
) -> None:
    world.submit("j", ranks=3, min_ranks=ranks)
    start = Start(workload="j", attempt=1, placements=placements(*devices), borrower=False, reason=WITHIN)
    with pytest.raises(ValueError, match="3 ranks and cannot start"):
        world.commit(start)
    assert world.held() == {}


def test_ranks_have_no_gap(world: World) -> None:
    world.submit("j", ranks=3, min_ranks=2)
    parts = tuple(replace(part, rank=2 * part.rank) for part in placements("d0", "d1"))
    with pytest.raises(ValueError, match=r"the ranks \[0, 2\]"):
        world.commit(Start(workload="j", attempt=1, placements=parts, borrower=False, reason=WITHIN))


@pytest.mark.parametrize("least", [0, 5, -1])
def test_a_minimum_outside_the_ranks_is_refused(world: World, least: int) -> None:
    [answer] = world.store.record([submit("j", ranks=4, min_ranks=least)], now=world.now)
    assert isinstance(answer, Refusal) and f"min_ranks was {least}" in answer.message


def test_a_gang_runs_when_every_rank_was_begun(world: World) -> None:
    world.submit("j", ranks=2)
    world.start("j", "d0", "d1")
    world.see(world.fact("j", rank=1, started_at=world.now + 5))
    assert (world.state("j"), world.job("j").job.started_at) == ("starting -> running", world.now + 5)
    world.see(world.fact("j", rank=0, started_at=world.now + 9))
    assert (world.state("j"), world.job("j").job.started_at) == ("running -> running", world.now + 5)
    assert world.audited().count("job.running j") == 1


# --- a change of size -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reason", [SHRUNK, GROWN], ids=["fewer", "more"])
def test_a_resize_is_not_counted_as_a_pause_and_its_devices_stay_reserved(world: World, reason: Reason) -> None:
    elastic(world, "d0", "d1", "d2")
    resize(world, "d0", "d1", reason=reason)
    world.see(*(world.gone("j", 75, asked=True, rank=rank) for rank in range(3)))
    record = world.job("j")
    assert (record.job.paused_at, record.pauses, record.retries_left) == ((), 0, 0)
    [kept] = world.store.changes(0).reservations
    assert (kept.workload, kept.placements) == ("j", placements("d0", "d1"))
    world.committed(Resume(workload="j", attempt=2, placements=placements("d0", "d1"), borrower=False, reason=WITHIN))
    assert (seen(world), world.store.changes(0).reservations) == ((2, 2), ())


def test_an_earlier_pause_still_counts_after_a_change_of_size(world: World) -> None:
    elastic(world, "d0", "d1")
    world.pause("j")
    world.see(world.gone("j", 75, asked=True, rank=0), world.gone("j", 75, asked=True, rank=1))
    world.run("j", "d0", "d1", "d2")
    resize(world, "d0", "d1")
    assert (len(world.job("j").job.paused_at), world.job("j").pauses) == (1, 1)


def test_an_attempt_with_fewer_ranks_ends_when_those_are_gone(world: World) -> None:
    elastic(world, "d0", "d1", "d2", "d3")
    resize(world, "d0", "d1")
    world.see(*(world.gone("j", 75, asked=True, rank=rank) for rank in range(4)))
    world.run("j", "d0", "d1")
    world.see(world.gone("j", 0, rank=0))
    assert (world.state("j"), world.held()) == ("running -> running", {"d0": 1000, "d1": 1000})
    world.see(world.gone("j", 0, rank=1))
    assert (world.state("j"), world.held()) == ("succeeded -> running", {})


def test_a_rank_that_fails_in_a_smaller_attempt_fails_it_once(world: World) -> None:
    world.submit("j", ranks=4, min_ranks=2, retries=3)
    world.run("j", "d0", "d1")
    world.see(world.gone("j", -9, rank=1))
    world.stop("j", JobTarget.FAILED)
    world.see(world.gone("j", -15, rank=0, asked=True))
    assert (world.state("j"), world.job("j").retries_left) == ("queued -> running", 2)


# --- ranks that lose each other while they leave ----------------------------------------------------------------------
# R56
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param((75, 0), (1, 5), "paused -> running", id="the other was gone, and it broke"),
        pytest.param((-15, 0), (1, 5), "paused -> running", id="the other took SIGTERM as it is"),
        pytest.param((75, 5), (1, 0), "paused -> running", id="it broke, and was seen before the other"),
        pytest.param((75, 5), (1, -1), "failed -> paused", id="it broke before anybody was to leave"),
        pytest.param((3, 0), (1, 5), "failed -> paused", id="both broke"),
    ],
)
@pytest.mark.parametrize("asked", [True, False], ids=["had heard", "had not heard yet"])
def test_a_rank_that_fails_after_its_peer_obeyed_the_pause(
    world: World, first: tuple[int, int], second: tuple[int, int], expected: str, asked: bool
) -> None:
    world.submit("j", ranks=2)
    world.run("j", "d0", "d1")
    world.pause("j")
    (status, at), (other_status, other_at) = first, second
    one = replace(world.gone("j", status, asked=True, rank=0), ended_at=world.now + at)
    two = replace(world.gone("j", other_status, asked=asked, rank=1), ended_at=world.now + other_at)
    world.see(one, two)
    assert world.state("j") == expected
    assert [rank.exit_status for rank in world.store.ranks("j")] == [status, other_status], "what was seen stays"


# --- a database of an earlier release ---------------------------------------------------------------------------------
RENAMED_COLUMNS = {"gpu_model": "gpu_models"}
"""Columns of the first schema that are called otherwise now."""


def test_a_database_without_elastic_jobs_is_brought_up_to_date(tmp_path: Path) -> None:
    with opened("sqlite", tmp_path) as store:
        world = World(store)
        world.submit("j", ranks=2)
        world.run("j", "d0", "d1")
    old = tmp_path / "old.sqlite"
    _first_schema(old)
    _copy(tmp_path / "store.sqlite", old)
    opened_again = open_store(f"sqlite:///{old}")
    record = opened_again.job("j")
    assert record is not None
    assert (record.job.ranks, record.job.min_ranks, record.job.held_ranks) == (2, None, None)
    [answer] = opened_again.record([submit("k", ranks=4, min_ranks=2)], now=world.now)
    assert not isinstance(answer, Refusal)
    assert (known := opened_again.job("k")) is not None and known.job.min_ranks == 2
    assert isinstance(opened_again.audit_verify(), int)
    opened_again.close()


def _first_schema(path: Path) -> None:
    engine, config = create_engine(f"sqlite:///{path}"), Config()
    config.set_main_option("script_location", "jupyter_gpu_quota:store/migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()


def _name_now(column: str) -> str:
    return RENAMED_COLUMNS.get(column, column)


def _copy(new: Path, old: Path) -> None:
    """The rows of a new database in an old one's columns, which are fewer."""
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.execute("ATTACH ? AS new", (str(new),))
        tables = connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            if table == "alembic_version":
                continue
            known = {row[1] for row in connection.execute(f"PRAGMA new.table_info({table})")}
            named = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
            columns = [name for name in named if _name_now(name) in known]
            into, present = (", ".join(f"[{name}]" for name in names) for names in (columns, map(_name_now, columns)))
            connection.execute(f"DELETE FROM main.{table}")
            connection.execute(f"INSERT INTO main.{table} ({into}) SELECT {present} FROM new.{table}")
        widths = {len(connection.execute(f"PRAGMA {side}.table_info(jobs)").fetchall()) for side in ("main", "new")}
    assert len(widths) == 2, "the old one has fewer columns"
