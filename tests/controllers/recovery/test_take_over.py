"""Two controllers processes on one database: one acts, and the other takes over where it ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from jupyter_gpu_quota.core.model import NotebookState
from jupyter_gpu_quota.hub.ports import free_ports
from jupyter_gpu_quota.settings import GPUQuota, database_url
from jupyter_gpu_quota.store.open import open_store
from jupyter_gpu_quota.store.records.activity import RecordReport
from jupyter_gpu_quota.store.records.calls import Page
from jupyter_gpu_quota.store.records.commands import RequestNotebook
from jupyter_gpu_quota.store.records.ids import new_ulid
from jupyter_gpu_quota.store.records.rows import NotebookRecord
from jupyter_gpu_quota.store.transactions import Store
from tests.api.world import QUOTA, variables_of_service
from tests.notifications.receivers import web_receiver
from tests.patience import PATIENCE_S, Stopwatch, until
from tests.store.database.postgresql_server import database, why_missing

IDLE_S, WARN_S = 75, 30
SOON = f"""
policy:
  idle: {{mode: reclaim, gpu_idle_after: {IDLE_S}s, kernel_idle_after: {IDLE_S}s, when_nobody_waits: {IDLE_S}s,
         warn_for: {WARN_S}s}}
"""
REPORT_EVERY_S = 10
HOUR_MS = 3_600_000
KERNEL = {
    "id": "k1", "name": "python3", "state": "idle", "quiet_ms": HOUR_MS, "running_ms": HOUR_MS, "pid": 7,
    "asks_gpu": True, "cpu_ms": 1_000, "started": None, "connections": 0, "suspended": False,
}  # fmt: skip
BODY = {
    "running_ms": HOUR_MS, "namespace": "", "ticks": None, "kernels": [KERNEL], "programs": [], "asks_first": True,
    "suspension": "off", "suspension_why": "",
}  # fmt: skip


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Site:
    """One database, a notebook whose idle server reports, and controllers processes."""

    def __init__(self, folder: Path, webhook: str, url: str = "", warn_s: int = WARN_S) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        state = folder / "state"
        state.mkdir()
        (folder / "quota.yaml").write_text(QUOTA + SOON.replace(f"warn_for: {WARN_S}s", f"warn_for: {warn_s}s"))
        settings: dict[str, object] = {
            "state_dir": str(state), "database_url": url, "quota_file": str(folder / "quota.yaml"),
            "notification_webhook_url": webhook,
            "simulated_devices": [{"model": "Simulated 16G", "memory_mib": 16_384, "count": 1}],
        }  # fmt: skip
        port, hub_port = free_ports(str(folder), 2)
        self.environment = variables_of_service(settings, hub_port, port)
        self.store: Store = open_store(database_url(GPUQuota(**settings)))
        self.notebook = new_ulid(now_ms())
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report, daemon=True)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "jupyter_gpu_quota", "controller"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.processes[name].pid, number)

    def leads(self, name: str) -> bool:
        lease = self.store.lease()
        return lease is not None and f":{self.processes[name].pid}:" in lease.holder

    def book(self) -> None:
        user = self.store.user_id("bob", now=now_ms())
        asked = RequestNotebook(
            notebook=self.notebook, user=user, server="", project="vision", pool="build", gpu_milli=125
        )
        self.store.record([asked], now=now_ms())
        until(lambda: self.record.notebook.state is NotebookState.BOOKED, what="a booked slice")
        self._reporter.start()

    def _report(self) -> None:
        """Report at fixed instants, so that one late report delays no other."""
        began, sequence = time.monotonic(), 0
        while not self._ended.wait(max(0.0, began + (sequence + 1) * REPORT_EVERY_S - time.monotonic())):
            sequence += 1
            report = RecordReport(notebook=self.notebook, instance="i", sequence=sequence, body=BODY)
            self.store.record([report], now=now_ms())

    @property
    def record(self) -> NotebookRecord:
        record = self.store.notebook(self.notebook)
        assert record is not None
        return record

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for_classification(self) -> None:
        """Wait until the notebook was classified again."""
        before = self._classified_at()
        until(lambda: self._classified_at() > before, what="another classification")

    def _classified_at(self) -> int:
        return max((note.at for note in self.store.notes("idle")), default=0)

    def wait_for_report(self) -> None:
        """Wait until the server has reported again."""
        before = self.store.reports(0)
        until(lambda: self.store.reports(0) != before, what="a report")

    def stage(self) -> str:
        state = self.record.idle_state
        return "in_use" if state is None else str(state["stage"])

    def audited(self) -> list[str]:
        rows, _ = self.store.audit(page=Page(limit=1000))
        kinds = [row.kind.removeprefix("notebook.") for row in reversed(rows) if row.subject == self.notebook]
        return [kind for kind in kinds if kind in ("warned", "withdrawn", "freeing", "freed")]

    def why(self) -> list[str]:
        """The payloads of the notebook's audit rows, oldest first."""
        rows, _ = self.store.audit(page=Page(limit=1000))
        return [f"{row.at} {row.kind} {row.payload}" for row in reversed(rows) if row.subject == self.notebook]

    def close(self) -> None:
        self._ended.set()
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.communicate(timeout=PATIENCE_S)
        self.store.close()


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    with web_receiver() as hook:
        made = Site(folder, hook.url)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_countdown_continues_under_another_leader(tmp_path: Path) -> None:
    """The first leader is frozen, the second is killed, and the first continues after it is thawed."""
    with site(tmp_path) as made, Stopwatch() as watch:
        made.start("first")
        until(lambda: made.leads("first"), what="a leader")
        made.start("second")
        made.book()
        until(lambda: made.stage() == "warned", 2 * IDLE_S + PATIENCE_S, "a warning")
        state = made.record.idle_state
        assert state is not None
        made.signal("first", signal.SIGSTOP)
        until(lambda: made.leads("second"), what="another leader")
        made.wait_for_classification()
        assert (made.stage(), made.record.idle_state) == ("warned", state)
        made.signal("first", signal.SIGCONT)
        until(lambda: "another process is the leader now" in made.log("first"), what="the thawed leader to notice")
        made.wait_for_classification()
        assert made.leads("second"), "a leader that thaws does not act"
        made.signal("second", signal.SIGKILL)
        until(lambda: made.leads("first"), what="the first leader again")
        until(lambda: made.stage() != "warned", PATIENCE_S + WARN_S, "the end of the countdown")
        ended_at = now_ms()
        if watch.lost_s > 3:
            pytest.skip(f"the machine stood still for {watch.lost_s:.0f} s, and what is not known withdraws a warning")
        assert (made.stage(), made.audited()) == ("freeing", ["warned", "freeing"]), made.why()
        assert ended_at >= state["until"], "nothing is freed early"  # type: ignore[operator]
        rows, _ = made.store.notifications("webhook", page=Page(limit=100))
        assert [row.event for row in rows] == ["warned"]


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_warning_survives_a_leader_that_ends_again_and_again(tmp_path: Path, kind: str) -> None:
    """During the whole warning the leader is killed or frozen at each report, mostly before it has seen the report."""
    if kind == "postgresql" and (why := why_missing()) is not None:
        pytest.skip(why)
    chance = random.Random(kind)
    with ExitStack() as stack, Stopwatch() as watch:
        hook = stack.enter_context(web_receiver())
        url = stack.enter_context(database()) if kind == "postgresql" else ""
        made = Site(tmp_path, hook.url, url, warn_s=45)
        stack.callback(made.close)
        made.start("first")
        until(lambda: made.leads("first"), what="a leader")
        made.start("second")
        made.book()
        until(lambda: made.stage() == "warned", 2 * IDLE_S + PATIENCE_S, "a warning")
        state = made.record.idle_state
        assert state is not None
        ends_at = time.monotonic() + 200
        while made.stage() == "warned" and time.monotonic() < ends_at:
            made.wait_for_report()
            end_leader(made, freeze=chance.random() < 0.5)
        until(lambda: made.stage() != "warned", PATIENCE_S, "the end of the countdown")
        ended_at = now_ms()
        if watch.lost_s > 3:
            pytest.skip(f"the machine stood still for {watch.lost_s:.0f} s, and what is not known withdraws a warning")
        assert made.audited() == ["warned", "freeing"], made.why()
        assert ended_at >= state["until"], "nothing is freed early"  # type: ignore[operator]
        rows, _ = made.store.notifications("webhook", page=Page(limit=100))
        assert [row.event for row in rows] == ["warned"]
        assert all("Traceback" not in made.log(name) for name in made.processes)


def end_leader(made: Site, *, freeze: bool) -> None:
    """Freeze the leader past its lease, or kill it and start another process."""
    leader = next((name for name in made.processes if made.leads(name)), None)
    if leader is None:
        return
    if freeze:
        made.signal(leader, signal.SIGSTOP)
        time.sleep(4)
        made.signal(leader, signal.SIGCONT)
        return
    made.processes[leader].kill()
    made.processes[leader].wait()
    made.start(leader)
