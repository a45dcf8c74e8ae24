"""Which tokens of agents are reviewed: those for the audience of a cluster, beside a cluster that does not answer."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jupyter_gpu_quota.backends.clusters.tokens import ClustersTokens
from jupyter_gpu_quota.backends.kubernetes import node_tokens
from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from jupyter_gpu_quota.backends.kubernetes.node_tokens import (
    MAX_AT_ONCE,
    NODE_NAME,
    VERIFIED_FOR_S,
    NodeTokenReviews,
    audience_of,
)
from jupyter_gpu_quota.backends.protocol import NodeUnverified, TokenRefused
from jupyter_gpu_quota.core.model import OWN_CLUSTER
from tests.patience import until

MAX_TOKENS = 20
ACCOUNT = "system:serviceaccount:jobs:gpu-quota-agent"


class Server:
    """An API server that accepts each token but forged ones as that of the agent of node n1.

    ``hangs``: it does not answer for forged ones, or for any.
    """

    def __init__(self, hangs: bool = False) -> None:
        self.reviews, self.hangs = 0, hangs
        self.forged = set[str]()

    async def create(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.reviews += 1
        is_forged = body["spec"]["token"] in self.forged
        if self.hangs and (is_forged or not self.forged):
            await asyncio.Event().wait()
        user = {"username": ACCOUNT, "extra": {NODE_NAME: ["n1"]}}
        if is_forged:
            return {"status": {"authenticated": False}}
        return {"status": {"authenticated": True, "audiences": body["spec"]["audiences"], "user": user}}


def token(number: int = 0, **claims: Any) -> str:
    """A token of the agents with these claims; its signature is not looked at here."""
    middle = base64.urlsafe_b64encode(json.dumps({"sub": ACCOUNT} | claims).encode()).decode().rstrip("=")
    return f"e30.{middle}.signature{number}"


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


def reviews(
    server: Server, thread: LoopThread, cluster: str | None = None, clock: Callable[[], float] = time.monotonic
) -> NodeTokenReviews:
    return NodeTokenReviews(server, thread, ACCOUNT, clock, audience=audience_of(cluster))  # type: ignore[arg-type]


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


@pytest.mark.parametrize("sub", [None, 5, "", "system:serviceaccount:jobs:default"])
def test_a_token_of_another_account_is_refused_without_a_review(thread: LoopThread, sub: object) -> None:
    server = Server()
    with pytest.raises(TokenRefused, match="not the account of the agents"):
        reviews(server, thread).node_of(token(aud=["gpu-quota"], sub=sub))
    assert server.reviews == 0


def test_forged_tokens_stop_no_samples_of_a_known_agent(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_tokens, "MAX_TOKENS", MAX_TOKENS)
    now, server, good = [0.0], Server(), token(aud=["gpu-quota"])
    forged = [token(number, aud=["gpu-quota"], iat=number) for number in range(MAX_TOKENS + MAX_AT_ONCE)]
    server.forged.update(forged)
    known = reviews(server, thread, clock=lambda: now[0])
    assert known.node_of(good) == "n1"
    for each in forged[:MAX_TOKENS]:
        with pytest.raises(TokenRefused):
            known.node_of(each)
    reviewed, server.hangs = server.reviews, True
    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        pending = [pool.submit(known.node_of, each) for each in forged[MAX_TOKENS:]]
        until(lambda: server.reviews == reviewed + MAX_AT_ONCE)
        assert known.node_of(good) == "n1" and server.reviews == reviewed + MAX_AT_ONCE
        now[0] += VERIFIED_FOR_S
        assert known.node_of(good) == "n1" and server.reviews == reviewed + MAX_AT_ONCE + 1
        assert all(isinstance(each.exception(), NodeUnverified) for each in pending)
