"""Leaders that were replaced are refused by the API server itself, also one that was frozen and continues."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client import fencing
from jupyter_gpu_quota.backends.kubernetes.permissions import PERMISSIONS
from tests.backends.contract import Controller
from tests.backends.worlds import order
from tests.kube.chart.release import PATHS
from tests.kube.control_plane import ControlPlane
from tests.kube.jobs.test_permissions import without
from tests.kube.world import KubernetesWorld
from tests.patience import until

FROZEN = """
import itertools, sys, time
from jupyter_gpu_quota.backends.kubernetes.backend import KubernetesBackend
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from tests.backends.worlds import order
folder, namespace, kubeconfig = sys.argv[1:]
settings = PodSettings(namespace=namespace, hub="test", image="none", volume_claim="jobs", path_first="/usr/bin")
backend = KubernetesBackend(folder, settings, kubeconfig=kubeconfig)
backend.jobs.fence(1)
for number in itertools.count():
    backend.jobs.start(order(f"J{number}", "runs on", fencing=1))
    time.sleep(0.05)
"""
"""A leader that starts a job every 50 ms."""


@pytest.fixture
def world(control_plane: ControlPlane, tmp_path: Path) -> Iterator[KubernetesWorld]:
    made = KubernetesWorld(control_plane, tmp_path)
    try:
        yield made
    finally:
        made.close()


def names(world: KubernetesWorld) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.pods()}


def test_a_leader_that_was_frozen_starts_nothing_when_it_continues(world: KubernetesWorld, tmp_path: Path) -> None:
    kubeconfig = world.plane.kubeconfig(world.namespace)
    leader = subprocess.Popen(
        [sys.executable, "-c", FROZEN, str(tmp_path), world.namespace, kubeconfig], cwd=Path.cwd()
    )
    try:
        until(lambda: len(names(world)) >= 3)
        os.kill(leader.pid, signal.SIGSTOP)
        world.backend.jobs.fence(2)
        before = names(world)
        requests = refusals(world.plane)
        os.kill(leader.pid, signal.SIGCONT)
        until(lambda: refusals(world.plane) >= requests + 10, what="the leader continued, and is refused")
        assert leader.poll() is None
        assert names(world) == before
    finally:
        leader.kill()
        leader.wait(10)


def refusals(plane: ControlPlane) -> int:
    """How many requests the policies of the tests refused, by the API server's own count."""
    text = plane.request("GET", "/metrics")[1]["message"]
    lines = [line for line in text.splitlines() if line.startswith("apiserver_validating_admission_policy_check_total")]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if 'enforcement_action="deny"' in line)


def test_a_deletion_that_was_prepared_before_a_take_over_is_refused(world: KubernetesWorld) -> None:
    controller = Controller(world)
    world.backend.jobs.fence(1)
    controller.start("J", "runs on", fencing=1)
    running = controller.began("J", "runs on")
    path = f"/api/v1/namespaces/{world.namespace}/pods/{running.handle}"
    mark = {"metadata": {"annotations": {"gpu-quota.jupyter.org/fencing": "1"}}}
    marked = world.plane.patch(path, mark, user=world.namespace)
    seen = {name: marked["metadata"][name] for name in ("uid", "resourceVersion")}
    world.another().jobs.fence(2)
    status, found = world.plane.request("DELETE", path, {"preconditions": seen}, user=world.namespace)
    assert (status, "leader 1 was replaced: the newest is 2" in found["message"]) == (403, True), found
    assert "deletionTimestamp" not in world.plane.get(path)["metadata"]


@pytest.mark.parametrize(
    ("annotations", "status"),
    [
        pytest.param({"gpu-quota.jupyter.org/fencing": "6"}, 403, id="an older leader is refused"),
        pytest.param({}, 403, id="a request without a number is refused"),
        pytest.param({"gpu-quota.jupyter.org/fencing": "7"}, 201, id="the leader is not"),
        pytest.param(
            {"gpu-quota.jupyter.org/fencing": "8"}, 201, id="a leader that has not stored its number yet is not"
        ),
    ],
)
def test_the_number_of_a_request(world: KubernetesWorld, annotations: dict[str, str], status: int) -> None:
    world.backend.jobs.fence(7)
    for resource in ("configmaps", "secrets"):
        body = {"metadata": {"name": "made", "annotations": annotations}}
        path = f"/api/v1/namespaces/{world.namespace}/{resource}"
        assert world.plane.request("POST", path, body, user=world.namespace)[0] == status


