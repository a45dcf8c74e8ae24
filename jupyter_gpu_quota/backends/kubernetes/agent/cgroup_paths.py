"""The pod and the container of a process, by its cgroups. Pure.

The kubelet makes one cgroup for each pod, named by the pod's uid, and the container runtime makes those of containers
in it. With the cgroupfs driver the names are folders: ``kubepods/burstable/pod<uid>/<id>``. With systemd they are
units: ``kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope``, where the uid has _ for -. In a cgroup namespace
of its own an agent reads paths that begin with /.., which may lack the part above the pods.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""The second form is that of a static pod."""

_POD = re.compile(rf"(?:[\w.-]*kubepods-(?:burstable-|besteffort-)?)?pod{_UID}(?:\.slice)?(?::[\w-]+:(?P<id>\w+))?\Z")
_CONTAINER = re.compile(r"(?:[a-z][a-z-]*-)?(?P<id>[0-9a-f]{64})(?:\.scope)?\Z")


class PodOfProcess(NamedTuple):
    """``container`` is the runtime's id, None for a process in the pod's own cgroup."""

    uid: str
    container: str | None = None


class AmbiguousCgroups(ValueError):
    """The cgroups of a process name several pods."""


def pod_of(cgroups: str) -> PodOfProcess | None:
    """The pod in the text of /proc/<pid>/cgroup; None for a process of no pod. Raises AmbiguousCgroups.

    On a hybrid hierarchy only some of the lines name it.
    """
    paths = [line.split(":", 2)[2] for line in cgroups.splitlines() if line.count(":") >= 2]
    found = [pod for path in paths if (pod := pod_of_path(path)) is not None]
    if len({pod.uid for pod in found}) > 1:
        raise AmbiguousCgroups(f"its cgroups name several pods: {', '.join(sorted({pod.uid for pod in found}))}")
    return max(found, key=lambda pod: pod.container or "", default=None)


def pod_of_path(path: str) -> PodOfProcess | None:
    """The pod in one path. The outermost name counts: a container may make cgroups below its own."""
    parts = path.strip("/").split("/")
    is_below_pods = parts[0] == ".."
    for place, part in enumerate(parts):
        is_below_pods = is_below_pods or "kubepods" in part
        pod = _POD.match(part) if is_below_pods else None
        if pod is not None:
            inner = _CONTAINER.match(parts[place + 1]) if place + 1 < len(parts) else None
            container = pod["id"] or (inner["id"] if inner else None)
            return PodOfProcess(pod["uid"].replace("_", "-"), container)
    return None
