"""The view of the store, over a fault and a restore of the database, and during long reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.api.access.work_in_progress import LOG_READS
from jupyter_gpu_quota.api.state.store_view import Delta
from jupyter_gpu_quota.api.state.threads import LONG_READERS
from jupyter_gpu_quota.backends.protocol import LogPart
from jupyter_gpu_quota.core.reasons import OverShare
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.activity import KeepNotes, Note
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.commands import ApplyQuota
from tests.api.world import QUOTA, Reply, ServiceWorld, service_world
from tests.patience import until

AWAY = StoreUnavailable("The database is away.")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ServiceWorld]:
    with service_world(tmp_path, store=MemoryStore()) as made:
        yield made


def fails_once(read: Callable[..., Any]) -> Callable[..., Any]:
    """A read whose first call finds no database."""
    calls = list[int]()

    def reading(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise AWAY
        return read(*args, **kwargs)

    return reading


# --- a database that fails, or is restored ------------------------------------------------------------------------
def test_a_change_whose_names_cannot_be_read_reaches_listeners_later(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, heard = world.services.store_view, list[Delta]()
    world.submit("bob")

    async def follow() -> None:
        view.listen(heard.append)
        monkeypatch.setattr(world.store, "user_names", fails_once(world.store.user_names))
        view.names.clear()

    world.run(follow())
    world.post("jobs", "bob", {"command": ["x"], "name": "second"})
    world.run(view.refresh())
    assert {record.spec.name for delta in heard for record in delta.jobs} == {"second"}
    assert {record.spec.name for record in view.mirror.jobs.values()} == {"python train.py", "second"}


def test_a_request_that_was_recorded_and_cannot_be_read_back_is_not_sent_again(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.get("jobs")
    changes = world.store.changes
    monkeypatch.setattr(world.store, "changes", fails_once(changes))
    answer = world.post("jobs", "bob", {"command": ["x"]})
    assert (answer.status, answer.json["reason"], "retry-after" in answer.headers) == (503, "recorded_unread", False)
    (record,) = world.store.changes(0).jobs
    assert f"recorded as {record.job.id}" in answer.json["message"]


def test_a_change_that_was_recorded_and_whose_answer_cannot_be_read_is_not_sent_again(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit("bob")["id"]
    monkeypatch.setattr(world.store, "job", fails_once(world.store.job))
    answer = world.post(f"jobs/{job}/actions/cancel", "bob")
    assert (answer.status, answer.json["reason"], "retry-after" in answer.headers) == (503, "recorded_unread", False)
    assert f"recorded as {job}" in answer.json["message"]
    monkeypatch.setattr(world.store, "job", fails_once(world.store.job))
    assert world.get(f"jobs/{job}").json["reason"] == "store_unavailable", "this request recorded nothing"


def test_a_request_is_answered_where_only_notes_of_the_store_cannot_be_read(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.get("jobs")
    monkeypatch.setattr(world.store, "notes", fails_once(world.store.notes))
    assert world.post("jobs", "bob", {"command": ["x"]}).status == 201


def store_with_quota(now: int, version: int = 0) -> MemoryStore:
    """A store above a version that has the quota file and no work, as after the restore of an early backup."""
    store, parsed = MemoryStore(), quotafile.parse(QUOTA)
    assert isinstance(parsed, QuotaFile)
    quota = ApplyQuota(
        actor="system:test", text=QUOTA, document=parsed.to_document(), policy=parsed.policy(1), expected_revision=None
    )
    while store.version() <= version:
        store.record([quota], now=now)
    return store


def test_a_restored_database_that_has_passed_the_view_resets_the_listeners(world: ServiceWorld) -> None:
    world.step()
    world.submit("bob")
    view, heard = world.services.store_view, list[Delta]()

    async def follow() -> None:
        await view.refresh()
        view.listen(heard.append)
        world.services.slot.store = world.store = store_with_quota(world.clock(), view.mirror.version)
        await view.refresh()

    world.run(follow())
    assert [delta.reload for delta in heard] == [True]


def test_after_a_restore_the_users_are_those_of_the_restored_database(world: ServiceWorld) -> None:
    for _ in range(3):
        world.submit("bob")
    restored = store_with_quota(world.clock())
    version = world.store.version()
    world.services.slot.store = world.store = restored
    world.run(world.services.store_view.refresh())
    assert world.services.store_view.mirror.version < version
    world.inventory(tuple(world.services.store_view.mirror.devices.values()))
    job = world.submit("bob")
    record = restored.job(job["id"])
    assert record is not None and restored.user_names([record.job.user]) == {record.job.user: "bob"}
    assert job["user"] == "bob"
    world.run(world.services.store_view.wait_for_version(version + 1000))


# --- notes of the controllers --------------------------------------------------------------------------------------
def test_listeners_are_notified_of_notebooks_whose_warnings_begin_and_end(world: ServiceWorld) -> None:
    """No row of the notebook changes by a warning."""
    view, heard, now = world.services.store_view, list[Delta](), world.clock()
    with world.stepping():
        asked = {"user": "bob", "project": "vision", "gpu": "1/8", "server": ""}
        id = world.post("notebooks", "hub", asked).json["id"]
    figures = {"device": "build-0", "used_mib": 900, "share_mib": 512, "stop_at": now}
    warned = Note(
        kind="enforcement", subject=id, at=now, document={"warnings": [{"code": "over_share", "figures": figures}]}
    )

    def heard_after(request: KeepNotes) -> list[str]:
        heard.clear()
        world.store.record([request], now=now)
        world.run(view.refresh())
        world.run(view.refresh())
        return [record.notebook.id for delta in heard for record in delta.notebooks]

    async def follow() -> None:
        view.listen(heard.append)

    world.run(view.refresh())
    world.run(follow())
    assert heard_after(KeepNotes(notes=(warned,))) == [id]
    assert [type(one) for one in view.warnings[id]] == [OverShare]
    assert heard_after(KeepNotes(over=(("enforcement", id),))) == [id]


# --- long reads ---------------------------------------------------------------------------------------------------
def test_long_reads_delay_no_lookup_and_the_audit_is_checked_once_at_a_time(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, replies = list[int](), threading.Event(), list[Reply]()

    def verify() -> int:
        began.append(1)
        may_end.wait()
        return 1

    monkeypatch.setattr(world.store, "audit_verify", verify)
    job = world.submit()["id"]
    threads = [
        threading.Thread(target=lambda: replies.append(world.get("audit/verify", "ann")))
        for _ in range(LONG_READERS + 1)
    ]
    try:
        for thread in threads:
            thread.start()
        until(lambda: began)
        assert world.get(f"jobs/{job}").status == 200
        assert world.get("usage").status == 200
        assert len(began) == 1
    finally:
        may_end.set()
        for thread in threads:
            thread.join()
    assert [reply.json["intact"] for reply in replies] == [True] * len(threads)


def test_slow_reads_of_logs_delay_no_lookup_and_are_limited_per_person(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, replies = list[int](), threading.Event(), list[Reply]()

    def hanging(*_: object) -> LogPart:
        began.append(1)
        may_end.wait()
        return LogPart(0, b"", 0)

    job = world.submit()["id"]
    monkeypatch.setattr(world.services.backend.outputs, "log", hanging)
    reads = [
        threading.Thread(target=lambda: replies.append(world.get(f"jobs/{job}/logs"))) for _ in range(LOG_READS.most)
    ]
    try:
        for read in reads:
            read.start()
        until(lambda: len(began) == len(reads))
        assert world.get("me").status == world.get("usage").status == 200
        refused = world.get(f"jobs/{job}/logs")
        assert (refused.status, refused.json["reason"], refused.headers["retry-after"]) == (
            429, "too_many_log_reads", "2",
        )  # fmt: skip
        assert world.get(f"jobs/{job}/outputs", "olga").status == 200
    finally:
        may_end.set()
        for read in reads:
            read.join()
    assert [reply.status for reply in replies] == [200] * len(reads)
    assert world.get(f"jobs/{job}/logs").status == 200
