"""Random kills, by seed: mostly the service's processes, sometimes hub or proxy; inside grace periods too."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_gpu_quota.demo.observer import started_ticks
from jupyter_gpu_quota.demo.temporary_hub import TemporaryHub
from tests.patience import until

KILLS_OF_TWENTY = {"API": 6, "controller": 6, "supervisor": 2, "hub": 4, "proxy": 2}
"""The number of kills of each process in every twenty."""

GRACE_WAIT_S = 3.0
READY_WITHIN_S = 90.0


class Killer:
    """Kills processes by their pid and restarts hub and proxy; the hub restarts the service.

    Every twenty kills have exactly these numbers of each process.
    """

    def __init__(self, hub: TemporaryHub, *, seed: int) -> None:
        self.hub, self.rng = hub, random.Random(f"kills {seed}")
        self.kills: dict[str, int] = dict.fromkeys(KILLS_OF_TWENTY, 0)
        self.in_grace_period = 0
        self._order: list[str] = []

    def kill_one(self) -> None:
        """Wait for a random moment, kill one process, restart it where no other process does."""
        if not self._order:
            counts = list(KILLS_OF_TWENTY.values())
            self._order = self.rng.sample(list(KILLS_OF_TWENTY), k=sum(counts), counts=counts)
        name = self._order.pop()
        if self.rng.random() < 0.7:  # the others kill during a restart
            self.wait_until_ready()
        time.sleep(self.rng.uniform(0.0, 1.0))
        in_grace_period = self.rng.random() < 0.6 and self._wait_for_a_grace_period()
        self._kill(name)
        self.kills[name] += 1
        self.in_grace_period += in_grace_period

    def wait_until_ready(self) -> None:
        """Wait until the service is ready again. Raises AssertionError if it does not become ready."""

        def is_ready() -> bool:
            self._restart_ended_hub()
            return self.hub.is_ready()

        until(is_ready, READY_WITHIN_S, self._log_tail)

    def _restart_ended_hub(self) -> None:
        """Restart a hub that has ended, as a process manager does: a service that dies while the hub starts ends it."""
        if self.hub.hub is not None and self.hub.hub.poll() is not None:
            self.hub.start_hub()

    def _kill(self, name: str) -> None:
        match name:
            case "hub":
                self._kill_popen(self.hub.hub)
                self.hub.start_hub()
            case "proxy":
                self._kill_popen(self.hub.proxy)
                self.hub.start_proxy()
            case _:
                find = {"API": api_process, "controller": controller, "supervisor": supervisor}[name]
                self._kill_service_process(find)

    def _kill_service_process(self, find: Callable[[TemporaryHub], int | None]) -> None:
        """Kill a process of the service as soon as it exists."""

        def killed() -> bool:
            self._restart_ended_hub()
            pid = find(self.hub)
            return pid is not None and _kill_pid(pid)

        until(killed, READY_WITHIN_S, self._log_tail)

    def _log_tail(self) -> str:
        return f"the service did not become ready: {self.hub.log_tail('hub')}"

    def _kill_popen(self, process: subprocess.Popen[bytes] | None) -> None:
        assert process is not None
        process.kill()
        process.wait()

    def _wait_for_a_grace_period(self) -> bool:
        """Wait until some rank is pausing; False if none is within a few seconds."""
        deadline = time.monotonic() + GRACE_WAIT_S
        while time.monotonic() < deadline:
            if any(_pausing(self.hub.state_dir)):
                return True
            time.sleep(0.02)
        return False


def _kill_pid(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _pausing(state_dir: Path) -> Iterator[Path]:
    """Ranks that have a pause file and whose supervisor has not recorded their end."""
    for pause in state_dir.glob("jobs/*/run/*/*/pause"):
        job, attempt, rank = pause.parents[3].name, pause.parents[1].name, pause.parent.name
        status = state_dir / "jobs" / job / "attempts" / attempt / rank / "status.json"
        try:
            if not json.loads(status.read_text()).get("tree_gone"):
                yield pause
        except (OSError, ValueError):
            continue


# --- processes ----------------------------------------------------------------------------------------------------
def supervisor(hub: TemporaryHub) -> int | None:
    """The pid of the service supervisor, from its pid file, if it lives."""
    return _recorded(hub, lambda record: record)


def api_process(hub: TemporaryHub) -> int | None:
    return _recorded(hub, lambda record: record["children"]["api"])


def controller(hub: TemporaryHub) -> int | None:
    return _recorded(hub, lambda record: record["children"]["controller"])


def _recorded(hub: TemporaryHub, entry: Callable[[Any], Any]) -> int | None:
    """The pid of a process of the service from the pid file, if that process lives."""
    try:
        identity = entry(json.loads((hub.state_dir / "service.json").read_text()))
        return int(identity["pid"]) if started_ticks(int(identity["pid"])) == identity["started"] else None
    except (OSError, ValueError, KeyError):
        return None
