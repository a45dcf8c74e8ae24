"""Copies of a database: the one before a migration, and those of a database in use."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_gpu_quota.store.database import copies
from jupyter_gpu_quota.store.database.copies import copy_database
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import StoreUnavailable

RECORDED = Path(__file__).parents[1] / "recorded" / "release-0010.sqlite.xz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The database of release 0010."""
    path = tmp_path / "store.sqlite"
    path.write_bytes(lzma.decompress(RECORDED.read_bytes()))
    return path


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump()]


def test_a_migration_keeps_a_copy_of_the_database_as_it_was(old: Path) -> None:
    before = dump(old)
    open_store(f"sqlite:///{old}").close()
    copy = old.with_name("store.sqlite.schema-0010")
    assert dump(copy) == before != dump(old)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not copy.with_name(f"{copy.name}-wal").exists()


def test_neither_a_new_database_nor_a_migrated_one_is_copied(tmp_path: Path) -> None:
    for _ in range(2):
        open_store(f"sqlite:///{tmp_path}/new.sqlite").close()
    assert not [*tmp_path.glob("*.schema-*")]


def test_without_room_for_the_copy_the_database_is_not_migrated(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = dump(old)
    monkeypatch.setattr(copies, "copy_database", full)
    with pytest.raises(StoreUnavailable, match=r"was not migrated: a copy .*schema-0010.*No space left"):
        open_store(f"sqlite:///{old}")
    assert dump(old) == before


def test_a_copy_of_a_database_in_use_is_the_state_of_one_instant(tmp_path: Path) -> None:
    source, target = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    with closing(sqlite3.connect(source, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE rows (n)")
        writer.execute("INSERT INTO rows VALUES (1)")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO rows VALUES (2)")
        copy_database(source, target)
        writer.execute("COMMIT")
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT n FROM rows").fetchall() == [(1,)]


def test_an_interrupted_copy_leaves_no_file(tmp_path: Path) -> None:
    source, target = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    source.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        copy_database(source, target)
    assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"]
