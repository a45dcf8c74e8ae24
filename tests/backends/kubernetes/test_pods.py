"""The objects of an attempt, whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpu_quota.backends.protocol import DataSource
from jupyter_gpu_quota.backends.rendering.cluster_names import attempt_name
from jupyter_gpu_quota.backends.rendering.pods import (
    REQUIRED,
    PodSettings,
    RankOfJob,
    attempt_record,
    escaped,
    owner_of,
    rank_pod,
    rendezvous_service,
    secret,
)
from jupyter_gpu_quota.core.model import Device, Placement

JOB = "01JQ0000000000000000000000"
NAME = f"gq-{JOB.lower()}-2"
SETTINGS = PodSettings(namespace="hub", hub="local", image="site/torch:1", volume_claim="gpu-quota")
LABELS = {
    "gpu-quota.jupyter.org/hub": "local",
    "gpu-quota.jupyter.org/job": JOB,
    "gpu-quota.jupyter.org/attempt": "2",
}
CHOSEN = {"key": "metadata.name", "operator": "In", "values": ["gpu01"]}
NOT_GPU09 = {"key": "metadata.name", "operator": "NotIn", "values": ["gpu09"]}
ZONE_A = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": NAME, "uid": "u-1"}


def device(index: int, **more: Any) -> Device:
    fields = {"id": f"gpu01/{index}", "node": "gpu01", "index": index, "model": "H100", "memory_mib": 80_000}
    return Device(**{**fields, "pool": "train", **more})


def one_rank(**more: Any) -> RankOfJob:
    parts = (Placement(rank=0, device="gpu01/0", gpu_milli=1000, memory_mib=79_000),)
    fields: dict[str, Any] = {
        "job": JOB, "attempt": 2, "rank": 0, "ranks": 1, "fencing": 7, "command": ("sh", "-c", "echo $HOME $$"),
        "placements": parts, "devices": (device(0),),
    }  # fmt: skip
    return RankOfJob(**(fields | more))


def test_a_rank_on_a_whole_gpu_is_this_pod() -> None:
    one = one_rank(variables={"EPOCHS": "3", "NVIDIA_VISIBLE_DEVICES": "all"}, directory="src", has_code=True,
                   secrets=("TOKEN",), user="ann", cpu_milli=4000, memory_mib=8192)  # fmt: skip
    assert rank_pod(one, SETTINGS, OWNER) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{NAME}-0",
            "namespace": "hub",
            "labels": {**LABELS, "gpu-quota.jupyter.org/rank": "0"},
            "annotations": {"gpu-quota.jupyter.org/fencing": "7", "hub.jupyter.org/username": "ann"},
            "ownerReferences": [OWNER],
            "finalizers": ["gpu-quota.jupyter.org/exit-status"],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu01"]}]}
            ]}}},
            "containers": [{
                "name": "job",
                "image": "site/torch:1",
                "command": ["sh", "-c", "echo $$HOME $$$$"],
                "workingDir": "/gpu-quota/work/code/src",
                "env": [{"name": name, "value": value} for name, value in (
                    ("EPOCHS", "3"),
                    ("GPU_QUOTA_ATTEMPT", "2"),
                    ("GPU_QUOTA_CHECKPOINT_DIR", "/gpu-quota/checkpoint"),
                    ("GPU_QUOTA_JOB_ID", JOB),
                    ("GPU_QUOTA_MEMORY_MIB", "79000"),
                    ("GPU_QUOTA_MILLI", "1000"),
                    ("GPU_QUOTA_OUTPUT_DIR", "/gpu-quota/outputs"),
                    ("GPU_QUOTA_PAUSE_FILE", "/gpu-quota/run/pause"),
                    ("GPU_QUOTA_PROGRESS_FILE", "/gpu-quota/run/progress.json"),
                    ("LANG", "C.UTF-8"),
                    ("PATH", "/opt/conda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
                )],
                "envFrom": [{"secretRef": {"name": NAME}}],
                "resources": {
                    "requests": {"cpu": "4000m", "memory": "8192Mi"},
                    "limits": {"memory": "8192Mi", "nvidia.com/gpu": "1"},
                },
                "volumeMounts": [
                    {"name": "jobs", "mountPath": "/gpu-quota/work", "subPath": f"jobs/{JOB}/work"},
                    {"name": "jobs", "mountPath": "/gpu-quota/checkpoint", "subPath": f"jobs/{JOB}/checkpoint"},
                    {"name": "jobs", "mountPath": "/gpu-quota/outputs", "subPath": f"jobs/{JOB}/outputs"},
                    {"name": "jobs", "mountPath": "/gpu-quota/run", "subPath": f"jobs/{JOB}/run/2/rank-0"},
                ],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }],
            "volumes": [{"name": "jobs", "persistentVolumeClaim": {"claimName": "gpu-quota"}}],
        },
    }  # fmt: skip


def test_the_site_s_fields_are_merged_into_the_pod_and_its_container() -> None:
    site = PodSettings(
        namespace="hub", hub="local", image="i", volume_claim="v",
        pod={"tolerations": [{"operator": "Exists"}], "affinity": {"podAffinity": {}}},
        container={"securityContext": {"runAsUser": 1000}},
    )  # fmt: skip
    spec = rank_pod(one_rank(), site, OWNER)["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert set(spec["affinity"]) == {"nodeAffinity", "podAffinity"}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsUser": 1000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("site", "terms"),
    [
        pytest.param({}, [{"matchFields": [CHOSEN]}], id="without a site's affinity the pod runs on the chosen node"),
        pytest.param(
            {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": ZONE_A}]},
            [{"matchFields": [CHOSEN]}],
            id="a preference of the site does not replace the chosen node",
        ),
        pytest.param(
            {REQUIRED: {"nodeSelectorTerms": [ZONE_A, {"matchFields": [NOT_GPU09]}]}},
            [{**ZONE_A, "matchFields": [CHOSEN]}, {"matchFields": [NOT_GPU09, CHOSEN]}],
            id="each required term of the site gets the chosen node",
        ),
    ],
)
def test_the_chosen_node_stays_with_a_site_s_node_affinity(site: dict[str, Any], terms: list[Any]) -> None:
    settings = replace(SETTINGS, pod={"affinity": {"nodeAffinity": site}})
    affinity = rank_pod(one_rank(), settings, OWNER)["spec"]["affinity"]["nodeAffinity"]
    assert affinity == {**site, REQUIRED: {"nodeSelectorTerms": terms}}


@pytest.mark.parametrize(
    ("grace_s", "site", "expected"),
    [
        pytest.param(600, {}, 600, id="a drain gives the grace of the quota file"),
        pytest.param(0, {}, 1, id="a pod without a grace has the least"),
        pytest.param(600, {"terminationGracePeriodSeconds": 30}, 30, id="a site may set another one"),
        pytest.param(None, {}, None, id="without a grace it is that of Kubernetes"),
    ],
)
def test_the_time_to_save_if_others_delete_the_pod(
    grace_s: int | None, site: dict[str, Any], expected: int | None
) -> None:
    spec = rank_pod(one_rank(grace_s=grace_s), replace(SETTINGS, pod=site), OWNER)["spec"]
    assert spec.get("terminationGracePeriodSeconds") == expected


def values_of(spec: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in spec["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("python", "path"),
    [
        pytest.param(None, None, id="the image keeps its own PATH"),
        pytest.param(
            "/opt/torch/bin/python",
            "/opt/torch/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            id="the programs of the interpreter are first",
        ),
    ],
)
def test_a_job_of_an_environment_runs_in_its_image(python: str | None, path: str | None) -> None:
    spec = rank_pod(one_rank(image="registry/torch:2", python=python), SETTINGS, OWNER)["spec"]
    assert spec["containers"][0]["image"] == "registry/torch:2"
    assert values_of(spec).get("PATH") == path


def test_data_are_claims_that_the_pod_mounts() -> None:
    claims = {"path": None, "claim": "datasets", "read_only": True}
    one = one_rank(data=(
        DataSource(variable="GPU_QUOTA_DATA_A", mount="/data/a", sub_path="a/2026", **claims),
        DataSource(variable="GPU_QUOTA_DATA_B", mount="/data/b", sub_path=None, **{**claims, "read_only": False}),
    ))  # fmt: skip
    spec = rank_pod(one, SETTINGS, OWNER)["spec"]
    assert spec["volumes"][1:] == [
        {"name": "data-0", "persistentVolumeClaim": {"claimName": "datasets"}},
        {"name": "data-1", "persistentVolumeClaim": {"claimName": "datasets"}},
    ]
    assert spec["containers"][0]["volumeMounts"][4:] == [
        {"name": "data-0", "mountPath": "/data/a", "readOnly": True, "subPath": "a/2026"},
        {"name": "data-1", "mountPath": "/data/b", "readOnly": False},
    ]
    assert (values_of(spec)["GPU_QUOTA_DATA_A"], values_of(spec)["GPU_QUOTA_DATA_B"]) == ("/data/a", "/data/b")


def test_a_rank_of_a_gang_finds_the_first_by_name() -> None:
    parts = tuple(Placement(rank=rank, device=f"gpu01/{rank}", gpu_milli=1000, memory_mib=1) for rank in range(2))
    one = one_rank(rank=1, ranks=2, placements=parts, devices=(device(0), device(1)))
    spec = rank_pod(one, SETTINGS, OWNER)["spec"]
    assert (spec["hostname"], spec["subdomain"]) == (f"{NAME}-1", NAME)
    found = values_of(spec)
    assert {name: found[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")} == {
        "MASTER_ADDR": f"{NAME}-0.{NAME}", "MASTER_PORT": "29500", "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2",
    }  # fmt: skip
    assert rendezvous_service(JOB, 2, 7, SETTINGS, OWNER)["spec"] == {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": LABELS,
    }  # fmt: skip


def test_a_simulated_device_asks_the_cluster_for_nothing_and_is_named() -> None:
    one = one_rank(devices=(device(0, uuid="SIM-0", simulated=True),))
    (container,) = rank_pod(one, SETTINGS, OWNER)["spec"]["containers"]
    assert container["resources"] == {"requests": {}, "limits": {}}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "SIM-0"} in container["env"]


def test_a_rank_with_a_claim_requests_no_counted_device() -> None:
    spec = rank_pod(one_rank(claim="c-1"), SETTINGS, OWNER)["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "c-1"}]
    assert spec["containers"][0]["resources"] == {"requests": {}, "limits": {}, "claims": [{"name": "gpu"}]}


def test_all_objects_of_an_attempt_belong_to_its_record() -> None:
    record = attempt_record(JOB, 2, 7, SETTINGS, {"stop": "reclaimed"})
    assert record == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": NAME, "namespace": "hub", "labels": LABELS, "annotations": {"gpu-quota.jupyter.org/fencing": "7"},
        },
        "data": {"stop": "reclaimed"},
    }  # fmt: skip
    record["metadata"]["uid"] = "u-1"
    assert owner_of(record) == OWNER
    made = secret(JOB, 2, 7, SETTINGS, OWNER, {"TOKEN": "t"})
    assert (made["metadata"]["ownerReferences"], made["stringData"]) == ([OWNER], {"TOKEN": "t"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a b", "a b", id="a text without dollars is the same"),
        pytest.param("$(HOME)", "$$(HOME)", id="a variable is not expanded by Kubernetes"),
        pytest.param("kill $$", "kill $$$$", id="the shell's own process id stays"),
    ],
)
def test_kubernetes_expands_nothing(text: str, expected: str) -> None:
    assert escaped(text) == expected


@pytest.mark.parametrize("job", ["a/b", "", "a.b", "x" * 41, "a-b"])
def test_an_id_that_is_no_name_is_refused(job: str) -> None:
    with pytest.raises(ValueError, match="letters and digits"):
        attempt_name(job, 1)
