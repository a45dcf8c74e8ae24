"""The cached rows of the controller equal those that a new reader of the file finds, also after writes of others."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.plan import Reserve, Start
from jupyter_gpu_quota.store.database import row_cache
from jupyter_gpu_quota.store.database.row_cache import CachedRows
from jupyter_gpu_quota.store.database.sql import SqlRows, SqlScope
from jupyter_gpu_quota.store.database.tables import NODES, NodeRow, Table, TableWrites
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import JobFilter, Page, Stale, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import ForgetGone, SetInventory
from jupyter_gpu_quota.store.records.rows import Changes
from jupyter_gpu_quota.store.transactions import Store
from tests.store.database.empty_database import make_empty_database
from tests.store.worlds import DEVICES, NODE, POSTGRESQL, WITHIN, World, opened, placements, spec, submit

EVERYTHING = Page(limit=1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.sqlite"
    make_empty_database(path)
    return path


@contextmanager
def another(path: Path, *, cache_rows: bool = False) -> Iterator[Store]:
    """Another process at the same file."""
    with closing(open_store(f"sqlite:///{path}", cache_rows=cache_rows)) as store:
        yield store


@pytest.fixture
def world(path: Path) -> Iterator[World]:
    """The scheduler's, with a job that runs on two devices, one that waits, one that has ended, and a notebook."""
    with another(path, cache_rows=True) as store:
        world = World(store)
        for job in ("runs", "waits", "over"):
            world.submit(job, ranks=2 if job == "runs" else 1)
        world.run("runs", "d0", "d1")
        world.run("over", "d2")
        world.see(world.gone("over", 0))
        world.ask_notebook("n")
        yield world


@pytest.fixture
def other(path: Path) -> Iterator[World]:
    """The same world in another process, which writes without the knowledge of the controller."""
    with another(path) as store:
        other = World.__new__(World)
        other.store = store
        yield other


def as_reported(changes: Changes) -> dict[str, object]:
    """The changes, in a fixed order."""
    return {
        "version": changes.version,
        "quota": changes.quota,
        "jobs": sorted(changes.jobs, key=lambda record: record.job.id),
        "notebooks": sorted(changes.notebooks, key=lambda record: record.notebook.id),
        "nodes": sorted(changes.nodes, key=lambda node: node.id),
        "devices": sorted(changes.devices, key=lambda device: device.id),
        "allocations": sorted(changes.allocations, key=lambda allocation: allocation.id),
        "released": sorted(changes.released),
        "reservations": sorted(changes.reservations, key=lambda reservation: reservation.workload),
        "unreserved": sorted(changes.unreserved),
    }


def everything(store: Store, since: int = 0) -> dict[str, object]:
    """All remembered changes, as reported."""
    jobs, _ = store.jobs(JobFilter(), EVERYTHING)
    return {
        "live": as_reported(store.changes(0, ended=False)),
        "all": as_reported(store.changes(0)),
        "news": as_reported(store.changes(since)),
        "jobs": [store.job(record.job.id) for record in jobs],
        "ranks": [store.ranks(record.job.id) for record in jobs],
        "lease": store.lease(),
    }


def assert_as_on_disk(world: World, path: Path, since: int = 0) -> None:
    with another(path) as fresh:
        assert everything(world.store, since) == everything(fresh, since)
        with fresh._rows.reading() as scope:
            for table in (*row_cache.VERSIONED, row_cache.RANKS):
                remembered = known(world).rows[table.name]
                assert scope.get_many(table, list(remembered)) == remembered


def known(world: World) -> row_cache._Cache:
    rows = world.store._rows
    assert isinstance(rows, CachedRows)
    return rows._known


# --- others write ---------------------------------------------------------------------------------------------------
ELSEWHERE: dict[str, Callable[[World, World], object]] = {
    "a job is submitted": lambda world, other: other.store.record([submit("new")], now=world.now),
    "two jobs are submitted and one is cancelled": lambda world, other: [
        other.store.record([submit("new"), submit("newer")], now=world.now),
        _change(world, other, "new", "cancel"),
    ],
    "a running job is held": lambda world, other: _change(world, other, "runs", "hold"),
    "a waiting job is cancelled": lambda world, other: _change(world, other, "waits", "cancel"),
    "a device is gone": lambda world, other: other.store.record(
        [SetInventory(nodes=(NODE,), devices=DEVICES[:3])], now=world.now
    ),
    "a person is seen": lambda world, other: other.store.user_id("cora", now=world.now),
}


