"""A copy of the live work of a store, with samples and names, for one thread that refreshes it regularly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...core.model import Allocation, Device
from ...core.samples import DeviceSample
from ...quotafile import QuotaFile
from ..transactions import Store
from .quota_revision import with_readable_quota
from .snapshot import Mirror


class FollowedStore:
    """The live work as of the last :meth:`refresh`, and the newest device samples.

    ``held`` are the live allocations by workload. Raises StoreUnavailable where the store does.
    """

    def __init__(self, store: Store) -> None:
        self.store = with_readable_quota(store)
        self.mirror = Mirror()
        self.samples: Mapping[str, DeviceSample] = {}
        self.names: dict[str, str] = {}
        self.quota_file: QuotaFile | None = None
        self.held: dict[str, list[Allocation]] = {}

    def refresh(self) -> None:
        """Read what changed."""
        before = self.mirror.version
        self.mirror.update(self.store)
        changes = self.mirror.latest
        if changes is not None and changes.quota is not None:
            self.quota_file = QuotaFile.from_document(changes.quota.document)
        if self.mirror.version != before:
            self.held = {}
            for part in self.allocations:
                self.held.setdefault(part.workload, []).append(part)
        self.samples = self.store.latest_samples()

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        return self.mirror.allocations()

    def allocations_of(self, workload: str) -> Sequence[Allocation]:
        return self.held.get(workload, ())

    def device(self, name: str) -> Device | None:
        return self.mirror.devices.get(name)

    def devices_in(self, pool: str) -> list[Device]:
        """The devices of a pool, with those that are gone."""
        return [device for device in self.mirror.devices.values() if device.pool == pool]

    def learn_names(self, users: Iterable[str]) -> None:
        """Read the names of these people that are not known yet."""
        unknown = [user for user in dict.fromkeys(users) if user not in self.names]
        if unknown:
            self.names |= self.store.user_names(unknown)
