"""Notebook slices in the API, and their return when the hub no longer has the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.controllers.reconciliation import Reconciliation
from jupyter_gpu_quota.core.facts import NotebookFact
from jupyter_gpu_quota.core.model import Health, Lending
from jupyter_gpu_quota.hub_api import HubUnavailable
from jupyter_gpu_quota.store.records.commands import ApplyQuota
from tests.api.world import QUOTA, ServiceWorld, build_devices, service_world
from tests.patience import Stopwatch, until

NARROW = QUOTA.replace("notebook: 0.5", "notebook: 0.25")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        yield made


def ask(world: ServiceWorld, user: str = "bob", gpu: str = "1/8", server: str = "", project: str = "vision") -> Any:
    return world.post("notebooks", "hub", {"user": user, "project": project, "gpu": gpu, "server": server})


def test_a_slice_within_quota_is_booked_before_the_answer(world: ServiceWorld) -> None:
    with world.stepping():
        answer = ask(world)
    assert (answer.status, answer.json["state"], answer.json["gpu_milli"]) == (201, "booked", 125)
    assert [(part["device"], part["device_uuid"]) for part in answer.json["allocations"]] == [
        ("build-0", "SIM-build-0")
    ]
    nothing = {"memory": "none", "compute": "none", "why": "it was not read back yet"}
    assert answer.json["enforcement"] == nothing and answer.json["simulated"]


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        pytest.param("local", None, id="a server is a process"),
        pytest.param(
            "kubernetes", {"driver": "gpu.example.org", "device_class": "shared", "fractions": "auto"}, id="a pod"
        ),
    ],
)
def test_the_answer_has_the_settings_of_a_pod(world: ServiceWorld, backend: str, expected: Any) -> None:
    services = world.services
    services.settings = replace(
        services.settings, backend=backend, kubernetes_driver="gpu.example.org", kubernetes_device_class="shared"
    )
    with world.stepping():
        assert ask(world).json["pod_devices"] == expected


def test_above_the_quota_it_is_refused_with_the_figures(world: ServiceWorld) -> None:
    world.apply(NARROW)
    with world.stepping():
        assert ask(world).json["state"] == "booked"
        refused = ask(world, user="olga", gpu="0.25").json
    assert refused["state"] == "refused"
    assert refused["reason"]["code"] == "above_notebook_quota" and "0.25" in refused["reason"]["message"]


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        pytest.param("2", "a notebook's slice is at most one whole device. Nothing was stored.", id="two devices"),
        pytest.param("much", "a decimal up to 1 with up to three places (0.5), a part (1/3) or memory", id="a word"),
        pytest.param("900GiB", "ask for less, or for all of one device (1)", id="more memory than a device has"),
    ],
)
def test_an_impossible_slice_size_is_refused_without_a_proposal(world: ServiceWorld, gpu: str, words: str) -> None:
    answer = ask(world, gpu=gpu)
    assert answer.status == 400
    assert words in answer.json["message"]


def test_a_server_that_requests_again_has_one_slice(world: ServiceWorld) -> None:
    with world.stepping():
        first, again, other = ask(world).json, ask(world).json, ask(world, server="second").json
    assert first["id"] == again["id"] != other["id"]


def test_without_the_hub_a_request_for_a_slice_is_named_in_the_refusal(world: ServiceWorld) -> None:
    world.hub.away = True
    refused = ask(world)
    assert (refused.status, refused.json["reason"]) == (503, "hub_away")
    assert refused.json["message"].startswith(
        "POST /services/gpu-quota/api/v1/notebooks could not be answered: the hub"
    )


def test_returning_a_slice_twice_or_an_unknown_one_is_no_error(world: ServiceWorld) -> None:
    with world.stepping():
        notebook = ask(world).json["id"]
    assert [world.call("DELETE", f"notebooks/{name}", "hub").status for name in (notebook, notebook, "nothing")] == [
        204
    ] * 3
    assert world.get(f"notebooks/{notebook}", "hub").json["state"] == "returned"
    assert world.get("notebooks", "hub").json["items"] == []


def test_waiting_for_a_change_answers_at_the_change(world: ServiceWorld) -> None:
    answer: list[Any] = []

    def wait() -> None:
        notebook = world.get("notebooks", "hub").json["items"][0]["id"]
        answer.append(world.get(f"notebooks/{notebook}?wait_s=20&seen_state=requested&seen_reason=", "hub").json)

    thread = threading.Thread(target=lambda: ask(world))
    thread.start()
    until(lambda: world.get("notebooks", "hub").json["items"])
    waiter = threading.Thread(target=wait)
    with Stopwatch() as watch:
        waiter.start()
        world.step()
        waiter.join()
    thread.join()
    assert answer[0]["state"] == "booked"
    assert watch.seconds < 10


def test_waiting_in_vain_answers_after_the_time(world: ServiceWorld) -> None:
    with world.stepping():
        notebook = ask(world).json
    query = f"wait_s=1&seen_state=booked&seen_reason={notebook['reason']['code']}"
    assert world.get(f"notebooks/{notebook['id']}?{query}", "hub").json["state"] == "booked"


def test_the_form_gets_the_sizes_that_a_user_may_start(world: ServiceWorld) -> None:
    with world.stepping():
        ask(world)
    found = world.get("me?user=olga", "hub").json
    assert (found["name"], found["hub_token"], found["projects"]) == ("olga", False, {"vision": "member"})
    assert found["notebook_choices"] == [
        {
            "project": "vision",
            "pool": "build",
            "quota_milli": 500,
            "used_milli": 125,
            "devices": 1,
            "device_model": "Simulated 16G",
            "device_memory_mib": 16384,
            "user_left_milli": None,
        }
    ]
    assert world.get("me", "hub").json["hub_token"]


CEILING = "notebook: 0.5, per_user: {notebook: 0.25}"
DEPARTMENT = (
    "departments:\n  - {name: all, quota: {train: {training: 4}, build: {notebook: 1, per_user: {notebook: 0.25}}}}"
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(QUOTA.replace("notebook: 0.5", CEILING), id="a project's"),
        pytest.param(
            QUOTA.replace("    members:", "    department: all\n    members:") + DEPARTMENT, id="a department's"
        ),
    ],
)
def test_the_form_gets_the_rest_of_each_users_ceiling(world: ServiceWorld, text: str) -> None:
    world.apply(text)
    with world.stepping():
        assert ask(world).json["state"] == "booked"
    left = {
        who: [choice["user_left_milli"] for choice in world.get(f"me?user={who}", "hub").json["notebook_choices"]]
        for who in ("bob", "olga")
    }
    assert left == {"bob": [125], "olga": [250]}


# --- reconciling ------------------------------------------------------------------------------------------------------
class Later:
    """A clock that a test moves."""

    def __init__(self, world: ServiceWorld) -> None:
        self.now = world.clock()

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def booked(world: ServiceWorld) -> tuple[ServiceWorld, str, Later]:
    world.hub.users["bob"].servers = {"": {"name": "", "ready": True, "stopped": False}}
    later = Later(world)
    world.clock = later
    with world.stepping():
        return world, ask(world).json["id"], later


def look(world: ServiceWorld, reconciler: Reconciliation) -> list[str]:
    before = set(world.store_live())
    world.controllers.turn(reconciler)
    return sorted(before - set(world.store_live()))


def test_a_slice_without_a_server_for_a_minute_is_returned_with_the_reason(booked: Any) -> None:
    world, notebook, later = booked
    reconciler = world.controllers.factory.reconciliation()
    world.hub.users["bob"].servers = {}
    later.now += 61_000
    assert look(world, reconciler) == []
    later.now += 61_000
    assert look(world, reconciler) == [notebook]
    assert world.get(f"notebooks/{notebook}", "hub").json["state"] == "returned"
    row = next(row for row in world.get("audit", "ann").json["items"] if row["kind"] == "notebook.return")
    assert "hub" in str(row["payload"]["why"]) and row["actor"] == "system:reconcile"


@pytest.mark.parametrize(
    ("servers", "kept"),
    [
        pytest.param({"": {"name": "", "ready": True, "stopped": False}}, True, id="an active server keeps it"),
        pytest.param(
            {"": {"name": "", "ready": False, "pending": "spawn", "stopped": False}},
            True,
            id="so does one on its way up",
        ),
        pytest.param(
            {"other": {"name": "other", "ready": True, "stopped": False}},
            False,
            id="another server of the user does not",
        ),
        pytest.param({"": {"name": "", "ready": False, "stopped": True}}, False, id="nor one that has stopped"),
    ],
)
def test_servers_that_keep_a_slice(booked: Any, servers: dict[str, Any], kept: bool) -> None:
    world, notebook, later = booked
    world.hub.users["bob"].servers = servers
    reconciler = world.controllers.factory.reconciliation()
    for _ in range(3):
        later.now += 61_000
        look(world, reconciler)
    state = world.get(f"notebooks/{notebook}", "hub").json["state"]
    assert state == ("booked" if kept else "returned")


def test_lists_of_less_than_a_minute_return_no_slice(booked: Any) -> None:
    world, notebook, later = booked
    world.hub.users["bob"].servers = {}
    reconciler, returned = world.controllers.factory.reconciliation(), list[list[str]]()
    for after_ms in (61_000, 30_000, 29_999, 1):
        later.now += after_ms
        returned.append(look(world, reconciler))
    assert returned == [[], [], [], [notebook]]


def test_a_server_seen_again_restarts_the_count(booked: Any) -> None:
    world, notebook, later = booked
    reconciler, servers = world.controllers.factory.reconciliation(), world.hub.users["bob"].servers
    for present in (False, True, False):
        world.hub.users["bob"].servers = servers if present else {}
        later.now += 61_000
        assert look(world, reconciler) == []
    assert world.get(f"notebooks/{notebook}", "hub").json["state"] == "booked"


@pytest.mark.parametrize("fault", ["away", "silent about servers", "at another address"])
def test_missing_fields_of_the_hub_lead_to_no_conclusion(
    booked: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, notebook, later = booked
    if fault == "away":
        world.hub.away = True
    elif fault == "at another address":
        monkeypatch.setattr("tests.api.world._HubApi._users", lambda handler: handler.set_status(404))
    else:
        monkeypatch.setattr("tests.api.world._model", lambda name, account: {"name": name})
    reconciler = world.controllers.factory.reconciliation()
    for _ in range(3):
        later.now += 61_000
        with pytest.raises(HubUnavailable):
            look(world, reconciler)
    world.hub.away = False
    assert world.get(f"notebooks/{notebook}", "hub").json["state"] == "booked"


def test_a_recent_booking_is_not_returned(booked: Any) -> None:
    world, _, later = booked
    world.hub.users["bob"].servers = {}
    reconciler = world.controllers.factory.reconciliation()
    later.now += 59_000
    assert look(world, reconciler) == []
    assert reconciler._missed == {}


def test_the_hubs_list_is_read_page_by_page(world: ServiceWorld) -> None:
    for number in range(450):
        world.add(f"user{number}", servers={"": {"name": "", "ready": True, "stopped": False}})
    assert len(world.run(world.rest_hub.servers())) == 450
    assert world.hub.asked.count("users") == 3


def test_a_pool_without_a_device_is_reported_to_the_form_and_in_refusals(world: ServiceWorld) -> None:
    world.apply(QUOTA.replace("Simulated 16G", "A model that nobody has"))
    assert world.get("me").json["notebook_choices"][0]["devices"] == 0
    with world.stepping():
        refused = world.post("notebooks", "hub", {"user": "olga", "project": "vision", "gpu": "1/8"})
        assert refused.json["state"] == "refused", refused.body
        assert "pool build has no device, so nothing starts there" in refused.json["reason"]["message"]


def test_a_waiting_slice_has_a_reason_without_other_requests(world: ServiceWorld) -> None:
    world.inventory(tuple(replace(device, health=Health.UNHEALTHY) for device in build_devices()))
    notebook = ask(world).json["id"]
    seen = world.get(f"notebooks/{notebook}?wait_s=5&seen_state=requested&seen_reason=", "hub").json
    assert seen["state"] == "requested" and seen["reason"]["message"]


def lending(world: ServiceWorld) -> None:
    """Put the same quotas in force with lending on, which no quota file can ask for in this release."""
    revision = world.store.quota()
    assert revision is not None
    policy = replace(revision.policy, lending=Lending(enabled=True))
    world.record(
        ApplyQuota(
            actor="system:test", text=revision.text, document=revision.document, policy=policy, expected_revision=None
        )
    )


def test_the_slice_of_an_idle_notebook_is_lent_and_returned_on_a_new_request(world: ServiceWorld) -> None:
    lending(world)
    asked = {"user": "bob", "project": "vision", "gpu": "1/8"}
    with world.stepping():
        slice_ = world.post("notebooks", "hub", asked).json
    world.see(NotebookFact(notebook=slice_["id"], activity="idle", seen_empty=True))
    assert world.step() == 1
    world.run(world.services.store_view.refresh())
    lent = world.get(f"notebooks/{slice_['id']}").json
    assert (lent["state"], lent["activity"], lent["allocations"]) == ("lent", "idle", [])
    assert lent["reason"]["code"] == "lent_while_idle" and lent["borrowed"] is False
    assert world.get("me").json["notebook_choices"][0]["used_milli"] == 125
    assert "offered to preemptible jobs" in world.get(f"explain/{slice_['id']}").json["reason"]["message"]
    with world.stepping():
        again = world.post("notebooks", "hub", asked).json
    assert (again["id"], again["state"], again["activity"]) == (slice_["id"], "booked", "busy")
    assert again["allocations"][0]["device"] == slice_["allocations"][0]["device"]


def test_a_lent_slice_is_borrowed_once_a_job_runs_on_it(world: ServiceWorld) -> None:
    assert world.put_quota(QUOTA.replace("uses: [notebook]", "uses: [notebook, training]")).status == 200
    lending(world)
    with world.stepping():
        slice_ = ask(world).json["id"]
    world.see(NotebookFact(notebook=slice_, activity="idle", seen_empty=True))
    world.step()
    world.run(world.services.store_view.refresh())
    assert world.get(f"notebooks/{slice_}").json["borrowed"] is False
    world.submit("bob", project="vision", pool="build", gpu="1")
    world.step()
    world.run(world.services.store_view.refresh())
    assert world.get(f"notebooks/{slice_}").json["borrowed"] is True


def test_the_audit_has_the_loan_of_a_slice_with_its_reason(world: ServiceWorld) -> None:
    lending(world)
    with world.stepping():
        slice_ = ask(world).json["id"]
    world.see(NotebookFact(notebook=slice_, activity="idle", seen_empty=True))
    world.step()
    found = {row["kind"]: row["what"] for row in world.get("audit?limit=1000", "ann").json["items"]}
    assert found["notebook.activity"] == "reported that bob's notebook is idle, which was unknown"
    assert found["lend"].startswith(
        "offered the slice of bob's notebook to jobs. The notebook is idle and none of its processes is on the GPU"
    )


def test_the_audit_describes_a_returned_slice_not_a_start(
    world: ServiceWorld,
) -> None:
    lending(world)
    with world.stepping():
        slice_ = ask(world).json["id"]
    world.see(NotebookFact(notebook=slice_, activity="idle", seen_empty=True))
    world.step()
    world.see(NotebookFact(notebook=slice_, activity="idle", seen_empty=False))
    world.step()
    found = [row["what"] for row in world.get("audit?limit=1000", "ann").json["items"]]
    assert "reported that bob's notebook is still idle; its slice may not be lent now" in found
    [back] = [words for words in found if words.startswith("gave bob's notebook its slice back on ")]
    assert back.endswith("it stayed booked, and the notebook has it back.")
    assert len([words for words in found if words.startswith("started bob's notebook")]) == 1
