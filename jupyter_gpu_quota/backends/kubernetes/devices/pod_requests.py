"""The requests of pods on their nodes, as kube-scheduler counts them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from sys import intern
from typing import Any

from ...rendering.plugin_resources import is_gpu_resource
from .quantities import exact

Json = dict[str, Any]

UNITS = {"cpu": Fraction(1000), "memory": Fraction(1, 1 << 20)}
"""Milli-CPU and MiB; other resources are counted."""


def requested_on_nodes(pods: Iterable[Json]) -> Counter[tuple[str, str]]:
    """The requests of pods by node and resource."""
    found = Counter[tuple[str, str]]()
    for pod in pods:
        for resource, amount in pod["spec"]["requests"].items():
            found[pod["spec"]["nodeName"], resource] += amount
    return found


def requests_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """Milli-CPU, MiB and the devices of plugins of a pod, by resource; each amount of a container is rounded up.

    Containers and sidecars run together; another init container runs with the sidecars before it. Amounts of the whole
    pod replace those of its containers, and its overhead is added.
    Source: resource.PodRequests of k8s.io/component-helpers.
    """
    together, most = Counter[str](), Counter[str]()
    for each in spec.get("initContainers") or ():
        with_it = together + _of(each)
        most |= with_it
        if each.get("restartPolicy") == "Always":
            together = with_it
    for each in spec["containers"]:
        together += _of(each)
    return dict(Counter({**(most | together), **_of(spec)}) + _amounts(spec.get("overhead") or {}))


def _of(part: Mapping[str, Any]) -> Counter[str]:
    """The requests of a container, or of a whole pod; a limit is the default of a request."""
    resources = part.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(quantities: Mapping[str, str]) -> Counter[str]:
    wanted = {name: each for name, each in quantities.items() if name in UNITS or is_gpu_resource(name)}
    return Counter({intern(name): -int(-exact(each) * UNITS.get(name, 1) // 1) for name, each in wanted.items()})
