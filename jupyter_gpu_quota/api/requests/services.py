"""The services that handlers share, put together once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

from ...backends.protocol import BackendReaders
from ...bundle import BundleStore
from ...store.records.calls import NotOpenYet, StoreUnavailable
from ...store.records.commands import Recorded, Request
from ...store.transactions import Store
from ..access.people import People
from ..access.rate_limit import RateLimit
from ..access.refusals import refused
from ..access.slice_secrets import SliceSecrets
from ..access.streams import Streams
from ..access.work_in_progress import WorkInProgress
from ..state.decision_cache import DecisionCache
from ..state.offers import EnforcementOffers
from ..state.state_volume import StateVolume
from ..state.stop_reasons import StopReasons
from ..state.store_view import StoreView
from .recorded import recorded_id, recorded_unread
from .writer import Writer

NOT_OPEN = "The database is not open yet."
OPENS_WITHIN_S = 60.0
"""The first opening, with its migrations, may take this long without a message."""


def now_ms() -> int:
    """The API's clock: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class StoreSlot:
    """The store, once it is open; until then a call raises StoreUnavailable with the reason.

    ``why``: why it could not be opened; empty during the first attempt. ``clock`` is in seconds.
    """

    def __init__(self, store: Store | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.why = ""
        self._clock, self._began = clock, clock()

    def __call__(self) -> Store:
        if self.store is not None:
            return self.store
        if not self.why and self._clock() - self._began < OPENS_WITHIN_S:
            raise NotOpenYet(NOT_OPEN)
        raise StoreUnavailable(self.why or NOT_OPEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """The deployment's settings that requests need, by the names of the settings. ``host`` is shown to admins."""

    host: str
    state_dir: str
    cluster: str
    hub: str
    backend: str
    kubernetes_driver: str
    kubernetes_device_class: str
    kubernetes_fractions: Literal["auto", "dra", "reservation", "none"]
    quota_file: str
    simulated_devices: Sequence[Mapping[str, Any]]
    accounts: bool
    mps: Mapping[str, str]
    bundles_limit_mib: int
    outputs_limit_mib: int
    waiting_jobs_limit: int
    keep_jobs_days: int
    keep_samples_hours: int
    changes_per_s: int
    changes_at_once: int


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of the API.

    ``arriving``: the bytes of incoming bundles, by person. ``checking``: held by the one check of a person's bundles.
    ``change_limit``: the rate limit of each person's changes. ``channels``: (name, destination) of each notification
    channel. ``reports``: the writer of notebook reports, which wake no controller. ``verifying``: held by the one check
    of the audit. ``controller_alive``: whether the controllers' process runs. ``new_id``: a ULID for an instant.
    """

    settings: ApiSettings
    slot: StoreSlot
    people: People
    slice_secrets: SliceSecrets
    store_view: StoreView
    decisions: DecisionCache
    writer: Writer
    bundles: BundleStore
    streams: Streams
    reports: Writer
    channels: Sequence[tuple[str, str]]
    offers: EnforcementOffers
    backend: BackendReaders
    stop_reasons: StopReasons
    change_limit: RateLimit
    report_limit: RateLimit
    wake_limit: RateLimit
    new_id: Callable[[int], str]
    clock: Callable[[], int]
    arriving: Counter[str] = field(default_factory=Counter)
    checking: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    in_progress: WorkInProgress = field(default_factory=WorkInProgress)
    verifying: asyncio.Lock = field(default_factory=asyncio.Lock)
    controller_alive: Callable[[], bool] = field(default=lambda: True)
    state_volume: StateVolume = field(default_factory=StateVolume)

    @property
    def state_dir(self) -> Path:
        return Path(self.settings.state_dir)

    @property
    def where(self) -> tuple[str, str]:
        """(cluster, hub) of this deployment's records."""
        return self.settings.cluster, self.settings.hub

    async def record(self, request: Request) -> Recorded:
        """Record a request, and wait until the store view has it.

        Raises Refused, also where the request was recorded and cannot be read back, or StoreUnavailable: it was not.
        """
        outcome = await self.writer.record(request)
        if not isinstance(outcome, Recorded):
            raise refused(outcome)
        recorded_id.set(outcome.id)
        try:
            await self.store_view.wait_for_version(outcome.version)
        except StoreUnavailable as error:
            raise recorded_unread(outcome.id, error) from error
        return outcome

    def url_of(self, path: str) -> str:
        """The path of a resource below api/v1, from the root of the host."""
        return f"{self.people.auth.base_url}api/v1/{path}"
