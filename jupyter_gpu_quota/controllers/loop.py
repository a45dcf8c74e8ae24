"""What the service does again and again, beside answering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..api.refusals import Refused
from ..hub_api import HubAway
from ..store.records.protocol import NotOpenYet, StoreUnavailable

OPENS_SOON_S = 1.0
"""How often a database is looked for that the process opens now."""
AWAY = (StoreUnavailable, HubAway, Refused)
"""What comes of a store or a hub that is away, or of a thing that ended just now."""


async def go_round(look: Callable[[], Awaitable[object]], every_s: float, not_now: str, log: logging.Logger) -> None:
    """Look now and every so often, for ever. That a look came to nothing is said once, as ``not_now`` and why.

    The first opening of the database is waited for without a word.
    """
    well = True
    while True:
        try:
            await look()
            well = True
        except NotOpenYet:
            await asyncio.sleep(min(OPENS_SOON_S, every_s))
            continue
        except AWAY as error:
            tell, well = log.warning if well else log.debug, False
            tell("%s: %s", not_now, error)
        await asyncio.sleep(every_s)
