"""A node whose kubelet does not answer: its ranks are lost, and what runs on there reaches the job no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.contract import Controller
from tests.backends.worlds import stop
from tests.kube.control_plane import ControlPlane
from tests.kube.world import KubernetesWorld

READY_AT = "2026-11-24T10:00:00Z"


class Lost:
    """A job on node ``here``, whose container is a folder that is open: its kubelet does nothing for it."""

    def __init__(self, world: KubernetesWorld) -> None:
        self.world, self.controller = world, Controller(world)
        self.pod = f"/api/v1/namespaces/{world.namespace}/pods/gq-j-1-0"
        world.kubelet.ignored.add("gq-j-1-0")
        self.controller.start("J", "runs on")
        world.until(lambda: any(pod["spec"].get("nodeName") for pod in world.pods()))
        self.set_container("Running", {"running": {"startedAt": READY_AT}})
        self.controller.until(lambda fact: fact.started_at is not None)
        self.checkpoint = world.folder / "jobs/J/checkpoint"
        (self.checkpoint / "n").write_text("7")
        self.mounted = os.open(self.checkpoint, os.O_RDONLY | os.O_DIRECTORY)

    def set_container(self, phase: str, state: dict[str, object]) -> None:
        container = {"name": "job", "image": "none", "imageID": "", "restartCount": 0, "ready": False, "state": state}
        self.world.plane.patch(f"{self.pod}/status", {"status": {"phase": phase, "containerStatuses": [container]}})

    def set_node(self, ready: str) -> None:
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": READY_AT, "lastHeartbeatTime": READY_AT}
        self.world.plane.patch("/api/v1/nodes/here/status", {"status": {"conditions": [condition]}})

    def evict(self) -> None:
        """Delete its pod, as Kubernetes does after the time for which it tolerates the node."""
        self.world.plane.request("DELETE", self.pod, {"gracePeriodSeconds": 1})

    def end(self) -> None:
        """The kubelet is back: it reports the end of the container, and removes the pod."""
        ended = {"exitCode": 143, "reason": "Error", "startedAt": READY_AT, "finishedAt": READY_AT}
        self.set_container("Failed", {"terminated": ended})
        self.world.plane.request("DELETE", self.pod, {"gracePeriodSeconds": 0})

    def write(self, text: str) -> None:
        """Write as the container does, by the folder that it has mounted."""
        opened = os.open("n", os.O_WRONLY | os.O_TRUNC, dir_fd=self.mounted)
        os.write(opened, text.encode())
        os.close(opened)

    def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.world.pods()]


@pytest.fixture
def lost(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Lost]:
    world = KubernetesWorld(control_plane, tmp_path)
    try:
        made = Lost(world)
        yield made
        os.close(made.mounted)
    finally:
        world.close()


def settle(lost: Lost) -> None:
    lost.controller.orders.clear()
    lost.world.backend.jobs.settled("J", 1)


def test_a_rank_is_lost_when_its_pod_was_deleted_and_its_kubelet_does_not_answer(lost: Lost) -> None:
    lost.evict()
    lost.world.pass_ms(2_500)
    lost.controller.wait()
    assert not lost.controller.facts["J", 1, 0].tree_gone, "its kubelet may end it"
    lost.set_node("Unknown")
    fact = lost.controller.gone("J")
    assert (fact.exit_status, fact.pause_requested) == (None, False)
    assert fact.why_lost == f"node here is lost: its kubelet has not answered since {READY_AT}"
    assert "the log was lost" in lost.world.backend.outputs.log("J", 1, 0).data.decode()
    found = lost.world.backend.jobs.inventory()
    assert found is not None
    (node,), (first, _) = found.nodes, found.devices
    assert (node.schedulable, first.trouble) == (False, fact.why_lost)


def test_a_node_that_does_not_answer_keeps_its_ranks_while_kubernetes_keeps_the_pod(lost: Lost) -> None:
    lost.set_node("Unknown")
    lost.world.pass_ms(2_500)
    lost.controller.wait()
    assert not lost.controller.facts["J", 1, 0].tree_gone


def test_a_stop_order_on_a_lost_node_is_a_pause(lost: Lost) -> None:
    lost.set_node("Unknown")
    lost.controller.give(stop("J", grace_s=1))
    fact = lost.controller.gone("J")
    assert (fact.exit_status, fact.pause_requested) == (None, True)


def test_what_runs_on_reaches_the_next_attempt_no_more_and_its_pod_goes_when_it_ends(lost: Lost) -> None:
    lost.set_node("Unknown")
    lost.evict()
    lost.controller.gone("J")
    lost.set_node("True")
    lost.world.until(lambda: (lost.world.backend.jobs.inventory() or ((), ()))[0][0].schedulable)
    settle(lost)
    lost.controller.start("J", "runs on", attempt=2)
    lost.controller.until(lambda fact: fact.attempt == 2 and fact.started_at is not None)
    lost.write("8")
    assert (lost.checkpoint / "n").read_text() == "7"
    assert lost.names() == ["gq-j-1-0", "gq-j-2-0"], "the node's devices count as used until its kubelet answers"
    lost.world.restart()
    lost.world.backend.jobs.fence(2)
    lost.end()
    lost.world.until(lambda: lost.names() == ["gq-j-2-0"])
    lost.world.until(lambda: not (lost.world.folder / "jobs/J/detached/1/checkpoint").exists())
    assert (lost.checkpoint / "n").read_text() == "7"
