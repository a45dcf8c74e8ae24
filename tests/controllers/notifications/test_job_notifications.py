"""Notifications about jobs: which events, how often, over restarts, and what the message says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from jupyter_gpu_quota.controllers import notifications
from jupyter_gpu_quota.controllers.notifications import CURSOR_EVERY_MS, USEFUL_MS, ChannelSender, JobNotifications
from jupyter_gpu_quota.notifications.document import body, schema
from jupyter_gpu_quota.notifications.job_message import JOB_EVENTS, JobMessage
from jupyter_gpu_quota.notifications.message import subject, text
from jupyter_gpu_quota.store.records.calls import Page
from jupyter_gpu_quota.store.records.commands import Recorded, Refusal, Request
from tests.api.world import ServiceWorld, service_world
from tests.controllers.setups.notifications import RecordingChannel


class Notified:
    """A service with a webhook, whose loop about jobs runs when the test says."""

    def __init__(self, world: ServiceWorld, defaults: tuple[str, ...] = ()) -> None:
        self.world, self.defaults, self.channel = world, defaults, RecordingChannel()
        self.sender: ChannelSender = world.controllers.senders[0]
        self.sender.channel = self.channel
        self.take_over()
        self.round()

    def take_over(self) -> None:
        """Another process continues."""
        factory = replace(self.world.controllers.factory, job_events=self.defaults)
        self.loop: JobNotifications = factory.job_notifications()

    def round(self) -> list[str]:
        """Run both loops; returns the events that were sent in this round."""
        now, before = self.world.clock(), len(self.channel.messages)
        self.world.controllers.leadership.renew(now)
        self.loop.run_once(now)
        asyncio.run(self.sender.send_due())
        return [str(message.event) for message in self.channel.messages[before:]]

    def running(self, **request: object) -> str:
        """A job that runs."""
        job: str = self.world.submit(**request)["id"]
        self.world.step()
        self.world.see_running(job)
        return job

    def end(self, job: str, exit_status: int = 0) -> None:
        self.world.see_running(job, ended_at=self.world.clock(), exit_status=exit_status, tree_gone=True)

    def rows(self) -> list[str]:
        return [row.event for row in self.world.store.notifications("webhook", page=Page(limit=100))[0]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path, notification_webhook_url="https://hooks.example.org/x") as world:
        yield world


@pytest.mark.parametrize(
    ("notify", "defaults", "status", "events"),
    [
        pytest.param(["ended"], (), 0, ["job_ended"], id="it ended"),
        pytest.param(["ended"], (), 3, ["job_failed"], id="a failure is an end"),
        pytest.param(["failed"], (), 3, ["job_failed"], id="it failed"),
        pytest.param(["ended", "failed"], (), 3, ["job_failed"], id="both are one message"),
        pytest.param(["failed"], (), 0, [], id="a success is no failure"),
        pytest.param([], ("ended", "failed"), 3, [], id="an owner who wants none"),
        pytest.param(None, (), 3, [], id="nothing is chosen, and there is no default"),
        pytest.param(None, ("failed",), 3, ["job_failed"], id="the default of the site"),
    ],
)
def test_an_owner_is_notified_of_the_chosen_events_once(
    world: ServiceWorld, notify: list[str] | None, defaults: tuple[str, ...], status: int, events: list[str]
) -> None:
    notified = Notified(world, defaults)
    job = notified.running(notify=notify)
    assert world.get(f"jobs/{job}").json["notify"] == notify
    assert notified.round() == []
    notified.end(job, status)
    assert notified.round() == events
    assert notified.round() == []
    notified.take_over()
    assert (notified.round(), notified.rows()) == ([], events)


def test_the_message_of_a_failure_names_the_job_its_cause_and_what_to_do(world: ServiceWorld) -> None:
    notified = Notified(world)
    job = notified.running(notify=["failed"], name="train")
    notified.end(job, 3)
    notified.round()
    [message] = notified.channel.messages
    assert isinstance(message, JobMessage)
    assert (message.user, message.job, message.name, message.state) == ("bob", job, "train", "failed")
    assert subject(message) == "Your job train failed"
    said = text(message)
    assert f"bob, your job “train” ({job}) of project vision in pool train failed." in said
    assert "exit status 3" in said and f"jupyter gpu-quota logs --tail 20 {job}" in said


def test_the_messages_of_many_jobs_are_queued_in_parts(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "JOBS_AT_ONCE", 2)
    notified = Notified(world)
    for job in [notified.running(notify=["ended"], gpu="0.25") for _ in range(5)]:
        notified.end(job)
    written, record = list[int](), notified.loop.store.record

    def noted(*requests: Request) -> list[Recorded | Refusal]:
        written.append(len(requests))
        return record(*requests)

    with monkeypatch.context() as patch:
        patch.setattr(notified.loop.store, "record", noted)
        notified.loop.run_once(world.clock())
    assert written == [2, 2, 2], "two jobs, two jobs, and one with the version"
    assert notified.round() == ["job_ended"] * 5
    notified.take_over()
    assert notified.round() == []


def test_the_version_is_stored_without_messages_in_the_first_run_and_every_few_minutes(world: ServiceWorld) -> None:
    begin, notified = world.hold_clock(), Notified(world)
    for since, is_stored in ((0, False), (CURSOR_EVERY_MS - 1, False), (CURSOR_EVERY_MS, True)):
        set_clock(world, begin + since)
        world.submit(notify=[])
        assert notified.round() == []
        assert (stored_version(world) == world.store.version()) is is_stored
    world.submit(notify=[])
    notified.take_over()
    assert notified.round() == []
    assert stored_version(world) == world.store.version(), "also where controllers change every minute"


def set_clock(world: ServiceWorld, instant: int) -> None:
    world.clock = lambda: instant


def stored_version(world: ServiceWorld) -> object:
    (note,) = world.store.notes("job_events")
    return note.document["version"]


def test_a_version_that_did_not_grow_is_not_stored_again(world: ServiceWorld) -> None:
    begin, notified = world.hold_clock(), Notified(world)
    (note,) = world.store.notes("job_events")
    set_clock(world, begin + CURSOR_EVERY_MS)
    notified.round()
    notified.take_over()
    notified.round()
    assert world.store.notes("job_events") == [note]


def test_a_job_that_ended_while_no_controller_ran_is_notified(world: ServiceWorld) -> None:
    notified = Notified(world)
    first, second = notified.running(notify=["ended"]), notified.running(notify=["ended"])
    notified.end(first)
    assert notified.round() == ["job_ended"]
    notified.end(second)
    notified.take_over()
    assert notified.round() == ["job_ended"]


def test_jobs_of_the_time_before_the_first_run_are_not_notified(world: ServiceWorld) -> None:
    job = world.submit(notify=["ended"])["id"]
    world.step()
    world.see_running(job)
    world.see_running(job, ended_at=world.clock(), exit_status=0, tree_gone=True)
    assert Notified(world).round() == []


def test_an_owner_who_cancels_is_not_notified_and_one_whose_job_a_lead_cancels_is(world: ServiceWorld) -> None:
    notified = Notified(world)
    own, other = (world.submit(notify=["ended"])["id"] for _ in range(2))
    world.post(f"jobs/{own}/actions/cancel")
    assert notified.round() == []
    assert world.post(f"jobs/{other}/actions/cancel", "lea").status == 200
    assert notified.round() == ["job_ended"]
    assert "was cancelled" in text(notified.channel.messages[0])


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        pytest.param({"notify": ["started"]}, "notify", id="an event that there is not"),
        pytest.param({"notify": "ended"}, "notify", id="a text"),
        pytest.param({"notify": ["ended"] * 4}, "notify", id="too many"),
    ],
)
def test_a_wrong_choice_is_refused(world: ServiceWorld, request_: dict[str, object], says: str) -> None:
    refused = world.post("jobs", "bob", {"command": ["true"], **request_})
    assert refused.status == 400 and says in refused.json["message"]


HOSTILE = JobMessage(
    id="J-1-job_failed-webhook", event="job_failed", at=1_900_000_000_000, hub="local", user="<!here> @all", job="J",
    name="<img> @channel [x](y)\u202e", project="vision", pool="train", gpu_milli=2000, state="failed",
    why="It failed.",
)  # fmt: skip


@pytest.mark.parametrize("event", JOB_EVENTS)
def test_every_body_matches_its_schema_and_hostile_names_are_inert(event: object) -> None:
    message = replace(HOSTILE, event=event)  # type: ignore[arg-type]
    document = json.loads(body(message))
    jsonschema.validate(document, schema(), format_checker=jsonschema.FormatChecker())
    assert (document["type"], document["data"]["gpu"]) == (f"job.{message.event[4:]}", "2")
    assert not {"<", "[", "\u202e"} & set(document["text"]) and "@all" not in document["text"]


def test_a_paused_job_is_notified_once_for_each_pause(world: ServiceWorld) -> None:
    notified = Notified(world)
    job = notified.running(notify=["paused"])
    notified.end(job, 75)
    assert (world.get(f"jobs/{job}").json["state"], notified.round()) == ("paused", ["job_paused"])
    said = text(notified.channel.messages[0])
    assert "was paused" in said and "from its checkpoint if it saved one, otherwise from its beginning" in said
    world.step()
    assert notified.round() == []
    world.see_running(job, attempt=2)
    world.see_running(job, attempt=2, ended_at=world.clock(), exit_status=75, tree_gone=True)
    assert notified.round() == ["job_paused"]


def test_a_pause_that_is_over_is_not_sent(world: ServiceWorld) -> None:
    notified = Notified(world)
    job = notified.running(notify=["paused"])
    notified.end(job, 75)
    world.controllers.leadership.renew(world.clock())
    notified.loop.run_once(world.clock())
    world.step()
    assert world.get(f"jobs/{job}").json["state"] == "starting"
    assert (notified.round(), notified.rows()) == ([], ["job_paused"])


def test_an_old_event_is_not_notified(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    notified = Notified(world)
    job = notified.running(notify=["ended"])
    notified.end(job)
    world.controllers.leadership.renew(world.clock())
    notified.loop.run_once(world.clock() + USEFUL_MS)
    assert notified.rows() == []
