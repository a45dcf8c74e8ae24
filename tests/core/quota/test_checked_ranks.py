"""The checked shapes: the largest rank on one node that a training quota can always have beside the others."""

from __future__ import annotations

import dataclasses as dc
import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpu_quota.core.quota import checked_ranks as ranks_module
from jupyter_gpu_quota.core.quota import node_packing
from jupyter_gpu_quota.core.quota.checked_ranks import (
    CheckedRanks,
    checked_ranks,
    pool_shape,
    whole_devices,
)
from jupyter_gpu_quota.core.quota.fit import check_quotas
from jupyter_gpu_quota.core.quota.in_force import in_force
from jupyter_gpu_quota.core.quota.node_packing import Guarantee, rank_beside, rank_by_count
from tests.core.world import BEGIN, World, world


def checked(made: World, models: tuple[str, ...] = ()) -> CheckedRanks:
    return checked_ranks(made.policy, made.policy.pools[0], pool_shape(made.devices.values()), models)


# R3
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("pool t 2x8\na 8 of t\nb 8 of t", {"a": 8, "b": 8}, id="a node for each of two projects"),
        pytest.param("pool t 2x8\na 8 of t\nb 4 of t\nc 4 of t", {"a": 8, "b": 4, "c": 4}, id="two share a node"),
        pytest.param(
            "pool t 2x8\na 10 of t\nb 6 of t", {"a": 8, "b": 3}, id="two ranks of 5 break up both nodes for the other"
        ),
        pytest.param("pool t 3x8\na 16 of t\nb 8 of t", {"a": 8, "b": 3}, id="three ranks of 5 break up three nodes"),
        pytest.param("pool t 3x8\na 12 of t\nb 8 of t", {"a": 8, "b": 8}, id="12 in any ranks fit on two of three"),
        pytest.param("pool t 2x8\na 5 of t\nb 5 of t\nc 6 of t", {"a": 3, "b": 3, "c": 3}, id="three on two nodes"),
        pytest.param("pool t 2x8\na 16 of t", {"a": 8}, id="its own work counts as single devices"),
        pytest.param("pool t 6x1\na 4 of t\nb 2 of t", {"a": 1, "b": 1}, id="no rank of two on nodes of one device"),
        pytest.param("pool t 1x8\na 5 of t\nb 3 of t", {"a": 5, "b": 3}, id="one node has the whole quota of each"),
        pytest.param("pool t 4x8\na 5 of t\nb 5 of t", {"a": 5, "b": 5}, id="never more than the quota"),
        pytest.param("pool t 2x8\na 2.5 of t\nb 6 of t", {"a": 2, "b": 6}, id="a rank has whole devices"),
        pytest.param("pool t 2x8\na 0.5 of t\nb 8 of t", {"b": 8}, id="a quota below one device is a slice"),
        pytest.param("pool t 2x4\na 4 of t\nb 0 of t\nc 4 of t", {"a": 4, "c": 4}, id="no quota has no shape"),
        pytest.param(
            "pool t 2x8\na 8 of t, notebooks 0.5\nb 7 of t, notebooks 0.25", {"a": 8, "b": 7},
            id="notebook slices share a device of one node",
        ),
        pytest.param(
            "pool t 2x8\na 8 of t, notebooks 0.5\nb 8 of t", {"a": 7, "b": 7},
            id="overcommitted with a slice: each has what the other leaves",
        ),
        pytest.param(
            "pool t 2x4\na 4 of t, notebooks 2\nb 2 of t", {"a": 4, "b": 2},
            id="whole devices of slices are on one node",
        ),
        pytest.param("pool t 2x4\na 4 of t\nb 8 of t", {"a": 0, "b": 4}, id="overcommitted: nothing beside all of it"),
        pytest.param("pool t 0\na 4 of t", {"a": 0}, id="a pool without a device"),
        pytest.param("pool t 2x4\npool t 1x8\na 8 of t\nb 8 of t", {"a": 4, "b": 4}, id="one may have the larger node"),
        pytest.param("pool t 2x4\npool t 1x8\na 8 of t\nb 4 of t", {"a": 8, "b": 4}, id="a smaller node for the other"),
    ],
)  # fmt: skip
def test_the_checked_shapes_of_projects(text: str, expected: dict[str, int]) -> None:
    assert checked(world(text)).projects == expected


