"""Why a server was stopped, by memory enforcement or by the policy: where its person looks, and in the audit."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from jupyter_gpu_quota.backends.local.host.servers import Servers
from jupyter_gpu_quota.controllers.enforcement import Enforcement
from tests.api.pages.browser import open_page, seen
from tests.controllers.setups.enforcement import EnforcementSetup, policy, readings, setup
from tests.gpu.world import share_of

__all__ = ["setup"]


class Stopped:
    """Bob's notebook, whose server the hub stops on request."""

    def __init__(self, setup: EnforcementSetup, memory: str = "policed") -> None:
        self.setup, self.world = setup, setup.world
        setup.apply(policy(memory))
        self.world.hub.users["bob"].servers[""] = {"name": "", "stopped": False}
        self.enforcement.effects.stop_server = self._stop
        self.id = self.ask("0.5")

    @property
    def enforcement(self) -> Enforcement:
        return self.world.controllers.enforcement

    def _stop(self, record: Any) -> None:
        self.setup.stopped.append(record.notebook.id)

    def ask(self, gpu: str) -> str:
        slice = {"user": "bob", "server": "", "project": "vision", "pool": "train", "gpu": gpu}
        with self.world.stepping():
            answer = self.world.post("notebooks", "hub", slice)
        assert answer.status == 201, answer.body
        return str(answer.json["id"])

    def over(self) -> None:
        self.setup.read(**{self.id: 7000})
        readings(self.setup, 4, **{self.id: 7000})

    def end(self) -> None:
        """The hub's spawner gives the slice back."""
        assert self.world.call("DELETE", f"notebooks/{self.id}", "hub").status == 204

    def listed(self, query: str = "?stopped=1") -> list[Any]:
        return list(self.world.get(f"notebooks{query}", "bob").json["items"])

    def audited(self) -> list[str]:
        rows = self.world.get("audit?limit=100", "root").json["items"]
        return [f"{row['who']} {row['what']}" for row in rows]


@pytest.fixture
def stopped(setup: EnforcementSetup) -> Stopped:
    setup.world.add("root", admin=True)
    return Stopped(setup)


WHY = "The service stopped this notebook's server: its processes used 7000 MiB of device GPU-"


def test_the_reason_of_a_stop_is_shown_until_the_next_slice(stopped: Stopped, chromium: Any) -> None:
    stopped.over()
    stopped.end()
    assert stopped.listed("") == []
    (found,) = stopped.listed()
    assert (found["state"], found["reason"]["code"]) == ("returned", "stopped_over_share")
    assert found["reason"]["message"].startswith(WHY) and "its share is 3744 MiB" in found["reason"]["message"]
    (shown,) = stopped.world.get("me?user=bob", "hub").json["stopped"]
    assert (shown["server"], shown["reason"]["message"]) == ("", found["reason"]["message"])
    page = open_page(stopped.world, chromium, "", "bob")
    seen(page, "The service stopped this notebook's server", "#notebooks .s-stopped ~ .under")
    page.context.close()
    stopped.ask("0.5")
    assert [each["state"] for each in stopped.listed()] == ["booked"]
    assert stopped.world.get("me?user=bob", "hub").json["stopped"] == []


def test_a_notebook_above_its_share_shows_the_warning(stopped: Stopped, chromium: Any) -> None:
    stopped.setup.read(**{stopped.id: 7000})
    (found,) = stopped.listed("")
    assert found["warning"].startswith("It uses 7000 MiB of device GPU-") and "is stopped at" in found["warning"]
    page = open_page(stopped.world, chromium, "", "bob")
    seen(page, found["warning"], "#notebooks")
    seen(page, "memory policed", "#notebooks")
    page.context.close()
    stopped.setup.read(1_000, **{stopped.id: 100})
    assert stopped.listed("")[0]["warning"] is None


