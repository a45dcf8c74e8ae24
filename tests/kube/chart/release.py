"""The project's Helm chart: rendered, its permissions and policy in a namespace, and installed by the real helm."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.kube.build import find
from tests.kube.control_plane import ControlPlane

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
CHART, EXAMPLES = ROOT / "helm" / "jupyter-gpu-quota", ROOT / "helm" / "examples"
RELEASE = "gpu-quota"
NEEDED = ("--set", "image.name=service", "--set", "jobs.image=none")
PLACEHOLDER = "namespace-of-the-release"

PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{0}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{0}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{0}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "ConfigMap": "/api/v1/namespaces/{0}/configmaps",
}
"""The objects of the chart that the controllers need of the API server, with the paths for their creation."""


def helm(*words: str, kubeconfig: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm; its exit status is the caller's to check."""
    program = find("helm")
    assert program is not None, "helm is not built: make kube"
    environment = os.environ | ({"KUBECONFIG": kubeconfig} if kubeconfig else {})
    return subprocess.run([str(program), *words], capture_output=True, text=True, timeout=120, env=environment)


def rendered(*words: str, namespace: str = PLACEHOLDER, needed: Sequence[str] = NEEDED) -> list[Json]:
    """The objects of the chart with these options."""
    kube = ("--kube-version", "1.36.0", "--namespace", namespace)
    done = helm("template", RELEASE, str(CHART), *kube, *needed, *words)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@functools.cache
def _permissions_and_policy() -> str:
    found = [
        each
        for each in rendered("--set", "agent.enabled=true")
        if each["kind"] in PATHS and each["metadata"]["name"] != RELEASE
    ]
    return yaml.safe_dump_all(found)


def grant(plane: ControlPlane, namespace: str) -> None:
    """Make the chart's service accounts, their permissions, and the policy with its parameter."""
    for each in yaml.safe_load_all(_permissions_and_policy().replace(PLACEHOLDER, namespace)):
        plane.make(PATHS[each["kind"]].format(namespace), each)


def rules(kind: str) -> list[tuple[str, str, str]]:
    """Group, resource and verb of each permission of the controllers in their Role or their ClusterRole."""
    (role,) = [
        each for each in rendered() if each["kind"] == kind and each["metadata"]["name"].endswith("-controllers")
    ]
    return [
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
