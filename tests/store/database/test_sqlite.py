"""Faults of a database file: full disk, lock, read-only, lost or newer file, and kills at any moment."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, event

from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.plan import Start
from jupyter_gpu_quota.store.database import migrate
from jupyter_gpu_quota.store.database.migrate import NewerDatabase
from jupyter_gpu_quota.store.database.schema import metadata
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import JobFilter, Page, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import Recorded
from jupyter_gpu_quota.store.transactions import Store
from tests.patience import Stopwatch
from tests.store.database.kills import kill_again_and_again
from tests.store.worlds import T0, WITHIN, World, placements, submit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def world(path: Path) -> Iterator[World]:
    with closing(open_store(url_of(path), busy_timeout_ms=50)) as store:
        yield World(store)


@pytest.fixture
def patient(path: Path) -> Iterator[World]:
    """A world whose threads wait for each other, also when the machine stalls while one of them writes."""
    with closing(open_store(url_of(path), busy_timeout_ms=60_000)) as store:
        yield World(store)


def engine_of(store: Store) -> Any:
    return store._rows._engine  # type: ignore[attr-defined]


# --- opening --------------------------------------------------------------------------------------------------------
def test_a_restart_keeps_every_record(world: World, path: Path) -> None:
    world.submit("j", secrets={"TOKEN": "x"})
    world.store.close()
    again = open_store(url_of(path))
    record = again.job("j")
    assert record is not None and record.job.state is JobState.QUEUED and again.secrets("j") == {"TOKEN": "x"}
    again.close()


def test_only_the_owner_can_read_the_file(world: World, path: Path) -> None:
    world.submit("j")
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_secret_is_removed_from_the_file_when_its_job_has_ended(world: World, path: Path) -> None:
    world.submit("j", secrets={"TOKEN": "hunter2" * 100})
    assert "store.sqlite-wal" in holding(b"hunter2", path)
    world.change("j", "cancel")
    assert not holding(b"hunter2", path)


def holding(value: bytes, path: Path) -> list[str]:
    """The database's files in which a value stands."""
    return [file.name for file in path.parent.glob(f"{path.name}*") if value in file.read_bytes()]


def test_a_deleted_secret_is_removed_from_the_files_without_old_readers(world: World, path: Path) -> None:
    world.submit("j", secrets={"TOKEN": "hunter2" * 100})
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        with Stopwatch() as watch:
            world.change("j", "cancel")
        assert watch.seconds < 1.0, "a reader made a writer wait"
        assert holding(b"hunter2", path)
    world.submit("another")
    assert not holding(b"hunter2", path)


def test_retention_removes_the_deleted_rows_of_a_killed_process_from_the_files(world: World, path: Path) -> None:
    world.submit("j", secrets={"TOKEN": "hunter2" * 100})
    world.store._rows.settle = lambda: True  # type: ignore[method-assign]
    world.change("j", "cancel")
    assert holding(b"hunter2", path)
    successor = open_store(url_of(path), busy_timeout_ms=50)
    successor.forget(now=0, jobs_ended_before=0, samples_before=0)
    assert not holding(b"hunter2", path)
    successor.close()


def test_the_migrations_are_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(f"sqlite:///{path}").close()
    monkeypatch.setattr(migrate.ScriptDirectory, "from_config", None)
    open_store(f"sqlite:///{path}").close()


def test_connections_have_the_documented_settings(world: World) -> None:
    with engine_of(world.store).connect() as connection:
        pragmas = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    assert pragmas == ["wal", 2, 1, 50]


def test_the_migrations_make_the_tables_that_the_code_uses(path: Path) -> None:
    open_store(url_of(path)).close()
    engine = create_engine(url_of(path))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        checks = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master WHERE sql LIKE '%CHECK%'").scalar_one()
    engine.dispose()
    assert checks == 4


