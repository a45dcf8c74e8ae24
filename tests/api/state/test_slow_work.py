"""Computations that take seconds: one user has few of them at a time, and none begins for a closed connection."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.api.access.work_in_progress import SLOW_WORK
from jupyter_gpu_quota.api.requests.resource import Resource
from jupyter_gpu_quota.api.state.threads import SLOW_THREADS
from jupyter_gpu_quota.core.explain import projection
from jupyter_gpu_quota.store.memory import MemoryStore
from tests.api.world import Reply, ServiceWorld, service_world
from tests.patience import PATIENCE_S, until

DRY_RUN = {"command": ["x"], "dry_run": True}
AT_ONCE = 20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path, store=MemoryStore()) as made:
        yield made


@pytest.fixture
def may_end() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def dry_runs(may_end: threading.Event, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each dry run that has begun; none ends before ``may_end``."""
    begun, compute = list[int](), projection.dry_run

    def held(*given: Any) -> Any:
        begun.append(1)
        may_end.wait()
        return compute(*given)

    monkeypatch.setattr(projection, "dry_run", held)
    return begun


def test_an_explanation_waits_for_few_dry_runs_of_another_user(
    world: ServiceWorld, dry_runs: list[int], may_end: threading.Event
) -> None:
    job, replies, explained = world.submit("bob")["id"], list[Reply](), list[Reply]()
    senders = [
        threading.Thread(target=lambda: replies.append(world.post("jobs", "olga", DRY_RUN))) for _ in range(AT_ONCE)
    ]
    reader = threading.Thread(target=lambda: explained.append(world.get(f"explain/{job}", "bob")))
    for sender in senders:
        sender.start()
    until(lambda: len(replies) == AT_ONCE - SLOW_WORK.most and len(dry_runs) == SLOW_THREADS)
    assert {(each.status, each.json["reason"], each.headers["retry-after"]) for each in replies} == {
        (429, "too_many_computations", "2")
    }
    reader.start()
    may_end.set()
    for each in (reader, *senders):
        each.join(PATIENCE_S)
    assert [each.status for each in explained] == [200] and len(dry_runs) == SLOW_WORK.most
    assert world.post("jobs", "olga", DRY_RUN).status == 200


def test_a_dry_run_of_a_closed_connection_does_not_begin(
    world: ServiceWorld, dry_runs: list[int], may_end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = list[int](), Resource.on_connection_close

    def closing(resource: Resource) -> None:
        close(resource)
        closed.append(1)

    monkeypatch.setattr(Resource, "on_connection_close", closing)
    for _ in range(SLOW_THREADS):
        world.services.store_view._slow.submit(may_end.wait)
    connection = http.client.HTTPConnection("127.0.0.1", world.port)
    connection.request("POST", world.path("jobs"), json.dumps(DRY_RUN), {"Authorization": "token token-bob"})
    until(lambda: world.services.in_progress._counts)
    connection.close()
    until(lambda: closed)
    may_end.set()
    until(lambda: not world.services.in_progress._counts)
    assert dry_runs == []
