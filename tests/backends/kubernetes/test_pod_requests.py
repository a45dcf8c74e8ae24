"""What kube-scheduler counts for a pod."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.devices.pod_requests import requests_of


def container(cpu: str = "0", gpus: int = 0, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}, "limits": {"nvidia.com/gpu": str(gpus)}}, **more}


def sidecar(cpu: str = "0", gpus: int = 0) -> dict[str, Any]:
    return container(cpu, gpus, restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "cpu", "gpus"),
    [
        pytest.param({"containers": [container("1"), container("500m")]}, 1500, 0, id="containers run together"),
        pytest.param(
            {"initContainers": [container("2"), container("3")], "containers": [container("1")]},
            3000, 0, id="each init container runs alone",
        ),
        pytest.param(
            {"initContainers": [sidecar("1", 1)], "containers": [container("1")]},
            2000, 1, id="a sidecar runs beside the containers",
        ),
        pytest.param(
            {"initContainers": [sidecar("1"), container("2"), sidecar("500m")], "containers": [container("1")]},
            3000, 0, id="an init container runs beside the sidecars before it",
        ),
        pytest.param(
            {"initContainers": [container("0", 2)], "containers": [container("0", 1)]},
            0, 2, id="the devices of an init container are given to the pod",
        ),
        pytest.param(
            {"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1250, 0, id="the overhead is added"
        ),
        pytest.param(
            {"containers": [container("1", 1)], "resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "1"}},
            5000, 1, id="an amount of the whole pod replaces those of its containers",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": {"cpu": "2"}}}, {"name": "without any"}]},
            2000, 0, id="a limit is the default of a request",
        ),
    ],
)  # fmt: skip
def test_what_a_pod_requests(spec: dict[str, Any], cpu: int, gpus: int) -> None:
    found = requests_of(spec)
    assert (found.get("cpu", 0), found.get("nvidia.com/gpu", 0)) == (cpu, gpus)


def test_amounts_are_rounded_up_and_those_of_other_resources_are_left_out() -> None:
    requests = {"cpu": "0.0015", "memory": "1", "ephemeral-storage": "1Gi"}
    assert requests_of({"containers": [{"resources": {"requests": requests}}]}) == {"cpu": 2, "memory": 1}
