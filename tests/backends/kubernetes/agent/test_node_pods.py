"""Which pods of a node stay known to its agent."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.agent import node_pods
from jupyter_gpu_quota.backends.kubernetes.agent.node_pods import NodePods, PodUnknown

HUB = {"gpu-quota.jupyter.org/hub": "hub"}


class Node:
    """The pods of one node as its agent knows them."""

    def __init__(self) -> None:
        clock = map(float, count())
        self.pods, self._version = NodePods(None, "jobs", "n", "hub", clock=clock.__next__), 0  # type: ignore[arg-type]

    def see(self, uid: str, name: str | None = None, **labels: str) -> None:
        self._version += 1
        known: dict[str, Any] = {"name": name or uid, "uid": uid, "resourceVersion": str(self._version)}
        own = {f"gpu-quota.jupyter.org/{kind}": value for kind, value in labels.items()}
        self.pods.informer.note({"metadata": known | {"labels": HUB | own}})

    def remove(self, name: str) -> None:
        self.pods.informer._remove(name)

    def knows(self, uid: str) -> str | None:
        try:
            return self.pods.workload_of(uid)
        except PodUnknown:
            return "unknown"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(node_pods, "MAX_GONE", 3)
    return Node()


def test_a_pod_that_runs_stays_known_whatever_number_of_others_come_and_go(node: Node) -> None:
    node.see("notebook", notebook="N")
    for number in range(20):
        node.see(f"job-{number}", job=f"J{number}")
        node.remove(f"job-{number}")
    assert node.knows("notebook") == "N"
    assert [node.knows(f"job-{number}") for number in (16, 17, 18, 19)] == ["unknown", "J17", "J18", "J19"]
    assert len(node.pods._workloads) == 4


def test_a_pod_that_was_replaced_while_the_watch_was_broken_is_gone(node: Node) -> None:
    for number in range(20):
        node.see(f"uid-{number}", "gq-j-1-0", job="J")
    assert node.knows("uid-19") == "J" and node.knows("uid-18") == "J"
    assert len(node.pods._workloads) == 4
