"""The claim of a notebook's pod at the API server, with that pod as its owner; failures are tried again."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from aiohttp import ClientError
from jupyterhub.utils import exponential_backoff
from kubernetes_asyncio.client.exceptions import ApiException

Json = dict[str, Any]

NOT_FOUND, CONFLICT, TOO_MANY, SERVER_ERRORS = 404, 409, 429, 500
NOT_PERMITTED = re.compile(r'User ".*?" cannot \w+ resource')
"""In the message of a 403 for a missing permission; a quota, a webhook and a policy answer 403, too."""


class ClaimFailed(Exception):
    """There is no claim; the message says why."""


class PodClaim:
    """``api`` is a ResourceV1Api; each request of it may last ``request_timeout_s``."""

    def __init__(self, api: Any, claim: Json, pod: Json, request_timeout_s: float) -> None:
        metadata = pod["metadata"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        self._claim = {**claim, "metadata": {**claim["metadata"], "ownerReferences": [owner]}}
        self._api, self._owner, self._request_timeout_s = api, metadata["uid"], request_timeout_s
        self._name, self._namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
        self._trouble = ""

    async def create(self, timeout_s: float) -> None:
        """Create it, or find that it is there. Raises ClaimFailed."""
        try:
            await exponential_backoff(self._is_created, "the claim is not created", timeout=timeout_s)
        except TimeoutError:
            raise ClaimFailed(f"no claim of its GPU slice after {timeout_s:.0f} s: {self._trouble}") from None
        except ApiException as error:
            needed = "The hub's service account needs permission to create, get and delete resourceclaims."
            answer = answer_of(error)
            advice = f" {needed}" if NOT_PERMITTED.search(answer) else ""
            raise ClaimFailed(f"the cluster refused the claim of its GPU slice: {answer}.{advice}") from error

    async def _is_created(self) -> bool:
        """One attempt. Raises ApiException where another attempt would get the same answer."""
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await self._create()
        except ApiException as error:
            if error.status not in (CONFLICT, NOT_FOUND, TOO_MANY) and error.status < SERVER_ERRORS:
                raise
            self._trouble = answer_of(error)
        except (TimeoutError, ClientError, OSError) as error:
            self._trouble = f"the API server does not answer: {error or 'time-out'}"
        return False

    async def _create(self) -> bool:
        try:
            await self._api.create_namespaced_resource_claim(self._namespace, self._claim)
        except ApiException as error:
            if error.status != CONFLICT:
                raise
            return await self._is_of_this_pod()
        return True

    async def _is_of_this_pod(self) -> bool:
        """Whether the claim of this name has this pod as its owner; one of a pod before is deleted."""
        found = (await self._api.read_namespaced_resource_claim(self._name, self._namespace)).metadata
        if any(each.uid == self._owner for each in found.owner_references or ()):
            return found.deletion_timestamp is None
        self._trouble = f"the claim {self._name} is of another pod"
        if (
            found.deletion_timestamp is None
            and self._claim["metadata"]["labels"].items() <= (found.labels or {}).items()
        ):
            options = {"preconditions": {"uid": found.uid}}
            await self._api.delete_namespaced_resource_claim(self._name, self._namespace, body=options)
        return False


def answer_of(error: ApiException) -> str:
    """The status and the message of an answer of the API server."""
    try:
        message = json.loads(error.body or "")["message"]
    except (ValueError, TypeError, KeyError):
        message = error.reason
    return f"{error.status} {message}"
