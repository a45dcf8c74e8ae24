"""``backup``, ``restore`` and ``recover``."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_gpu_quota.store.backup import backup, restore
from jupyter_gpu_quota.store.history_mark import MARK, HistoryMark, Mark
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.rows import Position
from jupyter_gpu_quota.wire.status import DeploymentView
from tests.cli.commands import run
from tests.client.fake_service import TOKEN, World


def test_a_backup_is_written_and_restored(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/gpu-quota.sqlite")
    store.user_id("bob", now=1)
    options, file = ("--state-dir", str(tmp_path)), str(tmp_path / "b.sqlite")
    assert run("backup", *options, file).stdout == f"The backup is {file}.\n"
    again = run("backup", *options, file)
    assert (again.exit_code, again.stderr) == (1, f"{file} exists already; give another name.\n")
    store.user_id("patty", now=2)
    done = run("restore", *options, file)
    (before,) = tmp_path.glob("gpu-quota.sqlite.before-restore-*")
    assert done.exit_code == 0 and f"; the database as it was is {before}. " in done.stdout
    with closing(sqlite3.connect(tmp_path / "gpu-quota.sqlite")) as connection:
        assert connection.execute("SELECT name FROM users").fetchall() == [("bob",)]
    assert store.hold() is not None
    store.close()


def test_a_restore_without_a_database_says_that_there_was_none(tmp_path: Path) -> None:
    for name in ("state", "other"):
        (tmp_path / name).mkdir()
    open_store(f"sqlite:///{tmp_path}/state/gpu-quota.sqlite").close()
    file = str(tmp_path / "b.sqlite")
    run("backup", "--state-dir", str(tmp_path / "state"), file)
    done = run("restore", "--state-dir", str(tmp_path / "other"), file)
    assert done.exit_code == 0 and "the database as it was" not in done.stdout
    created = f"There was no database {tmp_path}/other/gpu-quota.sqlite, so it was created"
    assert created in done.stdout and not list((tmp_path / "other").glob("*before-restore*"))


def test_a_restore_before_the_first_start_makes_the_state_folder(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/gpu-quota.sqlite").close()
    file, state = str(tmp_path / "b.sqlite"), tmp_path / "new" / "state"
    run("backup", "--state-dir", str(tmp_path), file)
    assert run("restore", "--state-dir", str(state), f"{file}.none").exit_code == 1 and not state.exists()
    done = run("restore", "--state-dir", str(state), file)
    assert done.exit_code == 0, done.output
    assert (state / "gpu-quota.sqlite").is_file() and state.stat().st_mode & 0o777 == 0o711


def test_a_restore_into_a_missing_folder_of_the_database_says_what_to_do(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/gpu-quota.sqlite").close()
    backup(f"sqlite:///{tmp_path}/gpu-quota.sqlite", tmp_path / "b")
    with pytest.raises(StoreUnavailable, match=f"There is no folder {tmp_path}/fast for the database: create it"):
        restore(f"sqlite:///{tmp_path}/fast/gpu-quota.sqlite", tmp_path / "b", now=1)


def test_a_restore_over_a_damaged_database_names_the_files_that_were_moved(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/gpu-quota.sqlite", str(tmp_path / "b.sqlite")
    open_store(url).close()
    run("backup", "--state-dir", str(tmp_path), file)
    (tmp_path / "gpu-quota.sqlite").write_text("damaged " * 1024)
    position = Position(audit_seq=0, audit_hash="")
    HistoryMark(tmp_path / MARK).write(Mark(position=position, holder="h", fencing=41))
    with pytest.raises(StoreUnavailable, match="stop the service and restore a backup"):
        open_store(url)
    done = run("restore", "--state-dir", str(tmp_path), file)
    assert done.exit_code == 0, done.output
    (kept,) = tmp_path.glob("gpu-quota.sqlite.before-restore-*Z")
    assert f"its files were moved to {kept}" in done.stdout.replace("\n", " ")
    assert kept.read_text().startswith("damaged")
    lease = open_store(url).acquire_lease("next", clock=lambda: 1, ttl_ms=1_000)
    assert lease is not None and lease.fencing > 42


def test_without_a_database_the_state_folder_is_asked_for(tmp_path: Path) -> None:
    done = run("backup", "--state-dir", str(tmp_path), str(tmp_path / "b"))
    assert (done.exit_code, "There is no database" in done.stderr) == (1, True)


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_service_that_does_not_report_its_database_is_refused(world: World, tmp_path: Path, command: str) -> None:
    for name in ("state", "fast"):
        (tmp_path / name).mkdir()
    open_store(f"sqlite:///{tmp_path}/fast/gpu-quota.sqlite").close()
    run("backup", "--state-dir", str(tmp_path / "fast"), str(tmp_path / "b"))
    world.deployment = DeploymentView(
        host=socket.gethostname(), state_dir=str(tmp_path / "state"), quota_file="", simulated_devices=[]
    )
    file = str(tmp_path / ("b" if command == "restore" else "copy"))
    done = run(command, "--url", world.url, "--token", TOKEN, file)
    assert (done.exit_code, "does not report where its database is" in done.stderr) == (1, True), done.output
    assert not list((tmp_path / "state").iterdir()) and not (tmp_path / "copy").exists()


def test_recover_shows_the_differences_and_continues(world: World) -> None:
    shown = run("recover")
    assert shown.stdout.splitlines() == [
        "The leader's fencing number is 3, and 7 was used already.",
        "Job J1 runs on d1 and is not in the database; it keeps its devices until it ends.",
        "No decision is made until `jupyter gpu-quota recover --accept`.",
    ]
    done = run("recover", "--accept", "--stop-unknown", "--json")
    assert json.loads(done.stdout)["accepted"] is True
    assert run("recover", "--stop-unknown").exit_code == 2
