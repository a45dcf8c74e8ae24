"""A waiting writer gets the lock between long transactions of another process; which writes wait for the disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import IntegrityError

from jupyter_gpu_quota.core.facts import DeviceFact
from jupyter_gpu_quota.core.model import Health
from jupyter_gpu_quota.store.database import write_lock
from jupyter_gpu_quota.store.database.sql import SqlScope
from jupyter_gpu_quota.store.database.write_lock import LONG_HOLD_S, YIELD_LIMITS_S, _yield_s
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.commands import SetInventory
from jupyter_gpu_quota.store.transactions import Store
from tests.patience import PATIENCE_S
from tests.store.database.empty_database import make_empty_database
from tests.store.worlds import DEVICES, NODE, T0, submit


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = tmp_path / "store.sqlite"
    make_empty_database(path)
    return f"sqlite:///{path}"


@pytest.fixture
def hogged(url: str) -> Iterator[list[int]]:
    """A writer that holds the lock almost all of the time; counts its transactions."""
    begun, over, held = threading.Event(), threading.Event(), [0]

    def hog(store: Store) -> None:
        while not over.is_set():
            with store._rows.writing():
                begun.set()
                held[0] += 1
                over.wait(2 * LONG_HOLD_S)

    with closing(open_store(url, busy_timeout_ms=60_000)) as store:
        thread = threading.Thread(target=hog, args=(store,))
        thread.start()
        assert begun.wait(PATIENCE_S)
        yield held
        over.set()
        thread.join()


def test_another_writer_gets_the_lock_between_long_transactions(url: str, hogged: list[int]) -> None:
    with closing(open_store(url, busy_timeout_ms=60_000)) as writer:
        for number in range(5):
            writer.record([submit(f"j{number}")], now=T0)
        assert writer.version() >= 5
    assert hogged[0] < 5 * 20, "each waited for more than its patience"


def test_patience_ends_and_the_connection_is_as_patient_as_before(url: str) -> None:
    with closing(open_store(url)) as holder, closing(open_store(url, busy_timeout_ms=50)) as writer:
        with holder._rows.writing(), pytest.raises(StoreUnavailable, match="locked"):
            before = time.monotonic()
            writer.record([submit("j")], now=T0)
        assert time.monotonic() - before >= 0.05
        writer.record([submit("j")], now=T0)
        assert writer.job("j") is not None


@pytest.mark.parametrize(
    ("held_s", "expected_s"),
    [
        pytest.param(0.001, 0.0, id="after a short transaction it goes on at once"),
        pytest.param(LONG_HOLD_S, YIELD_LIMITS_S[0], id="after a long one others may look"),
        pytest.param(0.3, 0.06, id="after a longer one for longer"),
        pytest.param(20.0, YIELD_LIMITS_S[1], id="but never for long"),
    ],
)
def test_pauses_between_writes(held_s: float, expected_s: float) -> None:
    assert _yield_s(held_s) == pytest.approx(expected_s)


def test_a_process_leaves_the_lock_to_others_after_a_long_transaction(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = 0.0, list[float]()
    monkeypatch.setattr(write_lock, "time", SimpleNamespace(monotonic=lambda: now, sleep=pauses.append))
    with closing(open_store(url)) as store:
        for held_s in (0.3, 0.001, 0.0):
            with store._rows.writing():
                now += held_s
    assert pauses == pytest.approx([0.0, 0.06, 0.0])


# --- what waits for the disk ----------------------------------------------------------------------------------------
NORMAL, FULL = 1, 2


def level(scope: SqlScope) -> int:
    return int(scope._connection.exec_driver_sql("PRAGMA synchronous").scalar_one())


@pytest.mark.parametrize("breaks", [pytest.param(False, id="is written"), pytest.param(True, id="breaks off")])
def test_only_repeatable_writes_do_not_wait_for_the_disk(url: str, breaks: bool) -> None:
    with closing(open_store(url)) as store:
        rows = store._rows
        with pytest.raises(ZeroDivisionError) if breaks else nullcontext(), rows.writing(repeatable=True) as scope:
            assert level(scope) == NORMAL
            assert not breaks or 1 / 0
        with rows.writing() as scope:
            assert level(scope) == FULL


def test_after_a_commit_that_failed_the_next_waits_for_the_disk(url: str) -> None:
    with closing(open_store(url)) as store:
        rows = store._rows
        with pytest.raises(IntegrityError), rows.writing(repeatable=True) as scope:
            for statement in (
                "CREATE TABLE one (id INTEGER PRIMARY KEY)",
                "CREATE TABLE many (one REFERENCES one (id) DEFERRABLE INITIALLY DEFERRED)",
                "INSERT INTO many VALUES (7)",
            ):
                scope._connection.exec_driver_sql(statement)
        with rows.writing() as scope:
            assert level(scope) == FULL


def test_only_facts_and_reports_do_not_wait_for_the_disk(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = list[int]()
    apply = SqlScope.apply
    monkeypatch.setattr(SqlScope, "apply", lambda scope, writes: (levels.append(level(scope)), apply(scope, writes))[1])
    with closing(open_store(url)) as store:
        lease = store.acquire_lease("first", clock=lambda: T0, ttl_ms=3000)
        assert lease is not None
        store.record([SetInventory(nodes=(NODE,), devices=DEVICES)], now=T0)
        assert levels == [FULL, FULL]
        store.observe([DeviceFact(device=DEVICES[0].id, health=Health.UNHEALTHY)], lease=lease, now=T0)
        assert levels == [FULL, FULL, NORMAL]
