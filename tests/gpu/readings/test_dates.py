"""The time of the last use of a device: from the driver's samples, between two readings, or unknown."""

from __future__ import annotations

import time

import pytest

from jupyter_gpu_quota.backends.local.sampling.nvml_session import BEHIND_US, PERIOD_US, dated
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
