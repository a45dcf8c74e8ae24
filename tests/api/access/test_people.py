"""Tokens: which of a token's scopes count, and which tokens are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.access.people import short_scopes
from tests.api.world import service_world


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        pytest.param(["custom:gpu-quota:read", "custom:gpu-quota:audit"], {"read", "audit"}, id="without a filter"),
        pytest.param(["custom:gpu-quota:read!user"], {"read"}, id="of the token's owner"),
        pytest.param(["custom:gpu-quota:read!user=bob"], {"read"}, id="of bob"),
        pytest.param(["custom:gpu-quota:submit!server=bob/x"], {"submit"}, id="of bob's server"),
        pytest.param(["custom:gpu-quota:admin!user=ann"], set(), id="of ann"),
        pytest.param(["custom:gpu-quota:read!server=bobby/"], set(), id="of bobby's server"),
        pytest.param(["custom:gpu-quota:audit!group=g"], set(), id="of a group"),
        pytest.param(["custom:other:read"], set(), id="of another service"),
    ],
)
def test_scopes_count_only_where_they_are_for_their_owner(scopes: list[str], expected: set[str]) -> None:
    assert short_scopes(scopes, "bob") == expected


@pytest.mark.parametrize(
    ("account", "why"),
    [
        pytest.param({"kind": "service"}, "is a service of the hub", id="of a service of the hub"),
        pytest.param({"access": ()}, "lacks access:services", id="for no service"),
        pytest.param({"access": ("access:services!service=other",)}, "lacks access:services", id="for another service"),
    ],
)
def test_a_token_that_is_not_a_user_s_for_this_service_is_refused(
    tmp_path: Path, account: dict[str, Any], why: str
) -> None:
    with service_world(tmp_path) as world:
        world.add("eve", **account)
        refused = world.get("me", "eve")
    assert (refused.status, why in refused.json["message"]) == (403, True)
