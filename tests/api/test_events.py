"""The event stream: what changed, for those who may see it, without gaps and without waiting for slow readers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api import events as events_module
from jupyter_gpu_quota.api.access import people
from jupyter_gpu_quota.api.access.permissions import Person
from jupyter_gpu_quota.api.access.work_in_progress import EVENT_STREAMS
from jupyter_gpu_quota.api.events import MAX_UNSENT, _Inbox
from jupyter_gpu_quota.api.handlers import logs as logs_module
from jupyter_gpu_quota.api.state.store_view import Delta
from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.settings import database_url
from jupyter_gpu_quota.store.backup import backup, restore
from jupyter_gpu_quota.store.records.commands import RequestNotebook
from jupyter_gpu_quota.store.records.rows import Changes
from tests.api.world import QUOTA, ServiceWorld, service_world
from tests.patience import PATIENCE_S, until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path) as made:
        yield made


def event_with(events: Iterator[tuple[str, Any]], true: Any) -> Any:
    """The first event's data of which something is true."""
    for _ in range(50):
        _, data = next(events)
        if true(data):
            return data
    raise AssertionError("it never came")


def test_the_first_event_has_the_version_of_the_stream(world: ServiceWorld) -> None:
    with world.stream("events") as events:
        name, data = next(events)
    assert (name, data["jobs"], data["version"]) == ("changed", [], world.store.version())


def test_an_event_has_the_complete_present_view(world: ServiceWorld) -> None:
    with world.stream("events") as events:
        next(events)
        job = world.submit(name="mine")["id"]
        assert event_with(events, lambda data: data["jobs"])["jobs"][0]["name"] == "mine"
        world.step()
        data = event_with(events, lambda data: data["devices"])
        assert data["jobs"][0]["state"] == "starting"
        assert [holder["workload"] for device in data["devices"] for holder in device["holders"]] == [job]


def test_an_event_after_a_take_over_has_only_what_changed(world: ServiceWorld) -> None:
    stays, starts, ends = (world.submit(name=name)["id"] for name in ("stays", "starts", "ends"))
    world.step()
    for job in (stays, ends):
        world.see_running(job)
    with world.stream("events") as events:
        next(events)
        fencing, now = world.services.store_view.mirror.fencing, world.clock() + 60_000
        lease = world.store.acquire_lease("other", clock=lambda: now, ttl_ms=3000)
        assert lease is not None
        facts = (
            RankFact(job=starts, attempt=1, rank=0, handle="1", started_at=now),
            RankFact(job=ends, attempt=1, rank=0, handle="1", started_at=1, ended_at=2, exit_status=0, tree_gone=True),
        )
        world.store.observe(facts, lease=lease, now=now)
        data = event_with(events, lambda data: data["jobs"])
        assert world.services.store_view.mirror.fencing > fencing
    assert {one["id"]: one["state"] for one in data["jobs"]} == {starts: "running", ends: "succeeded"}
    assert len(data["devices"]) == 2
    assert stays not in {holder["workload"] for device in data["devices"] for holder in device["holders"]}


def test_a_stream_without_devices_has_the_same_jobs(world: ServiceWorld) -> None:
    with world.stream("events?without_devices=1") as events:
        next(events)
        job = world.submit(name="mine")["id"]
        world.step()
        data = event_with(events, lambda data: any(one["state"] == "starting" for one in data["jobs"]))
        assert ([one["id"] for one in data["jobs"]], data["devices"]) == ([job], [])
        world.see_running(job)
        data = event_with(events, lambda data: any(one["state"] == "running" for one in data["jobs"]))
        assert data["devices"] == []
    with world.stream("events?without_devices=1&since=1") as events:
        resumed = next(events)[1]
        assert ([one["id"] for one in resumed["jobs"]], resumed["devices"]) == ([job], [])


def test_a_stream_without_devices_has_the_notebooks(world: ServiceWorld) -> None:
    with world.stream("events?without_devices=1") as events:
        next(events)
        request_notebook(world, "N1", "bob", "vision")
        assert [one["id"] for one in next(events)[1]["notebooks"]] == ["N1"]


def request_notebook(world: ServiceWorld, name: str, user: str, project: str) -> None:
    owner = world.store.user_id(user, now=world.clock())
    world.record(RequestNotebook(notebook=name, user=owner, server="", project=project, pool="build", gpu_milli=125))


def test_a_device_bar_changes_with_the_state_of_its_workload(world: ServiceWorld) -> None:
    job = world.submit()["id"]
    world.step()
    with world.stream("events") as events:
        next(events)
        world.see_running(job)
        data = event_with(events, lambda data: data["devices"])
    assert [holder["state"] for device in data["devices"] for holder in device["holders"]] == ["running"]


