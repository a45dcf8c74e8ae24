"""The controllers process waits for its database; it does not end and start again."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu_quota.controllers import main
from jupyter_gpu_quota.deployment.heartbeat import Heartbeat
from jupyter_gpu_quota.store.wakeup import WakeupSocket


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