# R3
@pytest.mark.parametrize(
    ("text", "projects", "departments"),
    [
        pytest.param(
            "pool t 2x8\ndepartment d 8 of t\ndepartment e 8 of t\na 4 of t in d\nb 2 of t in d\nc 8 of t in e",
            {"a": 4, "b": 2, "c": 8}, {"d": 8, "e": 8}, id="a node for each department",
        ),
        pytest.param(
            "pool t 2x4\ndepartment d 6 of t\ndepartment e 2 of t\na 4 of t in d\nc 2 of t in e",
            {"a": 4, "c": 1}, {"d": 4, "e": 1}, id="two ranks of 3 of the other department leave a device of each node",
        ),
        pytest.param(
            "pool t 2x4\ndepartment d 8 of t\na 4 of t in d\nb 2 of t in d",
            {"a": 4, "b": 2}, {"d": 4}, id="what siblings use above their own quotas can be reclaimed",
        ),
        pytest.param(
            "pool t 1x4\ndepartment d 2 of t\ndepartment e 2 of t\na 2 of t in d\nf 0.5 of t in e\ng 0.5 of t in e",
            {"a": 2}, {"d": 2, "e": 2}, id="slices of the projects are inside their department's quota",
        ),
    ],
)  # fmt: skip
def test_the_checked_shapes_of_departments(text: str, projects: dict[str, int], departments: dict[str, int]) -> None:
    assert checked(world(text)) == CheckedRanks(projects=projects, departments=departments)


def test_no_move_between_different_models_is_counted_on() -> None:
    text = "pool t 1x4 {}\npool t 1x4 {}\na 4 of t\nb 4 of t"
    assert checked(world(text.format("A", "A"))).projects["a"] == 4
    mixed = world(text.format("A", "B"))
    assert checked(mixed).projects["a"] == 2, "the other has two devices of each node, of the models that it names"
    assert checked(mixed, ("A",)).projects["a"] == 0, "the other has this node"
    assert checked(world("pool t 2x4 A\npool t 1x4 B\na 4 of t\nb 4 of t"), ("A",)).projects["a"] == 4


def test_devices_of_a_node_of_two_models_count_together_without_moves() -> None:
    made = world("pool t 2x4 A\na 4 of t\nb 2 of t")
    for name in ("n1g0", "n2g0"):
        made.devices[name] = dc.replace(made.devices[name], model="B")
    assert checked(made).projects == {"a": 3, "b": 2}


def test_only_healthy_devices_of_open_nodes_without_foreign_use_are_whole() -> None:
    made = world("pool t 3x2\na 2 of t\nn1g0 unhealthy\nn2g1 foreign 0.1\nn3 cordoned")
    assert [device.id for device in whole_devices(made.devices.values(), made.nodes)] == ["n1g1", "n2g0"]
    assert pool_shape(whole_devices(made.devices.values(), made.nodes)) == (((("X", 1),), 2),)


def test_the_amounts_of_an_open_window_count() -> None:
    made = world("pool t 2x8\na 8 of t\nb 6 of t\nwindow nights from 10 to 20: a 10 of t")
    shape = pool_shape(made.devices.values())
    by_day, by_night = (in_force(made.policy, BEGIN + second * 1000) for second in (5, 15))
    assert checked_ranks(by_day, "t", shape).projects == {"a": 8, "b": 6}
    assert checked_ranks(by_night, "t", shape).projects == {"a": 8, "b": 3}


def test_a_rank_below_one_device_needs_one() -> None:
    found = CheckedRanks(projects={"a": 2, "b": 0}, departments={})
    sizes = (500, 1000, 2000, 3000)
    assert [found.covers("a", milli) for milli in sizes] == [True, True, True, False]
    assert not found.covers("b", 500), "nothing is sure in an overcommitted pool"
    assert found.covers("c", 500), "a quota below one device is a slice of a device that is shared"


