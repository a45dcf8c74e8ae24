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

SHARES = {"API": 6, "controller": 6, "supervisor": 2, "hub": 4, "proxy": 2}
"""Of twenty kills."""

GRACE_WAIT_S = 3.0
WORKS_WITHIN_S = 90.0


class Killer:
    """Kills processes by their pid and restarts hub and proxy; the hub restarts the service.

    Of each twenty kills the shares are exact.
    """

    def __init__(self, stage: TemporaryHub, *, seed: int) -> None:
        self.stage, self.chance = stage, random.Random(f"kills {seed}")
        self.kills: dict[str, int] = dict.fromkeys(SHARES, 0)
        self.in_grace = 0
        self._order: list[str] = []

    def kill_one(self) -> None:
        """Wait for a random moment, kill one process, restart it where no other process does."""
        if not self._order:
            self._order = self.chance.sample(list(SHARES), k=sum(SHARES.values()), counts=list(SHARES.values()))
        name = self._order.pop()
        if self.chance.random() < 0.7:  # the others kill during a restart
            self.wait_until_it_works()
        time.sleep(self.chance.uniform(0.0, 1.0))
        in_grace = self.chance.random() < 0.6 and self._wait_for_a_grace_period()
        self._kill(name)
        self.kills[name] += 1
        self.in_grace += in_grace

    def wait_until_it_works(self) -> None:
        """Wait until the service is ready again. Raises AssertionError if it does not become ready."""

        def works() -> bool:
            self._keep_the_hub()
            return self.stage.is_ready()

        until(works, WORKS_WITHIN_S, self._last_words)

    def _keep_the_hub(self) -> None:
        """Restart a hub that has ended, as a process manager does: a service that dies while the hub starts ends it."""
        if self.stage.hub is not None and self.stage.hub.poll() is not None:
            self.stage.start_hub()

    def _kill(self, name: str) -> None:
        match name:
            case "hub":
                self._kill_popen(self.stage.hub)
                self.stage.start_hub()
            case "proxy":
                self._kill_popen(self.stage.proxy)
                self.stage.start_proxy()
            case _:
                self._kill_of_service({"API": api_process, "controller": controller, "supervisor": supervisor}[name])

    def _kill_of_service(self, find: Callable[[TemporaryHub], int | None]) -> None:
        """Kill a process of the service as soon as it exists."""

        def killed() -> bool:
            self._keep_the_hub()
            pid = find(self.stage)
            return pid is not None and _kill_pid(pid)

        until(killed, WORKS_WITHIN_S, self._last_words)

    def _last_words(self) -> str:
        return f"the service did not become ready: {self.stage.last_words('hub')}"

    def _kill_popen(self, process: subprocess.Popen[bytes] | None) -> None:
        assert process is not None
        process.kill()
        process.wait()

    def _wait_for_a_grace_period(self) -> bool:
        """Wait until some rank is pausing; False if none is within a few seconds."""
        deadline = time.monotonic() + GRACE_WAIT_S
        while time.monotonic() < deadline:
            if any(_pausing(self.stage.state_dir)):
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
def supervisor(stage: TemporaryHub) -> int | None:
    """The pid of the service supervisor, from its pid file, if it lives."""
    return _recorded(stage, lambda record: record)


def api_process(stage: TemporaryHub) -> int | None:
    return _recorded(stage, lambda record: record["children"]["api"])


def controller(stage: TemporaryHub) -> int | None:
    return _recorded(stage, lambda record: record["children"]["controller"])


def _recorded(stage: TemporaryHub, entry: Callable[[Any], Any]) -> int | None:
    """The pid of a process of the service from the pid file, if that process lives."""
    try:
        identity = entry(json.loads((stage.state_dir / "service.json").read_text()))
        return int(identity["pid"]) if started_ticks(int(identity["pid"])) == identity["started"] else None
    except (OSError, ValueError, KeyError):
        return None
