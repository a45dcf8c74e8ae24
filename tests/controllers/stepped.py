"""The shipped controllers beside the test's API process; a test runs them step by step, without threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from jupyter_gpu_quota.backends.local.enforcement_backend import LocalEnforcement
from jupyter_gpu_quota.controllers.enforcement import Enforcement
from jupyter_gpu_quota.controllers.factory import ControllerFactory
from jupyter_gpu_quota.controllers.idleness import Idleness
from jupyter_gpu_quota.controllers.leadership.lease import FencedStore, Leadership
from jupyter_gpu_quota.controllers.notifications import ChannelSender
from jupyter_gpu_quota.controllers.reconciliation import Reconciliation
from jupyter_gpu_quota.hub_api import Account, HubUnavailable, Server
from jupyter_gpu_quota.notifications.channel import Channel, Outcome
from jupyter_gpu_quota.notifications.channels import channels_of
from jupyter_gpu_quota.notifications.message import Message
from jupyter_gpu_quota.store.records.calls import LeaseLost
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.api.world import ServiceWorld


class _InTheApiLoop:
    """A channel of the API process, called from a controller."""

    def __init__(self, world: ServiceWorld, channel: Channel) -> None:
        self._world, self._channel = world, channel
        self.name, self.where, self.width = channel.name, channel.where, channel.width

    async def send(self, message: Message) -> Outcome:
        return await asyncio.to_thread(self._world.run, self._channel.send(message))

    async def probe(self) -> Outcome:
        return await asyncio.to_thread(self._world.run, self._channel.probe())

    def close(self) -> None:
        """The API process closes it."""


class SteppedControllers:
    """Each controller of one leader; :meth:`take_over` makes those of the next one.

    ``stop`` is what is done to stop a server; a hub that is away is asked again later.
    """

    def __init__(self, world: ServiceWorld) -> None:
        self.world = world
        self.leadership = Leadership(world.store, world.clock_now, holder="test")
        self.enforcement_backend = LocalEnforcement(
            world.settings.state_dir, cgroup=world.settings.cgroup, mps=world.settings.mps
        )
        self.channels: list[Channel] = [_InTheApiLoop(world, each) for each in world.run(self._made())]
        self.stop: Callable[[str, str], object] = self._stop
        self.take_over()

    async def _made(self) -> Sequence[Channel]:
        return channels_of(self.world.settings, self.world.clock_now)

    def take_over(self) -> None:
        settings, world = self.world.settings, self.world
        fenced = FencedStore(world.store, self.leadership, world.clock_now, committed=self.notify_api)
        self.factory = ControllerFactory(
            store=world.store, fenced=fenced, hub=_Hub(self), enforcement_backend=self.enforcement_backend,
            channels=self.channels, clock=world.clock_now, events=settings.notification_events, hub_name=settings.hub,
            page=settings.notification_page or None,
        )  # fmt: skip
        self.leadership.renew(world.clock_now())
        self.idleness: Idleness = self.factory.idleness()
        self.enforcement: Enforcement = self.factory.enforcement()
        self.reconciliation: Reconciliation = self.factory.reconciliation()
        self.senders: list[ChannelSender] = [self.factory.sender(each) for each in self.channels]

    def notify_api(self) -> None:
        self.world.loop.call_soon_threadsafe(self.world.services.store_view.notify)

    def turn(self, controller: Idleness | Enforcement | Reconciliation | ChannelSender) -> int:
        """One run of a controller, after which the api has seen what it did.

        A run that loses its lease, because a slow machine took longer than a lease lasts, is made again.
        """
        while True:
            now = self.world.clock_now()
            assert self.leadership.renew(now) is not None
            with suppress(LeaseLost):
                at = controller.run_once(now)
                self.world.run(self._seen())
                return at

    @contextmanager
    def turning(self) -> Iterator[None]:
        """Idleness, once a second in the background."""
        ending = threading.Event()

        def go() -> None:
            while not ending.wait(1.0):
                self.turn(self.idleness)

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join(PATIENCE_S)

    async def _seen(self) -> None:
        view = self.world.services.store_view
        await view.refresh()
        view._samples_at = float("-inf")
        await view.refresh_if_stale()

    def _stop(self, user: str, server: str) -> None:
        self.world.run(self.world.rest_hub.stop(user, server))


class _Hub:
    def __init__(self, controllers: SteppedControllers) -> None:
        self._controllers = controllers

    def servers(self) -> Sequence[Server]:
        world = self._controllers.world
        return world.run(world.rest_hub.servers())

    def accounts(self) -> Sequence[Account]:
        world = self._controllers.world
        return world.run(world.rest_hub.accounts())

    def stop(self, user: str, server: str) -> None:
        with suppress(HubUnavailable):
            self._controllers.stop(user, server)
