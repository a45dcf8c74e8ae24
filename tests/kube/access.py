"""The access rights of the controllers, verb by verb. The chart has none yet; it will carry these."""

from __future__ import annotations

from tests.kube.control_plane import ControlPlane

RBAC = "/apis/rbac.authorization.k8s.io/v1"

IN_NAMESPACE = [
    ("", "pods", ["get", "list", "watch", "create", "patch", "delete"]),
    ("", "pods/log", ["get"]),
    ("", "configmaps", ["get", "list", "watch", "create", "update", "patch", "delete"]),
    ("", "secrets", ["create"]),
    ("", "services", ["create"]),
    ("resource.k8s.io", "resourceclaims", ["create"]),
]
"""Group, resource and verbs in the namespace of the jobs."""

IN_CLUSTER = [
    ("", "nodes", ["list", "watch"]),
    ("", "pods", ["list", "watch"]),
    ("resource.k8s.io", "resourceslices", ["list", "watch"]),
    ("resource.k8s.io", "resourceclaims", ["list", "watch"]),
]
"""The same for the whole cluster."""


def grant(plane: ControlPlane, namespace: str, account: str) -> None:
    """Give an account the rights of the controllers of one namespace."""
    subject = [{"kind": "User", "name": account, "apiGroup": "rbac.authorization.k8s.io"}]
    name = f"gpu-quota-{namespace}"
    for kind, path, rules in (
        ("Role", f"{RBAC}/namespaces/{namespace}/role", IN_NAMESPACE),
        ("ClusterRole", f"{RBAC}/clusterrole", IN_CLUSTER),
    ):
        listed = [{"apiGroups": [group], "resources": [resource], "verbs": verbs} for group, resource, verbs in rules]
        plane.make(f"{path}s", {"metadata": {"name": name}, "rules": listed})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        plane.make(f"{path}bindings", {"metadata": {"name": name}, "roleRef": role, "subjects": subject})
