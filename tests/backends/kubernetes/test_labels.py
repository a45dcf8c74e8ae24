"""Labels of shares on a cluster: policed where the agent of the node reads the memory, and never more than is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.enforcement import (
    FRESH_MS,
    NO_AGENT,
    NO_UUID,
    ClusterEnforcement,
    ClusterSamples,
)
from jupyter_gpu_quota.backends.rendering.cluster_names import DEVICE_UUID
from jupyter_gpu_quota.backends.rendering.pods import PodSettings, RankOfJob, rank_pod
from jupyter_gpu_quota.backends.rendering.variables import XLA_FRACTION
from jupyter_gpu_quota.core.enforcement.levels import DeviceShare, EnforcementLevel
from jupyter_gpu_quota.core.model import Allocation, Device, Placement
from jupyter_gpu_quota.core.samples import AGENT, WORKLOADS, DeviceSample

NOW = 1_800_000_000_000
SHARE = DeviceShare(workload="J", device="GPU-0", gpu_milli=500, memory_mib=40_000)
SAMPLE = DeviceSample(
    node="n", device="n/gpu-0", at=NOW, utilisation_percent=5, memory_used_mib=700, coverage_permille=1000,
    simulated=False, workloads={"J": 5}, workload_memory_mib={"J": 700},
)  # fmt: skip
POLICED, COOPERATIVE, NONE = EnforcementLevel.POLICED, EnforcementLevel.COOPERATIVE, EnforcementLevel.NONE
SETTINGS = PodSettings(namespace="n", hub="h", image="i", volume_claim="v")


@pytest.mark.parametrize(
    ("share", "sample", "policed", "memory"),
    [
        pytest.param(SHARE, SAMPLE, True, POLICED, id="its memory is read, and the policy acts"),
        pytest.param(SHARE, SAMPLE, False, NONE, id="the policy does not act"),
        pytest.param(SHARE, None, True, NONE, id="no sample"),
        pytest.param(SHARE, replace(SAMPLE, at=NOW - FRESH_MS - 1), True, NONE, id="an old sample"),
        pytest.param(SHARE, replace(SAMPLE, at=NOW + FRESH_MS + 1), True, NONE, id="a sample of the future"),
        pytest.param(SHARE, replace(SAMPLE, workload_memory_mib={"J": None}), True, NONE, id="unknown memory"),
        pytest.param(SHARE, replace(SAMPLE, workload_memory_mib={}), True, NONE, id="a sample of before it began"),
        pytest.param(
            SHARE,
            replace(SAMPLE, workload_memory_mib={"J": 0}, why={WORKLOADS: "no hostPID"}),
            True,
            NONE,
            id="an agent that could not read it, if it were used",
        ),
        pytest.param(replace(SHARE, gpu_milli=1000), SAMPLE, True, NONE, id="a whole device has no neighbour"),
    ],
)
def test_the_label_of_a_share(share: DeviceShare, sample: DeviceSample | None, policed: bool, memory: object) -> None:
    enforcement = ClusterEnforcement(None, None, SETTINGS)  # type: ignore[arg-type]
    samples = {} if sample is None else {"a": sample}
    label = enforcement.read_back({"a": share}, samples, policed=policed, now=NOW)["a"]
    assert (label.memory, label.compute, label.unsure) == (memory, NONE, True)


def reserved_pod(phase: str = "Running", uuid: str | None = "GPU-0") -> dict[str, Any]:
    """The pod of rank 0 of attempt 2 of J, as it is rendered, and as the controllers started it."""
    device = Device(id="n/0", node="n", index=0, model="H100", memory_mib=80_000, pool=None)
    part = Placement(rank=0, device="n/0", gpu_milli=500, memory_mib=40_000)
    rank = RankOfJob(
        job="J", attempt=2, rank=0, ranks=1, fencing=1, command=["true"], placements=[part], devices=[device]
    )
    pod = rank_pod(rank, SETTINGS, {})
    for each in pod["spec"]["containers"][0]["env"]:
        if "valueFrom" in each:
            each["valueFrom"] = {"fieldRef": {"apiVersion": "v1", **each["valueFrom"]["fieldRef"]}}
    if uuid is not None:
        pod["metadata"]["annotations"][DEVICE_UUID] = uuid
    return pod | {"status": {"phase": phase}}


def without_caps(pod: dict[str, Any]) -> dict[str, Any]:
    container = pod["spec"]["containers"][0]
    container["env"] = [each for each in container["env"] if each["name"] != XLA_FRACTION]
    return pod


@pytest.mark.parametrize(
    ("share", "pod", "memory"),
    [
        pytest.param({}, reserved_pod(), COOPERATIVE, id="it runs with the caps"),
        pytest.param({}, reserved_pod("Pending"), NONE, id="it does not run yet"),
        pytest.param({}, reserved_pod(uuid=None), NONE, id="its device is not known yet"),
        pytest.param({}, without_caps(reserved_pod()), NONE, id="a site took the caps away"),
        pytest.param({"attempt": 3}, reserved_pod(), NONE, id="the pod is that of an earlier attempt"),
        pytest.param({"workload": "K"}, reserved_pod(), NONE, id="the pod is that of another job"),
    ],
)
def test_the_label_of_a_reserved_share_is_that_of_its_running_pod(
    share: dict[str, Any], pod: dict[str, Any], memory: object
) -> None:
    enforcement = ClusterEnforcement(None, None, SETTINGS, lambda: [pod])  # type: ignore[arg-type]
    given = replace(SHARE, **{"device": None, "attempt": 2, **share})
    label = enforcement.read_back({"a": given}, {}, policed=True, now=NOW)["a"]
    assert (label.memory, label.compute, label.unsure) == (memory, NONE, True)


@pytest.mark.parametrize(
    ("uuid", "why"),
    [
        pytest.param("GPU-0", NO_AGENT, id="a device that an agent could read"),
        pytest.param(None, NO_UUID, id="a slot of a device plugin"),
    ],
)
def test_without_an_agent_every_figure_is_unknown_with_the_reason(uuid: str | None, why: str) -> None:
    device = Device(id="n/0", node="n", index=0, model="H100", memory_mib=80_000, pool=None, uuid=uuid)
    held = [Allocation(id="a", workload="J", rank=0, device="n/0", gpu_milli=1000, memory_mib=80_000)]
    (row,) = ClusterSamples(lambda users: None).samples({device: held}, now=NOW)
    assert row.is_stand_in and (row.utilisation_percent, row.memory_used_mib, row.workloads) == (
        None,
        None,
        {"J": None},
    )
    assert {row.why[name] for name in (AGENT, "J", "utilisation_percent", "memory_used_mib")} == {why}
