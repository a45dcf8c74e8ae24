"""What is done again and again goes on whatever is away, and says so once; what nobody expected ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from jupyter_gpu_quota.service.hub import HubAway
from jupyter_gpu_quota.service.refused import Refused
from jupyter_gpu_quota.service.rounds import go_round
from jupyter_gpu_quota.store.protocol import StoreUnavailable

log = logging.getLogger("rounds")


class Over(Exception):
    """The end of a test's rounds."""


async def rounds(comes: Iterator[Exception | None]) -> None:
    async def look() -> None:
        found = next(comes, Over())
        if found is not None:
            raise found

    await go_round(look, 0, "it cannot be looked at now", log)


def test_it_goes_on_and_says_once_each_time_that_something_is_away(caplog: pytest.LogCaptureFixture) -> None:
    away = [StoreUnavailable("no store."), HubAway("no hub"), None, Refused(409, "ended", "it ended"), None, None]
    with pytest.raises(Over), caplog.at_level(logging.WARNING, "rounds"):
        asyncio.run(rounds(iter(away)))
    assert [record.message for record in caplog.records] == [
        "it cannot be looked at now: no store.",
        "it cannot be looked at now: it ended",
    ]


def test_a_fault_that_nobody_expected_ends_it() -> None:
    with pytest.raises(ValueError, match="unexpected"):
        asyncio.run(rounds(iter([None, ValueError("unexpected")])))
