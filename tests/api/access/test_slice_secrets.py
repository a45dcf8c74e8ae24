"""The secret of a slice: what it permits, what not, and that it costs the hub nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api import events
from jupyter_gpu_quota.api.access import people, slice_secrets, streams
from jupyter_gpu_quota.api.access.slice_secrets import KEY_NAME, SliceSecrets
from jupyter_gpu_quota.backends.rendering.variables import SECRET_HEADER, SECRET_VARIABLE, SHARE_VARIABLE
from jupyter_gpu_quota.settings import database_url
from jupyter_gpu_quota.store.open import open_store
from tests.api.world import Reply, ServiceWorld, service_world
from tests.notebook.jupyter_world import jupyter_server
from tests.patience import until

REPORTS = 20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        yield made


@pytest.fixture
def slice_(world: ServiceWorld) -> dict[str, Any]:
    """bob's slice, as the spawner gets it."""
    return booked(world)


def booked(world: ServiceWorld, user: str = "bob", server: str = "", token: str = "") -> dict[str, Any]:
    with world.stepping():
        digest = hashlib.sha256((token or f"token-{user}").encode()).hexdigest()
        asked = {"user": user, "project": "vision", "gpu": "1/8", "server": server, "token_digest": digest}
        reply = world.post("notebooks", "hub", asked)
    assert (reply.status, reply.json["state"]) == (201, "booked")
    return dict(reply.json)


def send(world: ServiceWorld, path: str, body: object, secret: str, who: str | None = None) -> Reply:
    return world.post(path, who, body, headers={SECRET_HEADER: secret})


def report(world: ServiceWorld, notebook: str, secret: str, *, sequence: int = 1, who: str | None = None) -> Reply:
    body = {"instance": "i", "sequence": sequence, "running_ms": 1000, "kernels": [], "programs": []}
    return send(world, f"notebooks/{notebook}/activity", body, secret, who)


# --- what it permits --------------------------------------------------------------------------------------------------
def test_reports_with_the_secret_cost_the_hub_nothing(world: ServiceWorld, slice_: dict[str, Any]) -> None:
    asked = len(world.hub.asked)
    for sequence in range(REPORTS):
        assert report(world, slice_["id"], slice_["secret"], sequence=sequence, who="bob").status == 200
    assert len(world.hub.asked) == asked
    assert world.store.report(slice_["id"]).sequence == REPORTS - 1
    assert report(world, slice_["id"], "", sequence=REPORTS, who="bob").status == 200
    assert len(world.hub.asked) > asked


def test_the_secret_alone_reports_keeps_and_requests_the_slice_as_its_owner(
    world: ServiceWorld, slice_: dict[str, Any]
) -> None:
    world.hub.away = True
    name, secret = slice_["id"], slice_["secret"]
    assert report(world, name, secret).json["idle"]["state"] == "in_use"
    assert send(world, f"notebooks/{name}/actions/keep", {}, secret).json["reason"] != "not_authenticated"
    woken = send(world, f"notebooks/{name}/actions/wake", {"kernel": "k"}, secret)
    assert (woken.status, woken.json["state"]) == (200, "ready")
    assert SECRET_VARIABLE not in woken.json["variables"]


def test_a_notebook_server_reports_with_its_secret_while_the_hub_is_away(
    world: ServiceWorld, slice_: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    share = json.dumps({"notebook": slice_["id"], "gpu_milli": 125, "memory_mib": 2_048})
    variables = {SHARE_VARIABLE: share, SECRET_VARIABLE: slice_["secret"], "JUPYTERHUB_API_TOKEN": "token-bob"}
    asked, world.hub.away = len(world.hub.asked), True
    with jupyter_server(tmp_path / "home", world.port, **variables) as server:
        until(lambda: world.store.report(slice_["id"]))
        until(lambda: server.call("GET", "/gpu-quota/idle")[1]["idle"])
    assert len(world.hub.asked) == asked
    assert slice_["secret"] not in (tmp_path / "home" / "server.log").read_text()


# --- the token of a server ------------------------------------------------------------------------------------------
def reads(world: ServiceWorld, secret: str, who: str = "bob", *, times: int = 1, later_s: float = 0) -> int:
    """How often the hub is asked for a token, by reads that come when its library remembers none any more."""
    people, cache = world.services.people, world.services.people.auth.cache
    people._clock = lambda at=people._clock: at() + later_s  # type: ignore[misc]
    world.hub.asked.clear()
    for _ in range(times):
        cache.clear()
        assert world.get("me", who, headers={SECRET_HEADER: secret}).json["name"] == who
    return world.hub.asked.count("user")


def test_the_token_of_a_server_is_verified_every_ten_to_twenty_minutes(
    world: ServiceWorld, slice_: dict[str, Any]
) -> None:
    secret = slice_["secret"]
    assert reads(world, secret, times=5) == 1
    assert reads(world, secret, later_s=people.SERVER_TOKEN_S / 2 - 60) == 0
    assert reads(world, secret, later_s=people.SERVER_TOKEN_S / 2 + 60) == 1


def test_any_other_token_is_verified_each_time(world: ServiceWorld, slice_: dict[str, Any]) -> None:
    reads(world, slice_["secret"])
    assert reads(world, "", times=3) == 3
    assert reads(world, f"{slice_['id']}.{'0' * 64}", times=3) == 3
    assert reads(world, booked(world, server="other", token="another of bob's")["secret"], times=3) == 3
    assert reads(world, slice_["secret"], "olga", times=3) == 3
    world.call("DELETE", f"notebooks/{slice_['id']}", "hub")
    assert reads(world, slice_["secret"], times=3) == 3


def test_a_token_is_cached_only_with_a_slice_of_its_owner(world: ServiceWorld, slice_: dict[str, Any]) -> None:
    of_olga = booked(world, "olga", token="token-bob")["secret"]
    assert reads(world, of_olga) == 1
    assert reads(world, slice_["secret"], times=2) == 1
    assert reads(world, of_olga, times=2) == 2


def test_the_roles_of_a_server_s_owner_are_those_at_the_hub(world: ServiceWorld) -> None:
    world.add("gina", groups=["vision-team"])
    secret = booked(world, "gina")["secret"]
    assert reads(world, secret, "gina", times=2) == 1
    world.hub.users["gina"].groups.clear()
    accounts = world.services.people.accounts
    accounts._clock = lambda at=accounts._clock: at() + people.FRESH_S  # type: ignore[misc]
    assert world.get("me", "gina", headers={SECRET_HEADER: secret}).json["projects"] == {}
    del world.hub.users["gina"]
    accounts._clock = lambda at=accounts._clock: at() + people.FRESH_S  # type: ignore[misc]
    assert world.get("me", "gina", headers={SECRET_HEADER: secret}).status == 403


def test_a_stream_of_a_server_asks_the_hub_for_its_token_once(
    world: ServiceWorld, slice_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "RECHECK_S", 0.0)
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.05)
    world.hub.asked.clear()
    with world.stream("events", headers={SECRET_HEADER: slice_["secret"]}) as seen:
        for _ in range(3):
            assert next(seen)[0] == "changed"
            world.submit("bob")
        asked = world.hub.asked.count("user")
        world.hub.revoked.add("token-bob")
        world.services.people.auth.cache.clear()
        world.call("DELETE", f"notebooks/{slice_['id']}", "hub")
        for _ in seen:
            pass
    assert asked <= 2


