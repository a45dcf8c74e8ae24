"""The checks of the soak find violations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.soak.checks import broken_promises
from tests.soak.stream import Sent

SENT = Sent(job="j1", kind="ending", code=3, user="ann")
START = {"job": "j1", "attempt": 1, "event": "start"}
END = {"job": "j1", "attempt": 1, "event": "end", "code": 3}
TRUE = {"state": "failed", "attempt": 1, "exit_status": 3, "reason": None}


@pytest.mark.parametrize(
    ("diary", "record", "words"),
    [
        pytest.param([START, END], TRUE, [], id="a job that failed as it said is fine"),
        pytest.param([START, END], {}, ["acknowledged and is lost"], id="a job that the service forgot"),
        pytest.param([START], {**TRUE, "state": "running"}, ["did not end"], id="a job that never ends"),
        pytest.param([START, END], {**TRUE, "exit_status": 0}, ["ended attempt 1 with 3"], id="another exit code"),
        pytest.param(
            [START, END], {**TRUE, "attempt": 2}, ["recorded is attempt 2"], id="an attempt that is not in the diary"
        ),
        pytest.param(
            [START, END], {**TRUE, "state": "succeeded"}, ["recorded as succeeded"], id="a failure called success"
        ),
        pytest.param([START, START, END], TRUE, ["was started 2 times"], id="an attempt that was started twice"),
        pytest.param(
            [START, {**START, "event": "overlap", "attempt": 2}, END],
            TRUE,
            ["twice at once"],
            id="two attempts at once",
        ),
        pytest.param(
            [START, END, {**START, "job": "j2"}], TRUE, ["never acknowledged"], id="a job that was not acknowledged"
        ),
        pytest.param([START], TRUE, ["recorded no end"], id="a job without a recorded end"),
    ],
)
def test_a_difference_between_diary_and_record_is_found(
    tmp_path: Path, diary: Sequence[dict[str, Any]], record: dict[str, Any], words: Sequence[str]
) -> None:
    book = tmp_path / "diary"
    book.write_text("".join(json.dumps(line) + "\n" for line in diary))
    found = list(broken_promises([SENT], {"j1": record}, book))
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))
