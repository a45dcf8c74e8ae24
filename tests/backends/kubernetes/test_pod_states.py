"""What the states of pods say about ranks: the table of pod_states, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.kept_fields import kept_of_node, kept_of_rank
from jupyter_gpu_quota.backends.kubernetes.jobs.pod_states import (
    abandoned_status,
    is_abandoned,
    is_over,
    not_admitted,
    rank_status,
    why_lost,
    why_waiting,
)

STOPPED = {"deletionTimestamp": "2026-11-24T10:01:00Z", "deletionGracePeriodSeconds": 30}
REMOVED = {"deletionTimestamp": "2026-11-24T10:00:51Z", "deletionGracePeriodSeconds": 0}
OURS = {"annotations": {"gpu-quota.jupyter.org/stop-reason": "reclaimed"}}
OVER = {"annotations": {"gpu-quota.jupyter.org/over-limit": "its outputs hold 2 bytes, and its limit is 1 bytes"}}
BOTH = {"annotations": OURS["annotations"] | OVER["annotations"]}
RUNNING = {"running": {"startedAt": "2026-11-24T10:00:05Z"}}
EVICTED = {"reason": "EvictionByEvictionAPI"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-11-24T10:00:40Z"}
AT_10_00 = 1_795_514_400_000


def ended(code: int, at: str = "10:00:50", reason: str = "Error") -> dict[str, Any]:
    times = {"startedAt": "2026-11-24T10:00:05Z", "finishedAt": f"2026-11-24T{at}Z"}
    return {"terminated": {"exitCode": code, "reason": reason, **times}}


def pod(
    phase: str, state: dict[str, Any] | None = None, *, metadata: Any = (), node: str | None = "n",
    beside: dict[str, Any] | None = None, **status: Any,
) -> dict[str, Any]:  # fmt: skip
    labels = {"job": "J", "attempt": "1", "rank": "0"}
    found: dict[str, Any] = {
        "name": "gq-j-1-0", "creationTimestamp": "2026-11-24T10:00:00Z",
        "labels": {f"gpu-quota.jupyter.org/{name}": value for name, value in labels.items()},
    }  # fmt: skip
    states = {"job": state, "proxy": beside}
    containers = [{"name": name, "state": each} for name, each in states.items() if each is not None]
    spec = {"containers": [{"name": "job", "env": []}]} | ({} if node is None else {"nodeName": node})
    status = {"phase": phase, "containerStatuses": containers, **status}
    return kept_of_rank({"metadata": found | dict(metadata), "spec": spec, "status": status})


@pytest.mark.parametrize(
    ("found", "exit_status", "is_pause", "cause"),
    [
        pytest.param(pod("Succeeded", ended(0)), 0, False, None, id="a command that succeeds"),
        pytest.param(pod("Failed", ended(3)), 3, False, None, id="a command that fails"),
        pytest.param(pod("Failed", ended(139)), -11, False, None, id="a signal is negative"),
        pytest.param(
            pod("Failed", ended(137, reason="OOMKilled")), -9, False, "out_of_memory", id="killed for its memory"
        ),
        pytest.param(pod("Failed", ended(75), metadata=STOPPED | OURS), 75, True, None, id="a pause that was obeyed"),
        pytest.param(pod("Failed", ended(143), metadata=STOPPED | OURS), -15, True, None, id="it has no handler"),
        pytest.param(
            pod("Failed", ended(143), metadata=REMOVED | OURS), -15, True, None,
            id="a pause whose pod its kubelet removed in the next second",
        ),
        pytest.param(
            pod("Succeeded", ended(0, "10:00:10"), metadata=STOPPED | OURS), 0, False, None,
            id="it ended before the stop",
        ),
        pytest.param(
            pod("Failed", ended(143, "10:00:27"), metadata=STOPPED | OURS), -15, True, None,
            id="a pause on a node whose clock is behind",
        ),
        pytest.param(
            pod("Failed", ended(143), metadata=STOPPED | OVER), -25, False, "storage_limit", id="too much output"
        ),
        pytest.param(
            pod("Succeeded", ended(0), metadata=REMOVED | OVER), -25, False, "storage_limit",
            id="too much output, whatever its handler does",
        ),
        pytest.param(
            pod("Failed", ended(143), metadata=STOPPED | BOTH), -25, False, "storage_limit",
            id="too much output, and paused while it stopped",
        ),
        pytest.param(
            pod("Failed", ended(143, "10:00:27"), metadata=STOPPED | OVER), -25, False, "storage_limit",
            id="too much output on a node whose clock is behind",
        ),
        pytest.param(
            pod("Succeeded", ended(0, "10:00:10"), metadata=STOPPED | OVER), 0, False, None,
            id="it ended before its outputs were measured",
        ),
        pytest.param(pod("Failed", ended(143), metadata=STOPPED), None, False, None, id="its pod was deleted by hand"),
        pytest.param(
            pod("Succeeded", ended(0, "10:00:10"), metadata=STOPPED), 0, False, None,
            id="its pod was deleted by hand after it ended",
        ),
        pytest.param(
            pod("Failed", ended(143, "10:00:27"), metadata=STOPPED), None, False, None,
            id="its pod was deleted by hand on a node whose clock is behind",
        ),
        pytest.param(
            pod("Failed", ended(137), reason="Evicted", message="low on memory"), None, False, None, id="it was evicted"
        ),
        pytest.param(
            pod("Failed", reason="Evicted", message="The node had condition: [DiskPressure]. "), None, False, None,
            id="its node is full, and did not admit it",
        ),
        pytest.param(
            pod(
                "Failed", ended(137), reason="Evicted",
                message="Pod ephemeral local storage usage exceeds the total limit of containers 20Gi. ",
            ),
            -25, False, "storage_limit", id="evicted for the local storage of its containers",
        ),
        pytest.param(
            pod(
                "Failed", ended(137), reason="Evicted",
                message='Container job exceeded its local ephemeral storage limit "20Gi". ',
            ),
            -25, False, "storage_limit", id="evicted for its container's own limit",
        ),
        pytest.param(
            pod("Failed", ended(137), conditions=[DISRUPTED | {"reason": "PreemptionByScheduler"}]), None, False, None,
            id="preempted by kube-scheduler",
        ),
        pytest.param(
            pod("Succeeded", ended(0, "10:00:29"), metadata=REMOVED, conditions=[DISRUPTED | EVICTED]), 0, False, None,
            id="it was evicted after it ended",
        ),
        pytest.param(
            pod("Failed", ended(143, "10:00:30"), conditions=[DISRUPTED | EVICTED]), None, False, None,
            id="it was evicted on a node whose clock is behind",
        ),
        pytest.param(
            pod("Failed", ended(137, "10:00:10"), conditions=[DISRUPTED | {"reason": "TerminationByKubelet"}]),
            None, False, None, id="preempted by its kubelet, which reports that after its other containers ended",
        ),
        pytest.param(
            pod("Failed", RUNNING, conditions=[DISRUPTED | {"reason": "DeletionByPodGC"}]), None, False, None,
            id="its node is gone",
        ),
        pytest.param(
            pod("Failed", ended(137, reason="ContainerStatusUnknown")), None, False, None, id="its container was lost"
        ),
        pytest.param(
            pod("Failed", reason="UnexpectedAdmissionError", message="no GPU"), None, False, None,
            id="its node did not admit it",
        ),
        pytest.param(
            pod("Pending", metadata=STOPPED | OURS, node=None), None, True, None, id="stopped before it had a node"
        ),
        pytest.param(pod("Running", ended(3), beside=RUNNING), 3, False, None, id="it ends before another container"),
        pytest.param(
            pod("Running", ended(143), beside=RUNNING, metadata=STOPPED | OURS), -15, True, None,
            id="it obeys a pause before another container ends",
        ),
    ],
)  # fmt: skip
def test_an_end(found: dict[str, Any], exit_status: int | None, is_pause: bool, cause: str | None) -> None:
    status = rank_status(found)
    assert is_over(found) and status["tree_gone"]
    assert (status["exit_status"], status.get("cause")) == (exit_status, cause)
    assert status.get("pause_requested", False) is is_pause


@pytest.mark.parametrize(
    ("found", "started_at", "is_pause"),
    [
        pytest.param(pod("Pending", node=None), None, False, id="no node yet"),
        pytest.param(pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), None, False, id="it is prepared"),
        pytest.param(pod("Running", RUNNING), AT_10_00 + 5_000, False, id="it runs"),
        pytest.param(pod("Running", RUNNING, metadata=STOPPED | OURS), AT_10_00 + 5_000, True, id="it is stopping"),
        pytest.param(pod("Running", RUNNING, metadata=STOPPED), AT_10_00 + 5_000, False, id="others deleted it"),
        pytest.param(pod("Running", RUNNING, beside=ended(0)), AT_10_00 + 5_000, False, id="another container ended"),
        pytest.param(pod("Running", ended(0)), AT_10_00 + 5_000, False, id="its kubelet has not ended the pod yet"),
        pytest.param(pod("Unknown", RUNNING), AT_10_00 + 5_000, False, id="its node does not answer"),
    ],
)  # fmt: skip
def test_a_rank_that_may_have_processes(found: dict[str, Any], started_at: int | None, is_pause: bool) -> None:
    status = rank_status(found)
    assert not is_over(found)
    assert "ended_at" not in status and "exit_status" not in status
    assert (status.get("started_at"), status.get("pause_requested", False)) == (started_at, is_pause)


NOT_FOUND = 'runc create failed: exec: "trian": executable file not found in $PATH'
START_ERROR = {"terminated": {
    "exitCode": 128, "reason": "StartError", "message": NOT_FOUND,
    "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "2026-11-24T10:00:50Z",
}}  # fmt: skip


INITIALIZING: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
INIT_FAILED: dict[str, Any] = {
    "initContainerStatuses": [
        {"name": "proxy", "state": ended(143)},
        {"name": "fetch", "state": ended(1)},
        {"name": "next", "state": INITIALIZING},
    ]
}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(pod("Failed", START_ERROR), f"StartError: {NOT_FOUND}", id="its command does not exist"),
        pytest.param(pod("Failed", START_ERROR, metadata=STOPPED | OURS), None, id="we stopped it meanwhile"),
        pytest.param(pod("Failed", START_ERROR, metadata=STOPPED), None, id="others deleted it meanwhile"),
        pytest.param(
            pod("Failed", INITIALIZING, **INIT_FAILED),
            "init container fetch ended with exit code 1: Error",
            id="an init container of the site failed",
        ),
        pytest.param(
            pod("Failed", INITIALIZING, metadata=STOPPED | OURS, **INIT_FAILED),
            None,
            id="we stopped it before it was initialized",
        ),
        pytest.param(
            pod("Failed", INITIALIZING, reason="Evicted", message="low on memory", **INIT_FAILED),
            None,
            id="it was evicted before it was initialized",
        ),
    ],
)
def test_a_rank_that_never_ran_is_refused_unless_its_pod_was_stopped(found: dict[str, Any], why: str | None) -> None:
    status = rank_status(found)
    assert is_over(found) and "started_at" not in status and "pid" not in status
    assert (status.get("refused"), status["exit_status"]) == (why, 126 if why else None)


def test_a_start_is_rounded_down_and_an_end_is_rounded_up() -> None:
    status = rank_status(pod("Succeeded", ended(0)))
    assert (status["started_at"], status["ended_at"]) == (AT_10_00 + 5_000, AT_10_00 + 51_000)


CRASHES = (
    "CrashLoopBackOff",
    "init container proxy: it ends before it has started, again and again; its log says why",
    "cluster",
)
INITIALIZED_NEXT = (
    "PodInitializing",
    "its node prepares it or pulls its image; the pod's events say which",
    "pull",
)


def initializing(state: dict[str, Any], **more: object) -> dict[str, Any]:
    """A pod whose job waits for a container of the site in this state."""
    return pod("Pending", INITIALIZING, initContainerStatuses=[{"name": "proxy", "state": state, **more}])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            ("ImagePullBackOff", "no such image", "cluster"), id="an image that cannot be pulled",
        ),
        pytest.param(
            pod("Pending", conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
            ]),
            ("Unschedulable", "Insufficient cpu", "cluster"), id="no node takes it",
        ),
        pytest.param(
            pod("Pending", conditions=[{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": '0/2 nodes are available: persistentvolumeclaim "images" not found. preemption: 0/2 nodes',
            }]),
            ("VolumeClaimNotFound",
             '0/2 nodes are available: persistentvolumeclaim "images" not found. preemption: 0/2 nodes', "cache"),
            id="the claim of its data is not there",
        ),
        pytest.param(
            pod("Pending", conditions=[{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked",
            }]),
            ("SchedulingGated",
             "the reservation of its device has not started or has no room, or a gate of the site holds the pod",
             "cluster"),
            id="its device is not reserved yet",
        ),
        pytest.param(pod("Pending", node=None), None, id="kube-scheduler has not seen it"),
        pytest.param(
            initializing({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}),
            ("ErrImagePull", "init container proxy: no such image", "cluster"),
            id="the image of an init container cannot be pulled",
        ),
        pytest.param(
            initializing({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}, restartCount=1),
            CRASHES, id="a sidecar ends before the job starts",
        ),
        pytest.param(
            initializing(RUNNING, restartCount=3, started=False), CRASHES,
            id="it runs again before its next end",
        ),
        pytest.param(
            initializing(ended(0), restartCount=3, started=False), CRASHES,
            id="it has ended before its next back-off",
        ),
        pytest.param(
            initializing(RUNNING, restartCount=3, started=True), INITIALIZED_NEXT,
            id="it runs at last, and the next container is prepared",
        ),
        pytest.param(
            initializing(ended(0), restartCount=3, started=False, ready=True), INITIALIZED_NEXT,
            id="an init container is done at last",
        ),
    ],
)  # fmt: skip
def test_why_a_pod_waits(found: dict[str, Any], expected: tuple[str, str, str] | None) -> None:
    assert why_waiting(found) == expected


def creating(prepared: str | None, message: str | None = None, reason: str = "ContainerCreating") -> dict[str, Any]:
    """A pod whose kubelet said so of PodReadyToStartContainers, of which old ones and others say nothing."""
    condition = {"type": "PodReadyToStartContainers", "status": prepared, "message": message}
    return pod("Pending", {"waiting": {"reason": reason}}, conditions=[condition] if prepared else [])


@pytest.mark.parametrize(
    ("found", "kubelet", "code", "may_change"),
    [
        pytest.param(creating("False"), "v1.36.3", "NotPrepared", "node", id="its volume is not mounted"),
        pytest.param(creating("False"), "v1.40.0-gke.1", "NotPrepared", "node", id="on a newer release"),
        pytest.param(creating("True"), "v1.36.3", "ContainerCreating", "pull", id="its image is pulled"),
        pytest.param(creating("False"), "v1.34.9", "ContainerCreating", "pull", id="an older kubelet may be pulling"),
        pytest.param(creating("False"), None, "ContainerCreating", "pull", id="the release is not known"),
        pytest.param(creating(None), "kwok-v0.7.0", "ContainerCreating", "pull", id="a kubelet that says nothing"),
        pytest.param(
            creating("True", reason="PodInitializing"), "v1.36.3", "PodInitializing", "pull",
            id="a container of the site comes first",
        ),
    ],
)  # fmt: skip
def test_a_node_that_prepares_a_pod_is_distinguished_from_one_that_pulls(
    found: dict[str, Any], kubelet: str | None, code: str, may_change: str
) -> None:
    info = {"nodeInfo": {"kubeletVersion": kubelet, "osImage": "x"}}
    node = kept_of_node({"metadata": {"name": "n"}, "spec": {}, "status": info})
    verdict = why_waiting(found, node if kubelet else None)
    assert verdict is not None and (verdict.code, verdict.may_change) == (code, may_change)


def test_a_kubelet_that_says_why_a_pod_is_not_prepared_is_quoted() -> None:
    node = {"status": {"nodeInfo": {"kubeletVersion": "v1.37.0"}}}
    assert str(why_waiting(creating("False", "no pod sandbox exists"), node)) == "NotPrepared: no pod sandbox exists"


def test_why_a_rank_was_lost_is_in_the_words_of_kubernetes() -> None:
    assert why_lost(pod("Failed", reason="Evicted", message="low on memory")) == "Evicted: low on memory"
    condition = DISRUPTED | {"reason": "DeletionByPodGC", "message": "no node"}
    assert why_lost(pod("Failed", conditions=[condition])) == "DeletionByPodGC: no node"
    assert why_lost(pod("Failed", metadata=STOPPED)) == "its pod was deleted"


NOT_LOCATED = {
    "terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
}


@pytest.mark.parametrize(
    ("found", "word"),
    [
        pytest.param(pod("Failed", reason="UnexpectedAdmissionError"), "UnexpectedAdmissionError", id="no device"),
        pytest.param(pod("Failed", reason="OutOfmemory"), "OutOfmemory", id="no memory"),
        pytest.param(pod("Failed", reason="SysctlForbidden"), "SysctlForbidden", id="a sysctl that it does not allow"),
        pytest.param(pod("Failed", reason="AppArmor"), "AppArmor", id="an AppArmor profile that it does not have"),
        pytest.param(pod("Failed", reason="PodFeatureUnsupported"), "PodFeatureUnsupported", id="an older kubelet"),
        pytest.param(
            pod("Failed", NOT_LOCATED, reason="VolumeAttachmentLimitExceeded"), "VolumeAttachmentLimitExceeded",
            id="too many volumes, found when its container had a status",
        ),
        pytest.param(pod("Failed", RUNNING, reason="SysctlForbidden"), "", id="its container ran before"),
        pytest.param(pod("Failed", ended(137), reason="SysctlForbidden"), "", id="its container ended before"),
        pytest.param(pod("Pending", reason="SysctlForbidden"), "", id="it has not failed"),
        pytest.param(pod("Failed"), "", id="no reason"),
        pytest.param(pod("Failed", reason="Evicted"), "", id="its node is full"),
        pytest.param(pod("Failed", reason="NodeShutdown"), "", id="its node shuts down"),
        pytest.param(pod("Failed", reason="NodeAffinity"), "", id="the labels of its node changed"),
        pytest.param(
            pod("Failed", reason="SysctlForbidden", conditions=[DISRUPTED | EVICTED]), "", id="others evicted it"
        ),
    ],
)  # fmt: skip
def test_a_pod_that_its_kubelet_refuses_for_itself_is_distinguished(found: dict[str, Any], word: str) -> None:
    assert not_admitted(found) == word


@pytest.mark.parametrize(
    ("found", "is_unconfirmed"),
    [
        pytest.param(pod("Failed", ended(143), metadata=STOPPED), False, id="its kubelet saw the end"),
        pytest.param(pod("Failed", RUNNING, conditions=[DISRUPTED]), True, id="its node was removed while it ran"),
        pytest.param(pod("Failed", conditions=[DISRUPTED]), False, id="its container never began"),
    ],
)
def test_a_container_whose_end_no_kubelet_saw_may_still_run(found: dict[str, Any], is_unconfirmed: bool) -> None:
    assert rank_status(found).get("unconfirmed", False) is is_unconfirmed


def test_a_deleted_pod_is_abandoned_when_its_grace_is_over_also_if_the_clocks_differ() -> None:
    found = pod("Running", RUNNING, metadata=STOPPED)  # deleted at 10:00:30 with a grace of 30 s
    assert not is_abandoned(found, AT_10_00 + 70_999, 0), "this clock may be ahead of that of the API server"
    assert is_abandoned(found, AT_10_00 + 71_000, 0)
    assert not is_abandoned(found, AT_10_00, 30.9)
    assert is_abandoned(found, AT_10_00, 31), "this clock is behind"
    assert not is_abandoned(pod("Running", RUNNING), AT_10_00 + 10**9, 10**6)
    assert not is_abandoned(pod("Failed", ended(143), metadata=STOPPED), AT_10_00 + 10**9, 10**6)


def test_an_abandoned_rank_ended_with_its_grace_and_a_stop_of_ours_makes_it_a_pause() -> None:
    lost = abandoned_status(pod("Running", RUNNING, metadata=STOPPED), "node n is lost")
    assert (lost["ended_at"], lost["exit_status"], lost["tree_gone"]) == (AT_10_00 + 61_000, None, True)
    assert (lost["why_lost"], lost["unconfirmed"], "pause_requested" in lost) == ("node n is lost", True, False)
    assert abandoned_status(pod("Running", RUNNING, metadata=STOPPED | OURS), "")["pause_reason"] == "reclaimed"


def test_a_thousand_pods_are_kept_without_their_containers() -> None:
    assert pod("Running", RUNNING)["spec"] == {"nodeName": "n"}
