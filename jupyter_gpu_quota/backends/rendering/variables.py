"""What processes are told about their share, by variables. Pure: a booking goes in, names and values come out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ...core.model import WHOLE_DEVICE, Device, Placement

SHARE_VARIABLE = "JUPYTER_GPU_QUOTA_SHARE"
"""In a notebook server: the share as one JSON object, from which the kernel provisioner renders kernels."""

OUR_PREFIX = "GPU_QUOTA_"

XLA_FRACTION = "XLA_CLIENT_MEM_FRACTION"
"""How much of its device JAX takes at once, as a decimal fraction. Of a whole device people set it as they like."""

STARTUP_BEFORE = "JUPYTER_GPU_QUOTA_STARTUP"
"""The start-up file that somebody else had named for kernels; ours runs it first."""

CONTEXT_MIB = 600
"""What the first CUDA context of a process takes of its share, about: frameworks count their data alone."""

OUR_VARIABLES = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "GPU_QUOTA_JOB_ID",
        "GPU_QUOTA_ATTEMPT",
        "GPU_QUOTA_MILLI",
        "GPU_QUOTA_MEMORY_MIB",
        "GPU_QUOTA_CHECKPOINT_DIR",
        "GPU_QUOTA_OUTPUT_DIR",
        "GPU_QUOTA_PAUSE_FILE",
        "GPU_QUOTA_PROGRESS_FILE",
        SHARE_VARIABLE,
    }
)
"""What only the platform sets; values that people supply for these, or for any GPU_QUOTA_ name, are stripped."""

MPS_VARIABLES = frozenset(
    {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}
)
"""A job that gave these could join the MPS daemon of another project, and look like one that is limited by MPS."""

NO_DEVICE = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
"""For a CPU-only notebook: no device by any road. Images often bake NVIDIA_VISIBLE_DEVICES=all."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_GANG_PORT, GANG_PORTS = 20_000, 10_000


