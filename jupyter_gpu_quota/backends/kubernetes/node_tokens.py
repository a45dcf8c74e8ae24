"""Verifies the tokens of node agents at the API server, which states the node of the pod that a token is bound to."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..protocol import NodeUnverified, TokenRefused
from .client.api_server import ApiServer, Json, RequestFailed
from .client.loop_thread import LoopThread

AUDIENCE = "gpu-quota"
"""The audience of the agents' tokens: a token for the API server, or for another service, is not accepted.

That of a further cluster is ``gpu-quota.<cluster>``, so that its tokens are verified by that cluster alone.
"""

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
NODE_NAME = "authentication.kubernetes.io/node-name"

VERIFIED_FOR_S, REFUSED_FOR_S, TIMEOUT_S = 60.0, 10.0, 12.0
MAX_TOKENS, MAX_AT_ONCE = 5_000, 4


class _Known(NamedTuple):
    """The node of a token, or why it is refused."""

    node: str | None
    refused: TokenRefused | None
    until: float


class NodeTokenReviews:
    """``account`` is the user name of the agents' service account; empty: every token is refused. It is thread-safe."""

    def __init__(
        self, server: ApiServer, thread: LoopThread, account: str, clock: Callable[[], float] = time.monotonic,
        *, audience: str = AUDIENCE,
    ) -> None:  # fmt: skip
        self._server, self._thread, self._account, self._clock = server, thread, account, clock
        self._audience = audience
        self._known: dict[bytes, _Known] = {}
        self._free = threading.BoundedSemaphore(MAX_AT_ONCE)

    def is_token(self, text: str) -> bool:
        """Whether this may be a token of a service account; those of a hub are no JSON web tokens."""
        return _claims(text) is not None

    def node_of(self, token: str) -> str:
        """The node of the agent with this token. Raises TokenRefused, NodeUnverified."""
        if self._audience not in _audiences(token):  # a token of another cluster takes no turn of a review
            raise TokenRefused(f"this token is not for the audience {self._audience}", is_valid=False)
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if known is None or self._clock() >= known.until:
            known = self._verify(token)
            if len(self._known) >= MAX_TOKENS:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        if known.refused is not None:
            raise known.refused
        assert known.node is not None
        return known.node

    def _verify(self, token: str) -> _Known:
        if not self._free.acquire(blocking=False):
            raise NodeUnverified("too many tokens are being verified")
        try:
            return _Known(self._review(token), None, self._clock() + VERIFIED_FOR_S)
        except TokenRefused as refused:
            return _Known(None, refused, self._clock() + REFUSED_FOR_S)
        finally:
            self._free.release()

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
    if not account or user["username"] != account:
        accepted = f"samples are taken from {account}" if account else "no account of agents is configured"
        raise TokenRefused(f"this token is that of {user['username']}; {accepted}")
    nodes = user.get("extra", {}).get(NODE_NAME, [])
    if len(nodes) != 1:
        raise TokenRefused(f"this token of {account} is bound to no pod on a node, so it names no node")
    return str(nodes[0])


def _audiences(token: str) -> list[object]:
    """The audiences that a JSON web token claims; of one without a list, that one."""
    claimed = (_claims(token) or {}).get("aud", [])
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