def _change(world: World, other: World, job: str, change: str) -> object:
    other.now = world.now
    return other.change(job, change)


@pytest.mark.parametrize("what", ELSEWHERE)
def test_the_changes_of_another_process_are_visible(world: World, other: World, path: Path, what: str) -> None:
    since = world.store.version()
    ELSEWHERE[what](world, other)
    for each in range(since, other.store.version() + 1):
        assert_as_on_disk(world, path, each)
    world.start("waits", "d3") if "cancelled" not in what and what != "a device is gone" else None
    assert_as_on_disk(world, path, since)


def test_a_plan_for_a_job_that_was_cancelled_by_another_process_is_stale(world: World, other: World) -> None:
    seen = world.store.version()
    _change(world, other, "waits", "cancel")
    start = Start(workload="waits", attempt=1, placements=placements("d3"), borrower=False, reason=WITHIN)
    assert isinstance(world.commit(start, seen=seen), Stale)


def test_the_facts_of_an_interim_leader_about_ranks_are_kept(world: World, path: Path) -> None:
    """Ranks carry no version: only the reign says that another wrote them."""
    world.start("waits", "d3")
    world.now += 4_000
    with another(path, cache_rows=True) as store:
        successor = World.__new__(World)
        successor.store, successor.now, successor.policy = store, world.now, world.policy
        successor.lease = successor.lead("successor")
        successor.see(successor.fact("waits", handle="4711"))
        store.release_lease(successor.lease)
    world.lease = world.lead("leader")
    world.see(world.fact("waits", handle="1"))
    assert [rank.handle for rank in world.store.ranks("waits")] == ["4711"]
    world.see(world.gone("waits", 0, handle="1"))
    assert world.state("waits") == "succeeded -> running"


def follower_of(world: World, store: Store) -> World:
    """Another process that follows the leader, and still has the row of a device that the leader deleted."""
    world.record(SetInventory(nodes=(NODE,), devices=DEVICES[:3]))
    world.now += 1
    world.record(ForgetGone(gone_before=world.now))
    follower = World.__new__(World)
    follower.store, follower.now, follower.policy = store, world.now, world.policy
    follower.store.version()
    head = world.store.version(), world.audited()
    world.record(ForgetGone(gone_before=world.now + 1))
    assert (world.store.version(), world.audited()) == head and set(known(world).rows["devices"]) == {
        (device.id,) for device in DEVICES[:3]
    }
    return follower


def test_a_process_that_becomes_the_leader_forgets_the_rows_that_the_one_before_deleted(
    world: World, path: Path
) -> None:
    with another(path, cache_rows=True) as store:
        successor = follower_of(world, store)
        world.store.release_lease(world.lease)
        successor.lease = successor.lead("successor")
        successor.record(SetInventory(nodes=(NODE,), devices=DEVICES))
        successor.start("waits", "d3")
        assert_as_on_disk(successor, path)


def test_a_change_of_a_row_that_the_leader_deleted_is_made_when_it_is_repeated(world: World, path: Path) -> None:
    with another(path, cache_rows=True) as store:
        follower = follower_of(world, store)
        with pytest.raises(StoreUnavailable, match="Rows of devices were removed"):
            follower.record(SetInventory(nodes=(NODE,), devices=DEVICES))
        assert_as_on_disk(follower, path)
        follower.record(SetInventory(nodes=(NODE,), devices=DEVICES))
        assert_as_on_disk(follower, path)
    world.start("waits", "d3")


@pytest.mark.parametrize("kind", ["sqlite", POSTGRESQL])
@pytest.mark.parametrize("known_before", [0, 1, 2])
def test_an_update_of_a_row_that_does_not_exist_writes_nothing(tmp_path: Path, kind: str, known_before: int) -> None:
    with opened(kind, tmp_path) as store:
        rows = [NodeRow(node=replace(NODE, id=f"n{number}"), changed=1) for number in range(3)]
        writes = TableWrites(table=NODES, inserts=rows[:known_before], updates=[], deletes=[])
        with store._rows.writing() as scope:
            scope.apply([writes])
        changed = [replace(row, changed=2) for row in rows[: known_before + 1]]
        with pytest.raises(StoreUnavailable, match="Rows of nodes"), store._rows.writing() as scope:
            scope.apply([replace(writes, inserts=[], updates=changed)])
        with store._rows.reading() as scope:
            assert list(scope.scan(NODES)) == rows[:known_before]


