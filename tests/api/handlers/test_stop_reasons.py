"""Why a server was stopped, by memory enforcement or by the policy: where its person looks, and in the audit."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from jupyter_gpu_quota.backends.local.host.servers import Servers
from jupyter_gpu_quota.controllers.enforcement import Enforcement
from tests.api.world import PREFIX
from tests.controllers.test_enforcement import Stage, policy, readings, stage
from tests.gpu.world import share_of

__all__ = ["stage"]


class Stopped:
    """Bob's notebook, whose server the hub stops on request."""

    def __init__(self, stage: Stage, memory: str = "policed") -> None:
        self.stage, self.world = stage, stage.world
        stage.apply(policy(memory))
        self.world.hub.users["bob"].servers[""] = {"name": "", "stopped": False}
        self.enforcement.effects.stop_server = self._stop
        self.id = self.ask("0.5")

    @property
    def enforcement(self) -> Enforcement:
        return self.world.controllers.enforcement

    def _stop(self, record: Any) -> None:
        self.stage.stopped.append(record.notebook.id)

    def ask(self, gpu: str) -> str:
        slice = {"user": "bob", "server": "", "project": "vision", "pool": "train", "gpu": gpu}
        with self.world.stepping():
            answer = self.world.post("notebooks", "hub", slice)
        assert answer.status == 201, answer.body
        return str(answer.json["id"])

    def over(self) -> None:
        self.stage.read(**{self.id: 7000})
        readings(self.stage, 4, **{self.id: 7000})

    def end(self) -> None:
        """The hub's spawner gives the slice back."""
        assert self.world.call("DELETE", f"notebooks/{self.id}", "hub").status == 204

    def listed(self, query: str = "?stopped=1") -> list[Any]:
        return list(self.world.get(f"notebooks{query}", "bob").json["items"])

    def audited(self) -> list[str]:
        rows = self.world.get("audit?limit=100", "root").json["items"]
        return [f"{row['who']} {row['what']}" for row in rows]


@pytest.fixture
def stopped(stage: Stage) -> Stopped:
    stage.world.add("root", admin=True)
    return Stopped(stage)


WHY = "The service stopped this notebook's server: its processes used 7000 MiB of device GPU-"


def test_why_a_server_was_stopped_is_shown_until_it_has_a_slice_again(stopped: Stopped) -> None:
    stopped.over()
    stopped.end()
    assert stopped.listed("") == []
    (found,) = stopped.listed()
    assert (found["state"], found["reason"]["code"]) == ("returned", "stopped_over_share")
    assert found["reason"]["message"].startswith(WHY) and "its share is 40" in found["reason"]["message"]
    (shown,) = stopped.world.get("me?user=bob", "hub").json["stopped"]
    assert (shown["server"], shown["reason"]["message"]) == ("", found["reason"]["message"])
    page = stopped.world.get(PREFIX, "bob").body.decode()
    assert "stopped</span>" in page and "The service stopped this notebook&#39;s server" in page
    stopped.ask("0.5")
    assert [each["state"] for each in stopped.listed()] == ["booked"]
    assert stopped.world.get("me?user=bob", "hub").json["stopped"] == []


def test_who_is_above_its_share_is_warned_where_it_looks(stopped: Stopped) -> None:
    stopped.stage.read(**{stopped.id: 7000})
    (found,) = stopped.listed("")
    assert found["warning"].startswith("It uses 7000 MiB of device GPU-") and "is stopped at" in found["warning"]
    assert found["warning"] in stopped.world.get(PREFIX, "bob").body.decode()
    assert ">memory policed<" in stopped.world.get(PREFIX, "bob").body.decode()
    stopped.stage.read(1_000, **{stopped.id: 100})
    assert stopped.listed("")[0]["warning"] is None


def test_an_old_stop_is_no_longer_shown(stopped: Stopped) -> None:
    stopped.over()
    stopped.end()
    assert len(stopped.listed()) == 1
    world, days = stopped.world.services.store_view, 86_400_000
    world.now, stopped.world.services.stop_reasons._read_s = lambda: stopped.stage.now + 4 * days, float("-inf")
    assert stopped.listed() == []


def test_nobody_else_sees_why_a_server_was_stopped(stopped: Stopped) -> None:
    stopped.over()
    stopped.end()
    stopped.world.add("eve")
    assert stopped.world.get("notebooks?stopped=1", "eve").json["items"] == []
    assert stopped.world.get("me", "eve").json["stopped"] == []


def test_the_audit_says_who_warned_and_stopped_a_server_and_why(stopped: Stopped) -> None:
    stopped.over()
    said = stopped.audited()
    assert any(line.startswith("memory enforcement warned bob's notebook: it uses 7000 MiB") for line in said), said
    stops = [line for line in said if line.startswith(f"memory enforcement had the hub stop bob's notebook. {WHY}")]
    assert len(stops) == 1, said


def test_a_stop_that_was_decided_is_carried_out_by_who_comes_next(stopped: Stopped) -> None:
    """The hub was away, or the service died: the reason stands in the store, so the server is stopped all the same."""

    stopped.enforcement.effects.stop_server = lambda record: None
    stopped.over()
    stopped.world.controllers.take_over()
    stopped.enforcement.effects.stop_server = stopped._stop
    stopped.stage.read(1_000, **{stopped.id: 100})
    assert stopped.stage.stopped == [stopped.id]


def test_a_server_that_starts_again_before_its_slice_went_back_gets_a_new_one(stopped: Stopped) -> None:
    stopped.over()
    assert stopped.ask("0.5") != stopped.id
    stopped.stage.stopped.clear()
    stopped.stage.read(61_000)
    assert stopped.stage.stopped == []


def test_a_server_whose_share_is_held_too_weakly_says_so(stage: Stage) -> None:
    stage.world.add("root", admin=True)
    stopped = Stopped(stage, "none")
    stage.apply(policy("driver"))
    server = subprocess.Popen(["sleep", "600"], env={**os.environ, **share_of(stopped.id)})
    Servers(stage.world.state_dir).record_start(stopped.id, server.pid)
    try:
        stage.read(**{stopped.id: 100})
        readings(stage, 5, **{stopped.id: 100})
        (found,) = stopped.listed("")
        assert "its server is stopped, unless that has changed" in found["warning"] and stage.stopped == []
        warned = "warned bob's notebook: its share of device GPU-0 is enforced at memory policed"
        assert any(warned in line for line in stopped.audited()), stopped.audited()
        readings(stage, 15, **{stopped.id: 100})
        assert stage.stopped
    finally:
        server.kill()
        server.wait()
    stopped.end()
    (found,) = stopped.listed()
    assert (
        found["reason"]["code"] == "stopped_too_weak"
        and "requires at least memory driver" in found["reason"]["message"]
    )
    assert stage.stopped == [stopped.id]


def test_the_audit_row_of_a_stopped_job_names_memory_enforcement_and_the_reason(stage: Stage) -> None:
    stage.world.add("root", admin=True)
    stage.apply(policy("policed"))
    job = stage.running()
    stage.read(**{job: 7000})
    readings(stage, 4, **{job: 7000})
    stage.world.step()
    rows = stage.world.get("audit?limit=100", "root").json["items"]
    (row,) = [row for row in rows if row["kind"] == "stop"]
    assert row["payload"]["action"]["reason"]["code"] == "over_share"
    assert " for memory enforcement. The job used 7000 MiB of device GPU-" in row["what"]
    (held,) = [row for row in rows if row["kind"] == "job.hold"]
    assert held["who"] == "memory enforcement" and "which was running. The job used 7000 MiB" in held["what"]
