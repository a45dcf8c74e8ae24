"""Samples of a node's devices with the workloads of their pods, by the agent's reader on the fake library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpu_quota.backends.kubernetes.agent.node_pods import PodUnknown
from jupyter_gpu_quota.backends.kubernetes.agent.pod_reader import PodReader
from tests.gpu.fake_library import Script
from tests.gpu.world import FakeGpu, share_of
from tests.patience import PATIENCE_S

NOTEBOOK, FOREIGN, NEW = (f"74c13223-5a00-11e9-b385-42010a80018{digit}" for digit in "abc")


class Node:
    """Which pod each process is in, and which workload each pod is."""

    def __init__(self, script: Script, *, sees_host: bool) -> None:
        self.cgroups = dict[int, str]()
        self.workloads: dict[str, str | None] = {NOTEBOOK: "N", FOREIGN: None}
        reader = PodReader(self.workload_of, sees_host=sees_host, cgroups_of=self.cgroups.get, timeout_s=PATIENCE_S)
        self.gpu = FakeGpu(script, reader)

    def workload_of(self, uid: str) -> str | None:
        if uid not in self.workloads:
            raise PodUnknown(uid)
        return self.workloads[uid]

    def start(self, pod: str | None, mib: int, *, busy: bool = False, names: str = "") -> int:
        pid = self.gpu.start(mib, busy=busy, variables=share_of(names) if names else None)
        self.cgroups[pid] = "0::/system.slice/x.service" if pod is None else f"0::/kubepods/pod{pod}/{'c' * 64}"
        return pid


@pytest.fixture
def node(script: Script) -> Iterator[Node]:
    yield from _node(script, sees_host=True)


@pytest.fixture
def restricted_node(script: Script) -> Iterator[Node]:
    yield from _node(script, sees_host=False)


def _node(script: Script, *, sees_host: bool) -> Iterator[Node]:
    node = Node(script, sees_host=sees_host)
    with node.gpu:
        script.device(0)
        yield node


def test_a_process_is_of_the_workload_of_its_pod(node: Node) -> None:
    pid = node.start(NOTEBOOK, 700, busy=True)
    row = node.gpu.row("N", "M")
    assert (row.workloads, row.workload_memory_mib) == ({"N": 60, "M": 0}, {"N": 700, "M": 0})
    assert [use.handle for use in row.processes["N"]] == [str(pid)]
    assert (row.foreign_mib, dict(row.why)) == (0, {})


@pytest.mark.parametrize("pod", [pytest.param(FOREIGN, id="another pod"), pytest.param(None, id="no pod")])
def test_variables_that_name_a_notebook_are_no_evidence(node: Node, pod: str | None) -> None:
    node.start(pod, 700, busy=True, names="N")
    row = node.gpu.row("N")
    assert (row.workloads, row.foreign_mib) == ({"N": 0}, 700)


def test_a_process_that_names_another_notebook_is_of_its_own_pod(node: Node) -> None:
    node.start(NOTEBOOK, 700, busy=True, names="M")
    assert node.gpu.row("N", "M").workloads == {"N": 60, "M": 0}


def test_while_a_pod_is_unknown_no_workload_of_the_device_is_unused(node: Node) -> None:
    node.start(NEW, 700)
    row = node.gpu.row("N")
    assert (row.workloads, row.workload_memory_mib) == ({"N": None}, {"N": None})
    assert not row.processes and "is unknown" in row.why["N"]
    node.workloads[NEW] = None
    row = node.gpu.row("N")
    assert (row.workloads, row.foreign_mib) == ({"N": 0}, 700)


def test_a_process_whose_cgroup_cannot_be_read_is_unknown(node: Node) -> None:
    node.cgroups.pop(node.start(NOTEBOOK, 700))
    assert node.gpu.row("N").workloads == {"N": None}


def test_processes_are_of_no_workload_where_the_agent_has_other_process_ids(restricted_node: Node) -> None:
    unused = restricted_node.gpu.row("N")
    assert (unused.workload_memory_mib, unused.shows_workloads) == ({"N": 0}, False), "it is unknown once it is used"
    restricted_node.start(NOTEBOOK, 700, busy=True)
    row = restricted_node.gpu.row("N")
    assert (row.utilisation_percent, row.memory_used_mib) == (60, 700), "the device's own figures need no processes"
    assert (row.workloads, row.workload_memory_mib) == ({"N": None}, {"N": None})
