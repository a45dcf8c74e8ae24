"""The permissions of the controllers at the API server, verb by verb, and what does not work without each. Pure.

The chart grants exactly these.
"""

from __future__ import annotations

from typing import NamedTuple

from .client.api_server import Json

DRA = "resource.k8s.io"


class Permission(NamedTuple):
    """One verb. ``cluster_scoped``: in all namespaces. ``consequence``: what does not work without it."""

    group: str
    resource: str
    verb: str
    cluster_scoped: bool
    consequence: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"

    def review(self, namespace: str) -> Json:
        """The object that asks the API server whether this account has the permission."""
        name, _, subresource = self.resource.partition("/")
        attributes = {"group": self.group, "resource": name, "subresource": subresource, "verb": self.verb}
        return {"spec": {"resourceAttributes": attributes | ({} if self.cluster_scoped else {"namespace": namespace})}}


PERMISSIONS = (
    Permission("", "pods", "get", False, "a pod that was removed by force is not noticed"),
    Permission("", "pods", "create", False, "no rank starts"),
    Permission("", "pods", "patch", False, "a pod that ended is not released"),
    Permission("", "pods", "delete", False, "no job stops"),
    Permission("", "pods/log", "get", False, "the log of a rank is not kept"),
    Permission("", "configmaps", "get", False, "no leader can read its fence"),
    Permission("", "configmaps", "list", False, "the attempts that exist are not known"),
    Permission("", "configmaps", "watch", False, "changes of attempts are not known"),
    Permission("", "configmaps", "create", False, "an attempt has no record"),
    Permission("", "configmaps", "update", False, "no leader can store its number"),
    Permission("", "configmaps", "patch", False, "an attempt does not get past its record"),
    Permission("", "configmaps", "delete", False, "the record of a settled attempt stays"),
    Permission("", "secrets", "create", False, "a job with secret variables does not start"),
    Permission("", "services", "create", False, "a gang does not start"),
    Permission(DRA, "resourceclaims", "create", False, "a rank has no devices"),
    Permission("", "nodes", "list", True, "there is no inventory"),
    Permission("", "nodes", "watch", True, "the inventory does not change"),
    Permission("", "pods", "list", True, "no pod is observed"),
    Permission("", "pods", "watch", True, "no end is observed"),
    Permission(DRA, "resourceslices", "list", True, "the devices of a DRA driver are not known"),
    Permission(DRA, "resourceslices", "watch", True, "changes of these devices are not known"),
    Permission(DRA, "resourceclaims", "list", True, "the use of devices by the claims of others is not known"),
    Permission(DRA, "resourceclaims", "watch", True, "changes of this use are not known"),
)