def test_equal_quotas_and_nodes_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = world("pool t 2x8\na 10 of t, notebooks 0.125\nb 5 of t"), list[int]()

    def count(nodes: Counter[int], others: list[Guarantee], at_most: int) -> int:
        asked.append(at_most)
        return rank_beside(nodes, others, at_most)

    monkeypatch.setattr(ranks_module, "rank_beside", count)
    shape = pool_shape(made.devices.values())
    for policy in (made.policy, made.policy, dc.replace(made.policy, revision=7)):
        assert checked_ranks(policy, "t", shape).projects == {"a": 8, "b": 3}
    assert asked == [10, 5] or asked == [5, 10]
    one_node = pool_shape(list(made.devices.values())[8:])
    assert checked_ranks(made.policy, "t", one_node).projects == {"a": 2, "b": 0} and len(asked) == 4
    assert checked_ranks(made.policy, "t", shape, ("B",)).projects == {"a": 0, "b": 0}


def test_devices_that_have_slices_already_are_left_out_by_the_caller() -> None:
    policy = world("pool t 2x4\na 4 of t, notebooks 1\nb 3 of t").policy
    both_nodes = world("pool t 1x4\npool t 1x3\na 4 of t").devices.values()
    with_device = checked_ranks(policy, "t", pool_shape(both_nodes)).projects
    assert with_device == {"a": 2, "b": 2}, "one is kept for slices"
    assert checked_ranks(policy, "t", pool_shape(both_nodes), with_slices=1).projects == {"a": 4, "b": 3}
    assert checked_ranks(policy, "t", pool_shape(both_nodes), with_slices=5).projects == {"a": 4, "b": 3}


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(5)), st.permutations(range(12)))
def test_the_order_of_the_input_changes_nothing(projects: list[int], devices: list[int]) -> None:
    made = world("pool t 3x4\na 5 of t\nb 3 of t\nc 2 of t, notebooks 0.5\nd 0.25 of t\ne 1 of t")
    policy = dc.replace(made.policy, projects=tuple(made.policy.projects[at] for at in projects))
    shuffled = [list(made.devices.values())[at] for at in devices]
    assert checked_ranks(policy, "t", pool_shape(shuffled)) == checked(made)


# --- against every division ---------------------------------------------------------------------------------------
NODES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
QUOTAS = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def divisions(devices: int, largest: int) -> list[tuple[int, ...]]:
    """Every way to use up to so many devices as ranks, the largest first."""
    found: list[tuple[int, ...]] = [()]
    for size in range(1, min(devices, largest) + 1):
        found += [(size, *rest) for rest in divisions(devices - size, size)]
    return found


def fit(ranks: Sequence[int], nodes: Sequence[int]) -> bool:
    """Whether ranks fit on nodes, by trying every node for each."""
    if not ranks:
        return True
    free = sorted(nodes)
    return any(
        fit(ranks[1:], [*free[:at], size - ranks[0], *free[at + 1 :]])
        for at, size in enumerate(free)
        if size >= ranks[0]
    )


def largest_beside(nodes: Sequence[int], others: Sequence[int], at_most: int) -> int:
    """The definition of the checked shape, word for word."""
    each = [divisions(quota, max(nodes)) for quota in others]
    combined = {tuple(sorted(itertools.chain(*uses), reverse=True)) for uses in itertools.product(*each)}
    possible = [ranks for ranks in combined if sum(ranks) <= sum(nodes) and fit(ranks, nodes)]
    return next(
        (rank for rank in range(at_most, 0, -1) if all(fit((rank, *ranks), nodes) for ranks in possible)),
        0,
    )


def ranks_of(nodes: Sequence[int], quotas: Sequence[int]) -> list[int]:
    return [
        rank_beside(Counter(nodes), [Guarantee(other, other) for n, other in enumerate(quotas) if n != at], quota)
        for at, quota in enumerate(quotas)
    ]


# R3
@settings(deadline=None, max_examples=120)
@given(NODES, QUOTAS)
def test_the_checked_shape_is_the_largest_rank_that_fits_beside_every_division(
    nodes: list[int], quotas: list[int]
) -> None:
    expected = [largest_beside(nodes, [*quotas[:at], *quotas[at + 1 :]], quota) for at, quota in enumerate(quotas)]
    assert ranks_of(nodes, quotas) == expected


@settings(deadline=None, max_examples=120)
@given(NODES, QUOTAS)
def test_in_a_large_pool_no_more_is_promised_than_holds(nodes: list[int], quotas: list[int]) -> None:
    exact = ranks_of(nodes, quotas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_packing, "MAX_EXACT_DEVICES", 0)
        assert all(proved <= rank for proved, rank in zip(ranks_of(nodes, quotas), exact, strict=True))


