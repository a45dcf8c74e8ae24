"""The variables of processes: their devices, the amounts of their share, and the paths of a job. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ...core.model import WHOLE_DEVICE, Device, Placement

SHARE_VARIABLE = "JUPYTER_GPU_QUOTA_SHARE"
"""In a notebook server: the share as one JSON object, from which the kernel provisioner renders kernels."""

SECRET_VARIABLE = "JUPYTER_GPU_QUOTA_SLICE_SECRET"  # noqa: S105 - the name of a variable
"""In a notebook server: the secret of its slice, with which it reports to the service without a look-up at the hub."""

SECRET_HEADER = "GPU-Quota-Slice-Secret"  # noqa: S105
"""The header of a request with that secret."""

SERVER_ONLY = frozenset({SHARE_VARIABLE, SECRET_VARIABLE})
"""Variables of a notebook server that its kernels do not get."""

OUR_PREFIX = "GPU_QUOTA_"

XLA_FRACTION = "XLA_CLIENT_MEM_FRACTION"
"""The part of its device that JAX allocates at once, as a decimal fraction. For a whole device users may set it."""

STARTUP_BEFORE = "JUPYTER_GPU_QUOTA_STARTUP"
"""The start-up file that was named for kernels before; ours runs it first."""

CONTEXT_MIB = 600
"""The approximate memory of a process's first CUDA context. The caps of frameworks do not count it."""

OUR_VARIABLES = frozenset({
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH",
    "GPU_QUOTA_JOB_ID", "GPU_QUOTA_ATTEMPT", "GPU_QUOTA_MILLI", "GPU_QUOTA_MEMORY_MIB", "GPU_QUOTA_CHECKPOINT_DIR",
    "GPU_QUOTA_OUTPUT_DIR", "GPU_QUOTA_PAUSE_FILE", "GPU_QUOTA_PROGRESS_FILE", SHARE_VARIABLE,
    SECRET_VARIABLE,
})  # fmt: skip
"""Variables that only this service sets; values of users for these, or for any GPU_QUOTA_ name, are removed."""

MPS_VARIABLES = frozenset(
    {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}
)
"""With these a job could join the MPS daemon of another project, and appear to be limited by MPS."""

NO_DEVICE = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
"""For a CPU-only notebook: no device. Images often set NVIDIA_VISIBLE_DEVICES=all."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_GANG_PORT, GANG_PORTS = 20_000, 10_000


class SlicePart(Protocol):
    """A part of a slice, such as :class:`.wire.AllocationView`."""

    @property
    def device(self) -> str: ...
    @property
    def device_memory_mib(self) -> int | None: ...
    @property
    def device_uuid(self) -> str | None: ...
    @property
    def gpu_milli(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...


class Slice(Protocol):
    """A notebook's slice, such as :class:`.wire.NotebookView`."""

    @property
    def id(self) -> str: ...
    @property
    def allocations(self) -> Sequence[SlicePart]: ...


class JobPaths(Protocol):
    """The folders and files of a rank, as absolute paths."""

    @property
    def checkpoint(self) -> str: ...
    @property
    def outputs(self) -> str: ...
    @property
    def pause(self) -> str: ...
    @property
    def progress(self) -> str: ...


def without_ours(variables: Mapping[str, str]) -> dict[str, str]:
    """A user's variables without those that only this service sets."""
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
    paths: JobPaths,
    variables: Mapping[str, str],
    path_first: str | None,
    port: int | None = None,
    address: str | None = None,
    limited: bool = False,
    mps: Mapping[str, str] | None = None,
    data: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """All variables of a rank's process, except those of its account.

    ``placements`` of other ranks are left out; ``path_first`` is the folder of the interpreter's programs, None for the
    PATH of a pod's image; ``port`` is that of the rendezvous of several ranks, ``address`` its host, None for ranks on
    one machine. ``limited``: the driver limits its memory, and frameworks then count their fraction of that limit, so
    they get no cap. ``mps`` are the variables of a client of MPS, ``data`` those with the folders of its data. The
    caller's own variables are not inherited. Source: docs/reference/variables.md.
    """
    own = [placement for placement in placements if placement.rank == rank]
    uuids = {device.id: device.uuid for device in devices}
    return {
        **({"PATH": f"{path_first}:{SYSTEM_PATH}"} if path_first else {}),
        "LANG": "C.UTF-8",
        **without_ours(variables),
        **_share([(uuids.get(part.device), part.gpu_milli) for part in own]),
        **({} if limited else _caps(own)),
        **(mps or {}),
        **_amounts(sum(part.gpu_milli for part in own), sum(part.memory_mib for part in own)),
        "GPU_QUOTA_JOB_ID": job,
        "GPU_QUOTA_ATTEMPT": str(attempt),
        "GPU_QUOTA_CHECKPOINT_DIR": paths.checkpoint,
        "GPU_QUOTA_OUTPUT_DIR": paths.outputs,
        "GPU_QUOTA_PAUSE_FILE": paths.pause,
        "GPU_QUOTA_PROGRESS_FILE": paths.progress,
        **(data or {}),
        **(_gang(rank, ranks, port, address) if port is not None else {}),
    }