def test_each_user_gets_events_of_their_own_projects_only(world: ServiceWorld) -> None:
    with (
        world.stream("events", "bob") as bob,
        world.stream("events", "patty") as patty,
        world.stream("events", "olga") as olga,
    ):
        for events in (bob, patty, olga):
            next(events)
        world.submit("bob", name="secret plan", private=True)
        world.submit("bob", name="vision")
        world.step()
        world.submit("patty", name="speech")
        seen = {
            who: event_with(events, lambda data, last=last: any(job["name"] == last for job in data["jobs"]))
            for who, events, last in (("bob", bob, "vision"), ("patty", patty, "speech"), ("olga", olga, "vision"))
        }
        text = {who: str(data) for who, data in seen.items()}
    assert "secret plan" not in text["olga"] + text["patty"]
    assert "vision" not in {job["project"] for job in seen["patty"]["jobs"]}


def test_others_devices_change_without_a_name(world: ServiceWorld) -> None:
    with world.stream("events", "patty") as events:
        next(events)
        job = world.submit("bob")["id"]
        world.step()
        data = event_with(events, lambda data: data["devices"])
    assert data["jobs"] == [] and job not in str(data) and "bob" not in str(data)
    assert [holder["kind"] for device in data["devices"] for holder in device["holders"]] == ["hidden"]


@pytest.mark.parametrize("how", ["Last-Event-ID", "since"])
def test_a_resumed_reader_misses_no_change(world: ServiceWorld, how: str) -> None:
    with world.stream("events") as events:
        version = next(events)[1]["version"]
    job = world.submit(name="meanwhile")["id"]
    world.post(f"jobs/{job}/actions/cancel")
    headers = {"Last-Event-ID": str(version)} if how == "Last-Event-ID" else {}
    path = "events" if headers else f"events?since={version}"
    with world.stream(path, headers=headers) as events:
        name, data = next(events)
    assert (name, [(each["id"], each["state"]) for each in data["jobs"]]) == ("changed", [(job, "cancelled")])


def test_a_resumed_reader_gets_no_work_of_others(world: ServiceWorld) -> None:
    world.submit("bob", name="secret plan", private=True)
    world.submit("patty", project="speech")
    request_notebook(world, "N1", "patty", "speech")
    with world.stream("events?since=1", "olga") as events:
        data = next(events)[1]
    assert (data["jobs"], data["notebooks"]) == ([], [])


