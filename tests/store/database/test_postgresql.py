"""Faults of a database server: lost connections, held locks, frozen writers, kills and a restart."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from jupyter_gpu_quota.store.database.migrate import NewerDatabase
from jupyter_gpu_quota.store.database.schema import metadata
from jupyter_gpu_quota.store.database.sql import SqlScope
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import JobFilter, Page, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import Recorded
from tests.store.database.kills import kill_again_and_again
from tests.store.database.postgresql_server import database, server, why_missing
from tests.store.worlds import T0, World, submit

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=why_missing() or "there is one")


@pytest.fixture
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest.fixture
def world(url: str) -> Iterator[World]:
    with closing(open_store(url, busy_timeout_ms=200)) as store:
        yield World(store)


def test_the_migrations_make_the_tables_that_the_code_uses(url: str) -> None:
    engine = create_engine(url.replace("://", "+psycopg://"))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_database_with_two_revisions_is_refused_with_a_sentence(url: str) -> None:
    open_store(url).close()
    run(url, "INSERT INTO alembic_version VALUES ('0001')")
    with pytest.raises(StoreUnavailable, match=r"2 schema revisions .*restore a backup"):
        open_store(url)


def test_a_database_of_a_newer_release_is_refused_with_the_way_to_an_older_backup(url: str) -> None:
    open_store(url).close()
    run(url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(NewerDatabase, match=r"9999.*into an empty database with pg_restore, and set c\.GPUQuota\."):
        open_store(url)


def test_the_tables_of_other_programs_are_permitted_unless_one_has_a_name_of_ours() -> None:
    with database("template1") as url:
        run(url, "CREATE TABLE jobs (id TEXT)")
        with pytest.raises(StoreUnavailable, match="not a database of this service"):
            open_store(url)
        run(url, "ALTER TABLE jobs RENAME TO tasks")
        open_store(url).close()


def run(url: str, statement: str) -> None:
    engine = create_engine(url.replace("://", "+psycopg://"))
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def test_several_processes_may_open_an_empty_database_at_once() -> None:
    with database("template1") as url:
        code = f"from jupyter_gpu_quota.store.open import open_store; open_store({url!r}).close()"
        running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
        assert [process.wait(60) for process in running] == [0, 0, 0]


def test_a_held_lock_refuses_writers_and_readers_continue(world: World, url: str) -> None:
    world.submit("before")
    with closing(open_store(url)) as other, other._rows.writing():
        with pytest.raises(StoreUnavailable, match="locked"):
            world.submit("j")
        assert world.store.job("before") is not None
    world.submit("j")
    assert isinstance(world.store.audit_verify(), int)


def test_every_write_waits_for_the_disk_of_the_server(world: World) -> None:
    """The server may lose what it wrote last, and this process, which would write it again after its own start, not."""
    with world.store._rows.writing(repeatable=True) as scope:
        assert isinstance(scope, SqlScope)
        assert scope._connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


def test_two_writers_are_serialized(world: World, url: str) -> None:
    failures: list[BaseException] = []

    def write(name: str) -> None:
        try:
            with closing(open_store(url, busy_timeout_ms=60_000)) as store:
                for number in range(20):
                    [answer] = store.record([submit(f"{name}-{number}")], now=T0)
                    assert isinstance(answer, Recorded)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert world.store.jobs(JobFilter(user="bob"), Page())[1] == 40
    assert isinstance(world.store.audit_verify(), int)


def lose_connections(url: str) -> None:
    """End every session at the database of this URL, as an administrator or a failing network does."""
    name = url.rpartition("/")[2].partition("?")[0] if "host=" not in url else url.split("@/")[1].partition("?")[0]
    server().run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


def test_a_connection_lost_between_two_calls_is_replaced(world: World, url: str) -> None:
    world.submit("before")
    lose_connections(url)
    world.submit("after")
    assert world.store.job("before") is not None


def test_a_connection_lost_within_a_transaction_leaves_nothing_half_written(world: World, url: str) -> None:
    audited, version = world.audited(), world.store.version()
    with pytest.raises(StoreUnavailable), world.store._rows.writing() as scope:
        scope._connection.execute(text("UPDATE head SET version = version + 1"))  # type: ignore[attr-defined]
        lose_connections(url)
        scope._connection.execute(text("SELECT 1"))  # type: ignore[attr-defined]
    assert (world.audited(), world.store.version()) == (audited, version)
    world.submit("after")


def test_a_connection_lost_during_a_commit_says_that_the_change_may_have_been_written(world: World, url: str) -> None:
    said = "may have been written; repeat it with the same id or key"
    with pytest.raises(StoreUnavailable, match=said), world.store._rows.writing() as scope:
        scope._connection.execute(text("UPDATE head SET version = version + 1"))  # type: ignore[attr-defined]
        lose_connections(url)
    world.submit("after")


def test_a_frozen_writer_loses_its_transaction_and_others_write(world: World, url: str) -> None:
    with closing(open_store(url, busy_timeout_ms=5_000)) as other:
        with pytest.raises(StoreUnavailable), world.store._rows.writing() as scope:
            scope._connection.execute(text("SET idle_in_transaction_session_timeout = 100"))  # type: ignore[attr-defined]
            other.record([submit("j")], now=T0)
            scope._connection.execute(text("SELECT 1"))  # type: ignore[attr-defined]
        assert other.job("j") is not None


def test_every_call_ends(world: World) -> None:
    with pytest.raises(StoreUnavailable, match="too long"), world.store._rows.reading() as scope:
        scope._connection.execute(text("SET statement_timeout = 50"))  # type: ignore[attr-defined]
        scope._connection.execute(text("SELECT pg_sleep(60)"))  # type: ignore[attr-defined]
    world.submit("after")


def test_a_server_that_stopped_is_unavailable_and_works_after_its_start(world: World) -> None:
    world.submit("before")
    server().stop()
    try:
        with pytest.raises(StoreUnavailable):
            world.submit("j")
    finally:
        server().start()
    world.submit("after")
    assert world.store.job("before") is not None and world.store.job("j") is None


def test_a_kill_leaves_only_complete_transactions(world: World, url: str) -> None:
    world.store.release_lease(world.lease)
    kill_again_and_again(url)