# --- another history ------------------------------------------------------------------------------------------------
def backed_up(path: Path) -> Path:
    backup = path.with_name("backup.sqlite")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    return backup


def restored(path: Path, backup: Path) -> None:
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    shutil.move(backup, path)


@pytest.mark.parametrize("written_since", [0, 1, 10], ids=["is older", "has written once", "has written more than we"])
def test_a_restored_backup_is_followed(world: World, path: Path, written_since: int) -> None:
    backup = backed_up(path)
    world.submit("after the backup")
    world.start("waits", "d3")
    restored(path, backup)
    with another(path) as store:
        for number in range(written_since):
            store.record([submit(f"after the restore {number}")], now=world.now)
    assert_as_on_disk(world, path)
    assert world.store.job("after the backup") is None


def test_a_backup_that_lacks_only_unaudited_changes_keeps_the_cache(world: World, path: Path) -> None:
    backup = backed_up(path)
    world.see(world.fact("runs", metrics={"loss": 0.5}))
    assert world.job("runs").metrics == {"loss": 0.5}
    restored(path, backup)
    assert_as_on_disk(world, path)
    assert world.job("runs").metrics == {}


# --- writing fails --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("committed", [False, True], ids=["before it is on disk", "after it is on disk"])
def test_after_a_failed_transaction_the_rows_are_those_on_disk(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    writing = SqlRows.writing

    @contextmanager
    def failing(self: SqlRows, *, repeatable: bool = False) -> Iterator[SqlScope]:
        with writing(self, repeatable=repeatable) as scope:
            yield scope
            if not committed:
                raise StoreUnavailable("the disk is full")
        raise StoreUnavailable("the answer was lost")

    def fails(step: Callable[[], object]) -> None:
        with monkeypatch.context() as broken, pytest.raises(StoreUnavailable):
            broken.setattr(SqlRows, "writing", failing)
            step()
        assert_as_on_disk(world, path)

    fails(lambda: world.start("waits", "d3"))
    assert world.state("waits") == ("starting -> running" if committed else "queued -> running")
    fails(lambda: world.see(world.fact("runs", rank=1, ended_at=world.now, exit_status=0)))
    assert [rank.exit_status for rank in world.store.ranks("runs")] == [None, 0 if committed else None]
    world.see(world.fact("runs", rank=1, ended_at=world.now, exit_status=9))
    assert [rank.exit_status for rank in world.store.ranks("runs")] == [None, 0 if committed else 9]


@pytest.mark.parametrize("failing", [table.name for table in row_cache.VERSIONED])
def test_after_a_first_load_that_failed_the_rows_are_those_on_disk(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    changed = SqlScope.changed

    def fails(self: SqlScope, table: Table[Any], since: int, *, live: bool) -> list[Any]:
        if table.name == failing:
            raise StoreUnavailable("the connection was lost")
        return changed(self, table, since, live=live)

    with another(path, cache_rows=True) as store:
        with monkeypatch.context() as broken, pytest.raises(StoreUnavailable):
            broken.setattr(SqlScope, "changed", fails)
            store.version()
        world.change("waits", "cancel")
        world.pause("runs")
        world.see(world.gone("runs", 0))
        other = World.__new__(World)
        other.store = store
        assert_as_on_disk(other, path)


# --- what is remembered, and what is not ----------------------------------------------------------------------------
def test_ended_work_is_not_cached_and_still_reported(world: World) -> None:
    ids = {key[0] for key in known(world).rows["jobs"]}
    assert ids == {"runs", "waits", "patty's job"}
    assert {key[0] for key in known(world).rows["ranks"]} == {"runs"} == set(known(world).ranks)
    assert {row.allocation.workload for row in known(world).rows["allocations"].values()} == {"runs"}
    assert world.state("over") == "succeeded -> running" and len(world.store.ranks("over")) == 1


def test_rows_removed_by_retention_are_not_reported_any_more(world: World, path: Path) -> None:
    world.committed(Reserve(workload="over", placements=placements("d3"), reason=WITHIN))
    world.ask_notebook("m", server="second")
    since = world.store.version()
    world.store.forget(now=world.now, jobs_ended_before=world.now + 1, samples_before=0)
    assert world.store.job("over") is None
    assert_as_on_disk(world, path, since)
    assert_as_on_disk(world, path, 0)
    world.submit("over")
    world.committed(Reserve(workload="over", placements=placements("d2"), reason=WITHIN))
    assert_as_on_disk(world, path, since)


def test_changes_are_reported_however_old_the_last_request_is(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_cache, "RECENT_ROWS", 3)
    monkeypatch.setattr(row_cache, "RECENT_VERSIONS", 2)
    begun = world.store.version()
    world.start("waits", "d3")
    for number in range(6):
        world.submit(f"more {number}")
    world.change("more 2", "cancel")
    world.committed(Reserve(workload="more 1", placements=placements("d3"), reason=WITHIN))
    assert known(world).recent.since > begun
    for since in range(begun - 5, world.store.version() + 1):
        assert_as_on_disk(world, path, since)


def test_news_are_kept_of_a_plan_in_many_pieces(world: World) -> None:
    since = world.store.version()
    for number in range(3 * row_cache.RECENT_VERSIONS):
        world.submit(f"more {number}")
    assert known(world).recent.since <= since


def test_of_a_row_that_changes_often_one_state_is_in_memory(world: World) -> None:
    before = len(known(world).recent._rows["jobs"])
    for change in ("hold", "release") * 3:
        world.change("waits", change)
    assert len(known(world).recent._rows["jobs"]) <= before + 1


# --- what it saves --------------------------------------------------------------------------------------------------
@contextmanager
def selects(world: World) -> Iterator[list[str]]:
    """The rows' tables that are read meanwhile, but for the head."""
    rows = world.store._rows
    assert isinstance(rows, CachedRows) and isinstance(rows._rows, SqlRows)
    read: list[str] = []

    def note(connection: object, cursor: object, statement: str, *more: object) -> None:
        if statement.startswith("SELECT") and "FROM head" not in statement:
            read.append(statement.split("FROM ")[1].split()[0])

    event.listen(rows._rows._engine, "before_cursor_execute", note)
    yield read
    event.remove(rows._rows._engine, "before_cursor_execute", note)


def test_the_cache_answers_all_reads_of_an_attempt(world: World) -> None:
    mirror = Mirror()
    mirror.update(world.store)
    actions = Start(workload="waits", attempt=1, placements=placements("d3"), borrower=False, reason=WITHIN)
    facts = [world.fact("waits", attempt=1), world.gone("waits", 0, attempt=1)]
    with selects(world) as read:
        for step in (lambda: world.committed(actions), lambda: world.see(facts[0]), lambda: world.see(facts[1])):
            step()
            mirror.update(world.store)
    assert read == []
    assert "waits" not in mirror.jobs


def test_a_mirror_that_begins_reads_no_workload_from_the_file(world: World) -> None:
    with selects(world) as read:
        Mirror().update(world.store)
        world.store.record([SetInventory(nodes=(NODE,), devices=DEVICES)], now=world.now)
    assert set(read) <= {"quota_revisions"}


def test_a_scheduler_that_begins_reads_no_work_that_is_over(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a restart depends on live rows only, not on the ended ones that retention has not removed."""
    read: list[str] = []

    for table in (row_cache.JOBS, row_cache.ALLOCATIONS):
        coding = table.coding
        counting = replace(coding, row=lambda values, coding=coding: (read.append(values[0]), coding.row(values))[1])
        monkeypatch.setitem(table.__dict__, "coding", counting)
    with another(path, cache_rows=True) as store:
        mirror = Mirror()
        mirror.update(store)
    alive = {allocation.id for allocation in mirror.allocations()}
    assert sorted(read) == sorted({"runs", "waits", "patty's job", *alive})


def test_a_shared_device_is_counted_once_when_one_job_ends(world: World, path: Path) -> None:
    for job, number in zip(("half", "other half"), itertools.count(), strict=False):
        world.record(submit(job, milli=500))
        world.start(job, "d3", milli=500)
        world.see(world.fact(job, handle=str(number + 1)))
    world.see(world.gone("half", 0, handle="1"))
    world.see(DeviceFact(device="d3", uuid="GPU-3"))
    assert_as_on_disk(world, path)
    world.record(submit("whole"))
    start = Start(workload="whole", attempt=1, placements=placements("d3"), borrower=False, reason=WITHIN)
    refused = world.commit(start)
    assert isinstance(refused, Stale) and "1500 of 1000" in refused.why
    assert spec().gpu_milli == 1000
