"""Why an ended job ended, of rows that earlier releases wrote: they kept the reason of the last start or pause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpu_quota.api.views.records import end_reason
from jupyter_gpu_quota.core.job_ends import CommandFailed, CommandKilled
from jupyter_gpu_quota.core.model import JobState
from jupyter_gpu_quota.core.reason_figures import reason_from
from jupyter_gpu_quota.core.reasons import CancelledByUser, RankFailed, Reason, TimeLimit
from jupyter_gpu_quota.store.records.rows import JobRecord
from tests.store.worlds import T0, spec

PAUSED = reason_from("reclaimed", (("preemptor", "another"),))
STARTED = reason_from("within_guarantee")
LIMIT = TimeLimit(ran_s=60, time_limit_s=60, grace_s=5)


@pytest.mark.parametrize(
    ("state", "exit_status", "stored", "expected"),
    [
        pytest.param("failed", 1, PAUSED, CommandFailed(exit_status=1), id="failed, with the reason of a pause"),
        pytest.param("failed", -9, STARTED, CommandKilled(exit_status=-9), id="failed, with the reason of its start"),
        pytest.param("failed", 1, RankFailed(user="bob", grace_s=5), CommandFailed(exit_status=1), id="a gang"),
        pytest.param("failed", 1, None, CommandFailed(exit_status=1), id="failed, without a reason"),
        pytest.param("failed", None, PAUSED, None, id="failed, and nothing is known"),
        pytest.param("failed", -15, LIMIT, LIMIT, id="its time limit"),
        pytest.param("succeeded", 0, PAUSED, None, id="succeeded, with the reason of a pause"),
        pytest.param(
            "cancelled", -15, CancelledByUser(user="bob", grace_s=5), CancelledByUser(), id="cancelled by a user"
        ),
        pytest.param(
            "cancelled", -15, CancelledByUser(by="lea", user="bob", grace_s=5), CancelledByUser(by="lea"),
            id="cancelled by a user who is known",
        ),
        pytest.param("cancelled", None, PAUSED, None, id="cancelled, with the reason of a pause"),
    ],
)  # fmt: skip
def test_an_ended_job_has_no_reason_of_an_earlier_pause(
    state: str, exit_status: int | None, stored: Reason | None, expected: Reason | None
) -> None:
    job = replace(spec().queued("j", "bob", T0), state=JobState(state))
    record = JobRecord(job=job, spec=spec(), account=None, reason=stored, retries_left=0, exit_status=exit_status)
    assert end_reason(record) == expected
