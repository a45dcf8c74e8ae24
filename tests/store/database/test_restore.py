"""Backup and restore of an SQLite database while other connections are open: all rows or none, and a hold."""

from __future__ import annotations

import itertools
import lzma
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_gpu_quota.store.backup import Restored, backup, restore
from jupyter_gpu_quota.store.database import restore as steps
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.reads.snapshot import Mirror
from jupyter_gpu_quota.store.records.calls import Stale, StoreUnavailable
from tests.store.worlds import T0, World

RECORDED = Path(__file__).parents[1] / "recorded" / "release-0010.sqlite.xz"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def world(path: Path) -> World:
    return World(open_store(f"sqlite:///{path}", cache_rows=True))


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [*connection.iterdump()]


def test_a_backup_comes_back_while_connections_are_open(world: World, path: Path, tmp_path: Path) -> None:
    reader, mirror = open_store(f"sqlite:///{path}"), Mirror()
    world.submit("kept")
    file = tmp_path / "b.sqlite"
    backup(f"sqlite:///{path}", file)
    assert file.stat().st_mode & 0o777 == 0o600
    world.submit("lost")
    mirror.update(reader)
    version, fencing = world.store.version(), world.lease.fencing
    before = dump(path)
    kept = restore(f"sqlite:///{path}", file, now=T0).before
    assert kept is not None and dump(kept) == before, "the rows that were replaced are kept"
    for store in (reader, world.store):
        assert store.job("lost") is None and store.job("kept") is not None
    while reader.version() <= version:  # a reader that was away for long does not compare the versions alone
        world.submit(f"new-{reader.version()}")
    mirror.update(reader)
    assert "lost" not in mirror.jobs and "kept" in mirror.jobs
    hold = reader.hold()
    assert hold is not None and [each.code for each in hold.why] == ["backup_restored"]
    lease = reader.acquire_lease("next", clock=lambda: T0, ttl_ms=3_000)
    assert lease is not None and lease.fencing > fencing + 1
    assert isinstance(reader.audit_verify(), int)
    assert not [each for each in tmp_path.iterdir() if "restoring" in each.name]


@pytest.mark.parametrize("later_ms", [0, 1_000])
def test_each_restore_keeps_its_own_copy_of_the_rows_before_it(
    world: World, path: Path, tmp_path: Path, later_ms: int
) -> None:
    file, kept = tmp_path / "b.sqlite", dict[Path, list[str]]()
    backup(f"sqlite:///{path}", file)
    for number in range(3):
        world.submit(f"lost-{number}")
        before = dump(path)
        copy = restore(f"sqlite:///{path}", file, now=T0 + number * later_ms).before
        assert copy is not None
        kept[copy] = before
    assert min(each.name for each in kept) == "store.sqlite.before-restore-20270115T080000Z"
    assert len(kept) == 3 and all(dump(copy) == rows for copy, rows in kept.items())


def test_without_a_database_one_is_created_and_no_copy_is_kept(world: World, path: Path, tmp_path: Path) -> None:
    world.submit("kept")
    file, other = tmp_path / "b.sqlite", tmp_path / "other.sqlite"
    backup(f"sqlite:///{path}", file)
    assert restore(f"sqlite:///{other}", file, now=T0) == Restored(database=other, before=None)
    assert open_store(f"sqlite:///{other}").job("kept") is not None
    assert not [each for each in tmp_path.iterdir() if "before-restore" in each.name]


def test_a_leader_that_decided_on_the_rows_before_cannot_commit(world: World, path: Path, tmp_path: Path) -> None:
    world.submit("j")
    file = tmp_path / "b.sqlite"
    backup(f"sqlite:///{path}", file)
    restore(f"sqlite:///{path}", file, now=T0)
    assert isinstance(world.store.observe([], lease=world.lease, now=T0), Stale)


