"""The quota file as a policy and as the answers that the rest of the package needs."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.core.model import (
    OWN_CLUSTER,
    Amounts,
    Device,
    Node,
    Policy,
    PreemptionPolicy,
    Project,
)
from jupyter_gpu_quota.quotafile import QuotaFile
from tests.quotafile.texts import LEAST, WHOLE, project, read


def test_the_whole_file_becomes_the_policy() -> None:
    assert read(WHOLE).policy(18) == Policy(
        revision=18,
        pools=("big", "small", "lab", "rest"),
        projects=(
            Project(
                name="fraud",
                priority=60,
                amounts={
                    "big": Amounts(training_milli=2000, limit_milli=6000, weight=2),
                    "small": Amounts(notebook_milli=300, training_milli=250),
                },
            ),
            Project(name="risk", amounts={"big": Amounts(training_milli=1125)}),
        ),
        preemption=PreemptionPolicy(min_runtime_s=600, grace_s=60, lent_grace_s=10, max_pauses=4, per_s=86_400),
        within_project="first_come",
        patience_s=36 * 3600,
    )


def test_the_smallest_file_is_valid() -> None:
    file = read(LEAST)
    assert file.policy(1) == Policy(revision=1)
    assert file.policy(1).patience_s == 86_400
    assert file.tick_max_ms == 1000


def test_the_fields_that_are_not_in_the_policy_can_be_read() -> None:
    file = read(WHOLE)
    assert file.revision == 17
    assert file.tick_max_ms == 500
    assert file.time_limit_s("fraud", "big") == 5400
    assert file.time_limit_s("risk", "big") == 86_400
    assert file.default_environment("fraud") == "torch-2"
    assert file.environments_of("fraud") == ("torch-2", "plain")
    assert file.environments_of("risk") == ("plain",)
    assert [each.python for each in file.environments] == ["/opt/torch-2/bin/python", "/usr/bin/python3"]
    assert file.environment_named("gone") is None


def test_a_maximum_time_limit_bounds_the_default_of_jobs_that_name_none() -> None:
    text = LEAST.replace(
        "pools: []", "pools: [{name: small, selector: {gpu_model: [T4]}}, {name: big, maximum: {time_limit: 2h}}]"
    ).replace("projects: []", "projects: [{name: fraud, quota: {}, maximum: {time_limit: 7d}}]")
    file = read(text)
    assert file.max_time_limits("fraud", "big") == {"project fraud": 7 * 86_400, "pool big": 7200}
    assert (file.time_limit_s("fraud", "big"), file.time_limit_s("fraud", "small")) == (7200, 86_400)


@pytest.mark.parametrize(
    ("user", "groups", "roles"),
    [
        pytest.param("ann", [], {"fraud": "member"}, id="a named user is a member"),
        pytest.param("zoe", ["fraud-ds", "other"], {"fraud": "member"}, id="a group of the hub brings its people"),
        pytest.param(
            "bob", ["fraud-ds"], {"fraud": "lead", "risk": "member"}, id="a lead is a lead, and a member elsewhere"
        ),
        pytest.param("mallory", ["other"], {}, id="nobody else is anything"),
        pytest.param("fraud-ds", [], {}, id="a user who is called like a group is not the group"),
    ],
)
def test_membership(user: str, groups: list[str], roles: dict[str, str]) -> None:
    assert read(WHOLE).membership(user, groups) == roles


def device(model: str, node: str = "n1") -> Device:
    return Device(id="d", node=node, index=0, model=model, memory_mib=1, pool=None)


@pytest.mark.parametrize(
    ("found", "pool"),
    [
        pytest.param(device("NVIDIA H100 80GB HBM3"), "big", id="an H100 is big"),
        pytest.param(device("Tesla T4"), "small", id="a T4 is small"),
        pytest.param(device("NVIDIA GeForce RTX 4090", "ws-1"), "lab", id="model and node both match"),
        pytest.param(device("NVIDIA GeForce RTX 4090", "ws-2"), "rest", id="the node does not match"),
        pytest.param(device("NVIDIA A10"), "rest", id="A10 is no A100"),
    ],
)
def test_a_device_is_in_the_first_pool_that_takes_it(found: Device, pool: str) -> None:
    assert read(WHOLE).pool_of(found) == pool


def test_a_node_is_known_by_its_name_too() -> None:
    assert (
        read(WHOLE).pool_of(device("RTX 4090", "01J"), Node(id="01J", name="ws-1", cpu_milli=0, memory_mib=0)) == "lab"
    )


def node(cluster: str = OWN_CLUSTER) -> Node:
    return Node(id="n", name="n", cpu_milli=0, memory_mib=0, cluster=cluster)


CLUSTERS = """
version: 1
pools:
  - {name: here-a, selector: {gpu_model: [A100]}}
  - {name: west-a, selector: {gpu_model: [A100], cluster: west}, uses: [training]}
  - {name: west-rest, selector: {cluster: west}, uses: [training]}
  - {name: here-rest}
