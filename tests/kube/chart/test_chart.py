"""The chart: strict values, every object accepted by a real API server, upgrades and removal that lose nothing."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from traitlets.config import Config

from jupyter_gpu_quota.backends.kubernetes.node_tokens import audience_of
from jupyter_gpu_quota.backends.rendering.admission import FENCE, number_of, with_number
from jupyter_gpu_quota.backends.rendering.cluster_names import FENCING
from jupyter_gpu_quota.controllers.main import HEARTBEAT_FILE
from jupyter_gpu_quota.settings import cluster_settings, settings_from_environment
from tests.kube.chart.release import CHART, EXAMPLES, NEEDED, RELEASE, ROOT, helm, rendered
from tests.kube.conftest import missing
from tests.kube.control_plane import ControlPlane
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.fractions.devices import device, resource_slice
from tests.kube.fractions.test_dra import RESOURCES
from tests.kube.service import KubernetesService
from tests.kube.world import install, make_volume
from tests.patience import until

pytestmark = pytest.mark.skipif(bool(missing("helm")), reason=missing("helm"))

TOKEN_KEY = "hub.services.gpu-quota.apiToken"
HUB_TOKEN = "service-token-" + "0" * 32


@pytest.mark.parametrize("example", ["gpu-quota.yaml", "gpu-quota-postgresql.yaml"])
def test_helm_lint_is_strict_and_finds_nothing(example: str) -> None:
    done = helm("lint", "--strict", str(CHART), "--values", str(EXAMPLES / example))
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout and "ERROR" not in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--set", "image.name="], "image/name", id="no image of the service"),
        pytest.param(["--set", "jobs.image="], "jobs/image", id="no image of jobs"),
        pytest.param(["--set", "jobs.fractions=mig"], "jobs/fractions", id="fractions that are not built"),
        pytest.param(["--set", "replicas=2"], "additional properties 'replicas'", id="an unknown value"),
        pytest.param(["--set", "volume.size=lots"], "volume/size", id="a size that is none"),
        pytest.param(["--set", "hub.baseUrl=/hub"], "hub/baseUrl", id="a base URL without a slash at its end"),
        pytest.param(["--set", "api.replicas=2"], "one pod writes to an SQLite file", id="two pods on SQLite"),
        pytest.param(
            ["--set", "podDisruptionBudget.enabled=true"], "needs database.existingSecret", id="a budget of one"
        ),
        *(
            pytest.param(["--set", f"settings.{name}=x"], f"settings.{name} is set by the chart", id=f"settings.{name}")
            for name in ("backend", "state_dir", "kubernetes_namespace", "quota_file")
        ),
        pytest.param(["--set", "settings.tick=1"], "'tick'", id="a setting that there is not"),
        pytest.param(["--set", "settings.spawn_timeout_s=60"], "'spawn_timeout_s'", id="a setting of the hub alone"),
        pytest.param(["--set", "settings.tick_ms=1"], "settings/tick_ms", id="a setting that is too small"),
        pytest.param(["--set", "settings.notification_mail_security=no"], "mail_security", id="no word of a setting"),
        pytest.param(["--kube-version", "1.33.9"], "kubeVersion: >=1.34.0-0", id="Kubernetes without claims"),
        pytest.param(["--set", "api.replicas=0"], "api/replicas", id="no pod"),
        pytest.param(["--set", "clusters[0].name=west"], "clusters/0", id="a cluster without credentials"),
        pytest.param(["--set", "memberOf.cluster=West"], "memberOf/cluster", id="a name of a cluster that is none"),
        pytest.param(
            ["--set", "memberOf.cluster=west", "--set", "agent.enabled=true", "--set", "memberOf.hub=prod"],
            "agent.enabled needs memberOf.serviceUrl",
            id="agents without the address of the service",
        ),
        pytest.param(
            ["--set", "memberOf.cluster=west", "--set", "agent.enabled=true", "--set", "memberOf.serviceUrl=https://h"],
            "agent.enabled needs memberOf.hub",
            id="agents without the name of the hub",
        ),
    ],
)
def test_wrong_values_are_refused_with_their_place(words: list[str], says: str) -> None:
    done = helm("template", RELEASE, str(CHART), "--kube-version", "1.36.0", *NEEDED, *words)
    assert done.returncode != 0
    assert says in done.stderr, done.stderr


def kinds(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in found if each["kind"] == kind]


def test_on_sqlite_one_pod_runs_both_and_is_recreated() -> None:
    (deployment,) = kinds(rendered(), "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert container(deployment)["command"][-1] == "serve"


@pytest.mark.parametrize(
    ("words", "claims", "mounted", "url"),
    [
        pytest.param((), ["gpu-quota"], None, None, id="on the volume of jobs"),
        pytest.param(
            ("--set", "database.size=1Gi"), ["gpu-quota", "gpu-quota-database"], "gpu-quota-database",
            "sqlite:////database/gpu-quota.sqlite", id="on a volume that the chart makes",
        ),
        pytest.param(
            ("--set", "database.existingClaim=db"), ["gpu-quota"], "db", "sqlite:////database/gpu-quota.sqlite",
            id="on a volume that exists",
        ),
        pytest.param(
            ("--set", "database.size=1Gi", "--set", "database.existingSecret=s"), ["gpu-quota"], None, None,
            id="not with PostgreSQL",
        ),
    ],
)  # fmt: skip
def test_the_volume_of_the_sqlite_file(
    words: tuple[str, ...], claims: list[str], mounted: str | None, url: str | None
) -> None:
    found = rendered(*words)
    assert [each["metadata"]["name"] for each in kinds(found, "PersistentVolumeClaim")] == claims
    (settings,) = [each for each in kinds(found, "ConfigMap") if each["metadata"]["name"] == RELEASE]
    assert json.loads(settings["data"]["settings.json"]).get("database_url") == url
    for deployment in kinds(found, "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        volumes = {each["name"]: each.get("persistentVolumeClaim", {}).get("claimName") for each in spec["volumes"]}
        mounts = {each["name"]: each["mountPath"] for each in container(deployment)["volumeMounts"]}
        assert (volumes.get("database"), mounts.get("database")) == (mounted, "/database" if mounted else None)


def test_the_example_on_nfs_has_a_database_elsewhere() -> None:
    found = kinds(rendered("--values", str(EXAMPLES / "gpu-quota.yaml")), "PersistentVolumeClaim")
    classes = {each["metadata"]["name"]: each["spec"]["storageClassName"] for each in found}
    assert classes == {"gpu-quota": "nfs", "gpu-quota-database": "standard"}


def test_with_postgresql_api_and_controllers_are_two_deployments() -> None:
    found = kinds(rendered("--values", str(EXAMPLES / "gpu-quota-postgresql.yaml")), "Deployment")
    commands = {each["metadata"]["name"]: container(each)["command"][-2:] for each in found}
    assert commands == {"gpu-quota": ["--only", "api"], "gpu-quota-controllers": ["--only", "controller"]}
    accounts = {each["metadata"]["name"]: each["spec"]["template"]["spec"]["serviceAccountName"] for each in found}
    assert accounts == {"gpu-quota": "gpu-quota-api", "gpu-quota-controllers": "gpu-quota-controllers"}


def test_another_database_keeps_the_selectors_which_are_immutable() -> None:
    found = [rendered(*words) for words in ((), ("--set", "database.existingSecret=s"))]
    before, after = (
        {each["metadata"]["name"]: each["spec"]["selector"] for each in kinds(one, "Deployment")} for one in found
    )
    assert before["gpu-quota"] == after["gpu-quota"]
    for one in found:
        (service,) = kinds(one, "Service")
        (deployment,) = [each for each in kinds(one, "Deployment") if each["metadata"]["name"] == "gpu-quota"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize("example", ["gpu-quota.yaml", "gpu-quota-postgresql.yaml"])
def test_the_file_of_a_setting_is_mounted_as_in_the_page(tmp_path: Path, example: str) -> None:
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    (text,) = re.findall(r"```text\n(pod:\n.*?)```", page, re.DOTALL)
    (tmp_path / "values.yaml").write_text(text)
    values = yaml.safe_load(text)
    for each in kinds(
        rendered("--values", str(EXAMPLES / example), "--values", str(tmp_path / "values.yaml")), "Deployment"
    ):
        (mount,), (volume,) = values["pod"]["volumeMounts"], values["pod"]["volumes"]
        assert mount in container(each)["volumeMounts"]
        assert volume in each["spec"]["template"]["spec"]["volumes"]
        assert values["settings"]["notification_mail_password_file"].startswith(f"{mount['mountPath']}/")


def test_the_liveness_probe_of_the_controllers_reads_the_age_of_their_heartbeat(tmp_path: Path) -> None:
    found = kinds(rendered("--values", str(EXAMPLES / "gpu-quota-postgresql.yaml")), "Deployment")
    (deployment,) = [each for each in found if each["metadata"]["name"] == "gpu-quota-controllers"]
    command = container(deployment)["livenessProbe"]["exec"]["command"]
    settings = {"run_dir": str(tmp_path), "state_dir": str(tmp_path / "state"), "backend": "local"}
    words = [word.replace("/run/gpu-quota", str(tmp_path)) for word in command]

    def is_alive() -> bool:
        return subprocess.run(words, check=False, capture_output=True, timeout=20).returncode == 0

    assert not is_alive(), "no controllers ran"
    (tmp_path / "state").mkdir()
    service = KubernetesService(tmp_path, settings, only="controller")
    try:
        until(is_alive, what=service.log)
    finally:
        service.end()
    old = (tmp_path / HEARTBEAT_FILE).stat().st_mtime - 150
    os.utime(tmp_path / HEARTBEAT_FILE, (old, old))
    assert not is_alive(), "the loop does not turn"


def test_a_pod_may_take_two_minutes_to_start_before_its_liveness_counts() -> None:
    for deployment in kinds(rendered("--values", str(EXAMPLES / "gpu-quota-postgresql.yaml")), "Deployment"):
        startup, liveness = container(deployment)["startupProbe"], container(deployment)["livenessProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 120
        assert [startup.get(how) for how in ("exec", "httpGet")] == [liveness.get(how) for how in ("exec", "httpGet")]


def test_the_settings_of_the_chart_are_settings_of_the_service() -> None:
    found = [
        each
        for each in kinds(rendered("--set", "settings.tick_ms=500"), "ConfigMap")
        if each["metadata"]["name"] == RELEASE
    ]
    settings = settings_from_environment({
        "JUPYTER_GPU_QUOTA_SETTINGS": found[0]["data"]["settings.json"], "JUPYTER_GPU_QUOTA_DATABASE_URL": "sqlite://",
    })  # fmt: skip
    assert (settings.backend, settings.kubernetes_volume_claim, settings.tick_ms) == ("kubernetes", "gpu-quota", 500)
    assert settings.database_url == "sqlite://"


WEST = (
    "--set", "clusters[0].name=west", "--set", "clusters[0].existingSecret=gpu-quota-west", "--set",
    "clusters[0].apiKubeconfigKey=api", "--set", "clusters[0].namespace=gpu-jobs", "--set",
    "clusters[0].existingClaim=west-jobs", "--set", "clusters[0].settings.fractions=reservation",
)  # fmt: skip


AGENTS_OF_WEST = (
    "--set", "agent.enabled=true", "--set", "memberOf.serviceUrl=https://hub/services/gpu-quota", "--set",
    "memberOf.hub=prod",
)  # fmt: skip


def test_a_further_cluster_has_its_credentials_and_its_volume_in_the_pods_of_the_service() -> None:
    found = rendered("--values", str(EXAMPLES / "gpu-quota-postgresql.yaml"), *WEST)
    (settings,) = [each for each in kinds(found, "ConfigMap") if each["metadata"]["name"] == RELEASE]
    known = settings_from_environment({"JUPYTER_GPU_QUOTA_SETTINGS": settings["data"]["settings.json"]})
    (west,) = cluster_settings(known).values()
    assert (west.kubernetes_namespace, west.kubernetes_fractions) == ("gpu-jobs", "reservation")
    member = rendered("--set", "memberOf.cluster=west", *AGENTS_OF_WEST, namespace="gpu-jobs")
    (daemon_set,) = kinds(member, "DaemonSet")
    account = daemon_set["spec"]["template"]["spec"]["serviceAccountName"]
    assert west.kubernetes_agent_account == f"system:serviceaccount:gpu-jobs:{account}"
    for name, key in {"gpu-quota": "api", "gpu-quota-controllers": "kubeconfig"}.items():
        (deployment,) = [each for each in kinds(found, "Deployment") if each["metadata"]["name"] == name]
        volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
        mounts = {each["name"]: each["mountPath"] for each in container(deployment)["volumeMounts"]}
        (item,) = volumes["credentials-west"]["secret"]["items"]
        assert (item["key"], f"{mounts['credentials-west']}/{item['path']}") == (key, west.kubernetes_config)
        assert volumes["volume-west"]["persistentVolumeClaim"] == {"claimName": "west-jobs"}
        assert mounts["volume-west"] == west.state_dir


def test_in_a_further_cluster_the_chart_has_no_service() -> None:
    found = rendered("--set", "memberOf.cluster=west", *AGENTS_OF_WEST)
    assert not {each["kind"] for each in found} & {"Deployment", "Service"}
    assert [each["metadata"]["name"] for each in kinds(found, "NetworkPolicy")] == ["gpu-quota-jobs"]
    assert [each["metadata"]["name"] for each in kinds(found, "ConfigMap")] == [FENCE]
    assert not [each for each in found if each["metadata"]["name"].endswith("-hub")]
    own = [each for each in rendered("--set", "agent.enabled=true") if each["kind"] in ("Role", "ClusterRole")]
    rules = {each["metadata"]["name"]: each["rules"] for each in own if not each["metadata"]["name"].endswith("-hub")}
    roles = [each for each in found if each["kind"] in ("Role", "ClusterRole")]
    assert {each["metadata"]["name"]: each["rules"] for each in roles} == rules
    (verifies,) = [
        each for each in kinds(found, "ClusterRoleBinding") if each["metadata"]["name"].endswith("-verifies-agents")
    ]
    assert {each["name"] for each in verifies["subjects"]} == {"gpu-quota-api", "gpu-quota-controllers"}
    (agent,) = kinds(found, "DaemonSet")
    assert {"--cluster=west", "--hub=prod", "--url=https://hub/services/gpu-quota"} <= set(container(agent)["command"])
    (token, *_) = agent["spec"]["template"]["spec"]["volumes"]
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == audience_of("west")


def test_the_values_for_zero_to_jupyterhub_set_up_a_hub() -> None:
    values = yaml.safe_load((EXAMPLES / "z2jh-4.yaml").read_text())
    assert values["scheduling"]["userScheduler"]["enabled"] is False, "its role has no rule for claims"
    hub = values["hub"]
    c = Config()
    service = {"name": "gpu-quota", "api_token": HUB_TOKEN, **hub["services"]["gpu-quota"]}
    c.JupyterHub.services = [service]  # as the chart of Zero to JupyterHub does before its extraConfig
    exec(hub["extraConfig"]["gpu-quota"], {"c": c})
    (found,) = c.JupyterHub.services
    assert (found["url"], found["api_token"]) == ("http://gpu-quota:10901", HUB_TOKEN)
    assert "command" not in found


@pytest.fixture(scope="module", autouse=True)
def another_policy(request: pytest.FixtureRequest) -> None:
    """kube-apiserver stops following ConfigMaps for good when the last policy with such a parameter is removed."""
    if not missing("kube-apiserver"):
        install(request.getfixturevalue("dra_plane"))


# --- installed --------------------------------------------------------------------------------------------------------
@pytest.fixture
def release(dra_plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """The namespace of a release, beside a Secret as Zero to JupyterHub makes it."""
    namespace = dra_plane.new_namespace()
    secret = {"metadata": {"name": "hub"}, "stringData": {TOKEN_KEY: HUB_TOKEN}}
    dra_plane.make(f"/api/v1/namespaces/{namespace}/secrets", secret)
    make_volume(dra_plane, namespace)
    run(dra_plane, "install", RELEASE, str(CHART), *options(namespace))
    yield namespace
    helm("uninstall", RELEASE, "--namespace", namespace, kubeconfig=dra_plane.kubeconfig("admin"))


def options(namespace: str) -> list[str]:
    own = ["--set", "volume.existingClaim=jobs", "--set", "jobs.path=/usr/local/bin"]
    return ["--namespace", namespace, *NEEDED, *own]


def run(plane: ControlPlane, *words: str) -> str:
    done = helm(*words, kubeconfig=plane.kubeconfig("admin"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def uninstall(plane: ControlPlane, namespace: str) -> None:
    """Remove the release; helm ends with an error where an object changed meanwhile, and is then run again."""
    words = ("uninstall", RELEASE, "--namespace", namespace, "--debug")
    last = [""]

    def done() -> bool:
        found = helm(*words, kubeconfig=plane.kubeconfig("admin"))
        last.append(found.stderr)
        return found.returncode == 0

    until(done, within_s=10, what=lambda: last)


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def number(plane: ControlPlane, namespace: str) -> int:
    return number_of(plane.get(f"/api/v1/namespaces/{namespace}/configmaps/{FENCE}"))


def raise_number(plane: ControlPlane, namespace: str, wanted: int) -> None:
    """Store the number of a leader, as the controllers do."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/{FENCE}"
    until(lambda: plane.request("PUT", path, with_number(plane.get(path), wanted))[0] == 200)