def test_a_backup_of_an_older_release_is_migrated(world: World, path: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.sqlite"
    old.write_bytes(lzma.decompress(RECORDED.read_bytes()))
    world.submit("lost")
    restore(f"sqlite:///{path}", old, now=T0)
    assert world.store.job("lost") is None and world.store.hold() is not None
    assert isinstance(world.store.audit_verify(), int)


def with_a_damaged_page(path: Path) -> None:
    """A database that opens: the root page of its jobs is damaged."""
    open_store(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs'").fetchone()
    data = bytearray(path.read_bytes())
    data[4096 * (root - 1) : 4096 * root] = b"x" * 4096
    path.write_bytes(data)


def damaged_database(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 40] = b"x" * (4096 * 38)
    path.write_bytes(data)


def newer_database(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


def text_file(path: Path) -> None:
    path.write_text("This is the text of a file that is not a database.\n" * 100)


@pytest.mark.parametrize("make", [with_a_damaged_page, damaged_database, newer_database, text_file])
def test_a_database_that_cannot_be_used_is_moved_aside(
    world: World, path: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    world.submit("kept")
    file, unusable = tmp_path / "b.sqlite", tmp_path / "unusable.sqlite"
    backup(f"sqlite:///{path}", file)
    make(unusable)
    data = unusable.read_bytes()
    restored = restore(f"sqlite:///{unusable}", file, now=T0)
    assert (restored.database, restored.before) == (unusable, None)
    assert restored.moved[0] == tmp_path / "unusable.sqlite.before-restore-20270115T080000Z"
    assert restored.moved[0].read_bytes() == data
    store = open_store(f"sqlite:///{unusable}")
    assert store.job("kept") is not None and store.hold() is not None
    assert unusable.stat().st_mode & 0o777 == 0o600
    assert not [each for each in tmp_path.iterdir() if "restoring" in each.name]


def test_the_log_of_a_newer_database_in_use_is_moved_with_it(world: World, path: Path, tmp_path: Path) -> None:
    file, newer = tmp_path / "b.sqlite", tmp_path / "newer.sqlite"
    backup(f"sqlite:///{path}", file)
    newer_database(newer)
    with closing(sqlite3.connect(newer, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE only_in_the_log (n)")
        before = dump(newer)
        moved = restore(f"sqlite:///{newer}", file, now=T0).moved
        assert [each.name.partition("Z")[2] for each in moved] == ["", "-shm", "-wal"]
    assert dump(moved[0]) == before
    store = open_store(f"sqlite:///{newer}")
    assert store.hold() is not None and isinstance(store.audit_verify(), int)


def test_a_database_that_cannot_be_moved_stays_with_its_log(tmp_path: Path) -> None:
    target, names = tmp_path / "store.sqlite", ("store.sqlite", "store.sqlite-wal")
    for name in names:
        (tmp_path / name).write_text(name)
    with pytest.raises(FileNotFoundError):
        steps.put_in_place(tmp_path / "none", target, T0)
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {name: name for name in names}


def test_the_next_leader_has_a_number_above_the_one_that_was_used_last(path: Path, tmp_path: Path) -> None:
    open_store(f"sqlite:///{path}").close()
    file = tmp_path / "b.sqlite"
    backup(f"sqlite:///{path}", file)
    for used, make in ((41, text_file), (71, lambda path: None)):
        make(path)
        restore(f"sqlite:///{path}", file, now=T0, above=used)
        lease = open_store(f"sqlite:///{path}").acquire_lease("next", clock=lambda: T0, ttl_ms=3_000)
        assert lease is not None and lease.fencing > used + 1, "its leader may have had the next number"


def other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (n)")


def database_without_bundles(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE bundles")


def database_without_a_column(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE bundles RENAME COLUMN digest TO other")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(lambda path: None, "There is no file", id="no file"),
        pytest.param(lambda path: path.write_text("text"), "cannot be read|is not a database", id="a text"),
        pytest.param(other_database, "is not a database of this service", id="a database of another program"),
        pytest.param(newer_database, r"b.sqlite is at schema 9999, which this release does not", id="a newer release"),
        pytest.param(damaged_database, "damaged|cannot be read", id="a damaged file"),
        pytest.param(database_without_bundles, "b.sqlite is not complete: it lacks bundles; nothing", id="no bundles"),
        pytest.param(database_without_a_column, "was not restored: .* is unchanged", id="a missing column"),
    ],
)
def test_another_file_is_refused_and_changes_nothing(
    world: World, path: Path, tmp_path: Path, make: object, why: str
) -> None:
    world.submit("j")
    file = tmp_path / "b.sqlite"
    make(file)  # type: ignore[operator]
    before = dump(path)
    with pytest.raises(StoreUnavailable, match=why):
        restore(f"sqlite:///{path}", file, now=T0)
    assert dump(path) == before
    left = [each.name for each in tmp_path.iterdir() if "restor" in each.name]
    assert not left, "neither a copy of the backup nor one of the unchanged rows"


def test_an_incomplete_backup_creates_no_database(tmp_path: Path) -> None:
    database_without_bundles(tmp_path / "b.sqlite")
    with pytest.raises(StoreUnavailable, match="it lacks bundles"):
        restore(f"sqlite:///{tmp_path}/other.sqlite", tmp_path / "b.sqlite", now=T0)
    assert not (tmp_path / "other.sqlite").exists()


def test_a_failed_restore_keeps_the_copies_of_earlier_ones(
    world: World, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.sqlite"
    backup(f"sqlite:///{path}", file)
    first = restore(f"sqlite:///{path}", file, now=T0).before
    second = restore(f"sqlite:///{path}", file, now=T0).before
    assert first is not None and second is not None and second.name == f"{first.name}-2"
    first.unlink()  # the next one has its name, with which the other begins
    monkeypatch.setattr(steps, "_replace", failing)
    with pytest.raises(StoreUnavailable, match="is unchanged"):
        restore(f"sqlite:///{path}", file, now=T0)
    assert second.exists() and not first.exists()


def failing(*_: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize(
    "make", [pytest.param(other_database, id="of another program"), pytest.param(damaged_database, id="damaged")]
)
def test_an_unreadable_database_is_not_backed_up_and_the_sentence_says_so(
    path: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(path)
    with pytest.raises(StoreUnavailable, match=r"; no backup was made\.$"):
        backup(f"sqlite:///{path}", tmp_path / "b.sqlite")
    assert not (tmp_path / "b.sqlite").exists()


def test_a_restore_of_the_database_itself_and_a_backup_over_a_file_are_refused(world: World, path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is the database itself"):
        restore(f"sqlite:///{path}", path, now=T0)
    with pytest.raises(StoreUnavailable, match="exists already"):
        backup(f"sqlite:///{path}", path)


def test_the_commands_of_postgresql_are_named() -> None:
    with pytest.raises(StoreUnavailable, match="use pg_dump"):
        backup("postgresql://h/d", Path("b"))
    with pytest.raises(StoreUnavailable, match="use pg_restore"):
        restore("postgresql://h/d", Path("b"), now=T0)


def test_a_locked_database_is_reported(
    world: World, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.sqlite"
    backup(f"sqlite:///{path}", file)
    monkeypatch.setattr(steps, "LOCK_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="was not restored"):
            restore(f"sqlite:///{path}", file, now=T0)
        other.execute("ROLLBACK")
    assert world.store.hold() is None


KILLED = """
import os, signal, sys
from pathlib import Path
from jupyter_gpu_quota.store import backup
from jupyter_gpu_quota.store.database import restore as steps

def is_step(code):
    return code.co_filename in (steps.__file__, backup.__file__) and code.co_name in (*sys.argv[3:], code.co_name)[:1]

def kill(frame, event, arg):
    if is_step(frame.f_code) and event == "line":
        kill.left -= 1
        if not kill.left:
            os.kill(os.getpid(), signal.SIGKILL)
    return kill

def restore():
    try:
        sys.settrace(kill)
        backup.restore(f"sqlite:///{sys.argv[1]}", Path(sys.argv[2]), now=1)
        os._exit(0)
    finally:
        os._exit(1)

for number in sys.stdin:
    child = os.fork()
    if not child:
        kill.left = int(number)
        restore()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Restores once for each number that it reads, in a fork that is killed at that line; writes its exit status.

Its third argument, if any, is the function whose lines count.
"""


@pytest.fixture
def restores(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[int], int]]:
    """Restores ``b.sqlite``, killed at this line, of a function if one is given; returns the exit status."""
    command = [sys.executable, "-c", KILLED, str(path), str(tmp_path / "b.sqlite"), *getattr(request, "param", ())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def restore_killed_at(line: int) -> int:
            print(line, file=process.stdin, flush=True)
            return int(process.stdout.readline())

        yield restore_killed_at


def test_a_restore_that_is_killed_at_any_line_leaves_all_rows_or_none(
    world: World, path: Path, tmp_path: Path, restores: Callable[[int], int]
) -> None:
    world.submit("kept")
    backup(f"sqlite:///{path}", tmp_path / "b.sqlite")
    world.submit("lost")
    outcomes = set()
    for line in (*range(1, 60, 6), *range(60, 200, 20), 10_000):
        status = restores(line)
        was_restored = world.store.hold() is not None
        outcomes.add(was_restored)
        assert was_restored == (world.store.job("lost") is None), "all rows or none"
        assert isinstance(world.store.audit_verify(), int)
        if was_restored:
            assert status in (0, -signal.SIGKILL)
            break
        assert status == -signal.SIGKILL
    assert outcomes == {False, True}


@pytest.mark.parametrize("restores", [("put_in_place",)], indirect=True)
def test_a_restore_that_is_killed_while_it_moves_files_loses_none_and_is_repeated(
    path: Path, tmp_path: Path, restores: Callable[[int], int]
) -> None:
    source = tmp_path / "source.sqlite"
    World(open_store(f"sqlite:///{source}")).submit("kept")
    backup(f"sqlite:///{source}", tmp_path / "b.sqlite")
    newer_database(path)
    before, statuses = dump(path), []
    for line in itertools.count(2, 3):
        statuses.append(restores(line))
        moved = tmp_path.glob("store.sqlite.before-restore-*Z")
        assert [each for each in (path, *moved) if each.exists() and dump(each) == before], "no row is lost"
        if statuses[-1] != -signal.SIGKILL:
            break
    assert len(statuses) > 3 and set(statuses) == {0, -signal.SIGKILL}
    store = open_store(f"sqlite:///{path}")
    assert store.job("kept") is not None and store.hold() is not None