# R3
@settings(deadline=None, max_examples=150)
@given(NODES, QUOTAS, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=25))
def test_every_checked_shape_fits_in_every_order_of_arrival(
    nodes: list[int], quotas: list[int], arrivals: list[tuple[int, int, bool]]
) -> None:
    """Ranks of any size within quota arrive and end, and all may be moved; a single device always makes room."""
    promised, running = ranks_of(nodes, quotas), [list[int]() for _ in quotas]
    if sum(quotas) > sum(nodes):
        return
    for number, size, ends in arrivals:
        owner = number % len(quotas)
        if ends:
            running[owner].clear()
        elif sum(running[owner]) + size <= quotas[owner]:
            has_room = fit(sorted([size, *itertools.chain(*running)], reverse=True), nodes)
            if size <= promised[owner] and set(running[owner]) <= {1}:
                assert has_room, f"{owner} claims {size} of {promised[owner]} beside {running}"
            if has_room:
                running[owner].append(size)


def fewest_devices(parts: Sequence[int]) -> int:
    """The devices that parts of devices need, by trying every number of them."""
    return next(count for count in range(len(parts) + 1) if fit(parts, [1000] * count))


def beside_slices(nodes: Sequence[int], slices: Sequence[int]) -> list[int]:
    """The nodes without the devices of the slices, the smallest nodes first."""
    parts = sorted(filter(None, (milli % 1000 for milli in slices)), reverse=True)
    left, found = fewest_devices(parts) + sum(milli // 1000 for milli in slices), list[int]()
    for size in sorted(nodes):
        found.append(size - min(size, left))
        left -= min(size, left)
    return found


AMOUNTS = st.sampled_from([0, 300, 600, 1000, 1500, 2000, 2500, 3000, 4000])
NOTEBOOKS = st.sampled_from([0, 0, 250, 500, 1000, 1250])


# R3
@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.tuples(AMOUNTS, NOTEBOOKS), min_size=1, max_size=3)
)
def test_the_checked_rank_fits_beside_all_that_the_check_of_the_quotas_allows_and_no_larger_one_does(
    nodes: list[int], quotas: list[tuple[int, int]]
) -> None:
    """Parts of devices and notebooks included: quotas below one device are slices, larger ones take whole devices."""
    made = _world(nodes, quotas)
    while check_quotas(made.policy, made.devices.values()):
        quotas = quotas[1:]
        made = _world(nodes, quotas)
    slices = [notebook for _, notebook in quotas] + [training for training, _ in quotas if training < 1000]
    left = beside_slices(nodes, slices)
    for at, (training, _) in enumerate(quotas):
        if training < 1000:
            assert f"p{at}" not in checked(made).projects
            continue
        others = [each for n, (each, _) in enumerate(quotas) if n != at and each >= 1000]
        uses = [divisions(-(-each // 1000), min(each // 1000, max(left))) for each in others]
        together = {tuple(sorted(itertools.chain(*one), reverse=True)) for one in itertools.product(*uses)}
        possible = [ranks for ranks in together if fit(ranks, left)]
        ranks = range(training // 1000, 0, -1)
        expected = next((rank for rank in ranks if all(fit((rank, *one), left) for one in possible)), 0)
        assert checked(made).projects[f"p{at}"] == expected


def _world(nodes: list[int], quotas: list[tuple[int, int]]) -> World:
    made = World()
    for size in nodes:
        made.pool("t", 1, size)
    for at, (training, notebook) in enumerate(quotas):
        made.project(f"p{at}", "t", training_milli=training, notebook_milli=notebook)
    return made


# R3, P10
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_claim_of_a_checked_shape_starts_within_the_grace_and_two_ticks(data: st.DataObject) -> None:
    """Others run preemptible jobs of any size anywhere, within and above their quotas; a runs single devices.

    Each claim that others make at the same time may delay it once more.
    """
    draw, made = data.draw, World()
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)):
        made.pool("t", 1, size)
    notebook = draw(st.sampled_from([0, 250, 500])) if len(made.devices) > 1 else 0
    left = len(made.devices) - bool(notebook)
    for name in "abc":
        quota = draw(st.integers(name == "a", left))
        left -= quota
        amounts = {"notebook_milli": notebook} if name == "b" else {}
        made.project(name, "t", training_milli=quota * 1000, weight=draw(st.integers(0, 2)), **amounts)
    rank, most = checked(made).projects["a"], made.policy.projects[0].amounts["t"].training_milli
    if notebook:
        made.ask("b", notebook)
        made.tick()
    for name, size in draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=8)):
        if name != "a" or made.holding("a", "t") + (rank + 1) * 1000 <= most:
            _run_somewhere(made, data, name, 1 if name == "a" else size)
    claim = made.submit("a", rank * 1000)
    others = draw(st.lists(st.tuples(st.sampled_from("bc"), st.integers(1, 3)), max_size=3))
    for name, size in others:
        made.submit(name, size * 1000)
    for _ in range((1 + len(others)) * (made.drain_ticks + 2)):
        made.tick()
    assert claim.id in made.owned, f"{made.picture()}: {made.owned}"


