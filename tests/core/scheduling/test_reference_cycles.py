"""A decision leaves no reference cycles, which the garbage collector would have to find."""

from __future__ import annotations

import gc

import pytest

from jupyter_gpu_quota.core.scheduling.decide import decide
from tests.benchmarks.scheduling import shapes


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(lambda: shapes.fill(4, 4, 40), id="a plan that fills an empty pool"),
        pytest.param(lambda: shapes.many_claim(4), id="every project claims"),
        pytest.param(lambda: shapes.at_quota(4), id="no action is possible"),
        pytest.param(lambda: shapes.huge(8, 100), id="a long queue"),
    ],
)
def test_a_decision_leaves_no_reference_cycles(world) -> None:  # type: ignore[no-untyped-def]
    snapshot, policy = world()
    decide(snapshot, policy)
    gc.collect()
    gc.disable()
    try:
        decide(snapshot, policy)
        assert gc.collect() == 0
    finally:
        gc.enable()