def _share(parts: Sequence[tuple[str | None, int]]) -> dict[str, str]:
    """The devices by UUID, without those whose UUID is unknown."""
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
    """The caps of frameworks for a fraction of one device; none for a whole one.

    Takes the share in milli-GPU and MiB. The memory of a CUDA context is not part of the fraction.
    """
    if not 0 < gpu_milli < WHOLE_DEVICE or memory_mib <= 0:
        return {}
    data_mib = max(memory_mib - CONTEXT_MIB, memory_mib // 2)
    return {XLA_FRACTION: f"{gpu_milli * data_mib // memory_mib / WHOLE_DEVICE:.3f}"}


def _caps(parts: Sequence[Placement] | Sequence[SlicePart]) -> dict[str, str]:
    return framework_caps(parts[0].gpu_milli, parts[0].memory_mib) if len(parts) == 1 else {}


def _amounts(gpu_milli: int, memory_mib: int) -> dict[str, str]:
    return {"GPU_QUOTA_MILLI": str(gpu_milli), "GPU_QUOTA_MEMORY_MIB": str(memory_mib)}


def gang_ports(job: str, attempt: int) -> Iterator[int]:
    """Ports for the rendezvous of an attempt, below the ephemeral ones.

    The first differs between jobs and between attempts of one job. The others are alternatives if it is taken.
    """
    first = zlib.crc32(f"{job}.{attempt}".encode())
    return (FIRST_GANG_PORT + (first + step) % GANG_PORTS for step in range(GANG_PORTS))


def _gang(rank: int, ranks: int, port: int, address: str | None) -> dict[str, str]:
    """The rendezvous of ranks on one machine, or of ranks that each have a host of their own."""
    return {
        "MASTER_ADDR": address or "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "RANK": str(rank),
        "LOCAL_RANK": "0" if address else str(rank),
    }  # fmt: skip


def notebook_environment(
    booked: Slice | None, *, limited: bool = False, startup_before: str | None = None, secret: str | None = None
) -> dict[str, str]:
    """The variables of a notebook server: its devices, and its share for the kernel provisioner.

    None, or a slice without a device, is a CPU-only notebook. GPU_QUOTA_ names are for kernels only. Frameworks cap a
    fraction, unless the driver limits it (``limited``): kernels run a start-up file of this package, after the one that
    was named before (``startup_before``). ``secret`` is that of the slice.
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
    startup = {}
    if caps:
        startup["PYTHONSTARTUP"] = ours = str(Path(__file__).with_name("torch_hook.py"))
        if startup_before and startup_before != ours:
            startup[STARTUP_BEFORE] = startup_before
    known = {SECRET_VARIABLE: secret} if secret else {}
    return {**shown, **caps, **startup, **known, SHARE_VARIABLE: json.dumps(share, sort_keys=True)}


def confirmed_environment(booked: Slice) -> dict[str, str]:
    """The variables of a slice for a server that runs: its kernels get them when they have requested the slice.

    A device without a known UUID is left out. Its runtime chose it for the server's pod, whose variables have it.
    """
    found = notebook_environment(booked)
    if booked.allocations and not any(part.device_uuid for part in booked.allocations):
        return {name: text for name, text in found.items() if name not in NO_DEVICE}
    return found


def kernel_environment(share_json: str | None) -> dict[str, str]:
    """The variables of a kernel beside its server's: the amounts of the share, none without a share.

    Raises ValueError for a text that ``notebook_environment`` did not write.
    """
    if not share_json:
        return {}
    share = json.loads(share_json)
    try:
        return _amounts(int(share["gpu_milli"]), int(share["memory_mib"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{SHARE_VARIABLE} holds no share: {share_json[:200]}") from error
