"""The network policy of pods of jobs: which addresses they reach, by the rules that the chart renders."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from jupyter_gpu_quota.backends.rendering.cluster_names import JOB
from jupyter_gpu_quota.backends.rendering.pods import rank_pod
from tests.backends.kubernetes.test_pods import OWNER, SETTINGS, one_rank
from tests.kube.chart.release import rendered
from tests.kube.conftest import missing
from tests.kube.control_plane import ControlPlane

pytestmark = pytest.mark.skipif(bool(missing("helm")), reason=missing("helm"))

RULES = "jobs.networkPolicy.egressAllowRules"
METADATA, AWS_PODS, ALIBABA, AWS_V6 = "169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254"
PRIVATE = ("10.1.2.3", "172.20.0.1", "192.168.1.1", "100.64.0.1", "fd12::1")
INTERNET = ("151.101.1.6", "2a04:4e42::223")


def policy(*words: str) -> dict[str, Any]:
    (found,) = [
        each
        for each in rendered(*words)
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "gpu-quota-jobs"
    ]
    return found


def is_allowed(spec: dict[str, Any], address: str, port: int = 443) -> bool:
    """Whether a rule has this address and port, as a network that enforces the policy decides."""
    return any(
        port in [each["port"] for each in rule.get("ports", [{"port": port}])]
        and (not rule.get("to") or any(_has(peer["ipBlock"], address) for peer in rule["to"] if "ipBlock" in peer))
        for rule in spec["egress"]
    )


def _has(block: dict[str, Any], address: str) -> bool:
    place = ipaddress.ip_address(address)
    return place in ipaddress.ip_network(block["cidr"]) and not any(
        place in ipaddress.ip_network(each) for each in block.get("except", ())
    )


@pytest.mark.parametrize(
    ("words", "reached", "not_reached"),
    [
        pytest.param(
            (), INTERNET, (METADATA, AWS_PODS, ALIBABA, AWS_V6, *PRIVATE), id="the internet alone, as notebooks"
        ),
        pytest.param(
            ("--set", f"{RULES}.privateIPs=true"), (*INTERNET, *PRIVATE), (METADATA, AWS_PODS, ALIBABA, AWS_V6),
            id="the site's network too",
        ),
        pytest.param(
            ("--set", f"{RULES}.cloudMetadataServer=true"), (*INTERNET, METADATA), PRIVATE, id="the metadata too"
        ),
        pytest.param(("--set", f"{RULES}.nonPrivateIPs=false"), (), (*INTERNET, METADATA, *PRIVATE), id="nothing"),
        pytest.param(
            ("--set", "jobs.networkPolicy.egress[0].to[0].ipBlock.cidr=10.1.2.3/32"), ("10.1.2.3",),
            (METADATA, *PRIVATE[1:]), id="a rule of the site",
        ),
    ],
)  # fmt: skip
def test_a_job_reaches_only_what_the_values_allow(
    words: tuple[str, ...], reached: tuple[str, ...], not_reached: tuple[str, ...]
) -> None:
    spec = policy(*words)["spec"]
    assert {address: is_allowed(spec, address) for address in (*reached, *not_reached)} == {
        **dict.fromkeys(reached, True), **dict.fromkeys(not_reached, False),
    }  # fmt: skip
    assert is_allowed(spec, "10.96.0.10", port=53), "names are resolved"


def test_it_applies_to_the_pods_of_jobs_which_reach_each_other() -> None:
    found = policy()["spec"]
    selector = {"matchExpressions": [{"key": JOB, "operator": "Exists"}]}
    assert JOB in rank_pod(one_rank(), SETTINGS, OWNER)["metadata"]["labels"]
    assert (found["podSelector"], found["policyTypes"]) == (selector, ["Egress"])
    assert {"to": [{"podSelector": selector}]} in found["egress"]


def test_it_can_be_left_out() -> None:
    found = rendered("--set", "jobs.networkPolicy.enabled=false")
    assert [each["metadata"]["name"] for each in found if each["kind"] == "NetworkPolicy"] == ["gpu-quota"]


def test_the_api_server_accepts_every_rule(control_plane: ControlPlane) -> None:
    namespace = control_plane.new_namespace()
    every = policy("--set", f"{RULES}.privateIPs=true", "--set", f"{RULES}.cloudMetadataServer=true")
    control_plane.make(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", every)
