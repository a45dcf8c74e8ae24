"""The status of a rank by the state of its pod. Pure: objects of the API server in, a rank's status out.

Kubernetes keeps times in seconds: a start is rounded down and an end is rounded up.

    ended as                                          exit status            what follows
    a container with an exit code                     it, 128 + n is -n      as on one machine
    OOMKilled                                         -9, out_of_memory      it failed for memory
    a container that its runtime cannot start         126, refused          it failed, with that message
    an init container of the site that failed         126, refused          it failed, with its name and exit code
    stopped because its outputs exceed their limit    -25, storage_limit     it failed for that
    evicted because it exceeds its pod's own storage  -25, storage_limit     it failed for that
    evicted, or deleted by others than us             none: lost             it is queued again
    its node is gone (pod garbage collection)         none: lost             it is queued again
    deleted, and its kubelet does not answer          none: lost             it is queued again
    preempted by kube-scheduler, or drained           none: lost             it is queued again
    its kubelet does not admit it                     none: lost             it is queued again, for a while
    no node takes it for a while                      none: lost             it is queued again
    its node does not prepare it for a while          none: lost             it is queued again
    stopped before it had a node                      none, never started    a pause
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from ....core.job_ends import EndCause
from ...rendering.cluster_names import ATTEMPT, GIVEN_UP, JOB, OVER_LIMIT, RANK, STOP_REASON
from ...rendering.pods import CONTAINER
from .records import CLOCKS_DIFFER_MS

Json = dict[str, Any]

SECOND_MS = 1000
SIGNALLED = 128
LAST_SIGNAL = 64
CANNOT_RUN = 126
"""The exit status of a rank that is refused, as of a command that a shell cannot run."""

NOT_STARTED_BY_RUNTIME = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of a container that never ran, such as one whose command does not exist: its start is that of 1970."""

OWN_LIMIT = re.compile(r"exceed(s|ed) .*\blimit\b")
"""In the message of a kubelet that evicts a pod for its own use of local storage, and not because the node is full."""

NO_EXIT = NOT_STARTED_BY_RUNTIME | {"ContainerStatusUnknown"}
"""Reasons of a container whose exit code is not that of its command."""

WROTE_TOO_MUCH = -signal.SIGXFSZ
"""The exit status of a job that exceeded its limit of outputs, as of one that the kernel stops for a large file."""


class MayChange(StrEnum):
    """The cause that may end the wait of a pod by itself, and so the time until its verdict is final."""

    NOTHING = "nothing"
    CACHE = "cache"  # an object that kube-scheduler or the kubelet has not seen yet, because it is new
    CLUSTER = "cluster"  # a registry, a device that becomes free, a taint that is removed
    NODE = "node"  # a volume, an address or a device that the kubelet cannot prepare
    PULL = "pull"  # the pull of a large image, which may take hours


class Verdict(NamedTuple):
    """Why a pod waits: a word and the message of Kubernetes."""

    code: str
    message: str
    may_change: MayChange

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @property
    def topic(self) -> tuple[bool, MayChange]:
        """Equal for verdicts that take turns, such as ErrImagePull and ImagePullBackOff."""
        return self.code in BY_KUBELET, self.may_change


BY_KUBELET: Mapping[str, MayChange] = {
    "InvalidImageName": MayChange.NOTHING,
    "ErrImageNeverPull": MayChange.NOTHING,
    "CreateContainerConfigError": MayChange.CACHE,
    "CreateContainerError": MayChange.CACHE,
    "RunContainerError": MayChange.CACHE,
    "ErrImagePull": MayChange.CLUSTER,
    "ImagePullBackOff": MayChange.CLUSTER,
    "RegistryUnavailable": MayChange.CLUSTER,
    "SignatureValidationFailed": MayChange.CLUSTER,
    "CrashLoopBackOff": MayChange.CLUSTER,
}
"""Reasons of a container that waits. The rank is refused when its verdict is final."""

CRASH_LOOP = "CrashLoopBackOff"
CRASHES = 3
"""A sidecar that was restarted so often, and has not started, loops: between the back-offs it runs, or has ended."""
CRASHED = "it ends before it has started, again and again; its log says why"

