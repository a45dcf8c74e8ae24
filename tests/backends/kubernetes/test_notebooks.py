"""The slice of a notebook as additions to its pod."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from jupyter_gpu_quota.backends.rendering.cluster_names import reservation_name
from jupyter_gpu_quota.backends.rendering.notebooks import (
    NotebookPod,
    SliceNotSupported,
    notebook_pod,
    variables_of_pod,
)
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from jupyter_gpu_quota.backends.rendering.variables import SHARE_VARIABLE, confirmed_environment

SETTINGS = PodSettings(namespace="jupyter", hub="local", image="", volume_claim="")
LABELS = {"gpu-quota.jupyter.org/hub": "local", "gpu-quota.jupyter.org/notebook": "N1"}


@dataclass(frozen=True)
class Part:
    device: str = "gpu01/gpu-0"
    device_uuid: str | None = "GPU-0"
    gpu_milli: int = 125
    memory_mib: int = 10_000
    device_memory_mib: int | None = 81_559


@dataclass(frozen=True)
class Booked:
    id: str = "N1"
    allocations: tuple[Part, ...] = field(default=(Part(),))


def test_a_share_is_a_claim_of_the_chosen_device_on_its_node() -> None:
    found = notebook_pod(Booked(), SETTINGS, simulated=False)
    exactly = {
        "deviceClassName": "gpu.nvidia.com",
        "selectors": [{"cel": {"expression": 'device.attributes["gpu.nvidia.com"].uuid == "GPU-0"'}}],
        "capacity": {"requests": {"memory": "10194Mi"}},
    }
    claim = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "gq-n1", "namespace": "jupyter", "labels": LABELS},
        "spec": {"devices": {"requests": [{"name": "gpu-0", "exactly": exactly}]}},
    }  # fmt: skip
    assert found == NotebookPod(labels=LABELS, node="gpu01", claim=claim)


def test_a_whole_device_of_a_plugin_is_a_limit() -> None:
    whole = Booked(allocations=(Part("gpu01/0", None, 1000),))
    assert notebook_pod(whole, SETTINGS, simulated=False) == NotebookPod(
        labels=LABELS, node="gpu01", limits={"nvidia.com/gpu": "1"}
    )


def test_mig_instances_of_a_plugin_are_limits_of_their_profile() -> None:
    booked = Booked(allocations=(Part("gpu01/mig-1g.10gb-0", None, 1000), Part("gpu01/mig-1g.10gb-3", None, 1000)))
    assert notebook_pod(booked, SETTINGS, simulated=False).limits == {"nvidia.com/mig-1g.10gb": "2"}


def test_a_share_of_a_plugin_s_device_waits_for_its_reservation() -> None:
    booked = Booked(allocations=(Part("gpu01/0", None),))
    found = notebook_pod(booked, SETTINGS, simulated=False)
    assert found.share is not None and found.node == "gpu01" and not found.limits
    assert found.share.annotations == {
        "gpu-quota.jupyter.org/device": "gpu01/0", "gpu-quota.jupyter.org/gpu-milli": "125",
    }  # fmt: skip
    assert found.labels == {**LABELS, "gpu-quota.jupyter.org/reservation": reservation_name("local", "gpu01/0")}


@pytest.mark.parametrize(
    ("fractions", "parts"),
    [
        pytest.param("none", [Part("gpu01/0", None)], id="fractions are off"),
        pytest.param("dra", [Part("gpu01/0", None)], id="only a DRA driver gives fractions"),
        pytest.param("auto", [Part("gpu01/0", None), Part("gpu01/1", None)], id="parts of two devices"),
        pytest.param("auto", [Part("gpu01/mig-1g.10gb-0", None)], id="a part of a MIG instance"),
    ],
)
def test_a_share_that_no_reservation_can_hold_is_refused(fractions: str, parts: list[Part]) -> None:
    settings = replace(SETTINGS, fractions=fractions)
    with pytest.raises(
        SliceNotSupported, match=r"0\.125 GPU of device gpu01/\S+ cannot be given: (the device plugin|a MIG)"
    ):
        notebook_pod(Booked(allocations=tuple(parts)), settings, simulated=False)


def test_a_simulated_device_asks_the_cluster_for_nothing() -> None:
    assert notebook_pod(Booked(), SETTINGS, simulated=True) == NotebookPod(labels=LABELS, node="gpu01")


@pytest.mark.parametrize("booked", [None, Booked(allocations=())], ids=["no slice", "a slice without a device"])
def test_without_a_device_nothing_is_added(booked: Booked | None) -> None:
    assert notebook_pod(booked, SETTINGS, simulated=False) == NotebookPod()


@pytest.mark.parametrize("id", ["../x", "a b", "", "n" * 41])
def test_an_id_that_is_no_name_of_an_object_is_refused(id: str) -> None:
    with pytest.raises(SliceNotSupported, match="is not the id of a notebook"):
        notebook_pod(Booked(id=id), SETTINGS, simulated=False)


def test_variables_of_the_hub_s_machine_do_not_reach_a_pod() -> None:
    ours = "/hub/site-packages/jupyter_gpu_quota/backends/rendering/torch_hook.py"
    given = {"A": "1", "NVIDIA_VISIBLE_DEVICES": "GPU-0", "CUDA_VISIBLE_DEVICES": "GPU-0", "PYTHONSTARTUP": ours}
    assert variables_of_pod(given, simulated=False, has_device=True) == {"A": "1"}
    own = {"PYTHONSTARTUP": ours, "JUPYTER_GPU_QUOTA_STARTUP": "/home/ann/start.py"}
    assert variables_of_pod(own, simulated=False, has_device=True) == {"PYTHONSTARTUP": "/home/ann/start.py"}


def test_a_pod_without_a_device_keeps_void() -> None:
    given = {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert variables_of_pod(given, simulated=False, has_device=False) == given


def test_a_confirmed_slice_leaves_the_device_that_the_runtime_chose_to_the_server() -> None:
    counted = confirmed_environment(Booked(allocations=(Part("gpu01/0", None),)))
    assert SHARE_VARIABLE in counted and not {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"} & counted.keys()
    assert confirmed_environment(Booked())["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    assert confirmed_environment(Booked(allocations=()))["NVIDIA_VISIBLE_DEVICES"] == "void"