def test_an_old_stop_is_no_longer_shown(stopped: Stopped) -> None:
    stopped.over()
    stopped.end()
    assert len(stopped.listed()) == 1
    world, days = stopped.world.services.store_view, 86_400_000
    world.now, stopped.world.services.stop_reasons._read_s = lambda: stopped.setup.now + 4 * days, float("-inf")
    assert stopped.listed() == []


def test_other_users_do_not_see_the_reason_of_a_stop(stopped: Stopped) -> None:
    stopped.over()
    stopped.end()
    stopped.world.add("eve")
    assert stopped.world.get("notebooks?stopped=1", "eve").json["items"] == []
    assert stopped.world.get("me", "eve").json["stopped"] == []


def test_the_audit_has_actor_and_reason_of_warnings_and_stops(stopped: Stopped) -> None:
    stopped.over()
    said = stopped.audited()
    assert any(line.startswith("memory enforcement warned bob's notebook: it uses 7000 MiB") for line in said), said
    stops = [line for line in said if line.startswith(f"memory enforcement had the hub stop bob's notebook. {WHY}")]
    assert len(stops) == 1, said


def test_a_decided_stop_is_carried_out_by_the_next_controller(stopped: Stopped) -> None:
    """The hub was away, or the service died: the reason stands in the store, so the server is stopped all the same."""

    stopped.enforcement.effects.stop_server = lambda record: None
    stopped.over()
    stopped.world.controllers.take_over()
    stopped.enforcement.effects.stop_server = stopped._stop
    stopped.setup.read(1_000, **{stopped.id: 100})
    assert stopped.setup.stopped == [stopped.id]


def test_a_server_restarted_before_its_slice_is_returned_gets_a_new_one(stopped: Stopped) -> None:
    stopped.over()
    assert stopped.ask("0.5") != stopped.id
    stopped.setup.stopped.clear()
    stopped.setup.read(61_000)
    assert stopped.setup.stopped == []


def test_a_server_with_too_weak_enforcement_shows_a_warning(setup: EnforcementSetup) -> None:
    setup.world.add("root", admin=True)
    stopped = Stopped(setup, "none")
    setup.apply(policy("driver"))
    server = subprocess.Popen(["sleep", "600"], env={**os.environ, **share_of(stopped.id)})
    Servers(setup.world.state_dir).record_start(stopped.id, server.pid)
    try:
        setup.read(**{stopped.id: 100})
        readings(setup, 5, **{stopped.id: 100})
        (found,) = stopped.listed("")
        assert "its server is stopped, unless that has changed" in found["warning"] and setup.stopped == []
        warned = "warned bob's notebook: its share of device GPU-0 is enforced at memory policed"
        assert any(warned in line for line in stopped.audited()), stopped.audited()
        readings(setup, 15, **{stopped.id: 100})
        assert setup.stopped
    finally:
        server.kill()
        server.wait()
    stopped.end()
    (found,) = stopped.listed()
    assert (
        found["reason"]["code"] == "stopped_too_weak"
        and "requires at least memory driver" in found["reason"]["message"]
    )
    assert setup.stopped == [stopped.id]


def test_the_audit_row_of_a_stopped_job_names_memory_enforcement_and_the_reason(setup: EnforcementSetup) -> None:
    setup.world.add("root", admin=True)
    setup.apply(policy("policed"))
    job = setup.running()
    setup.read(**{job: 7000})
    readings(setup, 4, **{job: 7000})
    setup.world.step()
    rows = setup.world.get("audit?limit=100", "root").json["items"]
    (row,) = [row for row in rows if row["kind"] == "stop"]
    assert row["payload"]["action"]["reason"]["code"] == "over_share"
    assert " for memory enforcement. The job used 7000 MiB of device GPU-" in row["what"]
    (held,) = [row for row in rows if row["kind"] == "job.hold"]
    assert held["who"] == "memory enforcement" and "which was running. The job used 7000 MiB" in held["what"]