projects: []
"""


@pytest.mark.parametrize(
    ("model", "cluster", "pool"),
    [
        pytest.param("NVIDIA A100", OWN_CLUSTER, "here-a", id="without a cluster it is the hub's own"),
        pytest.param("NVIDIA A100", "west", "west-a", id="cluster and model both match"),
        pytest.param("Tesla T4", "west", "west-rest", id="the others of that cluster"),
        pytest.param("Tesla T4", OWN_CLUSTER, "here-rest", id="a pool without a selector"),
        pytest.param("NVIDIA A100", "north", None, id="a cluster that no pool names is in none"),
    ],
)
def test_a_pool_has_devices_of_one_cluster(model: str, cluster: str, pool: str | None) -> None:
    assert read(CLUSTERS).pool_of(device(model, "n"), node(cluster)) == pool


def test_the_cluster_of_a_selector_is_written_again() -> None:
    file = read(CLUSTERS)
    assert [pool.selector.text() for pool in file.pools] == [
        "gpu_model: [A100]", "gpu_model: [A100] and cluster: west", "cluster: west", "",
    ]  # fmt: skip
    assert QuotaFile.from_document(file.to_document()) == file


def test_a_device_that_no_selector_takes_is_in_no_pool() -> None:
    file = read("version: 1\npools: [{name: a, selector: {gpu_model: [H100]}}]\nprojects: []")
    assert file.pool_of(device("Tesla T4")) is None


@pytest.mark.parametrize(
    ("body", "kind", "pool"),
    [
        pytest.param("quota: {}", "training", None, id="several pools and nothing said"),
        pytest.param("quota: {b: {training: 1}}", "training", "b", id="the only one with quota"),
        pytest.param("quota: {a: {training: 1}, b: {training: 1}}", "training", None, id="quota in both"),
        pytest.param(
            "quota: {a: {training: 1}}\ndefaults: {pool: {training: b}}", "training", "b", id="the default counts"
        ),
        pytest.param("quota: {}", "notebook", "a", id="the only pool for notebooks"),
    ],
)
def test_the_default_pool_of_work_that_names_none(body: str, kind: str, pool: str | None) -> None:
    pools = "[{name: a, selector: {gpu_model: [x]}}, {name: b, uses: [training]}]"
    file = read(project(body).replace("[{name: a}]", pools))
    assert file.default_pool("p", kind) == pool  # type: ignore[arg-type]


def test_a_pool_allows_only_its_uses() -> None:
    file = read(WHOLE)
    assert file.allows("big", "training")
    assert not file.allows("big", "notebook")
    assert file.allows("rest", "notebook")
    assert not file.allows("gone", "training")


def test_amounts_are_exact() -> None:
    quota = read(project("quota: {a: {notebook: 0.1, training: 0.2, limit: 0.3}}")).projects[0].quota["a"]
    assert (quota.notebook, quota.training, quota.limit) == (100, 200, 300)


@pytest.mark.parametrize("expected", ["30s", "13h", "0"], ids=["too short", "longer than readings are kept", "at once"])
def test_a_busy_notify_after_beyond_the_stored_readings_is_refused(expected: str) -> None:
    found = quotafile.parse(MINIMAL_IDLE.format(expected))
    assert isinstance(found, list) and "from 1m to 12h" in str(found)


def test_busy_notify_after_is_part_of_the_idle_policy() -> None:
    found = quotafile.parse(MINIMAL_IDLE.format("90m"))
    assert isinstance(found, QuotaFile) and found.idle.busy_notify_after_s == 5_400
    assert quotafile.QuotaFile.from_document(found.to_document()).idle == found.idle


MINIMAL_IDLE = """
version: 1
pools: [{{name: train}}]
projects: [{{name: vision, quota: {{train: {{training: 1}}}}}}]
policy: {{idle: {{busy_notify_after: {0}}}}}
"""
