"""CPU and memory of nodes that jobs do not get: the requests of DaemonSets, notebooks and all other pods. Pure.

kube-scheduler counts them, so a job with all of its node would never start. They change with each server of a user, and
each change of a node is recorded with the whole inventory: amounts are in steps, grow at once, and shrink late.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...rendering.cluster_names import JOB
from .foreign_use import is_ours
from .inventory import size_of
from .pod_requests import requested_on_nodes

Json = dict[str, Any]

STEPS = 32
"""An amount is a number of these parts of its node."""

HELD_S = 600.0
"""For how long an amount was not needed before it shrinks."""


class Held(NamedTuple):
    """An amount, and when it was needed last."""

    amount: int = 0
    needed_s: float = 0.0

    def after(self, amount: int, now_s: float) -> Held:
        """The amount that is held after a reading."""
        stays = amount < self.amount and now_s - self.needed_s < HELD_S
        return self if stays else Held(amount, now_s)


class OtherRequests:
    """The amounts of all nodes, beside the jobs of one hub. A new process begins with those of its first reading."""

    def __init__(self, hub: str, namespace: str) -> None:
        self._hub, self._namespace = hub, namespace
        self._held: dict[tuple[str, str], Held] = {}

    def read(self, nodes: Iterable[Json], pods: Iterable[Json], now_s: float) -> dict[tuple[str, str], int]:
        """Milli-CPU and MiB by node and resource. Takes all pods that did not end, and a monotonic time."""
        requested = requested_on_nodes(pod for pod in pods if not self._is_job(pod))
        sizes = {(node["metadata"]["name"], name): size for node in nodes for name, size in size_of(node).items()}
        amounts = {key: in_steps(requested[key], size) for key, size in sizes.items()}
        self._held = {key: self._held.get(key, Held()).after(amount, now_s) for key, amount in amounts.items()}
        return {key: held.amount for key, held in self._held.items()}

    def _is_job(self, pod: Json) -> bool:
        return is_ours(pod, self._hub, self._namespace) and JOB in pod["metadata"]["labels"]


def in_steps(amount: int, size: int) -> int:
    """An amount, rounded up to a step of a node of this size; at most all of it."""
    return min(size, -(-amount * STEPS // size) * size // STEPS) if size else 0
