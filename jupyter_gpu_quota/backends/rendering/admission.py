"""Renders the parameter of the admission policy by which the API server refuses a leader that was replaced. Pure.

The policy is an object of the chart. The parameter is a ConfigMap with the newest fencing number. An object that the
controllers create, change or delete must carry that number or a higher one: a deletion is judged by the object as it is
stored. Requests of others, such as kubelets, are not judged.
"""

from __future__ import annotations

from typing import Any

from .cluster_names import FENCING

Json = dict[str, Any]

FENCE = "gpu-quota-fence"
"""The ConfigMap with the newest fencing number, in the namespace of the jobs."""

NUMBER = "fencing"


def fence(namespace: str, fencing: int) -> Json:
    """The parameter."""
    metadata = {"name": FENCE, "namespace": namespace, "annotations": {FENCING: str(fencing)}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {NUMBER: str(fencing)}}
