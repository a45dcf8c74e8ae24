"""The agent in the chart: its pods under Pod Security, the account that the API accepts, and who may reach the API."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.cli.service_commands import node_agent
from jupyter_gpu_quota.hub.setup import GPUQuota
from tests.kube.agent.pods import AGENT
from tests.kube.chart.release import CHART, NEEDED, RELEASE, ROOT, helm, rendered
from tests.kube.conftest import missing
from tests.kube.control_plane import ControlPlane

pytestmark = pytest.mark.skipif(bool(missing("helm")), reason=missing("helm"))

ENABLED = ("--set", "agent.enabled=true")
PAGE = ROOT / "docs" / "how-to" / "node-agents.md"
EXAMPLES = re.findall(r"```text\n(agent:\n.*?)```", PAGE.read_text(), re.DOTALL)
"""The values in the page, in its order."""


def one(kind: str, *words: str, name: str = AGENT, namespace: str = "jupyterhub") -> dict[str, Any]:
    found = [each for each in rendered(*ENABLED, *words, namespace=namespace) if each["kind"] == kind]
    (only,) = [each for each in found if each["metadata"]["name"] == name]
    return only


def settings(*words: str) -> dict[str, Any]:
    data = one("ConfigMap", *words, name=RELEASE)["data"]
    found: dict[str, Any] = json.loads(data["settings.json"])
    return found


def test_without_agents_there_is_no_object_of_them_and_no_token_is_accepted() -> None:
    found = rendered(namespace="jupyterhub")
    assert not [each for each in found if "agent" in each["metadata"]["name"] or each["kind"] == "DaemonSet"]
    (config,) = [each for each in found if each["kind"] == "ConfigMap" and each["metadata"]["name"] == RELEASE]
    assert json.loads(config["data"]["settings.json"])["kubernetes_agent_account"] == ""


def test_the_api_accepts_the_account_of_the_daemon_set() -> None:
    for words, namespace in (((), "jupyterhub"), (("--set", "agent.namespace=gpu-agents"), "gpu-agents")):
        daemon_set = one("DaemonSet", *words)
        account = daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
        assert (
            daemon_set["metadata"]["namespace"] == one("ServiceAccount", *words)["metadata"]["namespace"] == namespace
        )
        accepted = settings(*words)["kubernetes_agent_account"]
        assert accepted == f"system:serviceaccount:{namespace}:{account}"
        (subject,) = one("RoleBinding", *words)["subjects"]
        assert (subject["name"], subject["namespace"]) == (account, namespace)
        assert one("Role", *words)["metadata"].get("namespace", "jupyterhub") == "jupyterhub", "its pods are read there"


def test_the_command_has_the_options_of_the_program() -> None:
    (container,) = one("DaemonSet")["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    assert command[:4] == ["python", "-m", "jupyter_gpu_quota", "node-agent"]
    given = {word.partition("=")[0] for word in command[4:]}
    known = {each.opts[0]: each for each in node_agent.params}
    assert given <= known.keys()
    missing_options = {name for name, each in known.items() if each.required} - given
    assert missing_options == {"--node"} and container["env"][0]["name"] == "NODE_NAME"
    assert "--url=http://gpu-quota.jupyterhub:10901/services/gpu-quota" in command
    assert f"--hub={GPUQuota().hub}" in command
    assert (
        "--hub=west"
        in one("DaemonSet", "--set", "settings.hub=west")["spec"]["template"]["spec"]["containers"][0]["command"]
    )


def test_the_liveness_probe_reads_the_age_of_the_heartbeat(tmp_path: Path) -> None:
    (container,) = one("DaemonSet")["spec"]["template"]["spec"]["containers"]
    (option,) = [word for word in container["command"] if word.startswith("--heartbeat=")]
    file, own = option.partition("=")[2], tmp_path / "heartbeat"
    (pulse,) = container["livenessProbe"]["exec"]["command"][2:]
    assert file in pulse

    def is_alive() -> bool:
        return subprocess.run(["sh", "-c", pulse.replace(file, str(own))], check=False, timeout=20).returncode == 0

    assert not is_alive(), "there is no agent"
    own.touch()
    assert is_alive()
    old = own.stat().st_mtime - 200
    os.utime(own, (old, old))
    assert not is_alive(), "a part of it hangs"


def test_the_token_is_for_the_service_only() -> None:
    volumes = one("DaemonSet")["spec"]["template"]["spec"]["volumes"]
    (source,) = next(each["projected"]["sources"] for each in volumes if each["name"] == "token")
    assert source["serviceAccountToken"]["audience"] == "gpu-quota"


def test_agents_reach_the_api() -> None:
    for words, where in (((), None), (("--set", "agent.namespace=gpu-agents"), "gpu-agents")):
        (rule,) = one("NetworkPolicy", *words, name=RELEASE)["spec"]["ingress"]
        peer = rule["from"][-1]
        labels = one("DaemonSet", *words)["spec"]["template"]["metadata"]["labels"]
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        selector = peer.get("namespaceSelector", {}).get("matchLabels", {})
        assert selector.get("kubernetes.io/metadata.name") == where


@pytest.mark.parametrize(
    ("level", "words", "refusal"),
    [
        pytest.param("privileged", (), "", id="privileged: as it is"),
        pytest.param("baseline", (), "host namespaces", id="baseline: not with hostPID"),
        pytest.param("baseline", ("--set", "agent.hostPID=false"), "SYS_PTRACE", id="baseline: not with capabilities"),
        pytest.param("restricted", (), "host namespaces", id="restricted: not as it is"),
    ],
)
def test_pod_security(control_plane: ControlPlane, level: str, words: tuple[str, ...], refusal: str) -> None:
    status, found = dry_run(control_plane, level, *words)
    assert (status < 300) is (not refusal), found
    assert refusal in found.get("message", "")


def test_the_values_in_the_page_are_accepted(control_plane: ControlPlane, tmp_path: Path) -> None:
    levels = []
    for text in EXAMPLES:
        (tmp_path / "values.yaml").write_text(text)
        levels.append("restricted" if "hostPID: false" in text else "privileged")
        status, found = dry_run(control_plane, levels[-1], "--values", str(tmp_path / "values.yaml"))
        assert status < 300, found
    assert levels == ["privileged", "privileged", "privileged", "restricted"]


def dry_run(control_plane: ControlPlane, level: str, *words: str) -> tuple[int, dict[str, Any]]:
    """The answer of an API server that enforces a level of Pod Security to the agent's pod."""
    namespace = control_plane.new_namespace()
    labels = {"pod-security.kubernetes.io/enforce": level}
    control_plane.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    control_plane.make(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": AGENT}})
    template = one("DaemonSet", *words, "--set", "agent.runtimeClassName=")["spec"]["template"]
    pod = {"metadata": {"name": "agent"}, "spec": template["spec"]}
    return control_plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)


