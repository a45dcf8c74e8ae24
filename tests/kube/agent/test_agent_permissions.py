"""What the agent of a node may do at the API server: follow pods of its node, and obey orders that are in force.

Each verb that the chart grants is needed; the agent may do nothing else.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.agent.kill_orders import KillOrders
from jupyter_gpu_quota.backends.kubernetes.agent.node_pods import NodePods, PodUnknown
from jupyter_gpu_quota.backends.kubernetes.client.api_server import ApiServer, RequestFailed
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from jupyter_gpu_quota.backends.kubernetes.enforcement import ClusterEnforcement
from jupyter_gpu_quota.backends.protocol import StopNotebookOrder
from jupyter_gpu_quota.backends.rendering.admission import FENCE
from jupyter_gpu_quota.backends.rendering.cluster_names import FENCING, HUB, JOB, KILL, NOTEBOOK
from jupyter_gpu_quota.backends.rendering.pods import PodSettings
from tests.kube.agent.pods import AGENT, agent_pod, make_node, token_of
from tests.kube.chart.release import PATHS
from tests.kube.control_plane import ControlPlane
from tests.kube.world import install
from tests.patience import PATIENCE_S, until


class Agent:
    """The parts of an agent that use the API server, on node ``node-a``, with the rights of its pod."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        make_node(plane, "node-a")
        make_node(plane, "node-b")
        agent_pod(plane, namespace, "agent", "node-a")
        token = token_of(plane, namespace, "agent", audience="https://kubernetes.default.svc")
        self.server, self.thread = ApiServer(plane.kubeconfig_of_token(f"agent-{namespace}", token)), LoopThread()
        self.thread.call(self.server.open(), 10.0)
        self.pods = NodePods(self.server, namespace, "node-a", "test")
        self.cgroups = dict[int, str]()
        self.orders = KillOrders(self.server, namespace, self.pods, self.cgroups.get)
        self.processes = list[subprocess.Popen[bytes]]()

    def follow(self) -> None:
        self.thread.run("pods", self.pods.run)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(PATIENCE_S)
        self.thread.close(self.server.close())

    def pod(self, name: str, node: str = "node-a", **labels: str) -> str:
        metadata = {"name": name, "labels": labels}
        spec = {"containers": [{"name": "c", "image": "none"}], "nodeName": node, "terminationGracePeriodSeconds": 0}
        made = self.plane.make(f"/api/v1/namespaces/{self.namespace}/pods", {"metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    def process_in(self, uid: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "600"])
        self.processes.append(process)
        self.cgroups[process.pid] = f"0::/kubepods/pod{uid}/{'c' * 64}"
        return process

    def workload_of(self, uid: str) -> str | None:
        try:
            return self.pods.workload_of(uid)
        except PodUnknown:
            return "unknown"

    def turn(self) -> None:
        self.thread.call(self.orders.turn(), 10.0)

    def order(self, name: str, fencing: int) -> None:
        """The order of a leader, as the controllers write it."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        mark = {FENCING: str(fencing), KILL: str(fencing)}
        self.plane.patch(path, {"metadata": {"annotations": mark}})

    def raise_fence(self, fencing: int) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{FENCE}"
        self.plane.patch(path, {"data": {"fencing": str(fencing)}})

    def without(self, resource: str, verb: str) -> None:
        """Take a verb from the agents' role."""
        path = f"{PATHS['Role'].format(self.namespace)}/{AGENT}"
        kept = [
            {**rule, "verbs": [each for each in rule["verbs"] if resource not in rule["resources"] or each != verb]}
            for rule in self.plane.get(path)["rules"]
        ]
        self.plane.patch(path, {"rules": [rule for rule in kept if rule["verbs"]]})
        until(lambda: not self.may(verb, resource), what="the permission is gone")

    def may(self, verb: str, resource: str, group: str = "", namespace: str | None = None, name: str = "") -> bool:
        where = {"namespace": self.namespace if namespace is None else namespace, "name": name}
        review = {"spec": {"resourceAttributes": {"verb": verb, "resource": resource, "group": group, **where}}}
        found = self.thread.call(
            self.server.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review), 10.0
        )
        return bool(found["status"]["allowed"])


@pytest.fixture
def agent(control_plane: ControlPlane) -> Iterator[Agent]:
    made = Agent(control_plane, install(control_plane))
    yield made
    made.close()


def test_the_pods_of_jobs_and_notebooks_of_the_node_are_known(agent: Agent) -> None:
    job, notebook = agent.pod("job", **{HUB: "test", JOB: "J"}), agent.pod("notebook", **{HUB: "test", NOTEBOOK: "N"})
    other_hub, foreign = agent.pod("other-hub", **{HUB: "other", JOB: "J"}), agent.pod("foreign")
    agent.follow()
    until(lambda: agent.workload_of(job) == "J", what="a list")
    assert agent.workload_of(notebook) == "N"
    assert (agent.workload_of(other_hub), agent.workload_of(foreign)) == (None, None)
    later = agent.pod("later", **{HUB: "test", JOB: "L"})
    until(lambda: agent.workload_of(later) == "L", what="a watch")


def test_a_pod_that_no_list_has_is_that_of_others_and_not_before(agent: Agent) -> None:
    elsewhere = agent.pod("elsewhere", "node-b", **{HUB: "test", JOB: "J"})
    agent.thread.call(agent.pods.informer.list(), 10.0)
    assert agent.workload_of(elsewhere) == "unknown", "its process may be newer than the list"
    agent.thread.call(agent.pods.list_for_missing(), 10.0)
    assert agent.workload_of(elsewhere) is None
    requests = agent.server.requests
    agent.thread.call(agent.pods.list_for_missing(), 10.0)
    assert agent.server.requests == requests, "it is listed once"
    later = agent.pod("later", "node-b", **{HUB: "test", JOB: "J"})
    assert agent.workload_of(later) == "unknown", "the last list began before its process was seen"
    agent.thread.call(agent.pods.list_for_missing(), 10.0)
    assert agent.workload_of(later) is None


def test_a_pod_stays_known_after_its_object_is_gone(agent: Agent) -> None:
    job = agent.pod("job", **{HUB: "test", JOB: "J"})
    agent.follow()
    until(lambda: agent.workload_of(job) == "J", what="a list")
    agent.plane.request("DELETE", f"/api/v1/namespaces/{agent.namespace}/pods/job", {"gracePeriodSeconds": 0})
    until(lambda: "job" not in agent.pods.informer.objects, what="the deletion is seen")
    assert agent.workload_of(job) == "J"


# --- orders -----------------------------------------------------------------------------------------------------------
def ordered(agent: Agent, uid: str) -> Any:
    return until(lambda: uid in agent.pods.kill_orders, what="the order is seen")


def test_an_order_kills_the_processes_of_its_pod_and_no_others(agent: Agent) -> None:
    pod, neighbour = (agent.pod(name, **{HUB: "test", NOTEBOOK: name}) for name in ("mine", "yours"))
    mine, other = [agent.process_in(pod), agent.process_in(pod)], agent.process_in(neighbour)
    agent.follow()
    agent.raise_fence(7)
    agent.order("mine", 7)
    ordered(agent, pod)
    agent.turn()
    assert [process.wait(PATIENCE_S) for process in mine] == [-9, -9]
    assert other.poll() is None
    late = agent.process_in(pod)
    agent.turn()
    assert late.poll() is None, "an order is carried out once"


def test_the_order_of_a_leader_that_was_replaced_is_ignored(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    pod = agent.pod("mine", **{HUB: "test", NOTEBOOK: "N"})
    process = agent.process_in(pod)
    agent.follow()
    agent.raise_fence(8)
    agent.order("mine", 7)
    ordered(agent, pod)
    agent.turn()
    assert process.poll() is None
    assert f"pod {pod} is not killed: leader 7 is older than 8" in caplog.text
    agent.order("mine", 8)
    until(lambda: agent.pods.kill_orders[pod] == 8, what="the new order is seen")
    agent.turn()
    assert process.wait(PATIENCE_S) == -9


@pytest.mark.parametrize("value", ["", "-1", "x", "7 "])
def test_an_order_without_a_number_is_none(agent: Agent, value: str) -> None:
    pod = agent.pod("mine", **{HUB: "test", NOTEBOOK: "N"})
    agent.plane.patch(f"/api/v1/namespaces/{agent.namespace}/pods/mine", {"metadata": {"annotations": {KILL: value}}})
    agent.follow()
    until(lambda: agent.workload_of(pod) == "N", what="a list")
    assert agent.pods.kill_orders == {}


def test_an_order_for_a_pod_of_others_is_none(agent: Agent) -> None:
    pod = agent.pod("foreign")
    agent.order("foreign", 7)
    agent.follow()
    until(lambda: agent.workload_of(pod) is None, what="a list")
    assert agent.pods.kill_orders == {}


def test_the_controllers_order_the_end_of_a_notebook_that_its_server_survived(agent: Agent) -> None:
    agent.plane.patch(f"/api/v1/namespaces/{agent.namespace}/configmaps/{FENCE}", {"data": {"fencing": "3"}})
    pod = agent.pod("notebook", **{HUB: "test", NOTEBOOK: "N"})
    process = agent.process_in(pod)
    agent.follow()
    until(lambda: agent.workload_of(pod) == "N", what="a list")
    server, thread = ApiServer(agent.plane.kubeconfig(agent.namespace)), LoopThread()
    thread.call(server.open(), 10.0)
    settings = PodSettings(namespace=agent.namespace, hub="test", image="none", volume_claim="jobs")
    try:
        ClusterEnforcement(server, thread, settings).stop_notebook(
            StopNotebookOrder(notebook="N", fencing=3, reason="it uses more than its share")
        )
        until(lambda: agent.pods.kill_orders.get(pod) == 3, what="the order")
    finally:
        thread.close(server.close())
    agent.turn()
    assert process.wait(PATIENCE_S) == -9


# --- permissions ------------------------------------------------------------------------------------------------------
def test_without_listing_pods_no_workload_is_known(agent: Agent) -> None:
    pod = agent.pod("job", **{HUB: "test", JOB: "J"})
    agent.without("pods", "list")
    with pytest.raises(RequestFailed, match="cannot list resource"):
        agent.thread.call(agent.pods.informer.list(), 10.0)
    assert agent.workload_of(pod) == "unknown"


def test_without_watching_pods_a_later_pod_is_not_known(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    agent.without("pods", "watch")
    agent.follow()
    until(lambda: "cannot watch resource" in caplog.text, what="the watch is refused")
    assert agent.workload_of(agent.pod("job", **{HUB: "test", JOB: "J"})) == "unknown"


def test_without_reading_the_fence_an_order_waits(agent: Agent) -> None:
    pod = agent.pod("mine", **{HUB: "test", NOTEBOOK: "N"})
    process = agent.process_in(pod)
    agent.order("mine", 7)
    agent.without("configmaps", "get")
    agent.follow()
    ordered(agent, pod)
    with pytest.raises(RequestFailed, match="cannot get resource"):
        agent.turn()
    assert process.poll() is None


@pytest.mark.parametrize(
    ("verb", "resource", "group"),
    [
        *((verb, "pods", "") for verb in ("get", "create", "update", "patch", "delete")),
        *((verb, "configmaps", "") for verb in ("list", "watch", "create", "update", "patch", "delete")),
        *((verb, "secrets", "") for verb in ("get", "list", "watch")),
        ("create", "pods/exec", ""), ("create", "serviceaccounts/token", ""), ("list", "nodes", ""),
        ("create", "tokenreviews", "authentication.k8s.io"),
    ],
)  # fmt: skip
def test_the_agent_may_change_and_read_nothing_else(
    agent_of_module: Agent, verb: str, resource: str, group: str
) -> None:
    assert not agent_of_module.may(verb, resource, group, name="" if resource != "configmaps" else FENCE)


@pytest.fixture(scope="module")
def agent_of_module(control_plane: ControlPlane) -> Iterator[Agent]:
    made = Agent(control_plane, install(control_plane))
    yield made
    made.close()


def test_the_agent_reads_no_other_namespace_and_no_other_object(agent_of_module: Agent) -> None:
    assert agent_of_module.may("get", "configmaps", name=FENCE)
    assert not agent_of_module.may("get", "configmaps", name="other")
    assert not agent_of_module.may("list", "pods", namespace="default")