def accepts(plane: ControlPlane, namespace: str, leader: int) -> bool:
    """Whether the API server accepts a request of the controllers with this number."""
    body = {"metadata": {"name": "probe", "annotations": {FENCING: str(leader)}}}
    path = f"/api/v1/namespaces/{namespace}/configmaps?dryRun=All"
    return plane.request("POST", path, body, user=namespace)[0] == 201


def is_in_force(plane: ControlPlane, namespace: str, newest: int) -> bool:
    return accepts(plane, namespace, newest) and not accepts(plane, namespace, newest - 1)


class InstalledService(KubernetesService):
    """The service with the settings and the account of an installed release, as a process of this machine."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        core = f"/api/v1/namespaces/{namespace}"
        settings = json.loads(plane.get(f"{core}/configmaps/{RELEASE}")["data"]["settings.json"])
        outside = {"state_dir": str(folder / "state"), "run_dir": str(folder / "run")}
        account = f"{core}/serviceaccounts/gpu-quota-controllers/token"
        token = plane.make(account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        kubeconfig = plane.kubeconfig_of_token(f"{namespace}-controllers", token)
        super().__init__(folder, settings | outside | {"kubernetes_config": kubeconfig})


def test_an_installed_release_runs_a_job_and_an_upgrade_keeps_its_fence(
    dra_plane: ControlPlane, release: str, tmp_path: Path
) -> None:
    """Under the token of the chart's own service account, and its policy."""
    dra_plane.make(f"{RESOURCES}/resourceslices", resource_slice("installed", device("gpu-0")))
    kubelet = FakeKubelet(dra_plane, release, "installed", tmp_path / "state")
    until(lambda: pods(dra_plane, release), what="the controller-manager makes the pods of the release")
    kubelet.ignored |= {each["metadata"]["name"] for each in pods(dra_plane, release)}
    kubelet.start()
    service = InstalledService(dra_plane, release, tmp_path)
    try:
        service.wait_until_ready()
        go_on = tmp_path / "go-on"
        job = service.client().submit(
            ["sh", "-c", f"while [ ! -e {go_on} ]; do sleep 0.05; done"], gpu="0.5", dir=None, data=[]
        )
        until(lambda: job.refresh().state == "running", what=service.log)
        before = number(dra_plane, release)
        assert before >= 1, "the leader stored its number"
        run(dra_plane, "upgrade", RELEASE, str(CHART), *options(release), "--set", "settings.tick_ms=200")
        run(dra_plane, "rollback", RELEASE, "1", "--namespace", release)
        assert number(dra_plane, release) == before
        uninstall(dra_plane, release)
        assert job.refresh().state == "running", "its pod is of the cluster, not of the release"
        assert [each["status"]["phase"] for each in pods(dra_plane, release) if "gq-" in each["metadata"]["name"]] == [
            "Running"
        ]
        assert dra_plane.get(f"/api/v1/namespaces/{release}/persistentvolumeclaims/jobs")
    finally:
        service.end()
        kubelet.stop()
        dra_plane.request("DELETE", f"{RESOURCES}/resourceslices/installed")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param([("upgrade", "settings.tick_ms=200")], id="an upgrade"),
        pytest.param([("upgrade", "settings.tick_ms=200"), ("rollback", "1")], id="an upgrade and a rollback"),
        pytest.param([("uninstall", ""), ("install", "")], id="a removal and another installation"),
        pytest.param([("upgrade", "fencing.enabled=false"), ("upgrade", "")], id="fencing off and on"),
    ],
)
def test_no_change_of_the_release_lowers_the_number(
    dra_plane: ControlPlane, release: str, change: list[tuple[str, str]]
) -> None:
    raise_number(dra_plane, release, 7)
    until(lambda: is_in_force(dra_plane, release, 7), what="the API server has read the policy and its parameter")
    for word, value in change:
        if word == "uninstall":
            uninstall(dra_plane, release)
        elif word == "rollback":
            run(dra_plane, "rollback", RELEASE, value, "--namespace", release)
        else:
            more = ["--set", value] if value else []
            run(dra_plane, word, RELEASE, str(CHART), *options(release), *more)
        assert number(dra_plane, release) == 7, word
    until(lambda: is_in_force(dra_plane, release, 7), what="the API server follows")


