"""The kernel provisioner: the variables of a kernel, whatever its kernelspec or its caller sets."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from jupyter_server.serverapp import ServerApp

from jupyter_gpu_quota.backends.rendering.variables import SECRET_VARIABLE, SHARE_VARIABLE
from jupyter_gpu_quota.notebook import _load_jupyter_server_extension
from jupyter_gpu_quota.notebook.provisioner import GPUQuotaProvisioner, kernel_variables

SHARE = json.dumps({"notebook": "nb-1", "gpu_milli": 125, "memory_mib": 10_240})
SERVER = {
    "HOME": "/home/ann",
    "CUDA_VISIBLE_DEVICES": "GPU-1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "JUPYTER_GPU_QUOTA_URL": "http://127.0.0.1:8000/services/gpu-quota/",
    "JUPYTER_GPU_QUOTA_PROJECT": "fraud",
    "JUPYTERHUB_API_TOKEN": "t",
    SHARE_VARIABLE: SHARE,
    SECRET_VARIABLE: "secret",
}


@pytest.fixture(autouse=True)
def a_server_of_its_own() -> Iterator[None]:
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


@pytest.fixture
def in_our_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVER.items():
        monkeypatch.setenv(name, value)


def finalized(environment: dict[str, str], **metadata: object) -> dict[str, str]:
    spec = KernelSpec(language="python", argv=["python"], metadata=dict(metadata))
    provisioner = GPUQuotaProvisioner(kernel_id="k", kernel_spec=spec)
    provisioner._finalize_env(environment)
    return environment


def test_a_kernel_gets_devices_and_amounts_of_the_share(in_our_hub: None) -> None:
    env = finalized(dict(SERVER))
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert (env["GPU_QUOTA_MILLI"], env["GPU_QUOTA_MEMORY_MIB"]) == ("125", "10240")


def test_a_kernel_keeps_the_variables_for_submitting_and_no_server_variables(in_our_hub: None) -> None:
    env = finalized(dict(SERVER))
    assert {"JUPYTER_GPU_QUOTA_URL", "JUPYTER_GPU_QUOTA_PROJECT", "JUPYTERHUB_API_TOKEN", "HOME"} <= env.keys()
    assert not {SHARE_VARIABLE, SECRET_VARIABLE} & env.keys()


def test_our_variables_set_by_a_kernelspec_or_a_user_are_replaced(in_our_hub: None) -> None:
    asked = {
        **SERVER,
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "GPU_QUOTA_MILLI": "4000",
        "GPU_QUOTA_EXTRA": "x",
        "MINE": "1",
    }
    env = finalized(asked)
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert env["GPU_QUOTA_MILLI"] == "125"
    assert "GPU_QUOTA_EXTRA" not in env
    assert env["MINE"] == "1"


def test_a_kernelspec_may_do_without_the_gpu(in_our_hub: None) -> None:
    env = finalized(dict(SERVER), gpu=False)
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert not {name for name in env if name.startswith("GPU_QUOTA_")}


def test_kernels_of_a_server_without_a_gpu_see_none() -> None:
    server = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert kernel_variables({"CUDA_VISIBLE_DEVICES": "0"}, server, wants_gpu=True) == server


def test_outside_our_hub_the_provisioner_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTER_GPU_QUOTA_URL", raising=False)
    assert finalized({"CUDA_VISIBLE_DEVICES": "3"}) == {"CUDA_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param({}, GPUQuotaProvisioner, id="a kernelspec without a provisioner gets ours"),
        pytest.param(
            {"kernel_provisioner": {"provisioner_name": "local-provisioner"}},
            LocalProvisioner,
            id="a kernelspec with one of its own keeps it",
        ),
    ],
)
def test_the_provisioner_of_a_kernel(in_our_hub: None, metadata: dict[str, object], expected: type) -> None:
    _load_jupyter_server_extension(ServerApp())
    spec = KernelSpec(language="python", argv=["python"], metadata=metadata)
    assert type(KernelProvisionerFactory.instance().create_provisioner_instance("k", spec, None)) is expected


def test_a_server_of_another_hub_keeps_the_ordinary_provisioner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTER_GPU_QUOTA_URL", raising=False)
    _load_jupyter_server_extension(ServerApp())
    assert KernelProvisionerFactory.instance().default_provisioner_name == "local-provisioner"
