"""The parameter of the admission policy by which the API server refuses a leader that was replaced. Pure.

Both are objects of the chart. The parameter is a ConfigMap: the controllers write the newest fencing number there. An
object that the controllers create, change or delete must carry that number or a higher one: a deletion is judged by the
object as it is stored. Requests of others, such as kubelets, are not judged.
"""

from __future__ import annotations

from typing import Any

from .cluster_names import FENCING

Json = dict[str, Any]

FENCE = "gpu-quota-fence"
"""The ConfigMap with the newest fencing number, in the namespace of the jobs."""

NUMBER = "fencing"


def number_of(parameter: Json) -> int:
    """The newest number; 0 before the first leader."""
    return int((parameter.get("data") or {}).get(NUMBER, 0))


def with_number(parameter: Json, fencing: int) -> Json:
    """The parameter with another number; the labels and annotations of the chart stay."""
    annotations = {**parameter["metadata"].get("annotations", {}), FENCING: str(fencing)}
    data = {**(parameter.get("data") or {}), NUMBER: str(fencing)}
    return {**parameter, "metadata": {**parameter["metadata"], "annotations": annotations}, "data": data}


def refusal_of(leader: int) -> str:
    """The words of the policy's message for a leader that was replaced."""
    return f"leader {leader} was replaced"
