"""What is done again and again goes on whatever is away, and says so once; what nobody expected ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from jupyter_gpu_quota.api.refusals import Refused
from jupyter_gpu_quota.api.services import StoreSlot
from jupyter_gpu_quota.controllers.loop import go_round
from jupyter_gpu_quota.hub_api import HubAway
from jupyter_gpu_quota.store.records.protocol import StoreUnavailable

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


def test_the_first_opening_of_the_database_is_waited_for_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    slot = StoreSlot()
    found = [failing(slot), failing(slot), None]
    with pytest.raises(Over), caplog.at_level(logging.INFO, "rounds"):
        asyncio.run(rounds(iter(found)))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("after_s", "why", "said"),
    [
        pytest.param(0.0, "The disk is full.", "The disk is full.", id="it could not be opened"),
        pytest.param(61.0, "", "The database is not open yet.", id="a minute has passed"),
    ],
)
def test_a_database_that_does_not_open_is_told(
    caplog: pytest.LogCaptureFixture, after_s: float, why: str, said: str
) -> None:
    clock = iter([0.0, after_s, after_s])
    slot = StoreSlot(clock=lambda: next(clock))
    slot.why = why
    with pytest.raises(Over), caplog.at_level(logging.INFO, "rounds"):
        asyncio.run(rounds(iter([failing(slot)])))
    assert [record.message for record in caplog.records] == [f"it cannot be looked at now: {said}"]


def failing(slot: StoreSlot) -> StoreUnavailable:
    """What comes of asking for the store now."""
    with pytest.raises(StoreUnavailable) as raised:
        slot()
    return raised.value
