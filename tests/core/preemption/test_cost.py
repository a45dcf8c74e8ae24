"""The cost of a set of operations: what is compared before what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_gpu_quota.core.preemption.operations import Kind, Operation, cost_of


def operation(kind: Kind, position: int, *, protected: bool = False) -> Operation:
    victim = SimpleNamespace(key=f"{position}", pieces=(), protected=protected)
    return Operation(kind, cast(Any, victim), position)


PAUSE_LATE, PAUSE_EARLY, MOVE_EARLY = (
    operation(Kind.PAUSE, 9), operation(Kind.PAUSE, 0), operation(Kind.MOVE, 1),
)  # fmt: skip


# R40
@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        pytest.param(
            [PAUSE_LATE, operation(Kind.PAUSE, 8)], [operation(Kind.MOVE, 0, protected=True)],
            id="two pauses cost less than one protected job",
        ),
        pytest.param(
            [MOVE_EARLY, operation(Kind.MOVE, 9)], [PAUSE_EARLY], id="moves cost less than a pause"
        ),
        pytest.param([PAUSE_LATE], [PAUSE_EARLY, MOVE_EARLY], id="fewer moves cost less than a place in the order"),
        pytest.param(
            [operation(Kind.TAKE_OVER, 8), operation(Kind.END_BORROWING, 9)], [MOVE_EARLY],
            id="borrowing and take-overs cost less than a move",
        ),
        pytest.param(
            [operation(Kind.TAKE_OVER, 9)], [operation(Kind.END_BORROWING, 0)], id="a take-over costs less than a loan"
        ),
        pytest.param([PAUSE_EARLY], [PAUSE_LATE], id="then the order decides"),
    ],
)  # fmt: skip
def test_one_set_costs_less_than_the_other(cheaper: list[Operation], dearer: list[Operation]) -> None:
    assert cost_of(cheaper) < cost_of(dearer)
