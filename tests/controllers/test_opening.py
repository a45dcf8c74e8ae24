"""The controllers process waits for its database; it does not end and start again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from jupyter_gpu_quota.controllers import main
from jupyter_gpu_quota.deployment.heartbeat import Heartbeat
from jupyter_gpu_quota.store.transactions import Store
from jupyter_gpu_quota.store.wakeup import WakeupSocket
from tests.patience import PATIENCE_S


class Shutdown:
    """Makes the folder of the database at the third attempt; a shutdown is requested at the sixth."""

    def __init__(self, folder: Path, ends_at: int) -> None:
        self.folder, self.ends_at, self.asked = folder, ends_at, 0

    def is_requested(self) -> bool:
        self.asked += 1
        if self.asked == 3:
            self.folder.mkdir()
        return self.asked == self.ends_at


@pytest.mark.parametrize(("ends_at", "opens"), [(6, True), (2, False)], ids=["it appears", "a shutdown comes first"])
def test_the_database_is_opened_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends_at: int, opens: bool
) -> None:
    monkeypatch.setattr(main, "OPEN_AGAIN_S", 0)
    folder = tmp_path / "later"
    with WakeupSocket(tmp_path / "wake") as wake:
        shutdown = Shutdown(folder, ends_at)
        stores = main.open_when_possible(f"sqlite:///{folder}/db", wake, shutdown, Heartbeat(None))  # type: ignore[arg-type]
    assert (stores is not None) == opens
    assert [record.message.count("Running jobs continue.") for record in caplog.records] == [1]
    if stores is not None:
        stores[0].close()


class Turns(Heartbeat):
    """Counts the turns."""

    def __init__(self) -> None:
        super().__init__(None)
        self.noted, self.third = 0, threading.Event()

    def note_turn(self) -> None:
        self.noted += 1
        if self.noted == 3:
            self.third.set()


def test_a_long_migration_counts_as_turns_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns, really_open = Turns(), main.open_both

    def migrated_slowly(url: str) -> tuple[Store, Store]:
        assert turns.third.wait(PATIENCE_S), "the supervisor would kill this process"
        return really_open(url)

    monkeypatch.setattr(main, "open_both", migrated_slowly)
    monkeypatch.setattr(main, "TURN_OF_MIGRATION_S", 0.01)
    monkeypatch.setattr(main, "TURNS_PER_WARNING", 2)
    with WakeupSocket(tmp_path / "wake") as wake:
        stores = main.open_when_possible(f"sqlite:///{tmp_path}/db", wake, Shutdown(tmp_path / "x", 99), turns)  # type: ignore[arg-type]
    assert stores is not None
    stores[0].close()
    assert any("restart the service" in record.message for record in caplog.records)