UNSCHEDULABLE = "Unschedulable"
"""No node takes the pod: its own is full, or has a taint."""

NO_VOLUME_CLAIM = "VolumeClaimNotFound"
"""The volume of the job, or of its data, has no claim: no node takes the pod until there is one."""
MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')

GATED = "SchedulingGated"
HELD_BY_GATE = "the reservation of its device has not started or has no room, or a gate of the site holds the pod"

NOT_PREPARED = "NotPrepared"
NOT_READY = "its node has not mounted its volumes, prepared its devices and made its network; the pod's events say why"
"""Said where the kubelet itself says nothing: since Kubernetes 1.37 the condition has a message."""

NOT_STARTED = "its node prepares it or pulls its image; the pod's events say which"

PREPARED_BEFORE_PULL = 1, 36
"""Since this release a kubelet sets PodReadyToStartContainers before it pulls images, earlier ones do it afterwards."""
KUBELET = re.compile(r"v(\d+)\.(\d+)\.")

OTHER_NODE = frozenset({UNSCHEDULABLE, GATED, NOT_PREPARED})
"""Verdicts by which a rank is lost, so that its job is queued again and may be placed elsewhere."""

NODE_GAVE_UP = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""Reasons of a pod that its node ended or did not take, because it was full or shut down."""
NOT_FOR_ITSELF = NODE_GAVE_UP | {"NodeAffinity", "TaintToleration", "DeadlineExceeded"}
"""Reasons of a failed pod for which its kubelet did not refuse it as it is.

