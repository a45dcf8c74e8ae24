"""Pods of node agents in the tests' cluster, and the tokens that a kubelet would project into them."""

from __future__ import annotations

from tests.kube.control_plane import ControlPlane

AGENT = "gpu-quota-agent"


def account_of(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:{AGENT}"


def make_node(plane: ControlPlane, name: str) -> None:
    status, _ = plane.request("GET", f"/api/v1/nodes/{name}")
    if status == 404:
        plane.make("/api/v1/nodes", {"metadata": {"name": name}})


def agent_pod(plane: ControlPlane, namespace: str, name: str, node: str | None, account: str = AGENT) -> str:
    """A pod with the account of agents, on a node; returns its uid."""
    spec = {"containers": [{"name": "agent", "image": "none"}], "serviceAccountName": account}
    place = {"nodeName": node} if node else {"schedulerName": "nobody"}
    made = plane.make(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec | place})
    return str(made["metadata"]["uid"])


def token_of(
    plane: ControlPlane, namespace: str, pod: str | None, account: str = AGENT, audience: str = "gpu-quota"
) -> str:
    """A token as a kubelet requests it: bound to the pod."""
    bound = {}
    if pod is not None:
        uid = plane.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["metadata"]["uid"]
        bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}
    spec = {"audiences": [audience], "expirationSeconds": 600, **bound}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(plane.make(path, {"spec": spec})["status"]["token"])
