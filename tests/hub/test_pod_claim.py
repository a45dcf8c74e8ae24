"""The sentence of a claim that the API server refuses, without an API server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes_asyncio.client.exceptions import ApiException

from jupyter_gpu_quota.hub.pod_claim import ClaimFailed, PodClaim

CLAIM: dict[str, Any] = {"metadata": {"name": "gq-n1", "namespace": "hub", "labels": {}}}
POD = {"metadata": {"name": "jupyter-ben", "uid": "uid-now"}}
FORBIDDEN = 'resourceclaims.resource.k8s.io "gq-n1" is forbidden: '


class RefusingApi:
    """Refuses each claim with this message."""

    def __init__(self, message: str) -> None:
        self._message = message

    async def create_namespaced_resource_claim(self, namespace: str, body: dict[str, Any]) -> None:
        error = ApiException(status=403, reason="Forbidden")
        error.body = json.dumps({"message": self._message})
        raise error


@pytest.mark.parametrize(
    ("message", "is_permission"),
    [
        pytest.param(
            FORBIDDEN + 'User "system:serviceaccount:hub:hub" cannot create resource "resourceclaims" in API group '
            '"resource.k8s.io" in the namespace "hub"', True, id="a missing permission",
        ),
        pytest.param(FORBIDDEN + "exceeded quota: all, requested: count/resourceclaims=1", False, id="a full quota"),
        pytest.param(
            'admission webhook "a.example.org" denied the request: no', False, id="a webhook of the site"
        ),
    ],
)  # fmt: skip
async def test_only_a_missing_permission_is_answered_with_advice_to_give_it(message: str, is_permission: bool) -> None:
    with pytest.raises(ClaimFailed) as refused:
        await PodClaim(RefusingApi(message), CLAIM, POD, 5.0).create(5.0)
    assert message in str(refused.value)
    assert ("needs permission" in str(refused.value)) is is_permission
