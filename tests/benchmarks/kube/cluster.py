"""A real control plane with kwok nodes of 8 GPUs, and a record of when each pod was bound and ran.

A kwok node starts a pod as soon as it is bound, and ends it as soon as it is deleted. Logs are empty.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jupyter_gpu_quota.backends.kubernetes.client.api_server import ApiServer
from jupyter_gpu_quota.backends.kubernetes.client.informer import Informer
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from tests.kube.build import find
from tests.kube.control_plane import ControlPlane, free_port

Json = dict[str, Any]

EACH = 8
GPU = "nvidia.com/gpu"
MANAGED = "kwok.x-k8s.io/node"
PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kwok", "helm")
CONTROLLERS = ("garbage-collector-controller", "resourceclaim-controller")
"""The controllers that jobs and claims need; the others would only cost time on two cores."""

REQUESTS = re.compile(r'apiserver_flowcontrol_dispatched_requests_total\{flow_schema="global-default".*\} (\d+)')
"""Requests of accounts without a group: those of the measured controllers, and of nobody else here."""

STATES = {
    "pod-run": (
        [("deletionTimestamp", "DoesNotExist", ()), ("phase", "In", ("Pending",))],
        ("Running", 'running: {startedAt: "{{ Now }}"}'),
    ),
    "pod-end": (
        [("deletionTimestamp", "Exists", ()), ("phase", "In", ("Pending", "Running"))],
        ("Failed", 'terminated: {exitCode: 143, reason: Error, startedAt: "{{ Now }}", finishedAt: "{{ Now }}"}'),
    ),
    "pod-delete": ([("deletionTimestamp", "Exists", ()), ("phase", "In", ("Failed", "Succeeded"))], None),
}
"""kwok's stages of a pod: what it must be, and its phase and container state then; None: it is deleted."""

OPTIONS = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration",
    "options": {"nodePlayStageParallelism": 4, "podPlayStageParallelism": 16},
}  # fmt: skip

NODE_STAGE = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": "node-seen"},
    "spec": {
        "resourceRef": {"apiGroup": "v1", "kind": "Node"},
        "selector": {"matchExpressions": [{"key": ".status.phase", "operator": "DoesNotExist"}]},
        "next": {"statusTemplate": "phase: Running\n"},
    },
}  # fmt: skip
"""kwok runs pods only on nodes that a stage may apply to."""

KEYS = {"deletionTimestamp": ".metadata.deletionTimestamp", "phase": ".status.phase"}


def stage(name: str) -> Json:
    """A stage as an object of kwok's configuration."""
    tests, then = STATES[name]
    matches = [{"key": KEYS[key], "operator": how, **({"values": list(v)} if v else {})} for key, how, v in tests]
    after: Json = {"delete": True}
    if then is not None:
        containers = "{{ range .spec.containers }}\n- {name: {{ .name }}, image: none, imageID: none, restartCount: 0, "
        status = (
            f"phase: {then[0]}\ncontainerStatuses:\n{containers}ready: true, state: {{{then[1]}}}}}\n{{{{ end }}}}\n"
        )
        after = {"statusTemplate": status}
    spec = {"resourceRef": {"apiGroup": "v1", "kind": "Pod"}, "selector": {"matchExpressions": matches}, "next": after}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


class NoLogs(BaseHTTPRequestHandler):
    """The kubelet of every node: each log is empty."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Pods:
    """The pods of one namespace; instants are those of this process's monotonic clock."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._server, self._thread = ApiServer(plane.kubeconfig("admin")), LoopThread()
        self._informer = Informer(self._server, f"/api/v1/namespaces/{namespace}/pods", self._changed)
        self._nodes, self.bound_at, self.ran_at = dict[str, str](), dict[str, float](), dict[str, float]()
        self._thread.call(self._server.open(), 30.0)
        self._thread.run(("watch",), self._informer.run)

    def _changed(self, name: str, pod: Json | None, before: Json | None) -> None:
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            self._nodes.pop(name, None)
            return
        if node := pod["spec"].get("nodeName"):
            self.bound_at.setdefault(name, time.monotonic())
            self._nodes[name] = node
        if pod["status"]["phase"] == "Running":
            self.ran_at.setdefault(name, time.monotonic())

    def bound(self, prefix: str) -> list[str]:
        """The pods that have a node and are not deleted, by the beginning of their names."""
        return [name for name in list(self._nodes) if name.startswith(prefix)]

    def nodes_of(self, prefix: str) -> dict[str, str]:
        """The same pods with their nodes."""
        return {name: node for name, node in list(self._nodes.items()) if name.startswith(prefix)}

    def close(self) -> None:
        self._thread.close(self._server.close())


class KwokCluster:
    """The control plane, and nodes whose devices a plugin counts or a DRA driver publishes."""

    def __init__(self, folder: Path) -> None:
        self.plane, self._folder = ControlPlane(folder / "plane"), folder
        self._kubelet: ThreadingHTTPServer | None = None

    def start(self) -> None:
        self.plane.start()
        self._kubelet = ThreadingHTTPServer(("127.0.0.1", 0), NoLogs)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificates = self.plane.folder / "certificates"
        context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
        self._kubelet.socket = context.wrap_socket(
            self._kubelet.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self._kubelet.serve_forever, daemon=True).start()
        config = self._folder / "stages.yaml"
        config.write_text("\n---\n".join(json.dumps(each) for each in (OPTIONS, NODE_STAGE, *map(stage, STATES))))
        self.plane.spawn(
            "kwok", f"--kubeconfig={self.plane.kubeconfig('kwok')}", f"--config={config}",
            f"--manage-nodes-with-annotation-selector={MANAGED}=fake", "--node-lease-duration-seconds=0",
            "--node-ip=127.0.0.1", f"--server-address=127.0.0.1:{free_port()}",
        )  # fmt: skip

    def stop(self) -> None:
        self.plane.stop()
        if self._kubelet is not None:
            self._kubelet.shutdown()
            self._kubelet.server_close()

    def add_nodes(self, names: Iterable[str], resources: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Nodes that are ready."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self._add_node(name, resources, labels), names))

    def _add_node(self, name: str, resources: Mapping[str, str], labels: Mapping[str, str]) -> None:
        assert self._kubelet is not None
        metadata = {"name": name, "annotations": {MANAGED: "fake"}, "labels": dict(labels)}
        self.plane.make("/api/v1/nodes", {"metadata": metadata})
        amounts = {"cpu": "128", "memory": "2Ti", "pods": "250", **resources}
        ready = {"type": "Ready", "status": "True", "reason": "Kwok", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {
            "capacity": amounts, "allocatable": amounts, "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet.server_address[1]}},
        }  # fmt: skip
        self.plane.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        self.plane.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def requests(self) -> int:
        """How many requests the measured controllers have sent."""
        text = self.plane.request("GET", "/metrics")[1]["message"]
        return sum(int(number) for number in REQUESTS.findall(text))


@contextmanager
def kwok_cluster(folder: Path) -> Iterator[KwokCluster]:
    """A cluster that ends with the block."""
    made = KwokCluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def missing() -> list[str]:
    """The programs that are not built."""
    return [name for name in PROGRAMS if find(name) is None]
