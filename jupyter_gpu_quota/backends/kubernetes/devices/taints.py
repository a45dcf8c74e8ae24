"""Which taints of a node the pods of jobs do not tolerate. Pure: taints and tolerations as the API server has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

KEEPS_AWAY = ("NoSchedule", "NoExecute")
OF_A_CONDITION = "node.kubernetes.io/"
"""The prefix of taints that Kubernetes sets and removes with the condition of a node."""


def untolerated(node: Json, tolerations: Sequence[Json]) -> list[str]:
    """The taints that keep pods with these tolerations away, in the form of ``kubectl taint``."""
    return [
        f"{taint['key']}{'=' * bool(taint.get('value'))}{taint.get('value', '')}:{taint['effect']}"
        for taint in node["spec"].get("taints") or ()
        if taint["effect"] in KEEPS_AWAY
        and not taint["key"].startswith(OF_A_CONDITION)
        and not any(_tolerates(each, taint) for each in tolerations)
    ]


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and (toleration.get("value") or "") == taint.get("value", ""))
