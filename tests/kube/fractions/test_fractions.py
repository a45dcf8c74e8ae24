"""Fractions behind one contract, with claims of a DRA driver and with reservations of devices that a plugin counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.protocol import StartOrder
from jupyter_gpu_quota.backends.rendering.cluster_names import DEVICE, DEVICE_UUID, RESERVATION
from jupyter_gpu_quota.backends.rendering.notebooks import notebook_pod
from jupyter_gpu_quota.backends.rendering.shares import GATES, VISIBLE
from jupyter_gpu_quota.core.model import Placement
from tests.backends.contract import Controller
from tests.backends.kubernetes.test_notebooks import Booked, Part
from tests.kube.control_plane import ControlPlane
from tests.kube.fractions.devices import device, resource_slice
from tests.kube.fractions.test_dra import RESOURCES, consumed, running
from tests.kube.world import KubernetesWorld
from tests.patience import until


class Fractions(KubernetesWorld):
    """A node with two devices that can be shared."""

    def order(self, job: str, gpu_milli: int, at: int, *, command: str = "exec sleep 1000") -> StartOrder:
        """A job of one rank with so much of one device."""
        self.until(lambda: len((self.backend.jobs.inventory() or ((), ()))[1]) == 2)
        devices = (self.backend.jobs.inventory() or ((), ()))[1]
        part = Placement(rank=0, device=devices[at].id, gpu_milli=gpu_milli, memory_mib=1)
        words = ("sh", "-c", command)
        return StartOrder(job=job, attempt=1, fencing=1, command=words, placements=(part,), devices=devices)

    def shares(self) -> dict[str, int]:
        """How many running shares each device has, by the objects of the API server."""
        if consumed(self):
            return {name: len(amounts) for name, amounts in consumed(self).items()}
        on = [p["metadata"]["annotations"][DEVICE] for p in self.pods() if _rides(p) and not _has_ended(p)]
        return dict(Counter(name.replace("/", "/gpu-").partition("/")[2] for name in on))

    def reservations(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if pod["metadata"]["name"] == pod["metadata"]["labels"].get(RESERVATION)]


def _rides(pod: dict[str, Any]) -> bool:
    """Whether a pod has a share of a reserved device."""
    metadata = pod["metadata"]
    return metadata["name"] != metadata["labels"].get(RESERVATION) and DEVICE_UUID in metadata["annotations"]


def _has_ended(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


@pytest.fixture(params=["dra", "reservation"])
def world(request: pytest.FixtureRequest, dra_plane: ControlPlane, tmp_path: Path) -> Iterator[Fractions]:
    """Chosen by the setting auto: what the node has decides."""
    counted = request.param == "reservation"
    if not counted:
        dra_plane.make(f"{RESOURCES}/resourceslices", resource_slice("here", device("gpu-0"), device("gpu-1")))
    kubelet = {"capacity": {"nvidia.com/gpu": "2"}} if counted else {}
    made = Fractions(dra_plane, tmp_path, kubelet=kubelet)
    made.backend.jobs.fence(1)
    try:
        yield made
    finally:
        made.close()
        dra_plane.request("DELETE", f"{RESOURCES}/resourceslices/here")


def test_eight_eighths_share_the_chosen_device_and_a_ninth_does_not_fit(world: Fractions) -> None:
    controller = Controller(world)
    for number in range(8):
        controller.give(world.order(f"J{number}", 125, 1))
    for number in range(8):
        running(controller, f"J{number}")
    assert world.shares() == {"gpu-1": 8}
    world.restart(patience_s=1)
    world.backend.jobs.fence(1)
    controller.give(world.order("J8", 125, 1))
    fact = controller.until(lambda fact: fact.job == "J8" and fact.tree_gone)
    assert (fact.started_at, fact.exit_status, fact.refused) == (None, None, None), "lost, and so queued again"
    assert world.shares() == {"gpu-1": 8}


def test_a_share_is_free_again_when_its_job_ends(world: Fractions) -> None:
    controller = Controller(world)
    controller.give(world.order("J", 600, 0, command="exit 0"))
    controller.gone("J")
    controller.give(world.order("K", 600, 0))
    running(controller, "K")
    assert world.shares() == {"gpu-0": 1}


def test_nothing_is_left_when_the_last_share_is_settled(world: Fractions) -> None:
    controller = Controller(world)
    controller.give(world.order("J", 500, 0, command="exit 0"))
    controller.gone("J")
    controller.orders.clear()
    world.backend.jobs.settled("J", 1)
    claims = f"{RESOURCES}/namespaces/{world.namespace}/resourceclaims"
    until(lambda: not world.pods() and not world.plane.get(claims)["items"], what=world.pods)


def test_a_whole_device_and_a_share_run_beside_each_other(world: Fractions) -> None:
    controller = Controller(world)
    controller.give(world.order("W", 1000, 0))
    controller.give(world.order("J", 500, 1))
    running(controller, "W")
    running(controller, "J")


# --- reservations alone -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("world", ["reservation"], indirect=True)
def test_shares_of_a_device_see_the_device_that_its_reservation_got(world: Fractions) -> None:
    controller = Controller(world)
    for job, at in (("A", 0), ("B", 0), ("C", 1)):
        controller.give(world.order(job, 250, at, command='echo "$NVIDIA_VISIBLE_DEVICES"; exit 0'))
    seen = {}
    for job in "ABC":
        controller.gone(job)
        seen[job] = world.backend.outputs.log(job, 1, 0).data
    assert seen["A"] == seen["B"] != seen["C"] and seen["A"].startswith(b"GPU-here-")


@pytest.mark.parametrize("world", ["reservation"], indirect=True)
def test_a_share_is_lost_when_its_reservation_comes_back_with_another_device(world: Fractions) -> None:
    controller = Controller(world)
    controller.give(world.order("J", 500, 0))
    running(controller, "J")
    (held,) = world.reservations()
    world.plane.request("DELETE", f"/api/v1/namespaces/{world.namespace}/pods/{held['metadata']['name']}")
    fact = controller.until(lambda fact: fact.job == "J" and fact.tree_gone)
    assert fact.exit_status is None, "lost, and so queued again"


@pytest.mark.parametrize("world", ["reservation"], indirect=True)
def test_a_gate_of_the_site_is_not_removed(world: Fractions) -> None:
    world.settings = replace(world.settings, pod={"schedulingGates": [{"name": "example.org/checked"}]})
    world.restart()
    world.backend.jobs.fence(1)
    Controller(world).give(world.order("J", 500, 0))

    def gates() -> list[str]:
        riding = [pod for pod in world.pods() if _rides(pod)]
        return [each["name"] for pod in riding for each in pod["spec"]["schedulingGates"]]

    until(lambda: gates() == ["example.org/checked"], what=world.pods)


@pytest.mark.parametrize("world", ["reservation"], indirect=True)
def test_a_backend_that_is_no_leader_reserves_nothing(world: Fractions) -> None:
    world.leave()
    world.backend = world.another()
    Controller(world).give(world.order("J", 500, 0))
    world.pass_ms(world.wait_ms)
    assert world.reservations() == []


@pytest.mark.parametrize("world", ["reservation"], indirect=True)
def test_the_pod_of_a_notebook_rides_on_the_reservation_beside_a_job(world: Fractions) -> None:
    controller = Controller(world)
    controller.give(world.order("J", 500, 0))
    running(controller, "J")
    booked = Booked(allocations=(Part("here/0", None, 500),))
    patch = notebook_pod(booked, world.settings, simulated=False)
    assert patch.share is not None
    metadata = {"name": "jupyter-ann", "labels": patch.labels, "annotations": patch.share.annotations}
    container = {"name": "notebook", "image": "i", "command": ["sleep", "1000"], "env": [VISIBLE]}
    spec = {"containers": [container], "schedulingGates": GATES, "automountServiceAccountToken": False}
    pods = f"/api/v1/namespaces/{world.namespace}/pods"
    world.plane.make(pods, {"metadata": metadata, "spec": spec})
    until(lambda: world.plane.get(f"{pods}/jupyter-ann")["status"]["phase"] == "Running", what=world.pods)
    (held,) = world.reservations()
    notebook = world.plane.get(f"{pods}/jupyter-ann")
    assert notebook["metadata"]["annotations"][DEVICE_UUID] == held["metadata"]["annotations"][DEVICE_UUID]
