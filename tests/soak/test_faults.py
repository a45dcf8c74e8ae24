"""Faults other than kills: a frozen leader, a locked database, a full disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.demo.observer import ProcessObserver
from jupyter_gpu_quota.demo.temporary_hub import TemporaryHub
from tests.patience import stays, until
from tests.soak.checks import broken_promises, check_audit, wait_for_rest
from tests.soak.killer import controller, supervisor
from tests.soak.rest_calls import Answer, ask, request_until_answered
from tests.soak.soak_hub import observed, soak_hub
from tests.soak.stream import TEAMS, WORK, Sent, diary_lines

pytestmark = [pytest.mark.hub, pytest.mark.timeout(300)]

LEASE_S = 3.0
TMPFS_SIZE = "48m"


class Hub:
    """A hub under test with its observer, its diary, and the submitted jobs."""

    def __init__(self, hub: TemporaryHub, observer: ProcessObserver, diary: Path) -> None:
        self.temporary_hub, self.observer, self.diary = hub, observer, diary
        self.sent: list[Sent] = []

    def post(self, kind: str, code: int = 0, user: str = "ann") -> Answer:
        """Submit a job of the soak once."""
        body = {
            "command": [sys.executable, "-S", "-E", str(WORK), str(self.diary), kind, str(code)],
            "gpu": "0.25",
            "project": TEAMS[user],
            "idempotency_key": f"fault-{len(self.sent)}",
        }
        return ask("POST", f"{self.temporary_hub.service_api}/jobs", self.temporary_hub.token_of(user), body, 30)

    def submit(self, kind: str, code: int = 0) -> Sent:
        answer = self.post(kind, code)
        assert answer.status in (200, 201), answer.text
        self.sent.append(Sent(job=answer.body["id"], kind=kind, code=code, user="ann"))
        return self.sent[-1]

    def wrote(self, sent: Sent, event: str) -> bool:
        """Whether a job has written this event to the diary, independently of the service."""
        return any((line["job"], line["event"]) == (sent.job, event) for line in diary_lines(self.diary))

    def fence(self) -> int:
        """The newest fencing number, as recorded where effects happen."""
        return int(json.loads((self.temporary_hub.state_dir / "fence").read_text())["fencing"])

    def check(self) -> None:
        """Every submitted job ended as expected, and no promise was broken."""
        known = wait_for_rest(self.temporary_hub, self.sent, 60)
        assert list(broken_promises(self.sent, known, self.diary)) == []
        assert self.observer.violations == []
        check_audit(self.temporary_hub.service_api, self.temporary_hub.admin_token)


@contextlib.contextmanager
def observed_hub(folder: Path) -> Iterator[Hub]:
    with soak_hub(folder) as hub, observed(hub) as observer:
        yield Hub(hub, observer, folder / "diary")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """One hub for the tests that leave it at rest."""
    with observed_hub(tmp_path_factory.mktemp("faults")) as hub:
        yield hub


@contextlib.contextmanager
def second_controller(pid: int, log: Path) -> Iterator[None]:
    """A second controller with the environment of the one of this pid; it ends when its standard input closes."""
    pairs = (item.partition("=") for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if item)
    environment = {name: value for name, _, value in pairs}
    command = [sys.executable, "-m", "jupyter_gpu_quota", "controller"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.communicate(timeout=60)


def freeze_between_transactions(pid: int, database: Path) -> None:
    """Stop a process that does not hold the database's lock: one frozen inside a transaction would block all others."""

    def frozen_outside() -> bool:
        os.kill(pid, signal.SIGSTOP)
        try:
            with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=0.5)) as probe:
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("ROLLBACK")
        except sqlite3.OperationalError:
            os.kill(pid, signal.SIGCONT)
            return False
        return True

    until(frozen_outside, what="a moment outside a transaction")


