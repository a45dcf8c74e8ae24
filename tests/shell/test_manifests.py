"""What processes are told, whole: any change of these texts is a change of the public contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpu_quota.core.model import Device, Placement
from jupyter_gpu_quota.executors.layout import rank_paths
from jupyter_gpu_quota.manifests import (
    OUR_VARIABLES,
    kernel_environment,
    notebook_environment,
    rank_environment,
    without_ours,
)

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


def rendered(placed: str, *, rank: int = 0, ranks: int = 1, variables: Mapping[str, str] | None = None) -> list[str]:
    environment = rank_environment(
        job="J", attempt=2, rank=rank, ranks=ranks, placements=PLACED[placed], devices=DEVICES,
        places=rank_paths("/s", "J", 2, rank), variables=variables or {}, path_first="/env/bin",
        port=27_896 if ranks > 1 else None,
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


def test_a_fraction_is_told_its_device_and_to_grow_slowly() -> None:
    assert rendered(HALF) == sorted([*always(), *shown("GPU-0", 500, 4000), "TF_FORCE_GPU_ALLOW_GROWTH=true"])


def test_whole_devices_are_summed() -> None:
    assert rendered(WHOLE) == sorted([*always(), *shown("GPU-0,GPU-1", 2000, 16000)])


def test_a_rank_of_a_gang_is_told_its_own_share_and_where_to_meet() -> None:
    gang = ["LOCAL_RANK=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=27896", "RANK=1", "WORLD_SIZE=2"]
    assert rendered("a gang", rank=1, ranks=2) == sorted([*always(1), *shown("GPU-1", 1000, 8000), *gang])


def test_a_device_without_a_known_uuid_is_not_shown() -> None:
    assert {"CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=void"} <= set(rendered("unread"))


def test_a_persons_variables_are_kept_and_ours_are_not_theirs() -> None:
    theirs = {"PATH": "/mine", "LR": "0.1", "CUDA_VISIBLE_DEVICES": "all", "GPU_QUOTA_WHATEVER": "x"}
    told = set(rendered(HALF, variables=theirs))
    assert {"PATH=/mine", "LR=0.1", "CUDA_VISIBLE_DEVICES=GPU-0"} <= told
    assert not any("WHATEVER" in line for line in told)


def test_everything_that_we_set_for_jobs_is_stripped_from_what_people_set() -> None:
    assert without_ours(dict.fromkeys(OUR_VARIABLES, "x")) == {}


# --- notebooks and kernels ----------------------------------------------------------------------------------------
@dataclass
class Booked:
    id: str
    allocations: list[Any]


def part(uuid: str | None, gpu_milli: int = 125, memory_mib: int = 1900) -> Any:
    return SimpleNamespace(device_uuid=uuid, gpu_milli=gpu_milli, memory_mib=memory_mib)


SHARE = '{"gpu_milli": 125, "memory_mib": 1900, "notebook": "N"}'


def test_a_notebook_server_is_told_its_device_and_its_share_alone() -> None:
    assert notebook_environment(Booked("N", [part("GPU-7")])) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-7",
        "NVIDIA_VISIBLE_DEVICES": "GPU-7",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "JUPYTER_GPU_QUOTA_SHARE": SHARE,
    }


@pytest.mark.parametrize("booked", [None, Booked("N", [])], ids=["no slice", "a slice without a device"])
def test_a_notebook_without_a_slice_sees_no_gpu(booked: Booked | None) -> None:
    assert notebook_environment(booked) == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_kernel_is_told_the_amounts_of_its_servers_share() -> None:
    assert kernel_environment(SHARE) == {"GPU_QUOTA_MILLI": "125", "GPU_QUOTA_MEMORY_MIB": "1900"}
    assert kernel_environment(None) == kernel_environment("") == {}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"gpu_milli": null, "memory_mib": 1}', '"x"'])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        kernel_environment(text)
