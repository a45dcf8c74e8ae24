"""Verifies the tokens of node agents at the API server, which states the node of the pod that a token is bound to."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ..protocol import NodeUnverified, TokenRefused
from .client.api_server import ApiServer, Json, RequestFailed
from .client.loop_thread import LoopThread

A = TypeVar("A")

AUDIENCE = "gpu-quota"
"""The audience of the agents' tokens: a token for the API server, or for another service, is not accepted.

That of a further cluster is ``gpu-quota.<cluster>``, so that its tokens are verified by that cluster alone.
"""

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
NODE_NAME = "authentication.kubernetes.io/node-name"

VERIFIED_FOR_S, REFUSED_FOR_S, TIMEOUT_S = 60.0, 10.0, 12.0
MAX_TOKENS, MAX_AT_ONCE = 5_000, 4


class _Reviewed(NamedTuple, Generic[A]):
    """The API server's answer about a token, and until when it is used."""

    answer: A
    until: float


class _Answers(Generic[A]):
    """The last answers, by the digest of the token, in a bounded number."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, _Reviewed[A]] = {}

    def get(self, key: bytes) -> _Reviewed[A] | None:
        return self._by_key.get(key)

    def put(self, key: bytes, answer: A, until: float) -> None:
        self._by_key.pop(key, None)
        if len(self._by_key) >= MAX_TOKENS:
            self._by_key.pop(next(iter(self._by_key)), None)
        self._by_key[key] = _Reviewed(answer, until)

    def drop(self, key: bytes) -> None:
        self._by_key.pop(key, None)


class NodeTokenReviews:
    """``account`` is the user name of the agents' service account; empty: every token is refused. It is thread-safe.

    Anybody can send forged tokens. So these are remembered apart from verified ones, and another review of a token
    that was verified before waits for no review of an unknown one.
    """

    def __init__(
        self, server: ApiServer, thread: LoopThread, account: str, clock: Callable[[], float] = time.monotonic,
        *, audience: str = AUDIENCE,
    ) -> None:  # fmt: skip
        self._server, self._thread, self._account, self._clock = server, thread, account, clock
        self._audience = audience
        self._verified, self._refused = _Answers[str](), _Answers[TokenRefused]()
        self._free, self._free_for_verified = (threading.BoundedSemaphore(MAX_AT_ONCE) for _ in range(2))

    def is_token(self, text: str) -> bool:
        """Whether this may be a token of a service account; those of a hub are no JSON web tokens."""
        return _claims(text) is not None

    def node_of(self, token: str) -> str:
        """The node of the agent with this token. Raises TokenRefused, NodeUnverified."""
        self._refuse_by_claims(token)
        key = hashlib.sha256(token.encode()).digest()
        verified, refused = self._verified.get(key), self._refused.get(key)
        if verified is not None and self._clock() < verified.until:
            return verified.answer
        if refused is not None and self._clock() < refused.until:
            raise refused.answer
        return self._verify(key, token, self._free if verified is None else self._free_for_verified)

    def _refuse_by_claims(self, token: str) -> None:
        """Refuse a token that claims to be another one: it takes no turn of a review. Raises TokenRefused."""
        claims = _claims(token) or {}
        if self._audience not in _audiences(claims):
            raise TokenRefused(f"this token is not for the audience {self._audience}", is_valid=False)
        if not self._account:
            raise TokenRefused("no account of agents is configured")
        if claims.get("sub") != self._account:
            claimed = str(claims.get("sub"))[:200]
            raise TokenRefused(f"this token is that of {claimed}, which is not the account of the agents")

    def _verify(self, key: bytes, token: str, free: threading.BoundedSemaphore) -> str:
        if not free.acquire(blocking=False):
            raise NodeUnverified("too many tokens are being verified")
        try:
            node = self._review(token)
        except TokenRefused as refused:
            self._verified.drop(key)
            self._refused.put(key, refused, self._clock() + REFUSED_FOR_S)
            raise
        finally:
            free.release()
        self._verified.put(key, node, self._clock() + VERIFIED_FOR_S)
        return node

    def _review(self, token: str) -> str:
        body: Json = {"spec": {"token": token, "audiences": [self._audience]}}
        try:
            found = self._thread.call(self._server.create(REVIEWS, body), TIMEOUT_S)
        except (RequestFailed, TimeoutError) as error:
            raise NodeUnverified(f"the API server does not verify tokens now: {error or 'time-out'}") from error
        return node_in_review(found["status"], self._account, self._audience)


def audience_of(cluster: str | None) -> str:
    """The audience of the agents of a further cluster; None: the hub's own."""
    return AUDIENCE if cluster is None else f"{AUDIENCE}.{cluster}"


def node_in_review(status: Json, account: str, audience: str = AUDIENCE) -> str:
    """The node in the status of a TokenReview. Raises TokenRefused."""
    if not status.get("authenticated") or audience not in status.get("audiences", ()):
        why = status.get("error") or f"it is not for the audience {audience}"
        raise TokenRefused(f"the API server of the cluster does not accept this token: {why}", is_valid=False)
    user = status["user"]
    if user["username"] != account:
        raise TokenRefused(f"this token is that of {user['username']}; samples are taken from {account}")
    nodes = user.get("extra", {}).get(NODE_NAME, [])
    if len(nodes) != 1:
        raise TokenRefused(f"this token of {account} is bound to no pod on a node, so it names no node")
    return str(nodes[0])


def _audiences(claims: Json) -> list[object]:
    """The audiences that a JSON web token claims; of one without a list, that one."""
    claimed = claims.get("aud", [])
    return claimed if isinstance(claimed, list) else [claimed]


def _claims(token: str) -> dict[str, Any] | None:
    """The claims of a JSON web token, which are not verified here; None for any other text."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
