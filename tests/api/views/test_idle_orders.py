"""The order to free a GPU, by the note of the decision and the clock."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.api.views.idle_states import FRESH_MS, _order
from jupyter_gpu_quota.core.idle.classification import Idle
from jupyter_gpu_quota.core.idle.state_machine import Freeing
from jupyter_gpu_quota.store.records.idle_state import IdleState

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("decided_at", "is_ordered"),
    [
        pytest.param(NOW - 2_000, True, id="a note after the decision"),
        pytest.param(NOW - 500, False, id="a note before the decision"),
        pytest.param(NOW + 500, False, id="a decision of a clock that is ahead"),
        pytest.param(NOW + FRESH_MS + 1, True, id="a decision before the clock was set back"),
    ],
)
def test_a_gpu_is_freed_by_a_note_that_is_no_older_than_the_decision(decided_at: int, is_ordered: bool) -> None:
    note = IdleState(notebook="n", at=NOW - 1_000, classification=Idle(since=0, kernels=("k",)))
    assert (_order(Freeing(at=decided_at, kernels=("k",)), note, NOW) is not None) == is_ordered
