"""Scarcity prices: work that fits anywhere leaves the last whole nodes, and the last devices of a model, to work that
fits nowhere else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from jupyter_gpu_quota.core.model import Demand, Device, Node
from jupyter_gpu_quota.core.placement.fragmentation import NodeKind, NodeState
from jupyter_gpu_quota.core.placement.ledger import Ledger
from jupyter_gpu_quota.core.placement.place import Fit, Request, occupy, place
from jupyter_gpu_quota.core.placement.scarcity import PER_MILLE, ScarcityPrices


def demand(gpu_milli: int, count: int, *models: str, cpu_milli: int = 1) -> Demand:
    return Demand(gpu_milli=gpu_milli, cpu_milli=cpu_milli, memory_mib=0, gpu_models=models, count=count)


def kind(devices: int, model: str = "X", cpu_milli: int = 1000) -> NodeKind:
    return NodeKind((model,), max(1, cpu_milli // 32), 1, devices, cpu_milli, 0)


def state(kind: NodeKind, free: int, used: int = 0) -> NodeState:
    """A node with so many whole devices free."""
    amounts = (0,) * (kind.devices - free) + (1000,) * free
    return NodeState(kind, kind.cpu_milli - used, 0, amounts)


def last_device(prices: ScarcityPrices, kind: NodeKind) -> int:
    """What the last free device of a node is worth, in thousandths of a GPU."""
    return (prices.of(state(kind, 1, 500)) - prices.of(state(kind, 0, 500))) // PER_MILLE


A, B = kind(2, "A"), kind(2, "B")


# R74
@pytest.mark.parametrize(
    ("rows", "worth"),
    [
        pytest.param([demand(1000, 1)], (0, 0), id="work that fits anywhere makes no model scarce"),
        pytest.param([demand(1000, 3), demand(1000, 1, "A")], (244, 0), id="half of A will be requested: 62 %"),
        pytest.param([demand(1000, 9), demand(1000, 1, "A")], (21, 0), id="a fifth of A will be requested: 28 %"),
        pytest.param([demand(1000, 1), demand(1000, 1, "A")], (1626, 0), id="all of A will be requested: 118 %"),
        pytest.param([demand(1000, 1, "A")], (8000, 0), id="no price is above that of twice the amount"),
        pytest.param(
            [demand(1000, 2), demand(1000, 1, "A"), demand(1000, 1, "B")],
            (244, 244),
            id="each of two models has its own price",
        ),
    ],
)
def test_the_price_of_a_model_follows_the_demand_for_it(rows: list[Demand], worth: tuple[int, int]) -> None:
    nodes = {state(A, 2, 500): 5, state(B, 2, 500): 5}
    prices = ScarcityPrices(rows, nodes)
    assert (last_device(prices, A), last_device(prices, B)) == worth


# R74
def test_whole_nodes_have_a_price_when_few_are_left() -> None:
    large, rows = kind(8), [demand(1000, 8), demand(8000, 1)]
    loss = []
    for whole in (8, 4, 2):
        nodes = {state(large, 8, 500): whole, state(large, 1, 500): 8 * (8 - whole)}
        prices = ScarcityPrices(rows, nodes)
        loss.append((prices.of(state(large, 8, 500)) - prices.of(state(large, 7, 500))) // PER_MILLE)
    assert loss == [8000 // 8, 8000, 8 * 8000]


def test_work_for_a_model_counts_for_each_set_of_models_that_has_it() -> None:
    third = kind(2, "C")
    rows = [demand(1000, 2), demand(1000, 1, "A"), demand(1000, 1, "A", "B")]
    prices = ScarcityPrices(rows, {state(one, 2, 500): 5 for one in (A, B, third)})
    assert [last_device(prices, one) for one in (A, B, third)] == [822, 686, 0]


MIXED = NodeKind(("A", "B", "B", "B"), 1, 1, 4, 16, 16)
EIGHT = NodeKind(("A",), 1, 1, 8, 16, 16)


# R74
@pytest.mark.parametrize(
    ("rows", "of_node", "room"),
    [
        pytest.param([(2000, 1, 1)], NodeState(EIGHT, 15, 16, (0,) * 6 + (1000,) * 2), 2000, id="two whole devices"),
        pytest.param([(2000, 1, 1)], NodeState(EIGHT, 15, 16, (999,) * 7 + (1000,)), 0, id="parts are no whole device"),
        pytest.param([(2000, 5, 1)], NodeState(EIGHT, 15, 16, (1000,) * 8), 6000, id="CPU for three ranks"),
        pytest.param([(2000, 1, 8)], NodeState(EIGHT, 15, 16, (1000,) * 8), 4000, id="memory for two ranks"),
        pytest.param(
            [(6000, 1, 1), (4000, 1, 1)], NodeState(EIGHT, 15, 16, (0,) * 3 + (1000,) * 5), 2000,
            id="the mean of ranks of one level, of which one fits",
        ),
        pytest.param([(2000, 1, 1, "A")], NodeState(MIXED, 15, 16, (1000,) * 4), 0, id="one device of the model"),
        pytest.param([(2000, 1, 1, "B")], NodeState(MIXED, 15, 16, (1000,) * 4), 2000, id="three of the model"),
    ],
)  # fmt: skip
def test_the_room_for_large_ranks_is_what_they_could_have_side_by_side(
    rows: list[tuple[int, int, int]], of_node: NodeState, room: int
) -> None:
    wanted = [
        Demand(gpu_milli=gpu, cpu_milli=cpu, memory_mib=memory, gpu_models=tuple(models), count=1)
        for gpu, cpu, memory, *models in rows
    ]
    full = of_node._replace(free=(0,) * of_node.kind.devices)
    prices = ScarcityPrices(wanted, {full: 1, state(kind(8), 0): 1})
    assert prices._rooms_of(of_node)[1:].count(room) and sum(prices._rooms_of(of_node)[1:]) == room


def test_nodes_whose_cpu_is_used_count_for_no_large_rank() -> None:
    large, rows = kind(8), [demand(1000, 8), demand(8000, 1, cpu_milli=600)]
    prices = ScarcityPrices(rows, {state(large, 8, 300): 2, state(large, 8, 500): 6})
    assert prices.of(state(large, 8, 300)) - prices.of(state(large, 8, 500)) > 8000 * PER_MILLE


def test_the_most_capable_nodes_stay_unused_before_any_work_needs_them() -> None:
    small, large = kind(8), kind(8, cpu_milli=2000)
    prices = ScarcityPrices([demand(1000, 1)], {state(small, 8): 9, state(large, 8): 1})
    unused = [prices.of(state(one, 8)) - prices.of(state(one, 8, 500)) for one in (small, large)]
    assert unused[0] == 0 < unused[1] < 200 * PER_MILLE


def test_prices_do_not_depend_on_the_order_of_the_nodes() -> None:
    nodes = [state(A, 2), state(B, 1), state(kind(8), 8), state(kind(8), 3)]
    rows = [demand(1000, 5), demand(2000, 2, "A"), demand(8000, 1)]
    made = [ScarcityPrices(rows, Counter(order)) for order in (nodes, nodes[::-1])]
    assert [made[0].of(one) for one in nodes] == [made[1].of(one) for one in nodes]


def devices(name: str, model: str, count: int) -> list[Device]:
    return [
        Device(id=f"{name}{at}", node=name, index=at, model=model, memory_mib=1000, pool="t") for at in range(count)
    ]


# R74
def test_work_for_any_model_leaves_the_last_devices_of_a_model_to_work_for_that_model_alone() -> None:
    rows = [*devices("a", "A", 2), *devices("b", "B", 2)]
    nodes = [Node(id=name, name=name, cpu_milli=1000, memory_mib=1000) for name in "ab"]
    ledger = Ledger(rows, nodes, demand=(demand(1000, 1), demand(1000, 1, "A")))
    taken = []
    for _ in range(2):
        fit = place(ledger, Request(1000, 1, (), 1))
        assert isinstance(fit, Fit)
        occupy(ledger, fit.pieces, borrowed=False)
        taken.append(ledger.devices[fit.pieces[0].device].id)
    assert taken == ["b0", "b1"]


# R74
def test_on_a_node_of_several_models_a_rank_costs_the_room_of_its_own_model() -> None:
    rows = [replace(at, model="AAB"[at.index]) for at in devices("m", "A", 3)]
    nodes = [Node(id=name, name=name, cpu_milli=1000, memory_mib=1000) for name in "mn"]
    expected = (demand(2000, 3, "A"), demand(2000, 1, "B"))
    ledger = Ledger([*rows, *devices("n", "B", 2)], nodes, demand=expected)
    for milli in (500, 500):
        fit = place(ledger, Request(milli, 1, ("B",), 1))
        assert isinstance(fit, Fit)
        assert [ledger.devices[piece.device].id for piece in fit.pieces] == ["m2"]
        occupy(ledger, fit.pieces, borrowed=False)
