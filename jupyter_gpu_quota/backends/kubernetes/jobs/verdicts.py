"""When a verdict on a pod that waits is final: when it has been the same for a stated time.

kube-scheduler and kubelets judge by caches. An object that was created just before a pod, such as a volume's claim, may
not be in a cache yet, and the verdict of that instant says that there is none. kube-scheduler may look at the pod again
only after five minutes, so the job is queued again once: a new pod is judged by the caches of then.
"""

from __future__ import annotations

from collections.abc import Mapping

from .pod_states import MayChange, Verdict
from .records import Attempt

Topic = tuple[bool, MayChange]

CACHE_S = 30.0
"""How long a cache may lack an object that exists, on a busy cluster, with the back-off of kube-scheduler."""

CLUSTER_S = 300.0
"""How long a pod may wait for an image, or for a node that takes and prepares it."""

SHOWN_S = 5.0
"""A verdict that lasts for less is no trouble: the devices of work that has just ended are not free yet."""

SLOW_S: Mapping[MayChange, float] = {MayChange.NODE: 60.0, MayChange.PULL: CLUSTER_S}
"""The same for what takes its time on every node: to attach volumes, and to pull an image."""


class Verdicts:
    """The present verdict on each rank, and when this process saw it first; another verdict begins anew."""

    def __init__(self, patience_s: Mapping[MayChange, float]) -> None:
        self._patience_s = patience_s
        self._seen: dict[Attempt, dict[int, tuple[Topic, float]]] = {}

    def take(self, attempt: Attempt, rank: int, verdict: Verdict, now_s: float) -> float:
        """Take a verdict that is given now; returns for how many seconds it has been the same."""
        ranks = self._seen.setdefault(attempt, {})
        topic, since_s = ranks.get(rank, (None, now_s))
        if topic != verdict.topic:
            ranks[rank], since_s = (verdict.topic, now_s), now_s
        return now_s - since_s

    def is_final(self, verdict: Verdict, lasted_s: float) -> bool:
        """Whether nothing is expected to change it any more."""
        return lasted_s >= self._patience_s[verdict.may_change]

    def drop(self, attempt: Attempt, rank: int) -> None:
        """There is no verdict on a rank any more."""
        self._seen.get(attempt, {}).pop(rank, None)

    def forget(self, attempt: Attempt) -> None:
        """An attempt is settled."""
        self._seen.pop(attempt, None)
