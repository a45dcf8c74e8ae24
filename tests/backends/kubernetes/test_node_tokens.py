"""Which tokens of agents are reviewed: those for the audience of a cluster, beside a cluster that does not answer."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jupyter_gpu_quota.backends.clusters.tokens import ClustersTokens
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from jupyter_gpu_quota.backends.kubernetes.node_tokens import MAX_AT_ONCE, NODE_NAME, NodeTokenReviews, audience_of
from jupyter_gpu_quota.backends.protocol import NodeUnverified, TokenRefused
from jupyter_gpu_quota.core.model import OWN_CLUSTER
from tests.patience import until

ACCOUNT = "system:serviceaccount:jobs:gpu-quota-agent"


class Server:
    """An API server that accepts each token as that of the agent of node n1; ``hangs``: it never answers."""

    def __init__(self, hangs: bool = False) -> None:
        self.reviews, self.hangs = 0, hangs

    async def create(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.reviews += 1
        if self.hangs:
            await asyncio.Event().wait()
        user = {"username": ACCOUNT, "extra": {NODE_NAME: ["n1"]}}
        return {"status": {"authenticated": True, "audiences": body["spec"]["audiences"], "user": user}}


def token(number: int = 0, **claims: Any) -> str:
    """A token with these claims; its signature is not looked at here."""
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{middle}.signature{number}"


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


def reviews(server: Server, thread: LoopThread, cluster: str | None = None) -> NodeTokenReviews:
    return NodeTokenReviews(server, thread, ACCOUNT, audience=audience_of(cluster))  # type: ignore[arg-type]


def test_a_token_of_another_cluster_waits_for_no_review_of_the_own_one(thread: LoopThread) -> None:
    own, west = Server(hangs=True), Server()
    own_reviews = reviews(own, thread)
    tokens = ClustersTokens({OWN_CLUSTER: own_reviews, "west": reviews(west, thread, "west")})
    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        pending = [pool.submit(own_reviews.node_of, token(number, aud=["gpu-quota"])) for number in range(MAX_AT_ONCE)]
        until(lambda: own.reviews == MAX_AT_ONCE)
        with pytest.raises(NodeUnverified, match="too many tokens"):
            tokens.node_of(token(MAX_AT_ONCE, aud=["gpu-quota"]))
        assert tokens.node_of(token(aud=["gpu-quota.west"])) == "west:n1"
        assert all(isinstance(each.exception(), NodeUnverified) for each in pending)


@pytest.mark.parametrize("aud", [5, None, {}, "gpu-quota.west", ["gpu-quota.west"], [5], [[]], "a gpu-quota"])
def test_a_token_for_another_audience_is_refused_without_a_review(thread: LoopThread, aud: Any) -> None:
    server = Server()
    with pytest.raises(TokenRefused, match="not for the audience gpu-quota"):
        reviews(server, thread).node_of(token(aud=aud))
    assert server.reviews == 0


def test_an_audience_may_be_one_text(thread: LoopThread) -> None:
    assert reviews(Server(), thread).node_of(token(aud="gpu-quota")) == "n1"


def test_deeply_nested_claims_are_no_token(thread: LoopThread) -> None:
    middle = base64.urlsafe_b64encode(b"[" * 40_000).decode()
    assert not reviews(Server(), thread).is_token(f"e30.{middle}.signature")