# P10, R52
def test_a_claim_that_another_one_precedes_on_its_node_starts_when_that_one_has_moved() -> None:
    """Of two victims the first claim takes the larger, whose node the second claim needs whole."""
    made = World()
    for size in (1, 4, 2):
        made.pool("t", 1, size)
    made.project("large", "t", training_milli=4000, weight=0)
    made.project("small", "t", training_milli=1000, weight=0)
    made.project("other", "t", notebook_milli=250, weight=0)
    made.book(made.ask("other", 250), "n1g0")
    for names in (["n3g0", "n3g1"], ["n2g0", "n2g1", "n2g2", "n2g3"]):
        made.put(made.submit("other", len(names) * 1000), names)
    second, first = made.submit("large", 4000), made.submit("small", 1000)
    made.submit("small", 1000)
    made.tick()
    assert [one.device for one in made.reserved[first.id].placements] == ["n2g0"]
    for _ in range(2 * made.drain_ticks + 3):
        made.tick()
    assert second.id in made.owned and first.id in made.owned


def _run_somewhere(made: World, data: st.DataObject, project: str, size: int) -> None:
    """Let a job run on any free devices of one node, if there are enough."""
    free = [name for name in made.devices if made.free(name) == 1000]
    nodes = [made.devices[name].node for name in free]
    rooms = sorted({node for node in nodes if nodes.count(node) >= size})
    if rooms:
        node = data.draw(st.sampled_from(rooms))
        on_node = data.draw(st.permutations([name for name in free if made.devices[name].node == node]))
        made.put(made.submit(project, size * 1000), list(on_node[:size]))


@pytest.mark.parametrize(
    ("nodes", "quotas"),
    [([8, 8], [10, 6]), ([8, 8], [5, 5, 6]), ([8] * 4, [11, 4, 7, 7]), ([10, 10, 12], [12, 6, 12, 2])],
)
def test_all_checked_shapes_fit_at_once_with_the_rest_in_single_devices(nodes: list[int], quotas: list[int]) -> None:
    ranks = ranks_of(nodes, quotas)
    singles = sum(quotas) - sum(ranks)
    assert fit(sorted(ranks, reverse=True), nodes) and singles <= sum(nodes) - sum(ranks)


# --- large pools --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("nodes", "quotas", "expected"),
    [
        pytest.param([8] * 64, [8] * 64, {8: 8}, id="a node each"),
        pytest.param([8] * 64, [4] * 100, {4: 4}, id="half a node each"),
        pytest.param([8] * 64, [32] * 8, {32: 8}, id="half of the pool is spare"),
        pytest.param([8] * 64, [32] * 16, {32: 1}, id="all of it, and ranks of 7 can break up every node"),
        pytest.param([1] * 500, [20] * 25, {20: 1}, id="nodes of one device"),
    ],
)  # fmt: skip
def test_large_pools(nodes: list[int], quotas: list[int], expected: dict[int, int]) -> None:
    assert dict(zip(quotas, ranks_of(nodes, quotas), strict=True)) == expected


def test_without_moves_a_rank_needs_more_devices_than_all_nodes_can_lack() -> None:
    assert rank_by_count(Counter([4, 4]), 5, 4) == 2, "3 and 2 of them leave two on one node"
    assert rank_by_count(Counter([4, 4]), 6, 4) == 1
    assert rank_by_count(Counter([4, 4]), 8, 4) == 0
    assert rank_by_count(Counter([4, 1]), 1, 4) == 3
