"""The service as processes: one service at a time; requests are committed in groups."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from jupyter_gpu_quota.api.main import cookie_secret
from jupyter_gpu_quota.api.requests.writer import Writer
from jupyter_gpu_quota.deployment import pid_file
from jupyter_gpu_quota.store.records.calls import StoreUnavailable
from jupyter_gpu_quota.store.records.commands import KeepBundle, Recorded, Refusal, Request
from tests.api.world import service_world
from tests.patience import PATIENCE_S, until

OBEDIENT = "import time; time.sleep(60)"
IGNORING = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"


# --- the previous service ---------------------------------------------------------------------------------------------
def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def record(folder: Path, pid: int, started: int | None) -> None:
    (folder / pid_file.PID_FILE).write_text(json.dumps({"pid": pid, "started": started}))


@pytest.mark.parametrize("code", [OBEDIENT, IGNORING], ids=["one that obeys SIGTERM", "one that does not"])
def test_the_recorded_service_is_stopped(tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pid_file, "STOPS_WITHIN_S", 1.0)
    old = start(code)
    if code == IGNORING:
        assert old.stdout is not None
        old.stdout.readline()
    record(tmp_path, old.pid, pid_file.process_of(old.pid).started)
    pid_file.take_over(tmp_path)
    assert old.wait(PATIENCE_S) in (-signal.SIGTERM, -signal.SIGKILL)
    assert json.loads((tmp_path / pid_file.PID_FILE).read_text())["pid"] == os.getpid()


def test_another_process_with_a_reused_pid_is_not_stopped(tmp_path: Path) -> None:
    other = start(OBEDIENT)
    try:
        record(tmp_path, other.pid, pid_file.process_of(other.pid).started - 1)
        pid_file.take_over(tmp_path)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("text", ["", "{", '{"pid": "x"}', '{"pid": 999999999, "started": 1}'])
def test_an_invalid_pid_file_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / pid_file.PID_FILE).write_text(text)
    pid_file.take_over(tmp_path)
    pid_file.remove_pid_file(tmp_path)
    assert not (tmp_path / pid_file.PID_FILE).exists()


def test_the_cookie_secret_is_stored_for_this_account_only(tmp_path: Path) -> None:
    assert cookie_secret(tmp_path) == cookie_secret(tmp_path)
    assert (tmp_path / "cookie_secret").stat().st_mode & 0o777 == 0o600


def test_processes_that_start_together_have_one_cookie_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = list[bytes]()
    random_bytes = secrets.token_bytes

    def while_another_starts(count: int) -> bytes:
        monkeypatch.setattr(secrets, "token_bytes", random_bytes)
        others.append(cookie_secret(tmp_path))
        return random_bytes(count)

    monkeypatch.setattr(secrets, "token_bytes", while_another_starts)
    assert [cookie_secret(tmp_path)] == others == [cookie_secret(tmp_path)]
    assert [each.name for each in tmp_path.iterdir()] == ["cookie_secret"]


@pytest.mark.parametrize("text", ["", "abcd", "no secret"])
def test_a_cookie_secret_that_is_none_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "cookie_secret").write_text(text)
    assert cookie_secret(tmp_path) == bytes.fromhex((tmp_path / "cookie_secret").read_text())


# --- the writer -------------------------------------------------------------------------------------------------------
class FakeRecords:
    """A fake of the writing part of the store: it counts its transactions, and may be unavailable.

    A transaction ends after ``released`` was set.
    """

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.unavailable = False
        self.released = threading.Event()

    def record(self, requests: Sequence[Request], *, now: int) -> list[Recorded | Refusal]:
        assert self.released.wait(PATIENCE_S)
        if self.unavailable:
            raise StoreUnavailable("The disk is full.")
        self.batches.append(len(requests))
        return [
            Refusal(code="invalid", message="no") if each.digest == "bad" else Recorded(id=each.digest, version=1)  # type: ignore[union-attr]
            for each in requests
        ]


def request(digest: str) -> KeepBundle:
    return KeepBundle(digest=digest, user="u", size_bytes=1)


async def test_waiting_requests_are_written_in_one_transaction_and_each_gets_its_own_answer() -> None:
    store, committed = FakeRecords(), []
    writer = Writer(lambda: store, lambda: 1, committed=lambda: committed.append(1))
    pending = asyncio.gather(*(writer.record(request("bad" if n == 7 else str(n))) for n in range(50)))
    await asyncio.sleep(0)
    store.released.set()
    outcomes = await pending
    writer.close()
    assert [type(outcome) for outcome in outcomes].count(Refusal) == 1 and isinstance(outcomes[7], Refusal)
    assert [outcome.id for outcome in outcomes if isinstance(outcome, Recorded)] == [
        str(n) for n in range(50) if n != 7
    ]
    assert sum(store.batches) == 50 and len(store.batches) <= 3
    assert len(committed) == len(store.batches)


async def test_while_the_store_is_unavailable_each_request_fails_and_the_next_is_tried() -> None:
    store = FakeRecords()
    store.released.set()
    writer = Writer(lambda: store, lambda: 1)
    store.unavailable = True
    for failed in await asyncio.gather(*(writer.record(request(str(n))) for n in range(3)), return_exceptions=True):
        assert isinstance(failed, StoreUnavailable)
    store.unavailable = False
    assert isinstance(await writer.record(request("1")), Recorded)
    writer.close()


async def test_a_cancelled_request_does_not_affect_others() -> None:
    store = FakeRecords()
    writer = Writer(lambda: store, lambda: 1)
    first, second = asyncio.create_task(writer.record(request("1"))), asyncio.create_task(writer.record(request("2")))
    await asyncio.sleep(0)
    first.cancel()
    store.released.set()
    assert (await second).id == "2"  # type: ignore[union-attr]
    writer.close()


# --- a database that cannot be used -----------------------------------------------------------------------------------
def test_without_a_usable_database_requests_get_503_with_the_sentence(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        assert world.get("me").status == 200
        world.services.slot.store, kept = None, world.services.slot.store
        world.services.slot.why = "The database is full."
        refused = world.post("jobs", "bob", {"command": ["x"]})
        assert (refused.status, refused.json["reason"]) == (503, "store_unavailable")
        assert "The database is full. Running jobs continue" in refused.json["message"]
        assert int(refused.headers["retry-after"]) > 0
        assert (world.get("health", None).status, world.get("ready", None).status) == (200, 503)
        world.services.slot.store = kept
        assert world.post("jobs", "bob", {"command": ["x"]}).status == 201


def test_a_hub_may_start_while_the_database_cannot_be_used(tmp_path: Path) -> None:
    """It asks for the first page and takes anything below 500 for a service that is up."""
    with service_world(tmp_path) as world:
        kept, world.services.slot.store = world.services.slot.store, None
        assert world.get("/services/gpu-quota/", None).status == 302
        world.services.slot.store = kept


def test_a_locked_database_stores_nothing_and_is_reported(tmp_path: Path) -> None:
    import sqlite3

    with service_world(tmp_path, busy_timeout_ms=500) as world:
        world.get("me")
        before = world.store.version()
        with sqlite3.connect(world.state_dir / "gpu-quota.sqlite", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = world.post("jobs", "bob", {"command": ["x"]})
            assert (refused.status, refused.json["reason"]) == (503, "store_unavailable")
            other.execute("ROLLBACK")
        assert world.store.version() == before


# --- readiness and OpenAPI --------------------------------------------------------------------------------------------
def test_ready_names_the_part_that_is_missing(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        now = world.hold_clock()
        world.step()
        assert world.get("ready", None).json["ready"]
        world.clock = lambda: now + 60_000
        lacking = world.get("ready", None)
        assert (lacking.status, lacking.json["lease"], lacking.json["store"]) == (503, False, True)
        assert "lease" in lacking.json["message"]


def test_openapi_describes_every_route_with_valid_references(tmp_path: Path) -> None:
    with service_world(tmp_path) as world:
        document = world.get("openapi.json", None).json
    names = set(document["components"]["schemas"])
    references = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert references <= names
    assert document["paths"]["/jobs"]["post"]["requestBody"]
    operations = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(operations) == len(set(operations))


def test_an_idle_api_with_a_follower_reads_the_store_at_most_once_a_second(tmp_path: Path) -> None:
    with service_world(tmp_path) as world, world.stream("events") as events:
        next(events)
        asked: list[float] = []
        changes = world.store.changes
        world.store.changes = lambda *a, **k: (asked.append(time.monotonic()), changes(*a, **k))[1]  # type: ignore[method-assign]
        until(lambda: len(asked) >= 3)
        assert asked[2] - asked[0] > 1.5


# --- garbage collection ---------------------------------------------------------------------------------------------
def test_the_api_excludes_its_imports_from_garbage_collection() -> None:
    code = """
import gc
from jupyter_gpu_quota.api import main as api
async def serve(*_, **more): print(gc.get_freeze_count())
api.serve, api.settings_from_environment = serve, lambda: None
api.main([])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert int(done.stdout) > 10_000


# --- the worlds of these tests ----------------------------------------------------------------------------------------
def test_a_closed_world_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """Hundreds of worlds share one process."""

    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        with service_world(folder) as world, world.stream("events") as events:
            next(events)
    until(lambda: descriptors() <= before + 3)  # resolvers are taken down in the background