# --- what it does not -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "notebooks/{id}"), ("GET", "notebooks"), ("GET", "me"), ("GET", "jobs"), ("POST", "jobs"),
        ("DELETE", "notebooks/{id}"), ("GET", "explain/{id}"), ("POST", "notebooks"), ("GET", "events"),
    ],
)  # fmt: skip
def test_no_other_route_accepts_it(world: ServiceWorld, slice_: dict[str, Any], method: str, path: str) -> None:
    headers = {SECRET_HEADER: slice_["secret"]}
    reply = world.call(method, path.format(id=slice_["id"]), None, {"command": ["true"]}, headers=headers)
    assert (reply.status, reply.json["reason"]) == (401, "not_authenticated")


def test_it_is_of_one_slice(world: ServiceWorld, slice_: dict[str, Any]) -> None:
    other = booked(world, "olga")
    assert other["secret"] != slice_["secret"]
    assert report(world, other["id"], slice_["secret"]).status == 401
    other_id = slice_["secret"].replace(slice_["id"], other["id"])
    for wrong in ("x", "0" * 64, slice_["secret"][:-1], slice_["secret"].upper(), "\xe4" * 64, other_id, "."):
        assert report(world, slice_["id"], wrong).status == 401
    assert report(world, "01ARZ3NDEKTSV4RRFFQ69G5FAV", slice_["secret"]).status == 401


def test_with_a_wrong_secret_the_token_is_verified(world: ServiceWorld, slice_: dict[str, Any]) -> None:
    assert report(world, slice_["id"], "x", who="bob").status == 200
    assert report(world, slice_["id"], "x", who="patty").status == 404
    assert report(world, slice_["id"], "x", who="nobody").status == 401


def test_it_ends_with_its_slice(world: ServiceWorld, slice_: dict[str, Any]) -> None:
    assert report(world, slice_["id"], slice_["secret"]).status == 200
    world.call("DELETE", f"notebooks/{slice_['id']}", "hub")
    assert report(world, slice_["id"], slice_["secret"]).status == 401
    assert send(world, f"notebooks/{slice_['id']}/actions/wake", {"kernel": "k"}, slice_["secret"]).status == 401
    assert world.store_live() == []


def test_only_the_answer_to_the_spawner_has_it(world: ServiceWorld, slice_: dict[str, Any]) -> None:
    for who, path in (
        ("bob", "notebooks"),
        ("hub", "notebooks"),
        ("bob", f"notebooks/{slice_['id']}"),
        ("ann", "audit"),
    ):
        reply = world.get(path, who)
        assert (reply.status, b"secret" in reply.body, slice_["secret"].encode() in reply.body) == (200, False, False)
    assert world.post("notebooks", "bob", {"user": "bob", "project": "vision", "gpu": "1/8"}).status == 403


# --- the key ----------------------------------------------------------------------------------------------------------
def test_every_process_has_the_same_key_also_after_a_restart(world: ServiceWorld, slice_: dict[str, Any]) -> None:
    with closing(open_store(database_url(world.settings))) as again:
        assert again.service_key(KEY_NAME, now=1) == world.store.service_key(KEY_NAME, now=2)
        assert again.service_key("another", now=1) != again.service_key(KEY_NAME, now=1)
        assert len(again.service_key(KEY_NAME, now=1)) == 32


async def test_the_key_is_read_once_a_minute() -> None:
    now, keys = 0.0, [b"a" * 32, b"b" * 32]

    async def read(name: str) -> bytes:
        return keys.pop(0)

    secrets = SliceSecrets(read, dict, lambda: now)
    first = await secrets.secret_of("nb", "")
    now = slice_secrets.FRESH_S - 1
    assert await secrets.secret_of("nb", "") == first
    now = slice_secrets.FRESH_S
    assert await secrets.secret_of("nb", "") != first