def test_a_database_of_a_newer_release_is_refused_with_a_sentence(path: Path) -> None:
    open_store(url_of(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(NewerDatabase, match=r"9999.*newer release.*before the upgrade\.$") as refused:
        open_store(url_of(path))
    assert str(path) in str(refused.value)


def test_a_database_with_two_revisions_is_refused_with_a_sentence(path: Path) -> None:
    open_store(url_of(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO alembic_version VALUES ('0001')")
    with pytest.raises(StoreUnavailable, match=r"2 schema revisions .*restore a backup") as refused:
        open_store(url_of(path))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["CREATE TABLE jobs (id TEXT)"], id="a table with a name of ours"),
        pytest.param(["CREATE TABLE servers (id TEXT)"], id="a table with another name"),
        pytest.param(
            [
                "CREATE TABLE servers (id TEXT)",
                "CREATE TABLE alembic_version (version_num TEXT)",
                "INSERT INTO alembic_version VALUES ('4621fec11365')",
            ],
            id="the hub's database",
        ),
    ],
)
def test_the_database_of_another_program_is_refused_and_not_changed(path: Path, statements: list[str]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    with pytest.raises(StoreUnavailable, match=r"not a database of this service.*c\.GPUQuota\.database_url") as refused:
        open_store(url_of(path))
    assert str(path) in str(refused.value)
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
    assert found == sum(statement.startswith("CREATE") for statement in statements)


def test_two_processes_may_open_a_new_database_at_once(path: Path) -> None:
    opened = f"open_store({url_of(path)!r}, busy_timeout_ms=60_000)"
    code = f"from jupyter_gpu_quota.store.open import open_store; {opened}.close()"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="needs a file"):
        open_store(url)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="folder"):
        open_store(url_of(tmp_path / "nowhere" / "store.sqlite"))


def test_a_file_that_is_not_a_database_is_reported(path: Path) -> None:
    path.write_bytes(b"this is not a database, it is a sentence" * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        open_store(url_of(path))


# --- troubles of the disk: nothing half written, and it works again afterwards --------------------------------------
@contextmanager
def pragma_on_new_connections(store: Store, *pragmas: str) -> Iterator[None]:
    """While inside, the store's connections are made with these pragmas."""
    engine = engine_of(store)

    def set_them(connection: sqlite3.Connection, _: object) -> None:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", set_them)
    engine.dispose()
    try:
        yield
    finally:
        event.remove(engine, "connect", set_them)
        engine.dispose()


def is_unharmed(world: World, audited: list[str]) -> None:
    assert world.audited() == audited
    assert isinstance(world.store.audit_verify(), int)


def test_a_full_disk_is_reported_and_leaves_no_partial_write(world: World) -> None:
    world.submit("before")
    audited, version = world.audited(), world.store.version()
    with (
        pragma_on_new_connections(world.store, "max_page_count=1"),
        pytest.raises(StoreUnavailable, match=r"disk is full; make room"),
    ):
        world.record(*(submit(f"j{number}", name="x" * 2000) for number in range(200)))
    assert world.store.version() == version and world.store.job("j0") is None
    is_unharmed(world, audited)
    world.submit("after")


def test_a_plan_on_a_full_disk_allocates_nothing(world: World) -> None:
    for number in range(4):
        world.submit(f"j{number}", name="x" * 3000)
    with pragma_on_new_connections(world.store, "max_page_count=1"), pytest.raises(StoreUnavailable):
        for number in range(200):
            world.submit(f"filler{number}", name="x" * 3000)
            world.committed(
                *(
                    Start(
                        workload=f"j{part}", attempt=1, placements=placements(f"d{part}"), borrower=False, reason=WITHIN
                    )
                    for part in range(4)
                )
            )
    assert len(world.held()) in (0, 4)
    assert isinstance(world.store.audit_verify(), int)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"file systems cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=30)


def test_a_file_system_that_is_really_full(small_disk: Path) -> None:
    with closing(open_store(url_of(small_disk / "store.sqlite"))) as store:
        world = World(store)
        audited = world.audited()
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 1000)
        with pytest.raises(StoreUnavailable, match="disk"):
            world.record(*(submit(f"j{number}", name="x" * 2000) for number in range(20)))
        is_unharmed(world, audited)
        filler.unlink()
        world.submit("after")


