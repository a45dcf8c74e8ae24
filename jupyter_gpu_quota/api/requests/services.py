"""Everything the acts of the web door share, put together once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...backends.protocol import OutputReader
from ...bundle import BundleStore
from ...core.model import Device
from ...settings import GPUQuota
from ...store import wakeup as bell
from ...store.records.commands import Recorded, Request
from ...store.records.protocol import NotOpenYet, Store, StoreUnavailable
from ..access.people import People
from ..access.rate_limit import Pace
from ..access.refusals import refused
from ..access.streams import Streams
from ..state.decision_cache import Foresight
from ..state.offers import Offers
from ..state.stop_reasons import Stops
from ..state.store_view import World
from .writer import Writer

NOT_OPEN = "The database is not open yet."
OPENS_WITHIN_S = 60.0
"""So long the first opening, with its migrations, is waited for before that is worth a word."""


def now_ms() -> int:
    """The door's clock: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class StoreSlot:
    """Where the store will be once it could be opened; until then every use says why not.

    ``why``: why it could not be opened; empty while that is tried for the first time. ``clock`` is in seconds.
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


@dataclass(slots=True, kw_only=True)
class Door:
    """The parts: settings, who people are, the mirror of the store, the one writer, the bundles on disk.

    ``arriving`` holds the bytes of bundles on their way, by person; ``changes`` is how often each may change something.
    ``channels`` are the ways out of messages: the name of each, and its other end.
    ``reports`` writes the reports of notebooks' servers, which wake nobody.
    ``controller_alive`` tells whether the scheduler's process runs. ``new_id`` makes ULIDs from an instant.
    """

    settings: GPUQuota
    slot: StoreSlot
    people: People
    world: World
    foresight: Foresight
    writer: Writer
    bundles: BundleStore
    streams: Streams
    reports: Writer
    channels: Sequence[tuple[str, str]]
    offers: Offers
    outputs: OutputReader
    stops: Stops
    changes: Pace
    report_pace: Pace
    wake_pace: Pace
    new_id: Callable[[int], str]
    clock: Callable[[], int] = now_ms
    arriving: Counter[str] = field(default_factory=Counter)
    controller_alive: Callable[[], bool] = field(default=lambda: True)

    @property
    def state_dir(self) -> Path:
        return Path(self.settings.state_dir)

    @property
    def where(self) -> tuple[str, str]:
        """(cluster, hub) of this deployment's records."""
        return self.settings.cluster, self.settings.hub

    async def record(self, request: Request) -> Recorded:
        """Record a request and see it in the mirror; raises Refused with the store's reason, or StoreUnavailable."""
        outcome = await self.writer.record(request)
        if not isinstance(outcome, Recorded):
            raise refused(outcome)
        await self.world.at_least(outcome.version)
        return outcome

    def devices_in(self, pool: str) -> list[Device]:
        return self.world.devices_in(pool)

    def wake_controller(self) -> None:
        bell.ring(self.state_dir / "controller.sock")

    def committed(self) -> None:
        """After each batch that wrote: the scheduler looks at once, and so does the mirror."""
        self.wake_controller()
        self.world.nudge()
