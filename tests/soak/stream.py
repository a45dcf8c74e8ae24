"""The load of the soak: small real jobs and servers, requested from a service that is at times unavailable."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpu_quota.demo.temporary_hub import TemporaryHub
from tests.soak.rest_calls import ask, request_until_answered

WORK = Path(__file__).with_name("work.py")
KINDS = (
    *(("checkpointing", 0),) * 8,
    *(("ending", code) for code in range(6)),
    ("stubborn", 0),
    ("orphaning", 0),
    ("retrying", 4),
)
"""Kinds of work with their exit codes."""

TEAMS = {"ann": "red", "ben": "blue"}
SIZES = ("1", "1", "0.5", "0.25")
BURST = 4
"""Jobs that one user submits before the other: so each is above the training quota in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An acknowledged job: its kind, exit code and user."""

    job: str
    kind: str
    code: int
    user: str


class Stream:
    """Submits jobs as two users until stopped, at most ``at_once`` unfinished; all choices depend on the seed."""

    def __init__(self, hub: TemporaryHub, diary: Path, tokens: dict[str, str], *, seed: int, at_once: int = 6,
        with_servers: bool = True,
    ) -> None:  # fmt: skip
        self.hub, self.diary, self.tokens, self.at_once = hub, diary, tokens, at_once
        self.rng = random.Random(f"stream {seed}")
        self.sent: list[Sent] = []
        self.faults: list[str] = []
        self.stop = threading.Event()
        work = (self._jobs, self._servers) if with_servers else (self._jobs,)
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in work]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop submitting; return after the last answer."""
        self.stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a request of the stream got no answer"

    def _guarded(self, load: Callable[[], None]) -> None:
        try:
            load()
        except Exception as error:
            self.faults.append(f"{type(error).__name__}: {error}")

    def _jobs(self) -> None:
        while not self.stop.wait(self.rng.uniform(0.0, 0.4)):
            if self._unfinished() < self.at_once:
                self._submit()

    def _unfinished(self) -> int:
        ended = {line["job"] for line in diary_lines(self.diary) if line["event"] == "end" and line["code"] != 75}
        return sum(sent.job not in ended for sent in self.sent)

    def _submit(self) -> None:
        kind, code = self.rng.choice(KINDS)
        number = len(self.sent)
        user, size = sorted(TEAMS)[number // BURST % 2], self.rng.choice(SIZES)
        body = {
            "command": [sys.executable, "-S", "-E", str(WORK), str(self.diary), kind, str(code)],
            "gpu": size,
            "project": TEAMS[user],
            "name": f"{kind}-{number}",
            "retries": 3 if kind == "retrying" else 0,
            "idempotency_key": f"soak-{number}",
        }
        answer = request_until_answered("POST", f"{self.hub.service_api}/jobs", self.tokens[user], body)
        assert answer.status in (200, 201), answer.text
        self.sent.append(Sent(job=answer.body["id"], kind=kind, code=code, user=user))

    def _servers(self) -> None:
        """Start and stop Carol's server with a slice; try again while the hub is unavailable."""
        url = f"{self.hub.hub_api}/users/carol/server"
        options = {"gpu_project": "green", "gpu_size": "1/4"}
        rng = random.Random("servers")
        while not self.stop.wait(rng.uniform(3, 8)):
            ask("POST", url, self.tokens["carol"], options, 60)
            self.stop.wait(rng.uniform(4, 10))
            ask("DELETE", url, self.tokens["carol"], timeout_s=30)


def diary_lines(diary: Path) -> list[dict[str, object]]:
    """The lines that the jobs wrote, in order."""
    try:
        return [json.loads(line) for line in diary.read_text().splitlines()]
    except FileNotFoundError:
        return []
