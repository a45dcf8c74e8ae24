"""Renders what lets the API server refuse a leader that was replaced: a policy, its binding and its parameter. Pure.

The parameter is a ConfigMap with the newest fencing number. An object that the controllers create, change or delete
must carry that number or a higher one: a deletion is judged by the object as it is stored. Requests of others, such as
kubelets, are not judged.
"""

from __future__ import annotations

from typing import Any

from .cluster_names import DOMAIN, FENCING

Json = dict[str, Any]

FENCE = "gpu-quota-fence"
"""The ConfigMap with the newest fencing number, in the namespace of the jobs."""

NUMBER = "fencing"
GROUP = "admissionregistration.k8s.io/v1"


def fence(namespace: str, fencing: int) -> Json:
    """The parameter."""
    metadata = {"name": FENCE, "namespace": namespace, "annotations": {FENCING: str(fencing)}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {NUMBER: str(fencing)}}


def fencing_policy(controllers: str) -> Json:
    """The policy, for requests of the user ``controllers``, which is a service account."""
    number = (
        f"(has({{0}}.metadata.annotations) && '{FENCING}' in {{0}}.metadata.annotations)"
        f" ? int({{0}}.metadata.annotations['{FENCING}']) : -1"
    )
    of_object = number.replace("{0}", "object")
    of_stored = number.replace("{0}", "oldObject")
    return {
        "apiVersion": GROUP, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": f"fencing.{DOMAIN}"},
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": [
                _rule("", ["pods", "configmaps", "secrets", "services"]),
                _rule("resource.k8s.io", ["resourceclaims"]),
            ]},
            "matchConditions": [
                {"name": "by-the-controllers", "expression": f"request.userInfo.username == '{controllers}'"}
            ],
            "variables": [
                {"name": "number", "expression": f"request.operation == 'DELETE' ? ({of_stored}) : ({of_object})"}
            ],
            "validations": [{
                "expression": f"variables.number >= int(params.data['{NUMBER}'])",
                "messageExpression": f"'leader ' + string(variables.number) + ' was replaced: the newest is ' + "
                f"params.data['{NUMBER}']",
                "reason": "Forbidden",
            }],
        },
    }  # fmt: skip


def fencing_binding(namespace: str) -> Json:
    """Puts the policy in force for one namespace."""
    return {
        "apiVersion": GROUP, "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"fencing.{DOMAIN}.{namespace}"},
        "spec": {
            "policyName": f"fencing.{DOMAIN}", "validationActions": ["Deny"],
            "paramRef": {"name": FENCE, "namespace": namespace, "parameterNotFoundAction": "Deny"},
            "matchResources": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            },
        },
    }  # fmt: skip


def _rule(group: str, resources: list[str]) -> Json:
    return {
        "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": resources,
    }  # fmt: skip
