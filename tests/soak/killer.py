"""Kills at random, by seed: mostly the service's processes, sometimes hub or proxy; inside grace periods too."""

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
from jupyter_gpu_quota.demo.temporary_hub import Stage
from tests.patience import until

SHARES = {"web door": 6, "controller": 6, "keeper": 2, "hub": 4, "proxy": 2}
"""Of twenty kills."""

GRACE_WAIT_S = 3.0
WORKS_WITHIN_S = 90.0


class Killer:
    """Takes victims by their pid; brings hub and proxy back, while the hub brings the service back.

    The victims are drawn without putting back, so that of each twenty kills the shares are exact.
    """

    def __init__(self, stage: Stage, *, seed: int) -> None:
        self.stage, self.chance = stage, random.Random(f"kills {seed}")
        self.kills: dict[str, int] = dict.fromkeys(SHARES, 0)
        self.in_grace = 0
        self._deck: list[str] = []

    def kill_one(self) -> None:
        """Wait for a random moment, kill one victim, restart what nobody else would restart."""
        if not self._deck:
            self._deck = self.chance.sample(list(SHARES), k=sum(SHARES.values()), counts=list(SHARES.values()))
        who = self._deck.pop()
        if self.chance.random() < 0.7:  # the others strike while everything is still coming up
            self.wait_until_it_works()
        time.sleep(self.chance.uniform(0.0, 1.0))
        in_grace = self.chance.random() < 0.6 and self._wait_for_a_grace_period()
        self._kill(who)
        self.kills[who] += 1
        self.in_grace += in_grace

    def wait_until_it_works(self) -> None:
        """Until the service is ready again. Raises AssertionError where it does not come back."""

        def works() -> bool:
            self._keep_the_hub()
            return self.stage.is_ready()

        until(works, WORKS_WITHIN_S, self._last_words)

    def _keep_the_hub(self) -> None:
        """As a site's process manager does: a hub ends by itself where a service dies while the hub is starting."""
        if self.stage.hub is not None and self.stage.hub.poll() is not None:
            self.stage.start_hub()

    def _kill(self, who: str) -> None:
        match who:
            case "hub":
                self._kill_popen(self.stage.hub)
                self.stage.start_hub()
            case "proxy":
                self._kill_popen(self.stage.proxy)
                self.stage.start_proxy()
            case _:
                self._kill_of_service({"web door": web_door, "controller": controller, "keeper": keeper}[who])

    def _kill_of_service(self, find: Callable[[Stage], int | None]) -> None:
        """Kill a process of the service as soon as there is one."""

        def killed() -> bool:
            self._keep_the_hub()
            pid = find(self.stage)
            return pid is not None and _kill_pid(pid)

        until(killed, WORKS_WITHIN_S, self._last_words)

    def _last_words(self) -> str:
        return f"the service did not come back: {self.stage.last_words('hub')}"

    def _kill_popen(self, process: subprocess.Popen[bytes] | None) -> None:
        assert process is not None
        process.kill()
        process.wait()

    def _wait_for_a_grace_period(self) -> bool:
        """Until some rank has been asked to leave and has not left; gives up after a while."""
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


# --- who is who ---------------------------------------------------------------------------------------------------
def keeper(stage: Stage) -> int | None:
    """The pid of the service's first process, as it recorded itself, if it lives."""
    return _recorded(stage, lambda told: told)


def web_door(stage: Stage) -> int | None:
    return _recorded(stage, lambda told: told["children"]["door"])


def controller(stage: Stage) -> int | None:
    return _recorded(stage, lambda told: told["children"]["controller"])


def _recorded(stage: Stage, who: Callable[[Any], Any]) -> int | None:
    """The pid of a process of the service as the keeper recorded it, if that very process lives."""
    try:
        told = who(json.loads((stage.state_dir / "service.json").read_text()))
        return int(told["pid"]) if started_ticks(int(told["pid"])) == told["started"] else None
    except (OSError, ValueError, KeyError):
        return None
