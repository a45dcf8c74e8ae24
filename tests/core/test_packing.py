"""Whether quotas fit their pools, in sum and in shape."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.core.quota import check_quotas
from tests.core.world import world


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        pytest.param("pool t 4\na 2 of t\nb 2 of t", [], id="exactly the pool"),
        pytest.param("pool t 4\na 2 of t\nb 2.001 of t", ["sum"], id="one milli too much"),
        pytest.param("pool t 2\na 0 of t, notebooks 0.125\nb 0 of t, notebooks 0.125\nc 1 of t", [], id="slices share"),
        pytest.param("pool t 2\na 1.2 of t\nb 0 of t, notebooks 0.8", ["shape"], id="1.2 may be run as 0.6 and 0.6"),
        pytest.param("pool t 1\na 0.25 of t, notebooks 0.5", [], id="a guarantee below one device shares one"),
        pytest.param("pool t 2\na 0.6 of t\nb 0.7 of t\nc 0.7 of t", ["shape"], id="three large slices on two devices"),
        pytest.param(
            "pool t 2\na 0.5 of t\nb 0.4 of t\nc 0.3 of t\nd 0.3 of t\ne 0.3 of t\nf 0.2 of t", [],
            id="a packing that the largest-first rule misses is found",
        ),
        pytest.param("pool t 4\na 2 of t, notebooks 1, limit 2", ["amounts"], id="a limit below the two quotas"),
        pytest.param("pool t 4\na 2 of t, notebooks 1, limit 3", [], id="a limit of exactly the two quotas"),
        pytest.param("pool t 1\na 0 of u", ["amounts"], id="a pool that does not exist"),
    ],
)  # fmt: skip
def test_quotas(text: str, codes: list[str]) -> None:
    made = world(text)
    assert [refusal.code for refusal in check_quotas(made.policy, made.devices.values())] == codes


def test_the_sum_is_refused_with_its_arithmetic() -> None:
    made = world("pool t 4\na 2 of t, notebooks 1\nb 2.5 of t")
    (refusal,) = check_quotas(made.policy, made.devices.values())
    assert "add up to 5.50 GPU and it has 4.00" in refusal.sentence
    assert "a 1.00 for notebooks and 2.00 for training" in refusal.sentence
    assert "Lower them by 1.50." in refusal.sentence


def test_a_pool_is_checked_for_itself() -> None:
    made = world("pool t 1\npool u 1\na 1 of t\nb 2 of u")
    assert [refusal.pool for refusal in check_quotas(made.policy, made.devices.values())] == ["u"]