def test_the_requests_of_others_are_not_judged(world: KubernetesWorld) -> None:
    world.backend.jobs.fence(7)
    path = f"/api/v1/namespaces/{world.namespace}/configmaps"
    world.plane.make(path, {"metadata": {"name": "made"}})
    assert world.plane.request("DELETE", f"{path}/made")[0] == 200


def test_a_replaced_leader_cannot_lower_the_number(world: KubernetesWorld) -> None:
    world.backend.jobs.fence(7)
    path = f"/api/v1/namespaces/{world.namespace}/configmaps/gpu-quota-fence"
    lower: dict[str, Any] = world.plane.get(path) | {"data": {"fencing": "3"}}
    lower["metadata"]["annotations"] = {"gpu-quota.jupyter.org/fencing": "3"}
    assert world.plane.request("PUT", path, lower, user=world.namespace)[0] == 403
    assert world.plane.get(path)["data"] == {"fencing": "7"}


def test_without_a_policy_in_force_there_is_no_leader(world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "IN_FORCE_WITHIN_S", 2.0)
    binding = f"{PATHS['ValidatingAdmissionPolicyBinding']}/{world.namespace}.gpu-quota-fencing"
    assert world.plane.request("DELETE", binding)[0] == 200
    probe, path = {"metadata": {"name": "probe"}}, f"/api/v1/namespaces/{world.namespace}/configmaps?dryRun=All"
    until(
        lambda: world.plane.request("POST", path, probe, user=world.namespace)[0] == 201, what="no policy is in force"
    )
    with pytest.raises(OSError, match="accepts requests of leader 6"):
        world.backend.jobs.fence(7)


def test_a_refusal_for_another_reason_is_no_policy_in_force(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "IN_FORCE_WITHIN_S", 2.0)
    (permission,) = [each for each in PERMISSIONS if (each.resource, each.verb) == ("configmaps", "create")]
    without(world.plane, world.namespace, permission)
    binding = f"{PATHS['ValidatingAdmissionPolicyBinding']}/{world.namespace}.gpu-quota-fencing"
    assert world.plane.request("DELETE", binding)[0] == 200
    with pytest.raises(OSError, match="but not by the policy: configmaps is forbidden"):
        world.backend.jobs.fence(7)


def test_without_a_fence_there_is_no_leader(world: KubernetesWorld) -> None:
    path = f"/api/v1/namespaces/{world.namespace}/configmaps/gpu-quota-fence"
    assert world.plane.request("DELETE", path)[0] == 200
    with pytest.raises(OSError, match="has no ConfigMap gpu-quota-fence"):
        world.backend.jobs.fence(7)


def test_an_order_that_is_made_for_the_leader_before_is_refused_by_the_cluster(world: KubernetesWorld) -> None:
    world.backend.jobs.fence(5)
    world.backend.jobs.start(order("J", "runs on", fencing=4))
    world.pass_ms(world.wait_ms)
    assert names(world) == set()


def test_a_take_over_does_not_wait_for_the_requests_of_jobs(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader before has queued thousands of requests: at a bounded rate they take longer than a lease lasts."""
    controller = Controller(world)
    world.backend.jobs.fence(1)
    controller.start("J", "runs on", fencing=1)
    controller.began("J", "runs on")
    backend = world.another()

    async def never() -> None:
        await asyncio.sleep(1000)

    monkeypatch.setattr(backend._server._rate, "take", never)
    backend.jobs.fence(2)
    assert {fact.job for fact in until(backend.jobs.observe)} == {"J"}


def test_the_waiting_requests_of_a_leader_that_was_replaced_are_dropped(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may wait; the API server would refuse each, and the orders of the new leader would be behind them."""
    backend, full = world.another(), asyncio.Semaphore(0)
    backend.jobs.fence(1)
    monkeypatch.setattr(backend._server, "_at_once", full)
    backend.jobs.start(order("J", "runs on", fencing=1))
    until(lambda: full._waiters, what="the request waits")
    backend.jobs.fence(2)
    refused, sent = refusals(world.plane), backend._server.requests
    backend._thread._loop.call_soon_threadsafe(full.release)
    until(lambda: ("start", "J", 1) not in backend._thread._busy)
    assert (backend._server.requests, refusals(world.plane)) == (sent, refused)
    backend.jobs.start(order("J", "runs on", fencing=2))
    until(lambda: full.release() or names(world))  # type: ignore[func-returns-value]
