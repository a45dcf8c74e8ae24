"""A power failure after an end was observed and before a later write: the end is observed again and recorded once.

What SQLite holds after that is what it held when it last waited for the disk: the files are kept as they were then.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.facts import Fact
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import Lease, Page, Stale
from jupyter_gpu_quota.store.transactions import Store
from tests.backends.fake_executor import Script
from tests.controllers.setups.scheduling import World


def copied(there: Path, here: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(there, here)


def state(world: World) -> JobState:
    record = world.store.job("j")
    assert record is not None
    return record.job.state


def test_an_end_that_a_power_failure_lost_is_observed_again_and_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, on_disk = tmp_path / "store", tmp_path / "on-disk"
    folder.mkdir()
    world = World(
        lambda order: Script(runs_for_ms=1_000, completes=True), store=open_store(f"sqlite:///{folder / 's.sqlite'}")
    )
    observe = Store.observe

    def kept(store: Store, facts: Sequence[Fact], *, lease: Lease, now: int) -> int | Stale:
        copied(folder, on_disk)
        return observe(store, facts, lease=lease, now=now)

    world.submit("bob", "j")
    world.turn(1, every_ms=1_100)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "observe", kept)
        world.turn(1, every_ms=0)
    assert state(world) is JobState.SUCCEEDED
    assert world.controller.unsettled == {("j", 1)}, "the backend still reports it"

    world.store.close()
    copied(on_disk, folder)
    world.store = open_store(f"sqlite:///{folder / 's.sqlite'}")
    assert state(world) is not JobState.SUCCEEDED, "the end was taken back"
    world.now += 3_000
    world.controller = world.another("after the power came back")
    world.turn(4)
    assert state(world) is JobState.SUCCEEDED
    assert not world.executor.observe(), "it is not reported again"
    rows, _ = world.store.audit(page=Page(limit=100))
    assert [row.kind for row in rows if row.subject == "j"].count("job.end") == 1
    assert isinstance(world.store.audit_verify(), int)
    world.store.close()