def test_a_reader_who_missed_too_much_is_reset_without_a_read_of_it(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, asked = world.store.changes, list[int]()

    def asking(since: int, **more: bool) -> Changes:
        asked.append(since)
        return changes(since, **more)

    world.submit()
    world.submit()
    monkeypatch.setattr(events_module, "MAX_RESUMED", 1)
    monkeypatch.setattr(world.store, "changes", asking)
    with world.stream("events?since=1") as stream:
        assert next(stream)[0] == "reset"
    assert 1 not in asked


def test_a_reader_from_another_database_is_reset(world: ServiceWorld) -> None:
    with world.stream("events?since=999999") as events:
        assert next(events)[0] == "reset"


@pytest.mark.parametrize("path", ["events", "events?without_devices=1"])
def test_open_streams_are_reset_by_a_restore(world: ServiceWorld, tmp_path: Path, path: str) -> None:
    url, file = database_url(world.settings), tmp_path / "backup.sqlite"
    backup(url, file)
    with world.stream(path, "patty") as events:  # she sees nothing of it
        next(events)
        world.submit("bob")
        world.run(world.services.store_view.refresh())
        restore(url, file, now=world.clock())
        reset = next(data for name, data in events if name == "reset")
        assert reset == {"version": world.store.version()}


def test_a_reader_who_loses_the_project_gets_no_more_events(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(world, monkeypatch)
    with world.stream("events", "olga") as events:
        next(events)
        world.apply(QUOTA.replace("bob, olga", "bob"))
        world.run(world.services.store_view.refresh())
        assert next(events)[0] == "reset"
        world.submit("bob", name="unseen")
        assert stands(events)


def test_a_reader_who_joins_a_project_is_reset_and_gets_its_changes(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(world, monkeypatch)
    world.apply(QUOTA.replace("bob, olga", "bob"))
    with world.stream("events", "olga") as events:
        next(events)
        world.apply(QUOTA)
        world.run(world.services.store_view.refresh())
        assert next(events)[0] == "reset"
        job = world.submit("bob", name="seen")["id"]
        assert event_with(events, lambda data: data["jobs"])["jobs"][0]["id"] == job


def impatient(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams beat, and readers are asked about again, all the time. Accounts are remembered for 0.1 s."""
    monkeypatch.setattr(people, "RECHECK_S", 0.0)
    monkeypatch.setattr(people, "FRESH_S", 0.1)
    for module in (events_module, logs_module):
        monkeypatch.setattr(module, "HEARTBEAT_S", 0.2)


def ends(stream: Iterator[tuple[str, Any]]) -> bool:
    """Whether a stream ends by itself, whatever it still says before."""
    for _ in stream:
        pass
    return True


def stands(stream: Iterator[tuple[str, Any]]) -> bool:
    """Whether a stream goes on without a word."""
    with pytest.raises(AssertionError, match="only heartbeats come"):
        raise RuntimeError(next(stream, None))
    return True


@pytest.mark.parametrize("path", ["events", "jobs/{job}/logs?follow=1"], ids=["the event stream", "a followed log"])
def test_a_revoked_token_ends_its_streams_and_opens_no_new_one(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Other requests may be answered for a minute: by then the cached answer of the hub about the token has expired."""
    impatient(world, monkeypatch)
    job = world.submit()["id"]
    with world.stream(path.format(job=job)) as stream:
        world.hub.revoked.add("token-bob")
        assert ends(stream)
    assert world.get("me").status == 200
    refused = world.get(path.format(job=job))
    assert (refused.status, "no longer accepts this token of bob" in refused.json["message"]) == (403, True)


@pytest.mark.parametrize("path", ["events", "jobs/{job}/logs?follow=1"], ids=["the event stream", "a followed log"])
def test_a_token_that_loses_its_scope_ends_its_streams(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    impatient(world, monkeypatch)
    job = world.submit()["id"]
    with world.stream(path.format(job=job)) as stream:
        world.hub.users["bob"].scopes = ()
        assert ends(stream)


def test_a_streams_reader_is_authenticated_at_its_start_and_every_15_s() -> None:
    now, asked = 0.0, list[float]()

    class FakePeople:
        async def reauthenticate(self, request: Any, person: people.Person) -> people.Person:
            asked.append(now)
            return person

    unused: Any = None
    reader = people.Reader(FakePeople(), unused, people.HUB_PERSON, clock=lambda: now)  # type: ignore[arg-type]
    while now < 31:
        asyncio.run(reader.now())
        now += events_module.HEARTBEAT_S
    assert asked == [0, 15, 30]


def test_a_stream_outlives_a_hub_that_is_away_for_a_while(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(world, monkeypatch)
    with world.stream("events") as stream:
        next(stream)
        world.hub.away = True
        assert stands(stream)
    world.hub.away = False
    with world.stream("events") as stream:
        next(stream)
        world.hub.away = True
        monkeypatch.setattr(people, "MAX_STALE_S", 0.0)
        assert ends(stream)


def test_a_hub_that_hangs_does_not_silence_a_stream(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and never answers."""
    impatient(world, monkeypatch)
    monkeypatch.setattr(people, "RECHECK_WITHIN_S", 0.05)
    hangs = list[None]()

    async def hang(*_: object) -> Person:
        hangs.append(None)
        await asyncio.Event().wait()
        raise AssertionError("it never ends")

    with world.stream("events") as stream:
        next(stream)
        monkeypatch.setattr(world.services.people, "reauthenticate", hang)
        assert stands(stream)
        assert hangs, "the reader was checked meanwhile"


def test_a_slow_reader_is_dropped_without_delaying_others() -> None:
    async def flood() -> bool:
        inbox = _Inbox(lambda: people.HUB_PERSON)
        for number in range(MAX_UNSENT + 1):
            inbox.put(Delta(version=number, devices=("train-0",)))
        return inbox.overrun

    assert asyncio.run(flood())


def test_changes_of_others_work_wake_no_reader(world: ServiceWorld) -> None:
    private, other = world.submit(private=True), world.submit("patty", project="speech")
    records = [world.store.job(each["id"]) for each in (private, other)]
    delta = Delta(version=1, jobs=tuple(record for record in records if record is not None))
    olga, patty = (world.run(world.services.people.by_name(name)) for name in ("olga", "patty"))

    async def taken(person: Person | None) -> list[str] | None:
        assert person is not None
        inbox = _Inbox(lambda: person)
        inbox.put(delta)
        changes = await inbox.take(0.01)
        return None if changes is None else list(changes.jobs)

    assert (asyncio.run(taken(olga)), asyncio.run(taken(patty))) == (None, [other["id"]])


def test_event_streams_per_user_are_limited(world: ServiceWorld) -> None:
    with ExitStack() as open_streams:
        for _ in range(EVENT_STREAMS.most):
            next(open_streams.enter_context(world.stream("events")))
        refused = world.get("events")
        assert (refused.status, refused.json["reason"]) == (429, "too_many_streams")
        with world.stream("events", "olga") as events:
            next(events)


def test_a_closed_stream_is_forgotten(world: ServiceWorld) -> None:
    with world.stream("events") as events:
        next(events)

    def forgotten() -> bool:
        world.submit()
        return not world.services.store_view._listeners and not world.services.streams._counts

    until(forgotten)


def test_a_write_during_a_refresh_is_in_the_next_answer(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()["id"]
    world.step()
    seen, read_on, changes = threading.Event(), threading.Event(), world.store.changes

    def slow(*asked: Any, **more: Any) -> Changes:
        found = changes(*asked, **more)
        seen.set()
        assert read_on.wait(PATIENCE_S)
        return found

    async def answer() -> JobState:
        read_on.set()
        await asyncio.wait([world.services.store_view._refreshing])
        await world.services.store_view.refresh_if_stale()
        return world.services.store_view.mirror.jobs[job].job.state

    monkeypatch.setattr(world.store, "changes", slow)
    world.loop.call_soon_threadsafe(world.services.store_view.notify)
    assert seen.wait(PATIENCE_S)
    world.see_running(job)
    assert world.run(answer()) is JobState.RUNNING