def test_the_api_server_accepts_every_object(control_plane: ControlPlane) -> None:
    namespace = control_plane.new_namespace()
    paths = {
        "DaemonSet": "/apis/apps/v1/namespaces/{0}/daemonsets",
        "ServiceAccount": "/api/v1/namespaces/{0}/serviceaccounts",
        "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{0}/networkpolicies",
    }  # fmt: skip
    for each in rendered(*ENABLED, namespace=namespace):
        if each["kind"] in paths:
            path = paths[each["kind"]].format(namespace) + "?dryRun=All&fieldValidation=Strict"
            status, found = control_plane.request("POST", path, each)
            assert status < 300, found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--set", "agent.enabeld=true"], "agent", id="a value that is misspelt"),
        pytest.param(["--set", "agent.enabled=maybe"], "agent/enabled", id="neither true nor false"),
        pytest.param(["--set", "agent.namespace=Not_One"], "agent/namespace", id="no name of a namespace"),
        pytest.param(
            ["--set", "settings.kubernetes_agent_account=x"], "is set by the chart", id="an account by the settings"
        ),
    ],
)
def test_wrong_values_are_refused(words: list[str], says: str) -> None:
    done = helm("template", RELEASE, str(CHART), "--kube-version", "1.36.0", *NEEDED, *words)
    assert done.returncode != 0 and says in done.stderr, done.stderr


def test_helm_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART), *NEEDED, *ENABLED)
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout
