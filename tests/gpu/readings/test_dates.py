"""The time of the last use of a device: from the driver's samples, between two readings, or unknown."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from jupyter_gpu_quota.backends.local.sampling.process_use import (
    BEHIND_US,
    MAX_REQUESTS,
    PERIOD_US,
    ProcessUses,
    Rows,
    dated,
)
from tests.gpu.world import FakeGpu, share_of

READ, NOW, SECOND = 1_000_000_000, 1_010_000_000, 1_000_000


@pytest.mark.parametrize(
    ("stamp", "before", "expected"),
    [
        pytest.param(READ + 3 * SECOND, READ, READ + 3 * SECOND + PERIOD_US, id="until the sample's end at the latest"),
        pytest.param(NOW - 1, READ, NOW, id="not after the reading"),
        pytest.param(READ - 5 * SECOND, READ, READ, id="not before the reading that did not have it"),
        pytest.param(NOW + 1, READ, None, id="a stamp in the future"),
        pytest.param(READ - BEHIND_US - 1, READ, None, id="a stamp from long ago"),
        pytest.param(0, READ, None, id="no stamp"),
        pytest.param((1 << 64) - 1, READ, None, id="the largest number"),
        pytest.param(READ + SECOND, None, None, id="the first reading"),
        pytest.param(None, READ, None, id="no use"),
    ],
)
def test_a_use_is_dated_within_its_reading(stamp: int | None, before: int | None, expected: int | None) -> None:
    assert dated(stamp, before, NOW) == expected


def seen(fake: FakeGpu) -> tuple[int | None, int | None]:
    (process,) = fake.row("N").processes["N"]
    return process.percent, process.used_at


def ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_driver_sample_dates_the_use_of_its_process(fake: FakeGpu) -> None:
    fake.script.device(0)
    pid = fake.start(500, variables=share_of("N"))
    before = ms()
    assert seen(fake) == (0, None)
    between = ms()
    fake.script.add(
        f"0 sample {pid} {between * 1000 - 200_000} 40 0 0 0", f"0 sample {pid} {between * 1000 - 100_000} 0 0 0 0"
    )
    percent, used_at = seen(fake)
    assert percent == 20 and used_at is not None and before <= used_at <= ms()
    assert seen(fake) == (0, None), "a use was reported twice"


def test_a_sample_with_an_invalid_time_gives_no_date(fake: FakeGpu) -> None:
    fake.script.device(0)
    pid = fake.start(500, variables=share_of("N"))
    fake.script.put(f"0 sample {pid} 77 0 0 0 0")
    assert seen(fake) == (0, None)
    fake.script.put(f"0 sample {pid} {(int(time.time()) + 600) * 1_000_000} 40 0 0 0")
    assert seen(fake) == (40, None)


@dataclass
class Driver:
    """How driver 580 answers on an H100: one row for a process, its mean since the requested time, stamped as new."""

    now_us: int = READ
    uses: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end in microseconds, by process 1."""
    requests: int = 0

    def rows(self, since_us: int) -> Rows:
        self.requests += 1
        used_us = sum(max(0, min(end, self.now_us) - max(begin, since_us)) for begin, end in self.uses)
        if not used_us:
            return {}
        return {1: [(self.now_us - 100_000, max(1, 100 * used_us // (self.now_us - since_us)))]}

    def reading(self, uses: ProcessUses, after_s: int) -> tuple[int | None, float | None]:
        """Percent, and the least number of seconds since the end of the use, at a reading so many seconds later."""
        self.now_us += after_s * SECOND
        self.requests = 0
        found = uses.read("GPU-0", self.rows, lambda: self.now_us)
        assert isinstance(found, dict)
        if 1 not in found:
            return 0, None
        used_us = found[1].used_us
        return found[1].percent, None if used_us is None else (self.now_us - used_us) / SECOND


@pytest.mark.parametrize(
    ("ended_s", "at_least_s"),
    [
        pytest.param(0.0, 0, id="in use"),
        pytest.param(1.5, 0, id="until a second and a half ago"),
        pytest.param(4.5, 3, id="until four and a half seconds ago"),
        pytest.param(8.9, 7, id="soon after the previous reading"),
    ],
)
def test_the_end_of_a_use_is_found_where_the_driver_reports_a_mean(ended_s: float, at_least_s: int) -> None:
    uses, driver = ProcessUses(), Driver()
    assert driver.reading(uses, 0) == (0, None)
    end_us = READ + 10 * SECOND - int(ended_s * SECOND)
    driver.uses = [(end_us - 50_000, end_us)]
    percent, ago_s = driver.reading(uses, 10)
    assert percent and ago_s == at_least_s <= ended_s
    assert driver.requests <= MAX_REQUESTS + 1
    driver.reading(uses, 10)
    assert driver.reading(uses, 10) == (0, None)


def test_a_device_in_use_costs_one_more_request() -> None:
    uses, driver = ProcessUses(), Driver(uses=[(READ, READ + 3600 * SECOND)])
    driver.reading(uses, 10)
    assert driver.reading(uses, 10) == (100, 0.0) and driver.requests == 2


def test_a_mean_covers_only_the_time_since_the_previous_reading() -> None:
    uses, driver = ProcessUses(), Driver(uses=[(READ, READ + SECOND)])
    driver.reading(uses, 0)
    driver.reading(uses, 10)
    driver.reading(uses, 600)
    driver.uses.append((driver.now_us + SECOND, driver.now_us + 6 * SECOND))
    percent, _ = driver.reading(uses, 10)
    assert percent is not None and percent >= 45
