"""The hub and the notification channels, for control loops, which are not asynchronous.

Their libraries are asynchronous: the calls run in an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ..hub_api import Account, Hub, HubUnavailable, Server
from ..notifications.channel import Channel, Outcome
from ..notifications.job_message import JobMessage
from ..notifications.message import Message

log = logging.getLogger(__name__)
R = TypeVar("R")

MAX_CALL_S = 300.0
"""Every call has a shorter time-out of its own; this one is for an event loop that hangs."""


class EventLoopThread:
    """An event loop in a thread of its own, for calls from other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(MAX_CALL_S)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine without waiting."""
        asyncio.run_coroutine_threadsafe(work, self._loop)


class HubCalls:
    """The hub, for loops that are not asynchronous."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._events = hub, EventLoopThread("hub-calls")

    def servers(self) -> Sequence[Server]:
        """Every server that is active or pending. Raises HubUnavailable."""
        return self._events.run(self._hub.servers())

    def accounts(self) -> Sequence[Account]:
        """All users with their groups. Raises HubUnavailable."""
        return self._events.run(self._hub.accounts())

    def stop(self, user: str, server: str) -> None:
        """Request the stop of a server, without waiting. A failure is logged; the controller repeats the request."""
        self._events.start(self._stop(user, server))

    async def _stop(self, user: str, server: str) -> None:
        try:
            await self._hub.stop(user, server)
        except HubUnavailable as error:
            log.warning("a server could not be stopped: %s", error)


class _Channel:
    """A channel whose calls run in the event loop in which it was made."""

    def __init__(self, channel: Channel, events: EventLoopThread) -> None:
        self._channel, self._events = channel, events
        self.name, self.where, self.width = channel.name, channel.where, channel.width

    async def send(self, message: Message | JobMessage) -> Outcome:
        return await asyncio.to_thread(self._events.run, self._channel.send(message))

    async def probe(self) -> Outcome:
        return await asyncio.to_thread(self._events.run, self._channel.probe())

    def close(self) -> None:
        self._events.run(self._close())

    async def _close(self) -> None:
        self._channel.close()


class ChannelList:
    """The channels that ``make`` returns; it is called in a running event loop."""

    def __init__(self, make: Callable[[], Sequence[Channel]]) -> None:
        events = EventLoopThread("channels")
        self.all: Sequence[Channel] = [_Channel(each, events) for each in events.run(_made(make))]

    def close(self) -> None:
        for channel in self.all:
            channel.close()


async def _made(make: Callable[[], Sequence[Channel]]) -> Sequence[Channel]:
    return make()
