"""Renders the reservation of a device that a device plugin counts, so that shares of it can run. Pure.

A device plugin gives whole devices, and does not say beforehand which. The reservation pod requests one and prints its
UUID. The pod of a share requests none: it has a scheduling gate until the controllers know the UUID, which its
container reads from an annotation when it starts. An account that may create pods can name any device in a variable: a
reservation protects a device only from pods that request devices.
"""

from __future__ import annotations

import re
from typing import Any

from .cluster_names import DEVICE, FENCING, HUB, RESERVATION, reservation_name
from .plugin_resources import GPU_RESOURCE
from .pods import CONTAINER_SECURITY, SITE_CONTAINER, SITE_POD, PodSettings, escaped, pinned
from .site_fields import NAMED_BY, merged

Json = dict[str, Any]

CONTAINER = "reservation"
PRINT_UUID = (
    "nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null"
    ' || printf "%s\\n" "$NVIDIA_VISIBLE_DEVICES"; exec sleep infinity'
)
"""The runtime mounts nvidia-smi where the container has the capability utility; otherwise the plugin's variable."""

KEPT_OF_SITE = ("securityContext", "imagePullPolicy")
"""The site's fields of the container that a reservation needs: not the resources of jobs."""

_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,76}")


def reservation_pod(device: str, fencing: int, settings: PodSettings) -> Json:
    """The pod that holds a device; ``device`` is its id, which begins with the node.

    It needs the site's tolerations and the like, but no volumes, containers, claims and gates of the site.
    """
    name = reservation_name(settings.hub, device)
    metadata = {
        "name": name, "namespace": settings.namespace, "labels": {HUB: settings.hub, RESERVATION: name},
        "annotations": {FENCING: str(fencing), DEVICE: device},
    }  # fmt: skip
    container: Json = {
        "name": CONTAINER, "image": settings.image, "command": ["sh", "-c", escaped(PRINT_UUID)],
        "resources": {"limits": {GPU_RESOURCE: "1"}}, "securityContext": CONTAINER_SECURITY,
    }  # fmt: skip
    site = {key: value for key, value in settings.container.items() if key in KEPT_OF_SITE}
    spec: Json = {
        "restartPolicy": "Always", "automountServiceAccountToken": False, "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1, "containers": [merged(container, site, SITE_CONTAINER)],
    }  # fmt: skip
    spec = merged(spec, {key: value for key, value in settings.pod.items() if key not in NAMED_BY}, SITE_POD)
    spec["affinity"] = pinned(spec.get("affinity") or {}, device.rpartition("/")[0])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def printed_uuid(log: str) -> str | None:
    """The UUID in the log of a reservation; None where it has none, or several."""
    found = [line.strip() for line in log.splitlines() if _UUID.fullmatch(line.strip())]
    return found[-1] if len(set(found)) == 1 else None
