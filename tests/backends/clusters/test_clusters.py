"""Several clusters as one backend: where orders go, and what is done without a cluster that is away."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.clusters.members import PROBE_AFTER_S, Member, Members
from jupyter_gpu_quota.backends.clusters.routes import JobRoutes
from jupyter_gpu_quota.backends.clusters.tokens import ClustersTokens
from jupyter_gpu_quota.backends.protocol import NodeUnverified, StartOrder, TokenRefused
from jupyter_gpu_quota.core.model import OWN_CLUSTER, Device, Placement
from tests.backends.clusters.fakes import DEVICES, NODE, WEST, FakeCluster, TwoClusters
from tests.backends.worlds import stop
from tests.patience import until


@pytest.fixture
def two(tmp_path: Path) -> TwoClusters:
    return TwoClusters(tmp_path)


def start(two: TwoClusters, job: str, *devices: str, attempt: int = 1, fencing: int = 1) -> None:
    """Start a job with one rank on each of these devices, as the inventory has them."""
    known = {each.id: each for each in _devices(two)}
    placements = tuple(
        Placement(rank=rank, device=device, gpu_milli=1000, memory_mib=100) for rank, device in enumerate(devices)
    )
    order = StartOrder(
        job=job, attempt=attempt, fencing=fencing, command=("train",), placements=placements, ranks=len(devices),
        devices=tuple(known[device] for device in devices),
    )  # fmt: skip
    two.backend.jobs.start(order)


def _devices(two: TwoClusters) -> list[Device]:
    return [*DEVICES, *two.backend.jobs._members.all[1].names.inventory(two.west.__class__.inventory(two.west))[1]]  # type: ignore[arg-type]


def facts(two: TwoClusters) -> set[str]:
    return {fact.job for fact in two.backend.jobs.observe()}


# --- names ------------------------------------------------------------------------------------------------------------
def test_nodes_and_devices_of_equal_names_have_ids_of_their_own(two: TwoClusters) -> None:
    found = two.backend.jobs.inventory()
    assert [(node.id, node.name, node.cluster) for node in found.nodes] == [
        ("n1", "n1", OWN_CLUSTER), ("west:n1", "n1", WEST),
    ]  # fmt: skip
    assert [(device.id, device.node) for device in found.devices] == [
        ("n1/0", "n1"), ("n1/1", "n1"), ("west:n1/0", "west:n1"), ("west:n1/1", "west:n1"),
    ]  # fmt: skip


def test_an_order_goes_to_the_cluster_of_its_devices_by_the_names_there(two: TwoClusters) -> None:
    start(two, "J", "n1/0")
    start(two, "K", "west:n1/1", "west:n1/0")
    assert [order.job for order in two.own.starts] == ["J"]
    (order,) = two.west.starts
    assert order.job == "K"
    assert [part.device for part in order.placements] == ["n1/1", "n1/0"]
    assert {(device.id, device.node) for device in order.devices} == {("n1/0", "n1"), ("n1/1", "n1")}
    assert facts(two) == {"J", "K"}


def test_a_gang_is_never_split_over_two_clusters(two: TwoClusters) -> None:
    with pytest.raises(ValueError, match="devices of local and west"):
        start(two, "G", "n1/0", "west:n1/0")
    assert two.own.starts == two.west.starts == []


def test_further_orders_for_a_job_go_where_it_was_started_also_after_a_restart(two: TwoClusters) -> None:
    start(two, "J", "n1/0")
    start(two, "K", "west:n1/0")
    two.backend = two.another()
    for job in ("J", "K"):
        two.backend.jobs.stop(stop(job))
    assert ([each.job for each in two.own.stops], [each.job for each in two.west.stops]) == (["J"], ["K"])
    two.own.outputs_mib, two.west.outputs_mib = {"J": 1, "K": 2}, {"J": 3, "K": 4}
    assert two.backend.jobs.output_sizes(["J", "K"]) == {"J": 1, "K": 4}
    two.own.lost_bundles.add("bundle")
    assert [two.backend.jobs.has_code(job, "bundle") for job in ("J", "K")] == [False, True]
    for job in ("J", "K"):
        two.backend.jobs.remove_outputs(job)
        two.backend.jobs.forget(job)
    assert (two.own.removed_outputs, two.west.removed_outputs) == (["J"], ["K"])
    assert (two.own.forgotten, two.west.forgotten) == (["J"], ["K"])
    assert list((two.folder / "routes").rglob("K")) == []


# --- routes -----------------------------------------------------------------------------------------------------------
def test_the_route_of_a_job_is_stored_before_its_order_is_sent(tmp_path: Path) -> None:
    waiting, seen = [], []
    routes, reader = JobRoutes(tmp_path, [WEST], later=waiting.append), JobRoutes(tmp_path, [WEST])
    for _ in range(2):
        routes.note("J", WEST, lambda: seen.append(reader.stored("J")))
    assert (seen, routes.of("J")) == ([], WEST)
    (write,) = waiting
    write()
    assert seen == [WEST]
    routes.note("J", WEST, lambda: seen.append("again"))
    assert seen == [WEST, "again"]


def test_a_job_whose_route_cannot_be_stored_is_started_by_a_later_order(tmp_path: Path) -> None:
    (tmp_path / "routes").write_text("no folder")
    routes, sent = JobRoutes(tmp_path, [WEST], later=lambda task: task()), []
    routes.note("J", WEST, lambda: sent.append(1))
    assert sent == []
    (tmp_path / "routes").unlink()
    routes.note("J", WEST, lambda: sent.append(2))
    assert sent == [2]


def test_a_job_that_moves_has_the_route_to_its_last_cluster(tmp_path: Path) -> None:
    routes = JobRoutes(tmp_path, [WEST, "north"], later=lambda task: task())
    for cluster in (WEST, "north", OWN_CLUSTER):
        routes.note("J", cluster)
        assert JobRoutes(tmp_path, [WEST, "north"]).of("J") == cluster


def test_a_new_leader_reads_the_routes_that_another_process_wrote(two: TwoClusters) -> None:
    other = two.another()
    assert other.jobs.output_sizes(["K"]) == {}
    start(two, "K", "west:n1/0")
    two.west.outputs_mib = {"K": 4}
    other.jobs.fence(2)
    assert other.jobs.output_sizes(["K"]) == {"K": 4}


@pytest.mark.parametrize("job", ["../J", "a/b", ""])
def test_a_text_that_is_no_job_has_no_route(tmp_path: Path, job: str) -> None:
    (tmp_path / "routes" / WEST).mkdir(parents=True)
    (tmp_path / "routes" / "J").touch()
    assert JobRoutes(tmp_path, [WEST]).stored(job) == OWN_CLUSTER


# --- a cluster that is away -------------------------------------------------------------------------------------------
def test_the_inventory_leaves_out_a_cluster_that_cannot_be_read(two: TwoClusters) -> None:
    two.west.is_away = True
    found = two.backend.jobs.inventory()
    assert ([node.id for node in found.nodes], found.unread) == (["n1"], {WEST})
    two.west.is_away = False
    assert two.backend.jobs.inventory().unread == frozenset()


def test_a_term_begins_without_a_cluster_that_is_away_which_gets_no_order_in_it(two: TwoClusters) -> None:
    start(two, "K", "west:n1/0")
    two.west.is_away = True
    assert two.backend.attempts.newest_fence() == 0
    two.backend.jobs.fence(2)
    assert (two.own.fences, two.backend.attempts.left_out()) == ([2], {WEST: False})
    with pytest.raises(OSError, match="cluster west is left out"):
        two.backend.jobs.forget("K")
    two.west.is_away = False
    start(two, "L", "west:n1/1", fencing=2)
    two.backend.jobs.stop(stop("K", fencing=2))
    assert ([each.job for each in two.west.starts], two.west.stops) == (["K"], [])
    assert facts(two) == set()
    assert two.backend.jobs.inventory().unread == {WEST}


def test_a_cluster_that_returns_is_taken_over_before_a_new_term_has_it(tmp_path: Path) -> None:
    clock = [0]
    two = TwoClusters(tmp_path, lambda: clock[0])
    two.west.is_away = True
    two.backend.jobs.fence(2)
    clock[0] += int(PROBE_AFTER_S * 1000)
    assert two.backend.attempts.left_out() == {WEST: False}
    two.west.is_away = False
    until(lambda: two.backend.attempts.left_out() == {WEST: True})
    assert (two.west.fences, two.west.fencing) == ([2], 2), "one attempt"
    assert two.backend.attempts.newest_fence() == 2
    two.backend.jobs.fence(3)
    assert two.backend.attempts.left_out() == {}
    start(two, "L", "west:n1/1", fencing=3)
    assert [each.job for each in two.west.starts] == ["L"]


def test_a_cluster_that_refuses_to_be_taken_over_is_asked_less_and_less(tmp_path: Path) -> None:
    clock = [0]
    two = TwoClusters(tmp_path, lambda: clock[0])
    two.west.__class__ = _WithoutFence
    asked: list[int] = []
    two.backend.jobs.fence(2)
    for second in range(1, 61):
        before = len(two.west.fences)
        clock[0] = second * 1000
        assert two.backend.attempts.left_out() == {WEST: False}
        absent = two.backend.jobs._members._absent[WEST]
        if absent.taken_over is not None:
            until(absent.taken_over.done)
        asked += [second] * (len(two.west.fences) - before)
    assert asked == [2, 7, 16, 33]


class _WithoutFence(FakeCluster):
    """The chart is not installed there."""

    __slots__ = ()

    def fence(self, fencing: int) -> None:
        self.fences.append(fencing)
        raise OSError("there is no ConfigMap gpu-quota-fence")


def test_a_cluster_that_does_not_answer_delays_no_other(tmp_path: Path) -> None:
    answer = threading.Event()

    class Silent(FakeCluster):
        __slots__ = ()

        def newest_fence(self) -> int:
            answer.wait()
            return 0

    own, west = FakeCluster(now=lambda: 0, nodes=(NODE,)), Silent(now=lambda: 0, nodes=(NODE,))
    members = Members([Member(OWN_CLUSTER, own), Member(WEST, west)], answer_within_s=0.01)  # type: ignore[arg-type]
    try:
        assert members.begin_term() == 0
        members.fence(2)
        assert (own.fences, west.fences, members.left_out()) == ([2], [], {WEST: False})
    finally:
        answer.set()


def test_without_any_cluster_there_is_no_leader(two: TwoClusters) -> None:
    two.own.is_away = two.west.is_away = True
    with pytest.raises(OSError, match=r"cluster local: the API server.*cluster west: the API server"):
        two.backend.jobs.fence(2)
    two.own.is_away = False
    two.backend.jobs.fence(3)
    assert two.own.fences == [3]


def test_the_hubs_own_cluster_may_be_the_one_that_is_away(two: TwoClusters) -> None:
    two.own.is_away = True
    two.backend.jobs.fence(2)
    start(two, "K", "west:n1/0", fencing=2)
    assert [each.job for each in two.west.starts] == ["K"]


# --- attempts ---------------------------------------------------------------------------------------------------------
def test_the_newest_attempt_is_found_in_whichever_cluster_it_is(two: TwoClusters) -> None:
    start(two, "J", "n1/0")
    start(two, "J", "west:n1/1", attempt=2)
    start(two, "K", "west:n1/0")
    found = two.backend.attempts.newest(["J", "K"])
    assert [(each.job, each.attempt, [part.device for part in each.placements or ()]) for each in found] == [
        ("J", 2, ["west:n1/1"]), ("K", 1, ["west:n1/0"]),
    ]  # fmt: skip
    assert two.backend.attempts.unsettled() == {("J", 1), ("J", 2), ("K", 1)}


def test_the_attempts_of_a_cluster_that_is_away_stay_unsettled(two: TwoClusters) -> None:
    start(two, "K", "west:n1/0")
    assert two.backend.attempts.unsettled() == {("K", 1)}
    two.west.is_away = True
    assert two.backend.attempts.unsettled() == {("K", 1)}


# --- tokens -----------------------------------------------------------------------------------------------------------
class Tokens:
    """The tokens of one cluster, by their text: a node, or why it is refused."""

    def __init__(self, known: Mapping[str, str | Exception]) -> None:
        self.known = known

    def is_token(self, text: str) -> bool:
        return text in self.known

    def node_of(self, token: str) -> str:
        found = self.known.get(token, TokenRefused("another audience", is_valid=False))
        if isinstance(found, Exception):
            raise found
        return found


def test_a_token_names_a_node_of_its_own_cluster() -> None:
    tokens = ClustersTokens(
        {
            OWN_CLUSTER: Tokens({"a": "n1", "d": TokenRefused("another account")}),
            WEST: Tokens({"b": "n1", "c": NodeUnverified("away")}),
        }
    )
    assert (tokens.node_of("a"), tokens.node_of("b")) == ("n1", "west:n1")
    with pytest.raises(NodeUnverified, match="away"):
        tokens.node_of("c")
    with pytest.raises(TokenRefused, match="another account"):
        tokens.node_of("d")
    with pytest.raises(TokenRefused, match="another audience"):
        tokens.node_of("e")
    assert tokens.is_token("b") and not tokens.is_token("e")
