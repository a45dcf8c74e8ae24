"""The record of an attempt: which ends count as pauses."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.backends.kubernetes.jobs.records import pause_before, stop_fields
from tests.backends.worlds import stop

STOPPED_AT = 1_700_000_010_400


# R55
@pytest.mark.parametrize(
    ("ended_at", "is_pause"),
    [
        pytest.param(1_700_000_000_000, False, id="it ended before"),
        pytest.param(1_700_000_006_000, True, id="the clock of its node is 4 s behind"),
        pytest.param(1_700_000_010_000, True, id="in the same second: it obeyed the pause file at once"),
        pytest.param(1_700_000_025_000, True, id="later, before its pod was deleted"),
    ],
)
def test_a_rank_that_ends_by_the_pause_file_before_its_pod_is_deleted_is_paused(ended_at: int, is_pause: bool) -> None:
    found = pause_before(stop_fields(stop("J"), STOPPED_AT), ended_at)
    assert found == ({"pause_requested": True, "pause_reason": "reclaimed"} if is_pause else {})


def test_an_attempt_without_a_stop_order_has_no_pause() -> None:
    assert pause_before({"order": "{}"}, STOPPED_AT) == {}