def test_a_locked_database_is_reported_and_readers_continue(world: World, path: Path) -> None:
    world.submit("before")
    audited = world.audited()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            world.submit("j")
        with pytest.raises(StoreUnavailable, match="locked"):
            world.store.acquire_lease("second", clock=lambda: T0, ttl_ms=1000)
        assert world.store.job("before") is not None
        is_unharmed(world, audited)
        other.execute("ROLLBACK")
    world.submit("after")


def test_a_read_only_database_is_reported_and_readable(world: World) -> None:
    world.submit("before")
    audited = world.audited()
    with pragma_on_new_connections(world.store, "query_only=ON"):
        with pytest.raises(StoreUnavailable, match="read-only; give the service's account"):
            world.submit("j")
        is_unharmed(world, audited)
    world.submit("after")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only file")
def test_a_file_without_write_permission_is_reported(world: World, path: Path) -> None:
    world.store.close()
    path.chmod(0o400)
    with pytest.raises(StoreUnavailable):
        world.submit("j")
    path.chmod(0o600)
    world.submit("after")


def test_a_missing_database_file_is_reported_and_not_created(world: World, path: Path) -> None:
    world.submit("before")
    away = path.with_suffix(".away")
    path.rename(away)
    for call in (world.store.version, lambda: world.store.record([submit("j")], now=T0)):
        with pytest.raises(StoreUnavailable, match="no longer exists"):
            call()
    assert not path.exists()
    away.rename(path)
    world.submit("after")
    assert world.store.job("before") is not None


def test_a_restored_database_file_is_used(world: World, path: Path, tmp_path: Path) -> None:
    world.submit("before")
    backup = tmp_path / "backup.sqlite"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    world.submit("after the backup")
    engine_of(world.store).dispose()
    for leftover in tmp_path.glob("store.sqlite*"):
        leftover.unlink()
    shutil.move(backup, path)
    assert world.store.job("before") is not None
    assert world.store.job("after the backup") is None
    world.submit("after the restore")


def test_an_edited_database_does_not_verify(world: World, path: Path) -> None:
    world.submit("j")
    rows = world.store.audit_verify()
    assert isinstance(rows, int)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE audit SET actor = 'somebody else' WHERE seq = 2")
    assert "row 2" in str(world.store.audit_verify())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM audit WHERE seq = ?", (rows,))
        connection.execute("UPDATE audit SET actor = 'admin' WHERE seq = 2")
    assert f"{rows} rows were written" in str(world.store.audit_verify())


# --- several threads and processes ----------------------------------------------------------------------------------
def test_threads_write_and_read_at_once(patient: World) -> None:
    failures: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for number in range(20):
                patient.record(submit(f"{name}-{number}"))
                patient.store.changes(0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert patient.store.jobs(JobFilter(user="bob"), Page())[1] == 80
    assert isinstance(patient.store.audit_verify(), int)


def test_one_process_reads_the_writes_of_another(world: World, path: Path) -> None:
    other = open_store(url_of(path))
    seen = other.version()
    world.submit("j")
    assert [record.job.id for record in other.changes(seen).jobs] == ["j"]
    assert other.acquire_lease("other", clock=lambda: T0, ttl_ms=1000) is None
    [answer] = other.record([submit("j2")], now=T0)
    assert isinstance(answer, Recorded) and world.store.job("j2") is not None
    other.close()


def test_a_reader_has_a_consistent_view_while_a_writer_commits(world: World) -> None:
    """Each batch queues two jobs: a reader that saw one without the other saw a half-written batch."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set() and number < 200:
            world.record(submit(f"a{number}"), submit(f"b{number}"))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(40):
            kinds = Counter(record.job.id[0] for record in world.store.changes(0).jobs)
            assert kinds["a"] == kinds["b"]
    finally:
        stop.set()
        writer.join(60)


# --- kills ----------------------------------------------------------------------------------------------------------
def test_a_kill_leaves_only_complete_transactions(world: World, path: Path) -> None:
    world.store.release_lease(world.lease)
    kill_again_and_again(url_of(path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
