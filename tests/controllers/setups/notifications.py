"""A notebook whose warnings are sent by channels that record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.controllers.notifications import ChannelSender
from jupyter_gpu_quota.notifications.channel import Outcome, Sent
from jupyter_gpu_quota.notifications.message import Message
from jupyter_gpu_quota.store.memory import MemoryStore
from jupyter_gpu_quota.store.records.calls import Page
from jupyter_gpu_quota.store.records.notifications import NotificationRecord
from tests.api.world import QUOTA, build_devices, service_world, train_devices
from tests.controllers.setups.notebook import IDLE, Watched


class RecordingChannel:
    """A fake channel: it returns the given outcomes one by one, and then accepts everything."""

    name, where, width = "webhook", "https://hooks.example.org", 4

    def __init__(self) -> None:
        self.outcomes: list[Outcome | Exception] = []
        self.messages: list[Message] = []

    async def send(self, message: Message) -> Outcome:
        self.messages.append(message)
        outcome = self.outcomes.pop(0) if self.outcomes else Sent(answer="answered 204")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def probe(self) -> Outcome:
        return Sent(answer="answers")

    def close(self) -> None:
        pass


class Sending(Watched):
    """A notebook whose service sends messages, one run at a time."""

    channel = RecordingChannel()

    @property
    def queue(self) -> ChannelSender:
        return self.world.controllers.senders[0]

    def take(self) -> RecordingChannel:
        """Replace the configured channel by the fake one."""
        channel = RecordingChannel()
        self.queue.channel = channel
        return channel

    def round(self) -> float:
        """One run; returns the seconds until the next attempt, 0 without pending messages."""
        self.world.controllers.leadership.renew(self.now)
        asyncio.run(self.queue.send_due())
        return max(0, min((row.next_at for row in self.rows(pending=True)), default=self.now) - self.now) / 1000

    def rows(self, *, pending: bool = False, channel: str = "webhook") -> list[NotificationRecord]:
        return self.world.store.notifications(channel, pending=pending, page=Page(limit=2_000))[0]

    def notes(self) -> list[str]:
        """The audit rows of messages as text, oldest first."""
        rows, _ = self.world.store.audit(page=Page(limit=1000))
        return [row.kind for row in reversed(rows) if row.kind.startswith("notice.")]

    def why(self) -> str:
        rows, _ = self.world.store.audit(page=Page(limit=1000))
        return next(str(json.loads(row.payload)["why"]) for row in rows if row.kind.startswith("notice."))


def sending(folder: Path, mode: str = "reclaim", **settings: Any) -> Iterator[Sending]:
    with service_world(folder, store=MemoryStore(), **settings) as world:
        real = tuple(replace(device, simulated=False) for device in (*train_devices(), *build_devices()))
        world.apply(QUOTA + IDLE.replace("MODE", mode), real)
        yield Sending(world)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Sending]:
    yield from sending(tmp_path, notification_webhook_url="https://hooks.example.org/x")
