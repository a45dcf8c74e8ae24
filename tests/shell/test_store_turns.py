"""Who waits to write gets its turn, though another process writes one long transaction after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_gpu_quota.store.ledger import LedgerStore
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.protocol import StoreUnavailable
from jupyter_gpu_quota.store.turns import LONG_S, STEP_BACK_S, _step_back_s
from tests.shell.store_worlds import T0, empty_database, submit


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = tmp_path / "store.sqlite"
    path.write_bytes(empty_database())
    return f"sqlite:///{path}"


@pytest.fixture
def hogged(url: str) -> Iterator[list[int]]:
    """A writer that holds the lock almost all of the time; counts its transactions."""
    begun, over, held = threading.Event(), threading.Event(), [0]

    def hog(store: LedgerStore) -> None:
        while not over.is_set():
            with store._rows.writing():
                begun.set()
                held[0] += 1
                over.wait(2 * LONG_S)

    with closing(open_store(url)) as store:
        thread = threading.Thread(target=hog, args=(store,))
        thread.start()
        assert begun.wait(10)
        yield held
        over.set()
        thread.join()


def test_a_door_gets_its_turn_between_long_transactions(url: str, hogged: list[int]) -> None:
    with closing(open_store(url)) as door:
        for number in range(5):
            door.record([submit(f"j{number}")], now=T0)
        assert door.version() >= 5
    assert hogged[0] < 5 * 20, "each waited for more than its patience"


def test_patience_ends_and_the_connection_is_as_patient_as_before(url: str) -> None:
    with closing(open_store(url)) as holder, closing(open_store(url, busy_timeout_ms=50)) as door:
        with holder._rows.writing(), pytest.raises(StoreUnavailable, match="locked"):
            before = time.monotonic()
            door.record([submit("j")], now=T0)
        assert time.monotonic() - before >= 0.05
        door.record([submit("j")], now=T0)
        assert door.job("j") is not None


@pytest.mark.parametrize(
    ("held_s", "expected_s"),
    [
        pytest.param(0.001, 0.0, id="after a short transaction it goes on at once"),
        pytest.param(LONG_S, STEP_BACK_S[0], id="after a long one others may look"),
        pytest.param(0.3, 0.06, id="after a longer one for longer"),
        pytest.param(20.0, STEP_BACK_S[1], id="but never for long"),
    ],
)
def test_how_long_the_lock_is_left_to_others(held_s: float, expected_s: float) -> None:
    assert _step_back_s(held_s) == pytest.approx(expected_s)
