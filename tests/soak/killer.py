"""Kills at random, by seed: mostly the service's processes, sometimes hub or proxy; inside grace periods too."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from jupyter_gpu_quota.demo.stage import Stage

SHARES = {"web door": 35, "controller": 35, "hub": 20, "proxy": 10}
GRACE_WAIT_S = 2.0


class Killer:
    """Takes victims by their pid; brings hub and proxy back, while the hub brings the service back."""

    def __init__(self, stage: Stage, *, seed: int) -> None:
        self.stage, self.chance = stage, random.Random(f"kills {seed}")
        self.kills: dict[str, int] = dict.fromkeys(SHARES, 0)
        self.in_grace = 0

    def kill_one(self) -> str:
        """Wait a random moment, kill one victim, restart what nobody else would restart. Returns who it was."""
        who = self.chance.choices(list(SHARES), weights=list(SHARES.values()))[0]
        time.sleep(self.chance.uniform(0.0, 1.5))
        if self.chance.random() < 0.5:
            self.in_grace += self._wait_for_a_grace_period()
        if self._kill(who):
            self.kills[who] += 1
            return who
        return ""

    def _kill(self, who: str) -> bool:
        match who:
            case "hub":
                self._kill_popen(self.stage.hub)
                self.stage.start_hub()
                return True
            case "proxy":
                self._kill_popen(self.stage.proxy)
                self.stage.start_proxy()
                return True
            case _:
                pid = web_door(self.stage) if who == "web door" else controller(self.stage)
                return pid is not None and _kill_pid(pid)

    def _kill_popen(self, process: object) -> None:
        process.kill()  # type: ignore[attr-defined]
        process.wait()  # type: ignore[attr-defined]

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
def web_door(stage: Stage) -> int | None:
    """The pid of the web door, as it recorded itself, if it lives."""
    try:
        told = json.loads((stage.state_dir / "service.json").read_text())
        return int(told["pid"]) if Path(f"/proc/{told['pid']}").exists() else None
    except (OSError, ValueError, KeyError):
        return None


def controller(stage: Stage) -> int | None:
    """The pid of the scheduler process: the web door's child whose command line says so."""
    door = web_door(stage)
    return next((pid for pid in children(door) if b"\0controller\0" in _command_line(pid)), None) if door else None


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
