"""Makes the controllers other than scheduling and retention, whose job backend belongs to the main thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ..backends.protocol import EnforcementBackend
from ..hub_api import Account, Server
from ..notifications.channel import Channel
from ..notifications.message import Event
from ..store.reads.followed_store import FollowedStore
from ..store.records.ids import new_ulid
from ..store.records.rows import NotebookRecord
from ..store.transactions import Store
from .enforcement import Enforcement
from .enforcement_effects import Effects
from .idleness import Idleness
from .leadership.lease import FencedStore
from .loop import Controller
from .notifications import ChannelSender, JobNotifications, NotificationQueue, give_up_unconfigured
from .reconciliation import Reconciliation


class HubControl(Protocol):
    """The hub, as controllers use it."""

    def servers(self) -> Sequence[Server]:
        """Every server that is active or pending. Raises HubUnavailable."""

    def accounts(self) -> Sequence[Account]:
        """All users with their groups. Raises HubUnavailable."""

    def stop(self, user: str, server: str) -> None:
        """Request the stop of a server, without waiting for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFactory:
    """Makes each controller from these dependencies. ``page`` is the address where a warning can be postponed."""

    store: Store
    fenced: FencedStore
    hub: HubControl
    enforcement_backend: EnforcementBackend
    channels: Sequence[Channel]
    clock: Callable[[], int]
    events: Sequence[Event]
    hub_name: str = "local"
    page: str | None = None
    job_events: Sequence[str] = ()
    new_id: Callable[[int], str] = field(default=new_ulid)

    def controllers(self) -> Mapping[str, Callable[[], Controller]]:
        """A function for each controller, by its name, that makes a new one."""
        senders = {f"notifications.{each.name}": partial(self.sender, each) for each in self.channels}
        return {
            "idleness": self.idleness,
            "enforcement": self.enforcement,
            "reconciliation": self.reconciliation,
            **({"notifications.jobs": self.job_notifications} if self.channels else {}),
            **senders,
        }

    @property
    def queue(self) -> NotificationQueue:
        return NotificationQueue([each.name for each in self.channels], self.events, self.new_id)

    def idleness(self) -> Idleness:
        view = FollowedStore(self.store)
        give_up_unconfigured(self.store, self.fenced, self.queue.channels)
        stop, lends_slices = partial(self._stop, view), self.enforcement_backend.lends_slices
        return Idleness(view, self.fenced, self.queue, stop, lends_slices=lends_slices)

    def enforcement(self) -> Enforcement:
        view = FollowedStore(self.store)
        effects = Effects(self.fenced, self.enforcement_backend, self.queue, partial(self._stop, view), self.clock)
        return Enforcement(view, self.enforcement_backend, effects)

    def reconciliation(self) -> Reconciliation:
        return Reconciliation(FollowedStore(self.store), self.fenced, self.hub.servers, self.hub.accounts)

    def job_notifications(self) -> JobNotifications:
        return JobNotifications(self.store, self.fenced, self.queue.channels, self.job_events)

    def sender(self, channel: Channel) -> ChannelSender:
        return ChannelSender(channel, self.store, self.fenced, clock=self.clock, hub=self.hub_name, page=self.page)

    def _stop(self, view: FollowedStore, record: NotebookRecord) -> None:
        """Request that the hub stop a notebook's server."""
        user = record.notebook.user
        view.learn_names([user])
        self.hub.stop(view.names.get(user, user), record.server)
