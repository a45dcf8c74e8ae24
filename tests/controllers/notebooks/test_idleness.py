"""Idle notebooks in the API: permissions to report and keep, classification, and the answers to their servers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.api.views.idle_states import policy_of
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.controllers.activity_records import ActivityRecorder, restored
from jupyter_gpu_quota.controllers.idleness import Idleness, machine_state_of
from jupyter_gpu_quota.controllers.leadership.lease import FencedStore, Leadership
from jupyter_gpu_quota.controllers.notifications import NotificationQueue
from jupyter_gpu_quota.core.idle.activity import GpuSample, IdlePolicy
from jupyter_gpu_quota.core.idle.history import GpuUse
from jupyter_gpu_quota.core.idle.state_machine import Freed, InUse
from jupyter_gpu_quota.hub_api import HubUnavailable
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.reads.followed_store import FollowedStore
from jupyter_gpu_quota.store.records.activity import Note, RecordReport
from jupyter_gpu_quota.store.records.calls import LeaseLost, StoreUnavailable
from jupyter_gpu_quota.store.records.commands import Recorded, Refusal, Request, RequestNotebook
from jupyter_gpu_quota.store.records.rows import NotebookRecord
from tests.api.world import QUOTA, ServiceWorld, build_devices, service_world, train_devices
from tests.controllers.setups.notebook import IDLE, MINUTE, SECOND, Watched, notebook, only_reported
from tests.controllers.setups.scheduling import World

__all__ = ["notebook", "only_reported"]


# --- permissions --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("who", "status"),
    [
        pytest.param("bob", 200, id="its owner"),
        pytest.param("olga", 403, id="another member, who may see it"),
        pytest.param("lea", 403, id="the lead of the project"),
        pytest.param("patty", 404, id="a member of another project"),
        pytest.param("hub", 403, id="the hub's spawner"),
        pytest.param(None, 401, id="without a token"),
    ],
)
def test_senders_that_may_report_for_a_notebook(notebook: Watched, who: str | None, status: int) -> None:
    assert notebook.report(who).status == status


@pytest.mark.parametrize(
    ("who", "status"),
    [
        pytest.param("bob", 200, id="its owner"),
        pytest.param("lea", 200, id="a lead of its project"),
        pytest.param("olga", 403, id="another member"),
        pytest.param("patty", 404, id="a member of another project"),
        pytest.param(None, 401, id="without a token"),
    ],
)
def test_users_who_may_postpone_a_warning(notebook: Watched, who: str | None, status: int) -> None:
    notebook.pass_(20.5)
    assert notebook.world.post(f"notebooks/{notebook.id}/actions/keep", who).status == status


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"kernels": [{"id": "k"}]}, id="a kernel with missing fields"),
        pytest.param({"running_ms": -1}, id="a negative age"),
        pytest.param({"surprise": 1}, id="an unknown key"),
        pytest.param({"programs": [{"name": "x", "kind": "cat", "pid": 1}]}, id="an unknown kind"),
        pytest.param(
            {"programs": [{"name": "x\x1b[2J", "kind": "proxied", "pid": 1}]}, id="a name with a terminal escape"
        ),
        pytest.param({"instance": "i\u202e"}, id="a name with a bidi control character"),
        pytest.param({"namespace": "\0"}, id="a NUL, which PostgreSQL rejects"),
    ],
)
def test_an_invalid_report_is_refused(notebook: Watched, wrong: dict[str, Any]) -> None:
    assert notebook.report(**wrong).status == 400


def test_the_rate_of_reports_is_limited(notebook: Watched) -> None:
    answers = [notebook.send().status for _ in range(70)]
    assert answers == [200] * 60 + [429] * 10
    assert notebook.world.get(f"notebooks/{notebook.id}").status == 200
    notebook.now += 2 * SECOND
    assert [notebook.send().status for _ in range(5)] == [200] * 4 + [429]
    notebook.now -= 3600 * SECOND
    back = notebook.report(running_ms=0, kernels=[])
    assert back.status == 200, "a clock that was set back refuses no report"


def test_changes_between_busy_and_idle_are_not_audited(notebook: Watched) -> None:
    notebook.pass_(1)
    before = len(notebook.audited())
    for turn in range(20):
        notebook.now += SECOND
        notebook.report(kernels=[notebook.kernel("k1", quiet_ms=1, running_ms=1, state=["busy", "idle"][turn % 2])])
    assert len(notebook.audited()) == before


def test_a_returned_slice_is_not_classified(notebook: Watched) -> None:
    notebook.pass_(1)
    notebook.world.call("DELETE", f"notebooks/{notebook.id}", "hub")
    assert notebook.report().status == 409
    notebook.read()
    assert notebook.id not in notebook.idleness.states


# --- all idle states ---------------------------------------------------------------------------------------------
def test_an_idle_notebook_is_warned_freed_and_used_again(notebook: Watched) -> None:
    answer = notebook.pass_(20.5)
    assert (answer["idle"]["state"], answer["idle"]["kernels"], answer["free"]) == ("warned", ["k1"], None)
    shown = notebook.shown("olga")
    assert (shown["activity"], shown["idle"]["state"]) == ("idle", "warned")
    assert 4 * MINUTE < shown["idle"]["free_in_ms"] <= 5 * MINUTE
    assert "their variables are lost" in shown["idle"]["message"]

    answer = notebook.pass_(5)
    assert answer["free"] == {"kernels": ["k1"], "quiet_ms": 20 * MINUTE, "suspend": {}}
    notebook.kernels = notebook.kernels[1:]
    answer = notebook.pass_(0.5)
    assert (answer["idle"]["state"], answer["free"]) == ("freed", None)

    notebook.percent = 80
    notebook.read()
    assert notebook.shown()["idle"]["state"] == "in_use"
    turns = [kind for kind in notebook.audited() if kind.endswith(("warned", "freeing", "freed", "woken"))]
    assert turns == ["notebook.warned", "notebook.freeing", "notebook.freed", "notebook.woken"]


def test_a_cell_in_time_withdraws_the_warning_and_the_order(notebook: Watched) -> None:
    notebook.pass_(25.5)
    assert notebook.report().json["free"] is not None
    notebook.used_at = notebook.now
    answer = notebook.report().json
    assert (answer["free"], answer["idle"]["state"], answer["idle"]["reason"]) == (None, "in_use", "recent_message")


def test_keep_is_refused_after_its_maximum(notebook: Watched) -> None:
    keep = f"notebooks/{notebook.id}/actions/keep"
    refused = notebook.world.post(keep)
    assert (refused.status, refused.json["reason"]) == (409, "not_warned")
    notebook.pass_(20.5)
    kept = notebook.world.post(keep).json
    assert (kept["state"], kept["reason"], kept["keeps_left"]) == ("in_use", "kept", 0)
    assert notebook.pass_(21)["idle"]["state"] == "warned"
    refused = notebook.world.post(keep)
    assert (refused.status, refused.json["reason"]) == (409, "kept_enough")
    assert "Run a cell" in refused.json["message"]


def test_all_members_of_the_project_see_the_countdown(notebook: Watched) -> None:
    notebook.pass_(20.5)
    for who in ("bob", "olga", "lea"):
        [seen] = notebook.world.get("notebooks", who).json["items"]
        assert "their variables are lost" in seen["idle"]["message"]


def test_the_command_line_lists_and_keeps_it(notebook: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook.pass_(20.5)
    address = ["--url", f"http://127.0.0.1:{notebook.world.port}/services/gpu-quota", "--token", "token-bob"]
    listed = CliRunner().invoke(main, ["notebooks", "--json", *address])
    assert listed.exit_code == 0, listed.output
    assert json.loads(listed.stdout)[0]["idle"]["state"] == "warned"
    monkeypatch.setenv("JUPYTERHUB_USER", "bob")
    monkeypatch.delenv("JUPYTERHUB_SERVER_NAME", raising=False)
    kept = CliRunner().invoke(main, ["keep", *address])
    assert (kept.exit_code, "0 more times" in kept.stdout) == (0, True), kept.output
    again = CliRunner().invoke(main, ["keep", notebook.id, *address])
    assert (again.exit_code, "no warning is active" in again.stderr) == (1, True)
    monkeypatch.setenv("JUPYTERHUB_USER", "olga")
    assert CliRunner().invoke(main, ["keep", *address]).exit_code == 2


def test_mode_report_shows_idleness_and_frees_nothing(only_reported: Watched) -> None:
    answer = only_reported.pass_(40)
    assert (answer["idle"]["state"], answer["free"]) == ("reported", None)
    assert answer["idle"]["message"].startswith("It has been unused for 40 minutes. The GPU is not freed")


def test_the_default_mode_is_report(tmp_path: Path) -> None:
    with service_world(tmp_path, store=MemoryStore()) as world:
        world.apply(QUOTA)
        assert world.run(_mode(world)) == "report"


async def _mode(world: ServiceWorld) -> str:
    await world.services.store_view.refresh()
    return policy_of(world.services.store_view).mode.value


def test_the_request_to_stop_a_server_is_repeated_once_a_minute(notebook: Watched) -> None:
    asked: list[str] = []

    def stop(record: NotebookRecord) -> None:
        asked.append(record.notebook.id)

    notebook.idleness.stop = stop
    notebook.kernels = []
    answer = notebook.pass_(29)
    assert (answer["idle"]["state"], asked) == ("freed", [])
    answer = notebook.pass_(1.5)
    assert (answer["idle"]["state"], asked) == ("stopping", [notebook.id])
    notebook.pass_(1)
    assert asked == [notebook.id] * 2


def test_a_server_that_is_used_again_in_the_second_before_its_stop_is_not_stopped(notebook: Watched) -> None:
    asked: list[NotebookRecord] = []
    notebook.idleness.stop = asked.append
    notebook.kernels = []
    notebook.pass_(29)
    while notebook.shown()["idle"]["state"] != "stopping":
        notebook.now += 10 * SECOND
        notebook.read()
        notebook.send()
    assert asked == []
    notebook.kernels, notebook.used_at = [notebook.kernel("k1", state="busy", asks_gpu=False)], notebook.now
    notebook.report()
    assert (notebook.shown()["idle"]["state"], asked) == ("freed", [])


def test_the_reason_of_an_idle_stop_stays_with_the_slice(notebook: Watched) -> None:
    def stop(record: NotebookRecord) -> None:
        return None

    notebook.idleness.stop = stop
    notebook.kernels = []
    assert notebook.pass_(31)["idle"]["state"] == "stopping"
    assert notebook.world.call("DELETE", f"notebooks/{notebook.id}", "hub").status == 204
    (found,) = notebook.world.get("notebooks?stopped=1").json["items"]
    assert (found["state"], found["reason"]["code"]) == ("returned", "stopped_idle")
    assert "was freed as unused" in found["reason"]["message"] and "can be started again" in found["reason"]["message"]


def test_a_server_that_its_user_stops_has_no_reason(notebook: Watched) -> None:
    notebook.pass_(1)
    assert notebook.world.call("DELETE", f"notebooks/{notebook.id}", "hub").status == 204
    assert notebook.world.get("notebooks?stopped=1").json["items"] == []


def test_the_hub_stops_the_server_by_its_name(notebook: Watched) -> None:
    hub = notebook.world.hub
    hub.users["bob"].servers = {"": {"name": "", "stopped": False}, "two": {"name": "two", "stopped": False}}
    notebook.world.run(notebook.world.rest_hub.stop("bob", "two"))
    assert hub.users["bob"].servers.keys() == {""}
    notebook.world.run(notebook.world.rest_hub.stop("bob", "two"))
    notebook.world.run(notebook.world.rest_hub.stop("bob", ""))
    assert hub.users["bob"].servers == {}
    hub.away = True
    with pytest.raises(HubUnavailable):
        notebook.world.run(notebook.world.rest_hub.stop("bob", ""))


# --- unknown ------------------------------------------------------------------------------------------------------
def test_a_busy_kernel_that_does_not_use_the_gpu_is_reported_and_not_freed(tmp_path: Path) -> None:
    idle = IDLE.replace("MODE", "reclaim").replace("idle: {", "idle: {busy_notify_after: 30m, ")
    with service_world(tmp_path, store=MemoryStore()) as world:
        real = tuple(replace(device, simulated=False) for device in (*train_devices(), *build_devices()))
        world.apply(QUOTA + idle, real)
        notebook = Watched(world)
        notebook.kernels = [notebook.kernel("k1", state="busy")]
        assert not notebook.pass_(25)["idle"]["noticed"]
        found = notebook.pass_(15)["idle"]
        assert (found["noticed"], found["state"], found["reason"]) == (True, "in_use", "kernel_busy")
        assert "has not used the GPU for a long time" in found["message"]
        assert notebook.audited().count("notebook.notified") == 1


def test_a_notebook_without_figures_of_its_own_is_unknown(notebook: Watched) -> None:
    notebook.percent = None
    answer = notebook.pass_(40)
    assert (answer["idle"]["verdict"], answer["idle"]["reason"], answer["idle"]["used_ms"]) == (
        "unknown",
        "no_reading",
        None,
    )


def test_a_take_over_after_every_run_loses_no_observation(notebook: Watched) -> None:
    notebook.report()
    notebook.pass_(17)
    for _ in range(3 * 6):
        notebook.now += 10 * SECOND
        notebook.read()
        notebook.world.controllers.take_over()
        notebook.report()
        notebook.world.controllers.take_over()
    notebook.pass_(1)
    assert "notebook.warned" in notebook.audited()


@pytest.mark.parametrize("takes_over", [False, True], ids=["one controller", "a controller that takes over"])
def test_use_in_a_reading_between_two_runs_is_seen(notebook: Watched, takes_over: bool) -> None:
    notebook.pass_(18)
    for percent in (90, 0):
        notebook.now += 10 * SECOND
        notebook.percent = percent
        notebook.store_reading()
    used_at = notebook.now - 10 * SECOND
    if takes_over:
        notebook.world.controllers.take_over()
    notebook.report()
    notebook.pass_(3)
    shown = notebook.shown()["idle"]
    assert (shown["verdict"], shown["reason"], shown["used_ms"]) == ("busy", "recent_gpu_use", notebook.now - used_at)


def test_an_observation_that_could_not_be_stored_is_stored_by_the_next_run(
    notebook: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(store: FencedStore, *requests: Request) -> list[Recorded | Refusal]:
        raise StoreUnavailable("the disk is full")

    notebook.report()
    notebook.now += 10 * SECOND
    with monkeypatch.context() as patched:
        patched.setattr(FencedStore, "record", fails)
        with pytest.raises(StoreUnavailable):
            notebook.read()
    notebook.run_controller()
    (note,) = notebook.world.store.notes("activity")
    assert [sample[0] for sample in note.document["samples"]] == [notebook.now]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("noted", "use"),
    [
        pytest.param({"use": [1, 5]}, GpuUse(first_at=1, last_at=5), id="readings that are not stored any more"),
        pytest.param({}, GpuUse(first_at=100, last_at=None), id="a note of an early release"),
    ],
)
def test_the_last_use_of_the_gpu_is_noted_for_a_successor(noted: dict[str, Any], use: GpuUse) -> None:
    document = {"instance": "i", "samples": [[100, 0, "", None, []]], "reports": [], **noted}
    note = Note(kind="activity", subject="nb", slot=1, at=100, document=document)
    assert restored([note], {}, IdlePolicy()).use("nb") == use
    recorder = ActivityRecorder()
    recorder.read("nb", GpuSample(at=100, percent=0), use)
    (kept,) = recorder.note(IdlePolicy(), 100).notes  # type: ignore[union-attr]
    assert kept.document["use"] == [use.first_at, use.last_at]  # type: ignore[attr-defined]


def test_a_controller_that_takes_over_continues_the_countdown(notebook: Watched) -> None:
    assert notebook.pass_(21)["idle"]["state"] == "warned"
    before = notebook.world.store.notebook(notebook.id)
    notebook.world.controllers.take_over()
    assert notebook.pass_(1)["idle"]["state"] == "warned"
    after = notebook.world.store.notebook(notebook.id)
    assert before is not None and after is not None and after.idle_state == before.idle_state
    assert notebook.pass_(4)["free"] == {"kernels": ["k1"], "quiet_ms": 20 * MINUTE, "suspend": {}}
    assert notebook.audited().count("notebook.warned") == 1


def test_a_controller_that_takes_over_after_a_long_gap_withdraws_the_warning(notebook: Watched) -> None:
    notebook.pass_(21)
    notebook.world.controllers.take_over()
    notebook.now += 10 * MINUTE
    answer = notebook.pass_(1)
    assert (answer["idle"]["verdict"], answer["idle"]["state"], answer["free"]) == ("unknown", "in_use", None)


def test_a_controller_that_lost_the_lease_changes_nothing(notebook: Watched) -> None:
    notebook.pass_(20)
    version = notebook.world.store.version()
    notebook.world.controllers.leadership.lease = replace(notebook.world.controllers.leadership.check(), fencing=0)
    notebook.now += 30 * SECOND
    with pytest.raises(LeaseLost):
        notebook.idleness.run_once(notebook.now)
    assert notebook.world.store.version() == version


@pytest.mark.parametrize("action", ["keep", "wake"])
def test_a_request_from_before_the_clock_was_set_back_ends_in_time(notebook: Watched, action: str) -> None:
    notebook.pass_(20.5)
    body = {"kernel": "k9"} if action == "wake" else {}
    assert notebook.world.post(f"notebooks/{notebook.id}/actions/{action}", "bob", body).status == 200
    notebook.pass_(1)
    notebook.set_back(24 * 60 * MINUTE)
    notebook.pass_(19)
    assert notebook.shown()["idle"]["state"] == "in_use"
    notebook.pass_(3)
    assert notebook.shown()["idle"]["state"] == "warned"


def test_a_server_is_stopped_again_after_the_clock_was_set_back(notebook: Watched) -> None:
    asked: list[NotebookRecord] = []
    notebook.idleness.stop = asked.append
    notebook.kernels = []
    notebook.pass_(30.5)
    assert len(asked) == 1
    notebook.set_back(24 * 60 * MINUTE)
    notebook.pass_(31)
    assert notebook.shown()["idle"]["state"] == "stopping" and len(asked) > 1


def test_freed_and_postponed_states_survive_a_restart(notebook: Watched) -> None:
    notebook.kernels = []
    notebook.pass_(21)
    notebook.world.controllers.take_over()
    notebook.run_controller()
    record = notebook.world.store.notebook(notebook.id)
    assert record is not None
    assert isinstance(machine_state_of(record), Freed)


def test_a_report_that_arrives_during_a_run_is_not_a_clock_jump(notebook: Watched) -> None:
    assert notebook.pass_(21)["idle"]["state"] == "warned"
    notebook.now += 50
    notebook.send()
    notebook.now -= 50
    notebook.run_controller()
    assert "notebook.withdrawn" not in notebook.audited()


def test_a_late_report_is_ignored(notebook: Watched) -> None:
    notebook.pass_(1)
    notebook.kernels[0]["state"] = "busy"
    assert notebook.report(sequence=0).json["idle"]["reason"] != "kernel_busy"
    assert notebook.report().json["idle"]["reason"] == "kernel_busy"


def test_reports_of_an_earlier_server_instance_are_ignored(notebook: Watched) -> None:
    notebook.pass_(1)
    assert notebook.report(instance="new", sequence=0).status == 200
    notebook.kernels[0]["state"] = "busy"
    assert notebook.report(instance="i").json["idle"]["reason"] != "kernel_busy"


def test_the_holder_among_two_kernels_on_a_real_device_is_unknown(notebook: Watched) -> None:
    notebook.kernels.append(notebook.kernel("k3"))
    answer = notebook.pass_(40)
    assert (answer["idle"]["verdict"], answer["idle"]["reason"]) == ("unknown", "holder_unknown")
    notebook.kernels.pop()
    assert notebook.report().json["idle"]["verdict"] == "idle"


def test_an_empty_slice_needs_no_warning_and_may_be_lent(notebook: Watched) -> None:
    notebook.memory_mib = 0
    notebook.kernels.append(notebook.kernel("k3"))
    assert notebook.pass_(21)["idle"]["state"] == "freed"
    notebook.read()
    record = notebook.world.store.notebook(notebook.id)
    assert record is not None
    assert (record.notebook.activity, record.notebook.seen_empty) == ("idle", True)


def test_a_terminal_may_hold_the_gpu(notebook: Watched) -> None:
    programs = [{"name": "terminal 1", "kind": "terminal", "pid": 9}]
    notebook.pass_(21)
    assert notebook.report(programs=programs).json["idle"]["reason"] == "holder_unknown"


def test_the_state_before_the_first_classification_is_in_use(notebook: Watched) -> None:
    record = notebook.world.store.notebook(notebook.id)
    assert record is not None
    assert machine_state_of(record) == InUse()


@pytest.mark.parametrize("behind_ms", [0, 400, 9_000])
def test_reports_that_an_api_process_with_a_slower_clock_stored_are_taken(behind_ms: int) -> None:
    world = World()
    notebooks = {"on time": "bob", "behind": "patty"}
    for name, user in notebooks.items():
        project = "vision" if user == "bob" else "speech"
        asked = RequestNotebook(
            notebook=name, user=world.users[user], server="", project=project, pool="build", gpu_milli=125
        )
        world.store.record([asked], now=world.now)
    world.turn(2)
    leadership = Leadership(world.store, lambda: world.now, holder="first")
    fenced = FencedStore(world.store, leadership, lambda: world.now)
    queue = NotificationQueue([], (), str)
    idleness = Idleness(FollowedStore(world.store), fenced, queue, lambda record: None, lends_slices=True)

    def report(notebook: str, sequence: int, at: int) -> None:
        body = {
            "instance": "i", "sequence": sequence, "running_ms": 1000, "namespace": "", "ticks": None, "kernels": [],
            "programs": [], "asks_first": True, "suspension": "off", "suspension_why": "",
        }  # fmt: skip
        fact = RecordReport(notebook=notebook, instance="i", sequence=sequence, body=body)
        world.store.record([fact], now=at)
        leadership.renew(world.now)
        idleness.run_once(world.now)
        newest = idleness.histories.newest(notebook)
        assert newest is not None and newest.sequence == sequence

    world.turn(1)
    for sequence in range(3):
        report("on time", sequence, world.now)
        report("behind", sequence, world.now - behind_ms)
        world.now += 1000
