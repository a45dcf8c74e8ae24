"""The taints that the pods of jobs do not tolerate."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.devices.taints import of_state, untolerated

TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}


def node(*taints: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "spec": {"taints": list(taints)}}


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        ({"key": "team", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "vision"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "speech"}, False),
        ({"key": "team"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_toleration_matches_by_key_operator_value_and_effect(toleration: dict[str, str], is_tolerated: bool) -> None:
    assert untolerated(node(TAINT), [toleration]) == ([] if is_tolerated else ["team=vision:NoSchedule"])


def test_a_toleration_for_some_seconds_does_not_keep_a_pod() -> None:
    taint = {"key": "team", "effect": "NoExecute"}
    forever = {"key": "team", "operator": "Exists"}
    assert untolerated(node(taint), [forever]) == []
    assert untolerated(node(taint), [forever | {"tolerationSeconds": 60}]) == ["team:NoExecute"]


def test_only_taints_of_a_site_that_keep_pods_away_count() -> None:
    preferred = {"key": "slow", "effect": "PreferNoSchedule"}
    lost = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    assert untolerated(node(preferred, lost, {"key": "gpu", "effect": "NoExecute"}), []) == ["gpu:NoExecute"]
    assert untolerated({"metadata": {"name": "n"}, "spec": {}}, []) == []
    assert of_state(node(preferred, lost, TAINT), []) == ["node.kubernetes.io/unreachable:NoExecute"]
