"""Permissions in the API: every route of the table, for every kind of user."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.access.permissions import Person, Scope, may_change_work, may_enter, may_see_work
from jupyter_gpu_quota.api.routes import ROUTES
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.bundle import pack
from tests.api.world import HUB_TOKEN, QUOTA, ServiceWorld, service_world

PEOPLE = {
    "nobody": None,
    "a member of no project": "outsider",
    "a member of another project": "patty",
    "a member of the project": "olga",
    "the owner": "bob",
    "a lead of the project": "lea",
    "an admin": "ann",
    "an auditor": "audrey",
    "the hub's spawner": "hub",
}

EVERYBODY = "200 200 200 200 200 200 200 200 200"
READERS = "401 200 200 200 200 200 200 200 403"
THE_PROJECT = "401 404 404 200 200 200 200 404 403"
EXPECTED = {
    "GET health": EVERYBODY,
    "GET ready": EVERYBODY,
    "GET version": EVERYBODY,
    "GET openapi.json": EVERYBODY,
    "GET recovery": "401 403 403 403 403 403 200 403 403",
    "POST recovery/actions/accept": "401 403 403 403 403 403 409 403 403",
    "GET me": "401 200 200 200 200 200 200 200 200",
    "GET jobs": READERS,
    "POST jobs": "401 403 403 201 201 201 403 403 403",
    "GET jobs/{id}": THE_PROJECT,
    "POST jobs/{id}/actions/{change:hold|release|cancel}": "401 404 404 403 200 200 200 403 403",
    "POST jobs/{id}/actions/{repeat:clone|rerun}": "401 404 404 201 201 201 403 403 403",
    "GET jobs/{id}/logs": THE_PROJECT,
    "GET jobs/{id}/metrics": THE_PROJECT,
    "GET jobs/{id}/provenance": THE_PROJECT,
    "GET jobs/{id}/outputs": THE_PROJECT,
    "GET jobs/{id}/outputs/{path...}": THE_PROJECT,
    "HEAD bundles/{digest}": "401 404 404 404 200 404 404 403 403",
    "PUT bundles/{digest}": "401 201 201 201 200 201 201 403 403",
    "GET notebooks": "401 200 200 200 200 200 200 200 200",
    "POST notebooks": "401 403 403 403 403 403 403 403 201",
    "GET notebooks/{id}": "401 404 404 200 200 200 200 404 200",
    "POST notebooks/{id}/activity": "401 404 404 403 200 403 403 403 403",
    "POST notebooks/{id}/actions/keep": "401 404 404 403 409 409 409 403 403",
    "POST notebooks/{id}/actions/wake": "401 404 404 403 200 403 403 403 403",
    "GET projects": READERS,
    "GET environments": READERS,
    "GET data": READERS,
    "GET pools": READERS,
    "GET nodes": READERS,
    "POST nodes/{id}/actions/{change:cordon|uncordon|drain}": "401 403 403 403 403 403 200 403 403",
    "POST nodes/{id}/actions/remove": "401 403 403 403 403 403 409 403 403",
    "POST devices/{id}/actions/remove": "401 403 403 403 403 403 404 403 403",
    "GET devices": READERS,
    "GET samples": EVERYBODY.replace("200", "401", 1),
    "GET usage": READERS,
    "POST samples": "401 403 403 403 403 403 200 403 200",
    "GET quota": "401 403 403 403 403 200 200 200 403",
    "PUT quota": "401 403 403 403 403 403 200 403 403",
    "POST quota/preview": "401 403 403 403 403 403 200 403 403",
    "GET quota/revisions": "401 403 403 403 403 200 200 200 403",
    "GET quota/revisions/{revision}": "401 403 403 403 403 200 200 200 403",
    "POST quota/revisions/{revision}/actions/revert": "401 403 403 403 403 403 200 403 403",
    "GET explain/{id}": THE_PROJECT,
    "GET audit": "401 403 403 403 403 200 200 200 403",
    "GET audit/actions": "401 403 403 403 403 200 200 200 403",
    "GET audit/verify": "401 403 403 403 403 403 200 200 403",
    "GET snapshot": "401 403 403 403 403 403 200 403 403",
    "GET events": READERS,
    "DELETE jobs/{id}/outputs": "401 404 404 403 409 409 409 403 403",
    "DELETE notebooks/{id}": "401 403 403 403 403 403 403 403 204",
}
"""Statuses in the order of PEOPLE, asked in this order: what one may not see is 404, as if it did not exist."""

PRIVATE = {
    "GET jobs/{id}": "401 404 404 404 200 200 200 404 403",
    "GET jobs/{id}/logs": "401 404 404 404 200 200 200 404 403",
    "GET jobs/{id}/metrics": "401 404 404 404 200 200 200 404 403",
    "GET jobs/{id}/provenance": "401 404 404 404 200 200 200 404 403",
    "GET jobs/{id}/outputs": "401 404 404 404 200 200 200 404 403",
    "GET jobs/{id}/outputs/{path...}": "401 404 404 404 200 200 200 404 403",
    "GET explain/{id}": "401 404 404 404 200 200 200 404 403",
    "DELETE jobs/{id}/outputs": "401 404 404 404 409 409 409 403 403",
    "POST jobs/{id}/actions/{change:hold|release|cancel}": "401 404 404 404 200 200 200 403 403",
    "POST jobs/{id}/actions/{repeat:clone|rerun}": "401 404 404 404 201 201 403 403 403",
}


@dataclass(frozen=True)
class Scene:
    """One job with a log and an output, one private job, one notebook, one bundle; all of bob in vision."""

    world: ServiceWorld
    job: str
    private: str
    notebook: str
    digest: str
    bundle: bytes


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("access")
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print(1)\n")
    digest = pack(folder / "code", folder / "code.tar.gz").digest
    content = (folder / "code.tar.gz").read_bytes()
    with service_world(folder) as world:
        assert world.call("PUT", f"bundles/{digest}", "bob", raw=content).status == 201
        jobs = [world.submit(name="open")["id"], world.submit(name="closed", private=True)["id"]]
        world.step()
        for job in jobs:
            _leave_traces(world.state_dir, job)
        with world.stepping():
            notebook = world.post("notebooks", "hub", {"user": "bob", "project": "vision", "gpu": "1/8"}).json["id"]
        yield Scene(world, jobs[0], jobs[1], notebook, digest, content)


def _leave_traces(state_dir: Path, job: str) -> None:
    RotatingLog(rank_paths(str(state_dir), job, 1, 0).log, 1 << 16).write(b"hello\n")
    outputs = Path(rank_paths(str(state_dir), job, 1, 0).outputs)
    outputs.mkdir(parents=True)
    (outputs / "model.bin").write_bytes(b"weights")


BODIES = {
    "POST jobs": {"command": ["python", "train.py"], "project": "vision"},
    "POST jobs/{id}/actions/{repeat:clone|rerun}": {},
    "POST notebooks": {"user": "olga", "server": "second", "project": "vision", "gpu": "1/8"},
    "POST notebooks/{id}/activity": {"instance": "i", "sequence": 0, "running_ms": 0, "kernels": [], "programs": []},
    "POST notebooks/{id}/actions/wake": {"kernel": "k1"},
    "POST samples": {"node": "node-9", "sequence": 1, "samples": []},
    "POST nodes/{id}/actions/{change:cordon|uncordon|drain}": {"dry_run": True},
    "POST recovery/actions/accept": {},
    "PUT quota": {"text": QUOTA},
    "POST quota/preview": {"text": QUOTA},
}


def status_of(scene: Scene, key: str, who: str | None, job: str) -> int:
    """The status alone: an event stream has no end to wait for."""
    world = scene.world
    method, path = key.split(" ", 1)
    filled = (
        path.replace("{id}", {"notebooks": scene.notebook, "nodes": "node-1"}.get(path.split("/")[0], job))
        .replace("{change:hold|release|cancel}", "hold")
        .replace("{change:cordon|uncordon|drain}", "drain")
        .replace("{repeat:clone|rerun}", "rerun")
        .replace("{path...}", "model.bin")
        .replace("{digest}", scene.digest)
        .replace("{revision}", "1")
    )
    headers = {} if who is None else {"Authorization": f"token {HUB_TOKEN if who == 'hub' else f'token-{who}'}"}
    if key == "PUT quota":
        headers["If-Match"] = str(world.store.quota().revision)  # type: ignore[union-attr]
    body = (
        scene.bundle if key.startswith("PUT bundles") else json.dumps(BODIES[key]).encode() if key in BODIES else None
    )
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=60)
    try:
        connection.request(method, world.path(filled), body=body, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_route_has_its_row() -> None:
    assert {f"{route.method} {route.path}" for route in ROUTES} == EXPECTED.keys()


@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize("key", EXPECTED)
def test_each_role_gets_the_status_in_the_table(scene: Scene, key: str, who: str) -> None:
    if key == "GET ready":
        scene.world.step()
    expected = int(EXPECTED[key].split()[list(PEOPLE).index(who)])
    assert status_of(scene, key, PEOPLE[who], scene.job) == expected


@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize("key", PRIVATE)
def test_a_private_job_shows_to_its_owner_leads_and_admins(scene: Scene, key: str, who: str) -> None:
    expected = int(PRIVATE[key].split()[list(PEOPLE).index(who)])
    assert status_of(scene, key, PEOPLE[who], scene.private) == expected


def test_a_hidden_job_and_an_unknown_one_give_the_same_answer(scene: Scene) -> None:
    hidden = scene.world.get(f"jobs/{scene.job}", "patty").json
    unknown = scene.world.get("jobs/01AAAAAAAAAAAAAAAAAAAAAAAA", "patty").json
    assert hidden == {**unknown, "message": unknown["message"].replace("01AAAAAAAAAAAAAAAAAAAAAAAA", scene.job)}


def test_a_private_job_is_in_no_others_list_and_not_counted(scene: Scene) -> None:
    seen = {who: scene.world.get("jobs", who).json for who in ("bob", "lea", "olga", "patty")}
    assert scene.private in {job["id"] for job in seen["bob"]["items"]} & {job["id"] for job in seen["lea"]["items"]}
    assert scene.private not in {job["id"] for job in seen["olga"]["items"]}
    assert seen["olga"]["_pagination"]["total"] == len(seen["olga"]["items"])
    assert seen["patty"]["items"] == []


def test_devices_show_hidden_work_without_its_owner(scene: Scene) -> None:
    holders = [holder for device in scene.world.get("devices", "patty").json["items"] for holder in device["holders"]]
    assert holders
    nothing = {"kind": "hidden", "workload": None, "name": None, "user": None, "project": None, "state": "hidden"}
    nothing |= {"enforcement": None, "utilised_milli": None, "utilised_unknown": None}
    assert all(holder == nothing | {"gpu_milli": holder["gpu_milli"]} for holder in holders)


def test_a_member_sees_the_devices_of_a_private_job_as_hidden_work(scene: Scene) -> None:
    holders = [holder for device in scene.world.get("devices", "olga").json["items"] for holder in device["holders"]]
    assert scene.private not in {holder["workload"] for holder in holders}
    assert scene.job in {holder["workload"] for holder in holders}


def test_a_lead_reads_only_the_audit_of_their_projects(scene: Scene) -> None:
    scene.world.submit("patty", project="speech")
    assert {row["project"] for row in scene.world.get("audit?limit=1000", "lea").json["items"]} == {"vision"}
    assert "speech" in {row["project"] for row in scene.world.get("audit?limit=1000", "audrey").json["items"]}


def test_former_members_have_no_access(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        job = world.submit()["id"]
        assert world.get(f"jobs/{job}", "olga").status == 200
        world.apply(QUOTA.replace("bob, olga", "bob"))
        assert world.get(f"jobs/{job}", "olga").status == 404


def test_a_hub_group_makes_a_member(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.add("gina", groups=["vision-team"])
        assert world.get("me", "gina").json["projects"] == {"vision": "member"}


def test_without_the_hub_cached_users_continue_and_others_get_503(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        assert world.get("me").status == 200
        world.hub.away = True
        world.run(_forget_freshness(world))
        assert world.get("me").json["projects"] == {"vision": "member"}
        refused = world.get("me", "olga")
        assert (refused.status, refused.json["reason"]) == (503, "hub_away")
        assert "retry-after" in refused.headers


def test_without_the_hub_its_internal_address_is_in_no_refusal(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        world.services.people.auth.api_url = "http://127.0.0.1:9/hub/api"
        refused = world.get("me")
        assert (refused.status, refused.json["reason"]) == (503, "hub_away")
        assert "127.0.0.1" not in refused.json["message"]


async def _forget_freshness(world: ServiceWorld) -> None:
    """A minute later, by the clock of the accounts alone."""
    world.services.people.accounts._clock = lambda at=world.services.people.accounts._clock: at() + 60  # type: ignore[misc]


@pytest.mark.parametrize(
    ("scopes", "admin", "applies"),
    [
        pytest.param(("read",), True, False, id="a hub admin's read-only token changes no policy"),
        pytest.param(("read", "submit"), True, True, id="a hub admin's own token does"),
        pytest.param(("read", "admin"), False, True, id="a token of the role does without the hub's flag"),
        pytest.param(("read", "submit"), False, False, id="a person's token does not"),
    ],
)
def test_permissions_for_applying_a_quota_file(scopes: tuple[str, ...], admin: bool, applies: bool) -> None:
    person = Person(name="x", id="1", scopes=frozenset(scopes), hub_admin=admin)
    assert may_enter(person, Scope.APPLY) is may_enter(person, Scope.APPLY_HUB_OR_NODE) is applies


def test_a_read_only_token_of_a_hub_admin_may_not_send_readings(scene: Scene) -> None:
    scene.world.add("rita", admin=True, scopes=("read",))
    found = scene.world.post("samples", "rita", BODIES["POST samples"])
    assert (found.status, found.json["reason"]) == (403, "not_allowed")
    assert found.json["message"].startswith(
        "rita's token may not send readings of devices: it lacks the scope custom:gpu-quota:admin,"
        " or custom:gpu-quota:submit of an admin."
    )


@pytest.mark.parametrize(
    ("role", "private", "may_see", "changes"),
    [
        pytest.param(None, False, False, False, id="who is not in the project"),
        pytest.param("member", False, True, False, id="a member, of a job"),
        pytest.param("member", True, False, False, id="a member, of a private job"),
        pytest.param("lead", True, True, True, id="a lead, of a private job"),
    ],
)
def test_permissions_of_each_role(role: str | None, private: bool, may_see: bool, changes: bool) -> None:
    person = Person(name="x", id="1", roles={"p": role} if role else {})  # type: ignore[dict-item]
    assert may_see_work(person, project="p", owner="2", private=private) is may_see
    assert may_change_work(person, project="p", owner="2") is changes


@pytest.mark.parametrize(
    ("path", "who", "lacks"),
    [
        pytest.param("audit/verify", "patty", "the scope custom:gpu-quota:audit", id="a member who verifies the audit"),
        pytest.param("audit/verify", "lea", "the scope custom:gpu-quota:audit", id="a lead who verifies the audit"),
        pytest.param("snapshot", "patty", "the scope custom:gpu-quota:admin", id="a member who saves the snapshot"),
    ],
)
def test_a_refusal_names_the_missing_scope_and_the_admins_who_can_grant_it(
    scene: Scene, path: str, who: str, lacks: str
) -> None:
    found = scene.world.get(path, who)
    assert found.status == 403
    assert lacks in found.json["message"] and "An admin of the hub can grant" in found.json["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        pytest.param(
            "POST",
            "nodes/node-1/actions/cordon",
            {},
            "patty may not cordon nodes: only admins may.",
            id="cordoning a node",
        ),
        pytest.param(
            "PUT",
            "quota",
            {"text": ""},
            "patty may not put quota files in force: only admins may.",
            id="applying quotas",
        ),
        pytest.param(
            "POST",
            "quota/preview",
            {"text": ""},
            "patty may not preview quota files: only admins may.",
            id="previewing",
        ),
        pytest.param("GET", "audit", None, "patty may not read the audit: that is for admins, ", id="the audit"),
        pytest.param(
            "POST", "notebooks", {}, "patty may not request a slice: only the hub's spawner may.", id="a slice"
        ),
    ],
)
def test_a_refusal_names_the_users_who_may(
    scene: Scene, method: str, path: str, body: dict[str, Any] | None, said: str
) -> None:
    found = scene.world.call(method, path, "patty", body)
    assert found.status == 403
    assert found.json["message"].startswith(said), found.json["message"]
    assert "{" not in found.json["message"]
