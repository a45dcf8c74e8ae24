"""P15: with endless demand the use above quota comes to the weights, whatever the size of one job against a share."""

from __future__ import annotations

import pytest

from tests.traces.endless import Demand, endless

LENGTHS = [
    pytest.param(900, id="15 minutes"),
    pytest.param(5000, id="83 minutes", marks=pytest.mark.soak),
]
WARM_UP_S = 200
HISTORY = ("history 0, half-life 400", "history 1, half-life 400")

TWO = "a 0 of t\nb 0 of t, weight 2"
THREE = "a 0 of t, weight 3\nb 0 of t, weight 2\nc 0 of t"
ONE_TO_THREE = (1, 2, 3)

CASES = [
    pytest.param(1, TWO, [Demand("a", (1,)), Demand("b", (1,))], {"a": 1, "b": 2}, id="one GPU"),
    pytest.param(2, TWO, [Demand("a", (2,)), Demand("b", (2,))], {"a": 1, "b": 2}, id="two GPUs, jobs of two"),
    pytest.param(
        2, TWO, [Demand("a", (2,)), Demand("b", (1,), queued=3)], {"a": 1, "b": 2}, id="jobs of two beside jobs of one"
    ),
    pytest.param(
        4,
        TWO,
        [Demand("a", (1, 2), queued=3), Demand("b", (2, 1), queued=3)],
        {"a": 1, "b": 2},
        id="jobs of one and two mixed on four GPUs",
    ),
    pytest.param(
        6,
        TWO,
        [Demand("a", ONE_TO_THREE, runs_s=19, queued=3), Demand("b", ONE_TO_THREE, runs_s=23, queued=3)],
        {"a": 1, "b": 2},
        id="jobs of one, two and three mixed on six GPUs",
    ),
    pytest.param(
        6,
        THREE,
        [Demand("a", (1,), runs_s=19), Demand("b", (1,), runs_s=17), Demand("c", (3,), runs_s=23)],
        {"a": 3, "b": 2, "c": 1},
        id="three projects, the smallest with jobs of three GPUs",
    ),
    pytest.param(
        6,
        THREE,
        [Demand(name, ONE_TO_THREE, runs_s=runs, queued=3) for name, runs in zip("abc", (19, 17, 23), strict=True)],
        {"a": 3, "b": 2, "c": 1},
        id="three projects with jobs of one, two and three mixed",
    ),
]


# R20, R22, R29
@pytest.mark.parametrize("played_s", LENGTHS)
@pytest.mark.parametrize("history", HISTORY, ids=["k = 0", "k = 1"])
@pytest.mark.parametrize(("gpus", "text", "demands", "weights"), CASES)
def test_endless_demand_comes_to_the_weights(
    gpus: int, text: str, demands: list[Demand], weights: dict[str, int], history: str, played_s: int
) -> None:
    played = endless(f"pool t {gpus}\n{history}\n{text}", *demands)
    played.play(played_s, warm_up_s=WARM_UP_S)
    total = sum(played.used.values())
    job = max(1000 * max(demand.gpus) * demand.time_limit_s for demand in demands)
    for name, weight in weights.items():
        due = total * weight / sum(weights.values())
        assert abs(played.used[name] - due) <= max(0.05 * due, job), played.parts()
