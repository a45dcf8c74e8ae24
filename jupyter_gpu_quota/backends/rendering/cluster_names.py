"""The names, labels and annotations of our objects in a cluster. Pure."""

from __future__ import annotations

import hashlib
import re

DOMAIN = "gpu-quota.jupyter.org"
HUB, JOB, ATTEMPT, RANK, NOTEBOOK = (f"{DOMAIN}/{name}" for name in ("hub", "job", "attempt", "rank", "notebook"))
FENCING = f"{DOMAIN}/fencing"
"""The annotation with the fencing number of the leader that wrote an object last."""

KILL = f"{DOMAIN}/kill"
"""The annotation of a pod by which the agent of its node kills its processes: the fencing number of the order."""

STOP_REASON = f"{DOMAIN}/stop-reason"
OVER_LIMIT = f"{DOMAIN}/over-limit"
GIVEN_UP = f"{DOMAIN}/given-up"
"""Annotations of a pod that we delete: why it is paused, which limit its job exceeded, or why it could not start."""

PLACEMENTS = f"{DOMAIN}/placements"
FINALIZER = f"{DOMAIN}/exit-status"
"""It keeps a pod that ended until its exit status is stored."""

USERNAME = "hub.jupyter.org/username"
"""The annotation of KubeSpawner, by which pods are identified as a user's."""

SIMULATED_GPUS = f"{DOMAIN}/simulated-gpus"
"""The annotation of a node with the number of its simulated devices."""

RESERVATION = f"{DOMAIN}/reservation"
"""The label of a reservation and of the pods with shares of its device, with the reservation's name."""

DEVICE, GPU_MILLI, DEVICE_UUID = (f"{DOMAIN}/{name}" for name in ("device", "gpu-milli", "device-uuid"))
"""Annotations of these pods: the id of the device, the share, and the UUID once it is known."""

_JOB_ID = re.compile(r"[0-9A-Za-z]{1,40}\Z")


def attempt_name(job: str, attempt: int) -> str:
    """The name of an attempt's objects. Raises ValueError for a job id that is no ULID or short word."""
    if not _JOB_ID.match(job):
        raise ValueError(f"{job!r} is not the id of a job on Kubernetes: letters and digits only, 40 at most")
    return f"gq-{job.lower()}-{int(attempt)}"


def pod_name(job: str, attempt: int, rank: int) -> str:
    """The name of a rank's pod: a start order that is repeated creates no second one."""
    return f"{attempt_name(job, attempt)}-{int(rank)}"


def attempt_labels(hub: str, job: str, attempt: int) -> dict[str, str]:
    """The labels of all objects of an attempt."""
    return {HUB: hub, JOB: job, ATTEMPT: str(attempt)}


def reservation_name(hub: str, device: str) -> str:
    """The name of the reservation of a device, by its id, which may be longer than a label."""
    return f"gq-device-{hashlib.sha256(f'{hub} {device}'.encode()).hexdigest()[:20]}"
