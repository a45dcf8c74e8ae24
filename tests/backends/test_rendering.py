"""All variables of processes: any change of them is a change of the public contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.rendering import variables as manifests
from jupyter_gpu_quota.backends.rendering.variables import (
    OUR_VARIABLES,
    framework_caps,
    kernel_environment,
    notebook_environment,
    rank_environment,
    without_ours,
)
from jupyter_gpu_quota.core.model import Device, Placement

HALF = "0.5 of d0"
WHOLE = "d0 and d1"
PLACED = {
    HALF: (Placement(rank=0, device="d0", gpu_milli=500, memory_mib=4000),),
    WHOLE: tuple(Placement(rank=0, device=name, gpu_milli=1000, memory_mib=8000) for name in ("d0", "d1")),
    "a gang": tuple(Placement(rank=rank, device=f"d{rank}", gpu_milli=1000, memory_mib=8000) for rank in (0, 1)),
    "unread": (Placement(rank=0, device="d9", gpu_milli=1000, memory_mib=8000),),
}
DEVICES = tuple(
    Device(
        id=f"d{n}", node="here", index=n, model="S", memory_mib=8000, pool="train", uuid=None if n == 9 else f"GPU-{n}"
    )
    for n in (0, 1, 9)
)


def rendered(
    placed: str, *, rank: int = 0, ranks: int = 1, variables: Mapping[str, str] | None = None, **held: Any
) -> list[str]:
    environment = rank_environment(
        job="J", attempt=2, rank=rank, ranks=ranks, placements=PLACED[placed], devices=DEVICES,
        paths=rank_paths("/s", "J", 2, rank), variables=variables or {}, path_first="/env/bin",
        port=27_896 if ranks > 1 else None, **held,
    )  # fmt: skip
    return sorted(f"{name}={value}" for name, value in environment.items())


def always(rank: int = 0) -> list[str]:
    return [
        "GPU_QUOTA_ATTEMPT=2",
        "GPU_QUOTA_CHECKPOINT_DIR=/s/jobs/J/checkpoint",
        "GPU_QUOTA_JOB_ID=J",
        "GPU_QUOTA_OUTPUT_DIR=/s/jobs/J/outputs",
        f"GPU_QUOTA_PAUSE_FILE=/s/jobs/J/run/2/rank-{rank}/pause",
        f"GPU_QUOTA_PROGRESS_FILE=/s/jobs/J/run/2/rank-{rank}/progress.json",
        "LANG=C.UTF-8",
        "PATH=/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]


def shown(uuids: str, gpu_milli: int, memory_mib: int) -> list[str]:
    return [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f"CUDA_VISIBLE_DEVICES={uuids}",
        f"NVIDIA_VISIBLE_DEVICES={uuids}",
        f"GPU_QUOTA_MILLI={gpu_milli}",
        f"GPU_QUOTA_MEMORY_MIB={memory_mib}",
    ]


def test_a_fraction_gets_its_device_and_memory_growth() -> None:
    caps = ["TF_FORCE_GPU_ALLOW_GROWTH=true", "XLA_CLIENT_MEM_FRACTION=0.425"]
    assert rendered(HALF) == sorted([*always(), *shown("GPU-0", 500, 4000), *caps])


def test_a_fraction_that_the_driver_limits_has_no_framework_cap() -> None:
    assert not any("XLA" in line for line in rendered(HALF, limited=True))
    assert "PYTHONSTARTUP" not in notebook_environment(Booked("N", [part("GPU-7")]), limited=True)


def test_a_client_of_mps_gets_its_variables() -> None:
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/mps" in rendered(HALF, mps={"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"})


@pytest.mark.parametrize(
    ("gpu_milli", "memory_mib", "fraction"),
    [
        pytest.param(500, 40_000, "0.492", id="half of a large device, less a context"),
        pytest.param(125, 1_900, "0.085", id="an eighth of a small one"),
        pytest.param(50, 800, "0.025", id="never less than half of the share"),
    ],
)
def test_the_frameworks_cap_leaves_room_for_a_context(gpu_milli: int, memory_mib: int, fraction: str) -> None:
    assert framework_caps(gpu_milli, memory_mib) == {"XLA_CLIENT_MEM_FRACTION": fraction}


@pytest.mark.parametrize(("gpu_milli", "memory_mib"), [(1000, 8000), (500, 0), (0, 8000)])
def test_a_whole_device_and_one_without_memory_have_no_cap(gpu_milli: int, memory_mib: int) -> None:
    assert framework_caps(gpu_milli, memory_mib) == {}


def test_whole_devices_are_summed() -> None:
    assert rendered(WHOLE) == sorted([*always(), *shown("GPU-0,GPU-1", 2000, 16000)])


def test_a_rank_of_a_gang_gets_its_own_share_and_the_rendezvous() -> None:
    gang = ["LOCAL_RANK=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=27896", "RANK=1", "WORLD_SIZE=2"]
    assert rendered("a gang", rank=1, ranks=2) == sorted([*always(1), *shown("GPU-1", 1000, 8000), *gang])


def test_a_device_without_a_known_uuid_is_not_shown() -> None:
    assert {"CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=void"} <= set(rendered("unread"))


def test_variables_of_users_are_kept_except_reserved_names() -> None:
    theirs = {"PATH": "/mine", "LR": "0.1", "CUDA_VISIBLE_DEVICES": "all", "GPU_QUOTA_WHATEVER": "x"}
    found = set(rendered(HALF, variables=theirs))
    assert {"PATH=/mine", "LR=0.1", "CUDA_VISIBLE_DEVICES=GPU-0"} <= found
    assert not any("WHATEVER" in line for line in found)


def test_every_variable_of_the_service_is_reserved() -> None:
    assert without_ours(dict.fromkeys(OUR_VARIABLES, "x")) == {}


# --- notebooks and kernels ----------------------------------------------------------------------------------------
@dataclass
class Booked:
    id: str
    allocations: list[Any]


def part(uuid: str | None, gpu_milli: int = 125, memory_mib: int = 1900) -> Any:
    return SimpleNamespace(device_uuid=uuid, gpu_milli=gpu_milli, memory_mib=memory_mib)


SHARE = '{"gpu_milli": 125, "memory_mib": 1900, "notebook": "N"}'


STARTUP = str(Path(manifests.__file__).with_name("torch_hook.py"))


def test_a_notebook_server_gets_its_device_its_share_and_its_caps() -> None:
    assert Path(STARTUP).is_file()
    assert notebook_environment(Booked("N", [part("GPU-7")])) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-7",
        "NVIDIA_VISIBLE_DEVICES": "GPU-7",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_CLIENT_MEM_FRACTION": "0.085",
        "PYTHONSTARTUP": STARTUP,
        "JUPYTER_GPU_QUOTA_SHARE": SHARE,
    }


@pytest.mark.parametrize(("before", "kept"), [("/mine.py", "/mine.py"), (None, None), (STARTUP, None)])
def test_a_start_up_file_that_was_named_before_is_kept(before: str | None, kept: str | None) -> None:
    found = notebook_environment(Booked("N", [part("GPU-7")]), startup_before=before)
    assert (found["PYTHONSTARTUP"], found.get("JUPYTER_GPU_QUOTA_STARTUP")) == (STARTUP, kept)


@pytest.mark.parametrize("booked", [None, Booked("N", [])], ids=["no slice", "a slice without a device"])
def test_a_notebook_without_a_slice_sees_no_gpu(booked: Booked | None) -> None:
    assert notebook_environment(booked) == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_kernel_gets_the_amounts_of_its_servers_share() -> None:
    assert kernel_environment(SHARE) == {"GPU_QUOTA_MILLI": "125", "GPU_QUOTA_MEMORY_MIB": "1900"}
    assert kernel_environment(None) == kernel_environment("") == {}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"gpu_milli": null, "memory_mib": 1}', '"x"'])
def test_an_invalid_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        kernel_environment(text)
