"""The people of the soak: a stream of small real jobs and of servers, sent to doors that are not always there."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpu_quota.demo.temporary_hub import Stage
from tests.soak.doors import ask, insist

WORK = Path(__file__).with_name("work.py")
KINDS = (
    *(("checkpointing", 0),) * 8,
    *(("ending", code) for code in range(6)),
    ("stubborn", 0),
    ("orphaning", 0),
    ("retrying", 4),
)
"""Kinds of work, and the exit code that each is told."""

TEAMS = {"ann": "red", "ben": "blue"}
SIZES = ("1", "1", "0.5", "0.25")
BURST = 4
"""Jobs that one person sends before it is the other's turn: who was alone is then above the guarantee."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A job that was acknowledged: what it was told to do, and as whom."""

    job: str
    kind: str
    code: int
    user: str


class Stream:
    """Submits jobs as two people until told to stop, ``at_once`` unfinished at most; everything is drawn by seed."""

    def __init__(self, stage: Stage, diary: Path, tokens: dict[str, str], *, seed: int, at_once: int = 6) -> None:
        self.stage, self.diary, self.tokens, self.at_once = stage, diary, tokens, at_once
        self.chance = random.Random(f"stream {seed}")
        self.sent: list[Sent] = []
        self.faults: list[str] = []
        self.stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(act,), daemon=True) for act in (self._jobs, self._servers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Send nothing more; returns when the last answer is there."""
        self.stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a request of the stream got no answer"

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self.faults.append(f"{type(error).__name__}: {error}")

    def _jobs(self) -> None:
        while not self.stop.wait(self.chance.uniform(0.0, 0.4)):
            if self._unfinished() < self.at_once:
                self._submit()

    def _unfinished(self) -> int:
        ended = {line["job"] for line in diary_lines(self.diary) if line["event"] == "end" and line["code"] != 75}
        return sum(sent.job not in ended for sent in self.sent)

    def _submit(self) -> None:
        kind, code = self.chance.choice(KINDS)
        number = len(self.sent)
        user, size = sorted(TEAMS)[number // BURST % 2], self.chance.choice(SIZES)
        body = {
            "command": [sys.executable, "-S", "-E", str(WORK), str(self.diary), kind, str(code)],
            "gpu": size,
            "project": TEAMS[user],
            "name": f"{kind}-{number}",
            "retries": 3 if kind == "retrying" else 0,
            "idempotency_key": f"soak-{number}",
        }
        answer = insist("POST", f"{self.stage.service_api}/jobs", self.tokens[user], body)
        assert answer.status in (200, 201), answer.text
        self.sent.append(Sent(job=answer.body["id"], kind=kind, code=code, user=user))

    def _servers(self) -> None:
        """Carol starts and stops her server with a slice; while the hub is away she tries again."""
        url = f"{self.stage.hub_api}/users/carol/server"
        options = {"gpu_project": "green", "gpu_size": "1/4"}
        chance = random.Random("servers")
        while not self.stop.wait(chance.uniform(3, 8)):
            ask("POST", url, self.tokens["carol"], options, 60)
            self.stop.wait(chance.uniform(4, 10))
            ask("DELETE", url, self.tokens["carol"], timeout_s=30)


def diary_lines(diary: Path) -> list[dict[str, object]]:
    """What the jobs wrote, in the order in which they wrote it."""
    try:
        return [json.loads(line) for line in diary.read_text().splitlines()]
    except FileNotFoundError:
        return []
