"""The tokens of node agents, verified by the API server under the permissions of the chart."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from jupyter_gpu_quota.backends.kubernetes.client.api_server import ApiServer
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from jupyter_gpu_quota.backends.kubernetes.node_tokens import (
    MAX_AT_ONCE,
    REFUSED_FOR_S,
    VERIFIED_FOR_S,
    NodeTokenReviews,
    audience_of,
)
from jupyter_gpu_quota.backends.protocol import NodeUnverified, TokenRefused
from tests.kube.agent.pods import account_of, agent_pod, make_node, token_of
from tests.kube.chart.release import PATHS
from tests.kube.control_plane import ControlPlane
from tests.kube.world import install, may
from tests.patience import until


class Reviews(NodeTokenReviews):
    """The reviews of one namespace by the account of the service, with a clock that the test sets."""

    def __init__(self, plane: ControlPlane, namespace: str, account: str) -> None:
        self.now = 0.0
        self.server, self.thread = ApiServer(plane.kubeconfig(namespace)), LoopThread()
        self.thread.call(self.server.open(), 10.0)
        super().__init__(self.server, self.thread, account, lambda: self.now)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    found = install(control_plane)
    for node in ("node-a", "node-b"):
        make_node(control_plane, node)
    agent_pod(control_plane, found, "agent-a", "node-a")
    yield found


@pytest.fixture
def reviews(control_plane: ControlPlane, namespace: str) -> Iterator[Reviews]:
    made = Reviews(control_plane, namespace, account_of(namespace))
    yield made
    made.thread.close(made.server.close())


def refusal(reviews: NodeTokenReviews, token: str) -> TokenRefused:
    with pytest.raises(TokenRefused) as refused:
        reviews.node_of(token)
    return refused.value


def test_the_node_is_that_of_the_pod_that_the_token_is_bound_to(
    control_plane: ControlPlane, namespace: str, reviews: Reviews
) -> None:
    agent_pod(control_plane, namespace, "agent-b", "node-b")
    tokens = {pod: token_of(control_plane, namespace, pod) for pod in ("agent-a", "agent-b")}
    assert {pod: reviews.node_of(token) for pod, token in tokens.items()} == {
        "agent-a": "node-a", "agent-b": "node-b",
    }  # fmt: skip


def test_a_verified_token_is_accepted_for_a_minute_and_not_after_its_pod_is_gone(
    control_plane: ControlPlane, namespace: str, reviews: Reviews
) -> None:
    token = token_of(control_plane, namespace, "agent-a")
    assert reviews.node_of(token) == "node-a"
    requests = reviews.server.requests
    path = f"/api/v1/namespaces/{namespace}/pods/agent-a"
    control_plane.request("DELETE", path, {"gracePeriodSeconds": 0})
    reviews.now = VERIFIED_FOR_S - 1
    assert reviews.node_of(token) == "node-a" and reviews.server.requests == requests

    def is_refused() -> bool:
        reviews.now += VERIFIED_FOR_S  # and the API server has a cache of some seconds
        try:
            reviews.node_of(token)
        except TokenRefused as refused:
            return not refused.is_valid and "does not accept this token" in str(refused)
        return False

    until(is_refused, what="the API server no longer accepts the token")
    requests = reviews.server.requests
    refusal(reviews, token)
    assert reviews.server.requests == requests, "a refusal is known for some seconds"
    reviews.now += REFUSED_FOR_S
    refusal(reviews, token)
    assert reviews.server.requests == requests + 1


def test_a_token_for_the_api_server_is_refused_without_a_request(
    control_plane: ControlPlane, namespace: str, reviews: Reviews
) -> None:
    token = token_of(control_plane, namespace, "agent-a", audience="https://kubernetes.default.svc")
    assert "is not for the audience gpu-quota" in str(refusal(reviews, token))
    assert reviews.server.requests == 0


def test_the_agents_of_a_further_cluster_have_an_audience_of_their_own(
    control_plane: ControlPlane, namespace: str, reviews: Reviews
) -> None:
    token = token_of(control_plane, namespace, "agent-a", audience=audience_of("west"))
    assert "is not for the audience gpu-quota" in str(refusal(reviews, token))
    assert reviews.server.requests == 0, "no other cluster gets the token"
    west = NodeTokenReviews(reviews.server, reviews.thread, account_of(namespace), audience=audience_of("west"))
    assert west.node_of(token) == "node-a"


def test_a_forged_token_is_refused(control_plane: ControlPlane, namespace: str, reviews: Reviews) -> None:
    """The audience is in it, and the node of another pod; only the signature is that of the real token."""
    header, claims, signature = token_of(control_plane, namespace, "agent-a").split(".")
    known = json.loads(base64.urlsafe_b64decode(claims + "=="))
    known["kubernetes.io"]["node"]["name"] = "node-b"
    forged = base64.urlsafe_b64encode(json.dumps(known).encode()).decode().rstrip("=")
    refused = refusal(reviews, f"{header}.{forged}.{signature}")
    assert not refused.is_valid


def test_a_token_of_another_account_is_refused(control_plane: ControlPlane, namespace: str, reviews: Reviews) -> None:
    agent_pod(control_plane, namespace, "other", "node-a", account="default")
    refused = refusal(reviews, token_of(control_plane, namespace, "other", account="default"))
    assert refused.is_valid
    assert f"is that of system:serviceaccount:{namespace}:default, which is not the account of" in str(refused)
    assert reviews.server.requests == 0


def test_a_token_of_the_agents_of_another_namespace_is_refused(
    control_plane: ControlPlane, namespace: str, reviews: Reviews
) -> None:
    other = install(control_plane)
    agent_pod(control_plane, other, "agent-a", "node-a")
    assert "not the account of the agents" in str(refusal(reviews, token_of(control_plane, other, "agent-a")))


@pytest.mark.parametrize(
    "pod", [pytest.param(None, id="no pod"), pytest.param("waiting", id="a pod that is on no node")]
)
def test_a_token_that_names_no_node_is_refused(
    control_plane: ControlPlane, namespace: str, reviews: Reviews, pod: str | None
) -> None:
    if pod is not None:
        agent_pod(control_plane, namespace, pod, node=None)
    assert "names no node" in str(refusal(reviews, token_of(control_plane, namespace, pod)))


def test_without_an_account_of_agents_every_token_is_refused(control_plane: ControlPlane, namespace: str) -> None:
    reviews = Reviews(control_plane, namespace, "")
    try:
        refused = refusal(reviews, token_of(control_plane, namespace, "agent-a"))
        assert "no account of agents is configured" in str(refused)
    finally:
        reviews.thread.close(reviews.server.close())


def test_without_the_permission_no_token_is_verified_and_that_is_no_refusal(
    control_plane: ControlPlane, namespace: str, reviews: Reviews
) -> None:
    name = f"{namespace}.gpu-quota-verifies-agents"
    control_plane.request("DELETE", f"{PATHS['ClusterRoleBinding']}/{name}")
    review = {"verb": "create", "resource": "tokenreviews", "group": "authentication.k8s.io"}
    until(lambda: not may(control_plane, namespace, **review), what="the API server follows")
    for _ in range(MAX_AT_ONCE + 1):  # each attempt is over
        with pytest.raises(NodeUnverified, match="tokenreviews"):
            reviews.node_of(token_of(control_plane, namespace, "agent-a"))


@pytest.mark.parametrize("text", ["0123456789abcdef0123456789abcdef", "a.b.c", "W10.W10.W10", "", "é.é.é"])
def test_the_tokens_of_a_hub_are_none_of_a_node(reviews: Reviews, text: str) -> None:
    assert not reviews.is_token(text)