Where the labels or taints of a node change between kube-scheduler and kubelet, kube-scheduler obeys them next time. A
deadline is one that the site has set. Source: ``rejectPod`` and the admission handlers of the kubelet.
"""

TERMINAL = frozenset({"Succeeded", "Failed"})

ENDED_BY_KUBELET = "TerminationByKubelet"
"""The reason of a DisruptionTarget that a kubelet sets. Its time is that of the report, after the containers ended."""


def at_ms(text: str) -> int:
    """An instant of the API server, in milliseconds."""
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()) * SECOND_MS


def rank_of(pod: Json) -> tuple[str, int, int]:
    """The job, attempt and rank of a pod."""
    labels = pod["metadata"]["labels"]
    return labels[JOB], int(labels[ATTEMPT]), int(labels[RANK])


def is_over(pod: Json) -> bool:
    """Whether no process of a rank is left: its pod or its container ended, or it was deleted before it had a node."""
    deleted = "deletionTimestamp" in pod["metadata"]
    return is_terminal(pod) or (deleted and not pod["spec"].get("nodeName")) or _has_ended_beside_sidecars(pod)


def is_terminal(pod: Json) -> bool:
    """Whether Kubernetes says that a pod has ended: it is deleted at once, whatever its grace."""
    return _phase(pod) in TERMINAL


def _has_ended_beside_sidecars(pod: Json) -> bool:
    """Whether the job's container ended beside others that did not, such as a proxy, which may run for ever.

    Without such a container the kubelet ends the pod, and only then says why.
    """
    others = [each for each in pod.get("status", {}).get("containerStatuses", ()) if each["name"] != CONTAINER]
    runs_on = any("terminated" not in each.get("state", {}) for each in others)
    return runs_on and "terminated" in _container_state(pod)


def rank_status(pod: Json) -> dict[str, Any]:
    """The status of a rank, in the form of a job supervisor's record.

    ``unconfirmed``: it counts as ended, and its container may still run.
    """
    job, attempt, rank = rank_of(pod)
    container = _container_status(pod)
    state: Json = container.get("state", {})
    ended = state.get("terminated", {})
    started = (state.get("running") or ended).get("startedAt")
    found: dict[str, Any] = {"job": job, "attempt": attempt, "rank": rank, "claimed_at": at_ms(_created(pod))}
    if started and ended.get("reason") not in NOT_STARTED_BY_RUNTIME:
        found |= {"started_at": at_ms(started), "pid": pod["metadata"]["name"]}
    if container.get("imageID"):
        found["image"] = container["imageID"]
    if is_over(pod):
        found |= {"ended_at": _ended_at(pod, ended), "tree_gone": True, **_exit(pod, ended)}
        found |= {} if is_confirmed(pod) else {"unconfirmed": True}
        if excess := _excess(pod, ended, found["ended_at"]):
            found |= {"exit_status": WROTE_TOO_MUCH, "cause": EndCause.STORAGE_LIMIT}
            found["notice"] = f"the job was stopped: {excess}"
    if is_pause(pod, found.get("ended_at")):
        found |= {"pause_requested": True, "pause_reason": pod["metadata"]["annotations"][STOP_REASON]}
    elif "ended_at" in found and found["exit_status"] is None:
        found |= _refusal(pod, ended) or {"why_lost": why_lost(pod)}
    return found


def _excess(pod: Json, ended: Mapping[str, Any], ended_at: int) -> str:
    """Which storage limit a rank exceeded, ours of its outputs or one of its pod; empty: none, or it ended before."""
    if ended and _is_stopped_for(OVER_LIMIT, pod, ended_at):
        return str(pod["metadata"]["annotations"][OVER_LIMIT])
    status = pod.get("status", {})
    message: str = status.get("message", "")
    return message if status.get("reason") == "Evicted" and OWN_LIMIT.search(message) else ""


def is_confirmed(pod: Json) -> bool:
    """Whether the kubelet of a pod that is over saw its container end; others may have removed it from the cluster."""
    return is_over(pod) and "running" not in _container_state(pod)


def is_abandoned(pod: Json, now_ms: int, seen_for_s: float) -> bool:
    """Whether the grace of a deleted pod is over, and no kubelet has ended it.

    ``seen_for_s``: seconds since this process first saw the deletion. For a deletion from before this process started,
    ``deletionTimestamp`` is compared with the local clock, with CLOCKS_DIFFER_MS allowed for clock skew.
    """
    metadata = pod["metadata"]
    if "deletionTimestamp" not in metadata or is_over(pod):
        return False
    is_seen_over = seen_for_s >= metadata.get("deletionGracePeriodSeconds", 0) + 1
    return is_seen_over or _ended_at(pod, {}) + CLOCKS_DIFFER_MS <= now_ms


def abandoned_status(pod: Json, why: str) -> dict[str, Any]:
    """The status of a rank whose pod is abandoned on a lost node: it counts as ended when its grace was over."""
    ended_at = _ended_at(pod, {})
    ended = {"ended_at": ended_at, "tree_gone": True, "exit_status": None, "why_lost": why, "unconfirmed": True}
    found = rank_status(pod) | ended
    if is_pause(pod, ended_at):
        found |= {"pause_requested": True, "pause_reason": pod["metadata"]["annotations"][STOP_REASON]}
    return found


def is_waiting(status: Mapping[str, Any]) -> bool:
    """Whether a rank has not begun, and nothing stopped it."""
    return not {"started_at", "ended_at", "pause_requested"} & status.keys()


def is_pause(pod: Json, ended_at: int | None) -> bool:
    """Whether we paused a pod before it ended."""
    over = OVER_LIMIT in pod["metadata"].get("annotations", {})
    return not over and _is_stopped_for(STOP_REASON, pod, ended_at)


def _is_stopped_for(why: str, pod: Json, ended_at: int | None) -> bool:
    """Whether we deleted a pod before it ended, with this annotation.

    We delete a pod in a state in which it had not ended, so that the end was reported later. An end that is clearly
    older counts nevertheless: its kubelet could not report it before. When a kubelet removes a pod that stopped, the
    API server sets the grace to 0 and the timestamp to that moment.
    """
    metadata = pod["metadata"]
    if why not in metadata.get("annotations", {}) or "deletionTimestamp" not in metadata:
        return False
    if not metadata["deletionGracePeriodSeconds"]:
        return True
    asked_at = at_ms(metadata["deletionTimestamp"]) - metadata["deletionGracePeriodSeconds"] * SECOND_MS
    return ended_at is None or ended_at + CLOCKS_DIFFER_MS > asked_at


def why_waiting(pod: Json, node: Json | None = None) -> Verdict | None:
    """The verdict on a container or an init container that waits, or on a pod that no node takes; None: all is well.

    ``node`` is the pod's; None: it is not known. A verdict on a node that prepares a pod needs the time that it lasts.
    """
    waiting = _container_state(pod).get("waiting", {})
    if (may_change := BY_KUBELET.get(waiting.get("reason"))) is not None:
        return Verdict(waiting["reason"], waiting.get("message", ""), may_change)
    if (verdict := _of_init_containers(pod)) is not None:
        return verdict
    if (verdict := _of_scheduler(_condition(pod, "PodScheduled"))) is not None or not pod["spec"].get("nodeName"):
        return verdict
    return _of_node(pod, waiting.get("reason") or "ContainerCreating", node)


def _of_init_containers(pod: Json) -> Verdict | None:
    """The verdict on the first init container, or sidecar among them, that cannot start, so that the job waits."""
    for each in pod.get("status", {}).get("initContainerStatuses", ()):
        waiting = each.get("state", {}).get("waiting", {})
        reason, message = waiting.get("reason"), waiting.get("message", "")
        if not (each.get("started") or each.get("ready")) and (
            reason == CRASH_LOOP or each.get("restartCount", 0) >= CRASHES
        ):
            reason, message = CRASH_LOOP, CRASHED
        if (may_change := BY_KUBELET.get(reason)) is not None:
            return Verdict(reason, f"init container {each['name']}: {message}", may_change)
    return None


def _of_scheduler(scheduled: Json) -> Verdict | None:
    """The verdict of kube-scheduler on a pod without a node."""
    if scheduled.get("status") != "False" or scheduled.get("reason") not in (UNSCHEDULABLE, GATED):
        return None
    if scheduled["reason"] == GATED:
        return Verdict(GATED, HELD_BY_GATE, MayChange.CLUSTER)
    message = scheduled.get("message", "")
    if MISSING_CLAIM.search(message):
        return Verdict(NO_VOLUME_CLAIM, message, MayChange.CACHE)
    return Verdict(UNSCHEDULABLE, message, MayChange.CLUSTER)


def _of_node(pod: Json, reason: str, node: Json | None) -> Verdict:
    """The verdict on a pod whose node has not started its container.

    Only a kubelet that tells when a pod is prepared, before it pulls the image, shows that it does not pull one.
    """
    prepared = _condition(pod, "PodReadyToStartContainers")
    version = (node or {}).get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")
    found = KUBELET.match(version)
    tells = found is not None and (int(found[1]), int(found[2])) >= PREPARED_BEFORE_PULL
    if tells and prepared.get("status") == "False":
        return Verdict(NOT_PREPARED, prepared.get("message") or NOT_READY, MayChange.NODE)
    return Verdict(reason, NOT_STARTED, MayChange.PULL)


def _condition(pod: Json, kind: str) -> Json:
    """A condition of a pod; empty where it has none of this type."""
    conditions: list[Json] = pod.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def why_lost(pod: Json) -> str:
    """Why a pod ended without an exit status, in the words of Kubernetes."""
    status, annotations = pod.get("status", {}), pod["metadata"].get("annotations", {})
    if GIVEN_UP in annotations:
        return str(annotations[GIVEN_UP])
    for each in status.get("conditions", ()):
        if each["type"] == "DisruptionTarget" and each["status"] == "True":
            return f"{each.get('reason', '')}: {each.get('message', '')}"
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}"
    return "its pod was deleted" if "deletionTimestamp" in pod["metadata"] else "its container has no exit status"


def not_admitted(pod: Json) -> str:
    """The word of a kubelet that did not admit a pod, such as for a device that it does not have; empty: it did.

    Also empty where it may admit the same pod: it gave up all pods, or others ended this one.
    """
    status, state = pod.get("status", {}), _container_state(pod)
    reason: str = status.get("reason") or ""
    began = "running" in state or state.get("terminated", {}).get("startedAt")
    disrupted = _condition(pod, "DisruptionTarget").get("status") == "True"
    return "" if _phase(pod) != "Failed" or reason in NOT_FOR_ITSELF or began or disrupted else reason


def refusal(why: str) -> dict[str, Any]:
    """The end of a rank that is not started."""
    return {"exit_status": CANNOT_RUN, "refused": why}


def _refusal(pod: Json, ended: Mapping[str, Any]) -> dict[str, Any]:
    """The refusal of a rank that could not begin; empty: it began, or others ended its pod."""
    why = ""
    if ended.get("reason") in NOT_STARTED_BY_RUNTIME:
        why = f"{ended['reason']}: {ended.get('message', '')}"
    elif not ended:
        why = _why_not_initialized(pod)
    return refusal(why) if why and not _is_lost(pod) else {}


def _why_not_initialized(pod: Json) -> str:
    """Which init container failed; empty: none did.

    It is the last one that ended with an error: those before it may be sidecars that were stopped with the pod, and
    those after it never began.
    """
    for each in reversed(pod.get("status", {}).get("initContainerStatuses", ())):
        ended = each.get("state", {}).get("terminated", {})
        if code := ended.get("exitCode"):
            why = ended.get("message") or ended.get("reason", "")
            return f"init container {each['name']} ended with exit code {code}: {why}"
    return ""


def _exit(pod: Json, ended: Mapping[str, Any]) -> dict[str, Any]:
    """The exit status and its cause; the status of a rank that was lost or never ran is None."""
    if not ended or ended.get("reason") in NO_EXIT or _is_lost(pod):
        return {"exit_status": None}
    code = int(ended["exitCode"])
    status = SIGNALLED - code if SIGNALLED < code <= SIGNALLED + LAST_SIGNAL else code
    if ended.get("reason") == "OOMKilled":
        return {"exit_status": status, "cause": EndCause.OUT_OF_MEMORY}
    return {"exit_status": status}


def _is_lost(pod: Json) -> bool:
    """Whether others than us ended a pod: an eviction, a drain, kube-scheduler, or a deletion by hand.

    A container ends by the clock of its node, and a pod is evicted or deleted by that of the API server. An end that
    was seen before is kept already, so one that is not clearly older is most likely caused by it.
    """
    status, metadata = pod.get("status", {}), pod["metadata"]
    if {STOP_REASON, OVER_LIMIT} & metadata.get("annotations", {}).keys():
        return False
    if status.get("reason") in NODE_GAVE_UP:
        return True
    finished = _container_state(pod).get("terminated", {}).get("finishedAt")
    ended_at = at_ms(finished) + SECOND_MS + CLOCKS_DIFFER_MS if finished else math.inf
    return any(ended_at > asked_at for asked_at in _disruptions_of(pod))


def _disruptions_of(pod: Json) -> Iterator[float]:
    """When others evicted a pod and when they deleted it, as far as they did: pods that have ended are evicted, too."""
    metadata, condition = pod["metadata"], _condition(pod, "DisruptionTarget")
    if condition.get("status") == "True":
        since = None if condition.get("reason") == ENDED_BY_KUBELET else condition.get("lastTransitionTime")
        yield at_ms(since) if since else -math.inf
    if "deletionTimestamp" in metadata:
        yield at_ms(metadata["deletionTimestamp"]) - metadata.get("deletionGracePeriodSeconds", 0) * SECOND_MS


def _ended_at(pod: Json, ended: Mapping[str, Any]) -> int:
    """When the container ended, or else when the pod was deleted, or else when it was last changed by a condition."""
    if ended.get("finishedAt"):
        return at_ms(ended["finishedAt"]) + SECOND_MS
    times = [each["lastTransitionTime"] for each in pod.get("status", {}).get("conditions", ())]
    deleted = pod["metadata"].get("deletionTimestamp")
    return at_ms(deleted or max((time for time in times if time), default=_created(pod))) + SECOND_MS


def _container_state(pod: Json) -> Json:
    state: Json = _container_status(pod).get("state", {})
    return state


def _container_status(pod: Json) -> Json:
    """The status of the job's container; empty before it has one."""
    for each in pod.get("status", {}).get("containerStatuses", ()):
        if each["name"] == CONTAINER:
            status: Json = each
            return status
    return {}


def _created(pod: Json) -> str:
    created: str = pod["metadata"]["creationTimestamp"]
    return created


def _phase(pod: Json) -> str:
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase
