"""Shares by Dynamic Resource Allocation: a real kubelet lets a driver prepare claims, and the runtime applies them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.contract import Controller
from tests.kube.control_plane import ControlPlane
from tests.node.node import RealNode
from tests.node.world import NodeWorld

SHOWS = (
    "sh",
    "-c",
    'echo "$NVIDIA_VISIBLE_DEVICES has $GPU_QUOTA_MILLI"; trap "exit 0" TERM; while :; do sleep 0.1; done',
)


@pytest.fixture
def world(plane: ControlPlane, driver_node: RealNode, tmp_path: Path) -> Iterator[NodeWorld]:
    """A backend whose jobs run on the node with a DRA driver."""
    made = NodeWorld(plane, tmp_path, driver_node, patience_s=5)
    try:
        yield made
    finally:
        made.close()


def test_shares_of_the_chosen_device_run_beside_each_other_and_see_it(world: NodeWorld) -> None:
    controller = Controller(world)
    for job, gpu_milli in (("A", 125), ("B", 500)):
        controller.give(world.order(job, *SHOWS, gpu_milli=gpu_milli, at=1))
        world.until(lambda job=job: world.log(job))
    assert world.log("A") == "GPU-fake-dra-127-0-0-3-1 has 125\n"
    assert world.log("B") == "GPU-fake-dra-127-0-0-3-1 has 500\n"


def test_a_share_that_does_not_fit_is_lost(world: NodeWorld) -> None:
    controller = Controller(world)
    controller.give(world.order("A", *SHOWS, gpu_milli=600))
    world.until(lambda: world.log("A"))
    controller.give(world.order("B", "true", gpu_milli=600))
    lost = controller.gone("B")
    assert (lost.started_at, lost.exit_status) == (None, None), "lost, and so queued again"