def test_a_leader_frozen_past_its_lease_changes_nothing_afterwards(hub: Hub, tmp_path: Path) -> None:
    """The supervisor is frozen with it, as on a paused machine; otherwise it would kill the leader after three leases.

    A machine that stalls for half a lease ends a lease too, so the test tries three times; one must succeed.
    """
    old, first_process = controller(hub.temporary_hub), supervisor(hub.temporary_hub)
    assert old is not None and first_process is not None
    hub.submit("checkpointing")
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    assert any(second_leader_stays_after_thaw(hub, old, first_process, log) for log in logs)
    hub.submit("ending", 5)
    hub.check()


def second_leader_stays_after_thaw(hub: Hub, old: int, first_process: int, log: Path) -> bool:
    """Freeze the leader until another leads; whether that one stayed leader after the thaw."""
    first = hub.fence()
    os.kill(first_process, signal.SIGSTOP)
    freeze_between_transactions(old, hub.temporary_hub.state_dir / "gpu-quota.sqlite")
    try:
        with second_controller(old, log):
            until(lambda: hub.fence() > first, what="a second leader")
            second = hub.fence()
            under_second = hub.submit("ending", 3)
            until(lambda: hub.wrote(under_second, "start"), what="a job under the second leader")
            for pid in (old, first_process):
                os.kill(pid, signal.SIGCONT)
            for code in range(3):
                hub.submit("ending", code)
            stayed = stays(lambda: hub.fence() == second, 2 * LEASE_S)
            until(lambda: all(hub.wrote(sent, "end") for sent in hub.sent), what="the end of all jobs")
    finally:
        for pid in (old, first_process):
            os.kill(pid, signal.SIGCONT)
    assert controller(hub.temporary_hub) == old
    until(lambda: hub.fence() > second, what="the first leader again")
    return stayed


def test_a_locked_database_stops_requests_and_no_job(hub: Hub) -> None:
    running = hub.submit("checkpointing")
    until(lambda: hub.wrote(running, "start"), what="a running job")
    lock = sqlite3.connect(hub.temporary_hub.state_dir / "gpu-quota.sqlite", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    refused = hub.post("ending")
    assert (refused.status, refused.body["reason"]) == (503, "store_unavailable"), refused.text
    until(lambda: hub.wrote(running, "end"), what="the end of the running job while it cannot be recorded")
    lock.execute("ROLLBACK")
    lock.close()
    until(lambda: hub.post("ending").status in (200, 201), what="an API that answers again")
    hub.submit("ending")
    hub.check()
    assert listed(hub) == {sent.job for sent in hub.sent}


def listed(hub: Hub) -> set[str]:
    """Ids of every job that the service knows."""
    answer = request_until_answered(
        "GET", f"{hub.temporary_hub.service_api}/jobs?limit=1000", hub.temporary_hub.admin_token
    )
    return {job["id"] for job in answer.body["items"]}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system for the state of a hub in this folder."""
    state = tmp_path / "hub" / "state"
    state.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_SIZE},mode=711", "tmpfs", str(state)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"this machine cannot mount a file system: {done.stderr.strip()}")
    yield state
    subprocess.run(["umount", "--lazy", str(state)], check=True)


@pytest.fixture
def hub_on_small_disk(small_disk: Path, tmp_path: Path) -> Iterator[Hub]:
    with observed_hub(tmp_path) as hub:
        yield hub


def test_a_full_disk_stops_requests_and_no_job(small_disk: Path, hub_on_small_disk: Hub) -> None:
    hub = hub_on_small_disk
    running = hub.submit("calm")
    until(lambda: hub.wrote(running, "start"), what="a running job")
    filler = small_disk / "filler"
    fill(filler)
    refused = hub.post("ending")
    assert (refused.status, refused.body["reason"]) == (503, "store_unavailable"), refused.text
    until(lambda: hub.wrote(running, "end"), what="the end of the running job while it cannot be recorded")
    filler.unlink()
    until(lambda: hub.post("ending").status in (200, 201), what="an API that answers again")
    hub.submit("ending")
    hub.check()
    assert listed(hub) == {sent.job for sent in hub.sent}


def fill(filler: Path) -> None:
    """Write until the disk is full."""
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
