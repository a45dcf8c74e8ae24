"""Taints of nodes that the pods of jobs do not tolerate, and of devices. Pure: all as the API server has them.

A taint of a node's state keeps all pods away. One of the site may be tolerated by notebooks alone, or by what an
admission plugin adds, so it closes no node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

REPELLING_EFFECTS = ("NoSchedule", "NoExecute")
OF_STATE = (
    "node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
)  # fmt: skip
"""Taints that Kubernetes, a cordon, a cloud provider or an autoscaler sets: they follow the state of the node."""


def untolerated(node: Json, tolerations: Sequence[Json]) -> list[str]:
    """The taints of the site that keep pods with these tolerations away, or evict them, as in ``kubectl taint``."""
    return [_text(taint) for taint in _keeping_away(node, tolerations) if not taint["key"].startswith(OF_STATE)]


def of_state(node: Json, tolerations: Sequence[Json]) -> list[str]:
    """The same for those that follow the state of the node."""
    return [_text(taint) for taint in _keeping_away(node, tolerations) if taint["key"].startswith(OF_STATE)]


def _keeping_away(node: Json, tolerations: Sequence[Json]) -> Iterator[Json]:
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in REPELLING_EFFECTS and not any(_tolerates(each, taint) for each in tolerations):
            yield taint


def repelling(device: Json) -> list[str]:
    """The taints of a device that keep claims without tolerations, such as those of jobs, away, or end their pods."""
    return [_text(taint) for taint in device.get("taints") or () if taint["effect"] in REPELLING_EFFECTS]


def _text(taint: Json) -> str:
    value = taint.get("value")
    return f"{taint['key']}={value}:{taint['effect']}" if value else f"{taint['key']}:{taint['effect']}"


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if taint["effect"] == "NoExecute" and toleration.get("tolerationSeconds") is not None:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and (toleration.get("value") or "") == taint.get("value", ""))
