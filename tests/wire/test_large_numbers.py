"""Numbers that are too large: every interface names the largest allowed one, the given one and its position."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from jupyter_gpu_quota.api.requests.resource import sentence_of
from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.quotafile import parse
from jupyter_gpu_quota.simulate import tracefile
from jupyter_gpu_quota.wire import JobRequest
from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
from tests.core.world import world

ONES = "1111111111... (of {} digits)"
QUOTA = """version: 1
pools: [{name: train}]
projects:
  - name: fraud
    PRIORITY
    quota: {train: {AMOUNTS}}
REST
"""


def quota(priority: str = "", amounts: str = "training: 1", rest: str = "") -> list[tuple[int, str]]:
    text = QUOTA.replace("PRIORITY", priority or "priority: 50").replace("AMOUNTS", amounts).replace("REST", rest)
    found = parse(text)
    assert isinstance(found, list), found
    return [(error.line, error.message) for error in found]


@pytest.mark.parametrize("digits", [4, 18, 19, 40, 4300, 5000])
def test_a_priority_of_the_quota_file_that_is_too_large(digits: int) -> None:
    shown = "1" * digits if digits <= 24 else ONES.format(digits)
    assert quota(f"priority: {'1' * digits}") == [
        (5, f"projects.fraud.priority: {shown} is more than 100, the maximum")
    ]


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        pytest.param("weight: " + "1" * 19, "1 is more than 1000000, the maximum", id="weight"),
        pytest.param("training: " + "1" * 19, "'1111111111111111111' GPUs is more than the 100000", id="quota"),
        pytest.param("training: 1, limit: 12345678901234.5", "GPUs is more than the 100000 that one", id="limit"),
    ],
)
def test_an_amount_of_the_quota_file_that_is_too_large(amounts: str, words: str) -> None:
    ((line, found),) = quota(amounts=amounts)
    assert line == 6 and words in found and "not a whole number" not in found


def test_the_rest_of_a_quota_file_that_is_too_large() -> None:
    ((line, found),) = quota(rest=f"policy: {{idle: {{gpu_idle_after: {'9' * 20}s}}}}")
    assert line == 7 and found.endswith("is longer than ten years, the longest here")
    assert quota(rest=f"revision: {'1' * 30}") == [
        (7, f"revision: {ONES.format(30)} is more than 2^63 - 1, the maximum")
    ]


def test_a_text_of_digits_is_still_a_name() -> None:
    assert not isinstance(parse(QUOTA.replace("PRIORITY", f"members: {{users: [{'1' * 30}]}}").replace(
        "AMOUNTS", "training: 1").replace("REST", "")), list)  # fmt: skip


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("10001", "nodes: 10001 is more than 10000, the maximum"),
        ("1" * 40, f"nodes: {ONES.format(40)} is more than 10000, the maximum"),
        ("1" * 5000, "line 1 column 4327 is more than 2^63 - 1"),
        ("1e30", "nodes: 1e+30 is more than 2^63 - 1"),
        ("1e400", "nodes: a number beyond 1.7e+308 is more than 2^63 - 1"),
        ("1.5", "nodes: 1.5 is not a whole number"),
    ],
    ids=["one too many", "forty digits", "thousands of digits", "an exponent", "beyond floats", "a part"],
)
def test_a_number_of_a_job_request_that_is_too_large(written: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        JobRequest.model_validate_json('{"command":["x"],"nodes":' + written + "}")
    found = sentence_of(caught.value)
    assert words in found and len(found) < 200


def test_texts_and_secrets_of_a_request_are_not_repeated_in_errors() -> None:
    with pytest.raises(ValidationError) as caught:
        JobRequest.model_validate({"command": ["x"], "nodes": "S3CRET", "secrets": {"A": 424242}})
    found = sentence_of(caught.value)
    assert "S3CRET" not in found and "424242" not in found and "nodes: what was given is not a whole number" in found


def trace(key: str, written: str) -> str:
    work = {"kind": "training", "project": "a", "submit_s": 0, "duration_s": 1, "gpu": 1} | {key: 0}
    text = json.dumps({"work": [work]})
    return text.replace(f'"{key}": 0', f'"{key}": {written}')


@pytest.mark.parametrize(
    ("key", "written", "words"),
    [
        ("ranks", "1" * 40, f"work.0.ranks: {ONES.format(40)} is more than 100000, the maximum"),
        ("ranks", "1e30", "work.0.ranks: 1e+30 is more than 2^63 - 1"),
        ("submit_s", "1" * 40, f"work.0.submit_s: {ONES.format(40)} s is not between 0 and 316224000 s"),
        ("gpu", "1" * 20, "GPUs is more than the 100000 that one amount may name"),
        ("gpu", "1e300", "work.0.gpu: 1e+300 is more than the 100000 GPUs"),
        ("priority", "1" * 5000, "a number has more digits than can be read"),
    ],
)
def test_a_number_of_a_trace_that_is_too_large(key: str, written: str, words: str) -> None:
    found = tracefile.read(trace(key, written))
    assert isinstance(found, list) and words in found[0] and len(found[0]) < 200, found


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("101", "snapshot.jobs.0.priority is 101; it is from 0 to 100"),
        ("1" * 1000, f"snapshot.jobs.0.priority is {ONES.format(1000)}; it is from 0 to 100"),
        ("1" * 5000, " is more than 2^63 - 1"),
        ("1e30", "snapshot.jobs.0.priority: 1e+30 is more than 2^63 - 1"),
    ],
    ids=["one too many", "a thousand digits", "thousands of digits", "an exponent"],
)
def test_a_number_of_a_snapshot_that_is_too_large(written: str, words: str) -> None:
    state = world("pool train 4\nbob 2 of train\nbob runs 1 of 1")
    text = snapshotfile.write(state.snapshot(), state.policy).decode()
    assert text.count('"priority":50,') == 1 or '"jobs":' in text
    jobs = text.index('"jobs":')
    found = snapshotfile.read(text[:jobs] + text[jobs:].replace('"priority":50', f'"priority":{written}', 1))
    assert isinstance(found, list) and words in found[0] and len(found[0]) < 200, found


def test_amounts_on_the_command_line_that_are_too_large(tmp_path: Path) -> None:
    for option, given, words in (
        ("--cpu", "999999999", "'999999999' CPUs is more than the 100000 that one amount may name"),
        ("--memory", f"{'9' * 13}GiB", "is more memory than anything has; at most 1024TiB"),
    ):
        done = CliRunner().invoke(main, ["submit", option, given, "--", "x"])
        assert done.exit_code == 2 and words in " ".join(done.stderr.split()), done.stderr