class SlicePart(Protocol):
    """A part of a slice, as :class:`.wire.AllocationView` tells it."""

    @property
    def device_uuid(self) -> str | None: ...
    @property
    def gpu_milli(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...


class Slice(Protocol):
    """A notebook's slice, as :class:`.wire.NotebookView` tells it."""

    @property
    def id(self) -> str: ...
    @property
    def allocations(self) -> Sequence[SlicePart]: ...


class Places(Protocol):
    """Where a rank finds its files: absolute paths, as ``executors.layout.RankPaths`` names them."""

    @property
    def checkpoint(self) -> str: ...
    @property
    def outputs(self) -> str: ...
    @property
    def pause(self) -> str: ...
    @property
    def progress(self) -> str: ...


def without_ours(variables: Mapping[str, str]) -> dict[str, str]:
    """A person's variables, less those that only the platform sets."""
    return {
        name: value
        for name, value in variables.items()
        if name not in OUR_VARIABLES and not name.startswith(OUR_PREFIX)
    }


def rank_environment(
    *,
    job: str,
    attempt: int,
    rank: int,
    ranks: int,
    placements: Iterable[Placement],
    devices: Iterable[Device],
    places: Places,
    variables: Mapping[str, str],
    path_first: str,
    port: int | None = None,
    limited: bool = False,
    mps: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Everything a rank's process is told, except who it runs as.

    ``placements`` of other ranks are left out; ``path_first`` is the folder of the interpreter's programs; ``port``
    is where several ranks meet. ``limited``: the driver limits its memory, so that no framework is told to cap itself
    to a fraction of what is a fraction already. ``mps`` are the variables of a client of MPS.
    Nothing of the caller's own environment is in it. Source: docs/reference/variables.md.
    """
    own = [placement for placement in placements if placement.rank == rank]
    uuids = {device.id: device.uuid for device in devices}
    return {
        "PATH": f"{path_first}:{SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        **without_ours(variables),
        **_share([(uuids.get(part.device), part.gpu_milli) for part in own]),
        **({} if limited else _caps(own)),
        **(mps or {}),
        **_amounts(sum(part.gpu_milli for part in own), sum(part.memory_mib for part in own)),
        "GPU_QUOTA_JOB_ID": job,
        "GPU_QUOTA_ATTEMPT": str(attempt),
        "GPU_QUOTA_CHECKPOINT_DIR": places.checkpoint,
        "GPU_QUOTA_OUTPUT_DIR": places.outputs,
        "GPU_QUOTA_PAUSE_FILE": places.pause,
        "GPU_QUOTA_PROGRESS_FILE": places.progress,
        **(_gang(rank, ranks, port) if port is not None else {}),
    }


def _share(parts: Sequence[tuple[str | None, int]]) -> dict[str, str]:
    """The devices by UUID. One whose UUID is unknown cannot be named, so it is not shown at all."""
    uuids = list(dict.fromkeys(uuid for uuid, _ in parts if uuid is not None))
    if not uuids:
        return dict(NO_DEVICE)
    shown = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuids),
    }
    fraction = any(gpu_milli < WHOLE_DEVICE for _, gpu_milli in parts)
    return {**shown, "TF_FORCE_GPU_ALLOW_GROWTH": "true"} if fraction else shown


def framework_caps(gpu_milli: int, memory_mib: int) -> dict[str, str]:
    """What frameworks cap themselves by, for a fraction of one device; nothing for a whole one.

    Takes the share in milli-GPU and MiB. What a CUDA context takes is left out of the fraction.
    """
    if not 0 < gpu_milli < WHOLE_DEVICE or memory_mib <= 0:
        return {}
    data_mib = max(memory_mib - CONTEXT_MIB, memory_mib // 2)
    return {XLA_FRACTION: f"{gpu_milli * data_mib // memory_mib / WHOLE_DEVICE:.3f}"}


def _caps(parts: Sequence[Placement] | Sequence[SlicePart]) -> dict[str, str]:
    return framework_caps(parts[0].gpu_milli, parts[0].memory_mib) if len(parts) == 1 else {}


def pod_limits(memory_mib: int) -> dict[str, str]:
    """The variables by which NVIDIA's container toolkit (from 1.20.1 on) has the driver limit a pod's memory, in MiB.

    Both are needed. Older stacks ignore them in silence, so what they are worth is read back like everything else.
    """
    return {"NVIDIA_GPU_MEMORY_REQUEST": str(memory_mib), "NVIDIA_GPU_MEMORY_LIMIT": str(memory_mib)}


def _amounts(gpu_milli: int, memory_mib: int) -> dict[str, str]:
    return {"GPU_QUOTA_MILLI": str(gpu_milli), "GPU_QUOTA_MEMORY_MIB": str(memory_mib)}


def gang_ports(job: str, attempt: int) -> Iterator[int]:
    """Ports where the ranks of an attempt may meet, below those of passing connections.

    The first differs between jobs and between attempts of one; the others are for where that one is taken.
    """
    first = zlib.crc32(f"{job}.{attempt}".encode())
    return (FIRST_GANG_PORT + (first + step) % GANG_PORTS for step in range(GANG_PORTS))


def _gang(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The rendezvous of ranks on one machine."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }


def notebook_environment(
    booked: Slice | None, *, limited: bool = False, startup_before: str | None = None
) -> dict[str, str]:
    """What a notebook server is told: its devices, and its share for the kernel provisioner to pass on.

    None, or a slice without a device, is a CPU-only notebook. GPU_QUOTA_ names are for kernels alone. A fraction is
    capped by its frameworks, unless ``limited`` says that the driver limits it: kernels run a start-up file of ours,
    and before it the one that was named so far (``startup_before``).
    """
    if booked is None or not booked.allocations:
        return dict(NO_DEVICE)
    share = {
        "notebook": booked.id,
        "gpu_milli": sum(part.gpu_milli for part in booked.allocations),
        "memory_mib": sum(part.memory_mib for part in booked.allocations),
    }
    shown = _share([(part.device_uuid, part.gpu_milli) for part in booked.allocations])
    caps = {} if limited else _caps(booked.allocations)
    startup = _startup(startup_before) if caps else {}
    return {**shown, **caps, **startup, SHARE_VARIABLE: json.dumps(share, sort_keys=True)}


def _startup(before: str | None) -> dict[str, str]:
    ours = str(Path(__file__).with_name("torch_hook.py"))
    return {"PYTHONSTARTUP": ours, **({STARTUP_BEFORE: before} if before and before != ours else {})}


def kernel_environment(share_json: str | None) -> dict[str, str]:
    """What a kernel is told beyond its server's variables: the amounts of the share, none without a share.

    Raises ValueError for a text that ``notebook_environment`` did not write.
    """
    if not share_json:
        return {}
    share = json.loads(share_json)
    try:
        return _amounts(int(share["gpu_milli"]), int(share["memory_mib"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{SHARE_VARIABLE} holds no share: {share_json[:200]}") from error