def test_an_upgrade_turns_fencing_on(dra_plane: ControlPlane) -> None:
    """A parameter that an upgrade did not make would have the API server refuse every request."""
    namespace = dra_plane.new_namespace()
    run(dra_plane, "install", RELEASE, str(CHART), *options(namespace), "--set", "fencing.enabled=false")
    until(lambda: accepts(dra_plane, namespace, 0))
    run(dra_plane, "upgrade", RELEASE, str(CHART), *options(namespace))
    until(lambda: is_in_force(dra_plane, namespace, 0), what="the parameter is there")
    uninstall(dra_plane, namespace)


def test_the_chart_renders_no_number_that_another_tool_would_store() -> None:
    (found,) = [each for each in kinds(rendered(), "ConfigMap") if each["metadata"]["name"] == FENCE]
    assert "data" not in found
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}, "no hook, and no number"


def pods(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def test_a_deployed_pod_has_the_token_of_the_hub_s_secret(dra_plane: ControlPlane, release: str) -> None:
    until(lambda: pods(dra_plane, release), what="the controller-manager makes the pod of the Deployment")
    (pod,) = pods(dra_plane, release)
    (token,) = [each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "JUPYTERHUB_API_TOKEN"]
    key = token["valueFrom"]["secretKeyRef"]
    secret = dra_plane.get(f"/api/v1/namespaces/{release}/secrets/{key['name']}")
    assert base64.b64decode(secret["data"][key["key"]]).decode() == HUB_TOKEN


def test_a_release_changes_to_postgresql_and_its_claim_stays(dra_plane: ControlPlane) -> None:
    namespace = dra_plane.new_namespace()
    values = ["--values", str(EXAMPLES / "gpu-quota-postgresql.yaml"), "--set", "volume.existingClaim="]
    on_sqlite = "database.existingSecret=,api.replicas=1,controllers.replicas=1,podDisruptionBudget.enabled=false"
    run(dra_plane, "install", RELEASE, str(CHART), "--namespace", namespace, *values, "--set", on_sqlite)
    run(dra_plane, "upgrade", RELEASE, str(CHART), "--namespace", namespace, *values)
    names = {
        each["metadata"]["name"] for each in dra_plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]
    }
    assert names == {"gpu-quota", "gpu-quota-controllers"}
    uninstall(dra_plane, namespace)
    claim = dra_plane.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/gpu-quota")
    assert "deletionTimestamp" not in claim["metadata"]
