"""The rights of the controllers at the API server, verb by verb, and what does not work without each. Pure.

The chart grants exactly these.
"""

from __future__ import annotations

from typing import NamedTuple

from .client.api_server import Json

DRA = "resource.k8s.io"


class Right(NamedTuple):
    """One verb. ``in_cluster``: in all namespaces. ``without`` is the consequence of its absence."""

    group: str
    resource: str
    verb: str
    in_cluster: bool
    without: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"

    def review(self, namespace: str) -> Json:
        """The object that asks the API server whether this account has the right."""
        name, _, subresource = self.resource.partition("/")
        attributes = {"group": self.group, "resource": name, "subresource": subresource, "verb": self.verb}
        return {"spec": {"resourceAttributes": attributes | ({} if self.in_cluster else {"namespace": namespace})}}


RIGHTS = (
    Right("", "pods", "get", False, "a pod that was removed by force is not noticed"),
    Right("", "pods", "create", False, "no rank starts"),
    Right("", "pods", "patch", False, "a pod that ended is not released"),
    Right("", "pods", "delete", False, "no job stops"),
    Right("", "pods/log", "get", False, "the log of a rank is not kept"),
    Right("", "configmaps", "get", False, "no leader can read its fence"),
    Right("", "configmaps", "list", False, "the attempts that exist are not known"),
    Right("", "configmaps", "watch", False, "changes of attempts are not known"),
    Right("", "configmaps", "create", False, "an attempt has no record"),
    Right("", "configmaps", "update", False, "no leader can store its number"),
    Right("", "configmaps", "patch", False, "an attempt does not get past its record"),
    Right("", "configmaps", "delete", False, "the record of a settled attempt stays"),
    Right("", "secrets", "create", False, "a job with secret variables does not start"),
    Right("", "services", "create", False, "a gang does not start"),
    Right(DRA, "resourceclaims", "create", False, "a rank has no devices"),
    Right("", "nodes", "list", True, "there is no inventory"),
    Right("", "nodes", "watch", True, "the inventory does not change"),
    Right("", "pods", "list", True, "no pod is observed"),
    Right("", "pods", "watch", True, "no end is observed"),
    Right(DRA, "resourceslices", "list", True, "the devices of a DRA driver are not known"),
    Right(DRA, "resourceslices", "watch", True, "changes of these devices are not known"),
    Right(DRA, "resourceclaims", "list", True, "the use of devices by the claims of others is not known"),
    Right(DRA, "resourceclaims", "watch", True, "changes of this use are not known"),
)
