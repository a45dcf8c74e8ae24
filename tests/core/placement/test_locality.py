"""Locality: a gang stays on one node, else within the closest group of nodes that has room for all its ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu_quota.core.model import Device, Node
from jupyter_gpu_quota.core.placement.ledger import Ledger
from jupyter_gpu_quota.core.placement.locality import closest_group, groups_of_nodes
from jupyter_gpu_quota.core.placement.place import Fit, Request, place


def ledger(text: str, *, groups: bool = True) -> Ledger:
    """``a@r1/z1:3,250``: a node, its rack and zone, its whole free devices and the free milli of one shared device."""
    devices, nodes, firm = list[Device](), list[Node](), dict[str, int]()
    for word in text.split():
        where, _, free = word.partition(":")
        name, _, topology = where.partition("@")
        whole, _, shared = free.partition(",")
        amounts = [1000] * int(whole) + ([int(shared)] if shared else [])
        for index, milli in enumerate(amounts):
            device = Device(id=f"{name}{index}", node=name, index=index, model="X", memory_mib=1000, pool="t")
            devices.append(device)
            firm[device.id] = 1000 - milli
        names = tuple(topology.split("/")) if topology and groups else ()
        nodes.append(Node(id=name, name=name, cpu_milli=8000, memory_mib=8000, topology=names))
    made = Ledger(devices, nodes)
    for id, milli in firm.items():
        made.firm[made.number[id]] = milli
    return made


def goes(text: str, request: Request) -> str:
    """The node of each rank, in order."""
    made = ledger(text)
    fit = place(made, request)
    nodes = {piece.rank: made.nodes[made.node_of[piece.device]] for piece in fit.pieces} if isinstance(fit, Fit) else {}
    return "".join(nodes.values())


@pytest.mark.parametrize(
    ("devices", "request_", "expected"),
    [
        # R72
        pytest.param("a@r1:1 b@r1:1 c@r2:2", Request(1000, 2), "cc", id="one node with room for all ranks"),
        pytest.param("a@r1:4 b@r1:3 c@r2:2", Request(1000, 2), "cc", id="the node with the least room of those"),
        pytest.param("a:1 b:1 c:2", Request(1000, 2), "ab", id="no group is named: where the fewest are left"),
        pytest.param("a@r1:2 b@r2:2 c@r2:2", Request(2000, 2), "bc", id="one rack rather than the first nodes"),
        pytest.param("a@r1:2 b@r1:2 c@r1:2 d@r2:2 e@r2:2", Request(2000, 2), "de", id="the rack with the least room"),
        pytest.param("a@r1:2 b@r2:2 c@r3:2", Request(2000, 2), "ab", id="the pool where no rack has room"),
        pytest.param("a@r1:2 b:2 c@r2:2 d@r2:2", Request(2000, 2), "cd", id="a node of no rack is close to none"),
        pytest.param("a@r1/z1:2 b@r2/z2:2 c@r3/z2:2", Request(2000, 2), "bc", id="a zone where no rack has room"),
        pytest.param("a@r1/z1:2 b@r1/z2:2 c@r3/z2:2", Request(2000, 2), "bc", id="racks of two zones with one name"),
        pytest.param("a@r1:2 b@r1:2 c@r2:2", Request(2000, 1), "a", id="work of one rank stays where it was"),
        pytest.param("a@r1:3 b@r1:1 c@r2:3", Request(1000, 4), "baaa", id="within a rack, the fewest whole ones first"),
        pytest.param("a@r1:0,250 b@r1:0,250 c@r2:0,500", Request(250, 2), "cc", id="fractions on one node"),
        pytest.param(
            "a@r1:2 b@r2:2 c@r2:2", Request(2000, 2, cpu_milli=8000), "bc", id="with CPU: one rack with room for it"
        ),
        pytest.param("a@r1:2 b@r2:4", Request(1000, 2, cpu_milli=8000), "ab", id="one node has no CPU for both ranks"),
    ],
)
def test_the_nodes_of_a_gang(devices: str, request_: Request, expected: str) -> None:
    assert goes(devices, request_) == expected


@pytest.mark.parametrize(
    ("topologies", "expected"),
    [
        pytest.param([(), ()], [], id="no node names a group"),
        pytest.param([("",), ("",)], [], id="nor by an empty name"),
        pytest.param([("r1",), ("r2",), ("r1",)], [["0", "1", "2"], ["02", "1"]], id="nodes, then racks"),
        pytest.param([("r1",), ("r1",)], [["0", "1"], []], id="a group of all nodes is left out"),
        pytest.param([("", "z1"), ("r1", "z1"), ()], [["0", "1", "2"], ["1"], ["01"]], id="a level that a node lacks"),
    ],
)
def test_the_groups_of_nodes(topologies: list[tuple[str, ...]], expected: list[list[str]]) -> None:
    found = [["".join(map(str, sorted(group))) for group in level] for level in groups_of_nodes(topologies)]
    assert found == expected


@pytest.mark.parametrize(
    ("room", "ranks", "expected"),
    [
        pytest.param({0: 1, 1: 2, 2: 2}, 2, [1], id="the closest level, ties by the lowest node"),
        pytest.param({0: 1, 1: 2, 2: 2}, 3, [0, 1], id="the next level"),
        pytest.param({0: 1, 1: 2, 2: 1}, 4, None, id="no group has room"),
    ],
)
def test_the_closest_group(room: dict[int, int], ranks: int, expected: list[int] | None) -> None:
    levels = groups_of_nodes([("r1",), ("r1",), ("r2",)])
    found = closest_group(levels, room, ranks)
    assert (None if found is None else sorted(found)) == expected


free = st.tuples(
    st.sampled_from("abcdefgh"), st.sampled_from(["", "@r1", "@r2", "@r1/z1", "@r2/z2"]), st.integers(0, 3)
)
requests = st.builds(
    Request, st.sampled_from([125, 250, 400, 1000, 2000]), st.integers(2, 6), cpu_milli=st.sampled_from([0, 3000])
)


@given(st.lists(free, min_size=1, max_size=8, unique_by=lambda each: each[0]), st.sampled_from(["", ",600"]), requests)
def test_groups_never_change_whether_a_gang_fits(words: list[tuple[str, str, int]], shared: str, gang: Request) -> None:
    text = " ".join(f"{name}{group}:{whole}{shared}" for name, group, whole in words)
    close, plain = (place(ledger(text, groups=each), gang) for each in (True, False))
    assert type(close) is type(plain)
    if not isinstance(close, Fit) or not isinstance(plain, Fit):
        assert close == plain
        return
    assert sorted(piece.gpu_milli for piece in close.pieces) == sorted(piece.gpu_milli for piece in plain.pieces)
    used = dict[int, int]()
    for piece in close.pieces:
        used[piece.device] = used.get(piece.device, 0) + piece.gpu_milli
    made = ledger(text)
    assert all(milli <= made.plain_now(at) for at, milli in used.items())
