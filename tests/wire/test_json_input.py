"""Files that are given to a command: a refusal is short and says what to do."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.simulate import recorded_trace as recorded
from jupyter_gpu_quota.simulate import tracefile
from jupyter_gpu_quota.simulate.tracefile import Trace
from jupyter_gpu_quota.wire import json_input
from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument

SNAPSHOT = b'{"policy":{"revision":1},"snapshot":{"version":1,"now":1}}'
JOB = {"kind": "training", "submit_s": 0, "project": "a", "gpu": 1, "duration_s": 10}
TRACE = json.dumps({"nodes": [{"name": "n", "gpus": 8}], "work": [JOB]}).encode()


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jupyter_gpu_quota", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_trace_lists_the_first_wrong_lines() -> None:
    good = "training,0,a,1,5\n"
    table = good * 3000 + "training,0,a,x,5\n" + good + "training,-1,a,1,5\n" + good * 3000
    found = tracefile.read_csv("kind,submit_s,project,gpu,duration_s\n" + table)
    assert isinstance(found, list) and [sentence.partition(":")[0] for sentence in found] == [
        "line 3002, gpu",
        "line 3004, submit_s",
    ]
    assert isinstance(tracefile.read_csv("kind,submit_s,project,gpu,duration_s\n" + good * 3000), Trace)


def test_more_work_than_is_played_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefile, "MAX_ITEMS", 2)
    found = tracefile.read(json.dumps({"work": [JOB] * 3}))
    assert found == ["work: there are more than 2 of them, the maximum of a trace"]


@pytest.mark.parametrize("command", ["decide", "simulate"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(gzip.compress, "byte 1 cannot be read; save it as UTF-8, not packed", id="packed"),
        pytest.param(lambda text: text.decode().encode("utf-16"), "byte 0 cannot be read", id="of another encoding"),
        pytest.param(lambda text: text.replace(b"1", b"9" * 5000, 1), "number", id="a number of a page"),
        pytest.param(lambda text: text.replace(b"1", b"NaN", 1), "NaN", id="no number"),
        pytest.param(lambda _: b"[" * 300_000, "is not JSON", id="nested without end"),
    ],
)
def test_an_invalid_file_is_refused_with_advice(command: str, change: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(change(SNAPSHOT if command == "decide" else TRACE))
    done = run(command, "x", folder=tmp_path)
    assert done.returncode == 1 and words in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


def test_a_byte_order_mark_is_accepted() -> None:
    assert isinstance(snapshotfile.read(b"\xef\xbb\xbf" + SNAPSHOT), SnapshotDocument)
    assert isinstance(tracefile.read(b"\xef\xbb\xbf" + TRACE), Trace)


def test_a_duplicate_key_in_a_trace_is_refused() -> None:
    twice = "the document: the key 'work' is in one object twice; remove one of them"
    assert tracefile.read(TRACE.replace(b'"work"', b'"work":[],"work"')) == [twice]
    assert recorded.read('[{"seq":1,"seq":2}]') == [twice.replace("the document", "the audit").replace("work", "seq")]


@pytest.mark.parametrize("key", ["revision", "now"])
def test_a_duplicate_key_in_a_snapshot_is_refused(key: str) -> None:
    twice = f"the document: the key '{key}' is in one object twice; remove one of them"
    assert snapshotfile.read(SNAPSHOT.replace(f'"{key}":'.encode(), f'"{key}":7,"{key}":'.encode())) == [twice]


def test_more_bytes_than_are_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_input, "MAX_BYTES", 5)
    assert snapshotfile.read(SNAPSHOT) == ["the document: it has more than 5 bytes, the limit"]


def test_control_characters_are_escaped_and_long_names_are_cut() -> None:
    (shown,) = snapshotfile.read(json.dumps({**json.loads(SNAPSHOT), "\x1b[2J\u202e" + "x" * 10**6: 1}))  # type: ignore[misc]
    assert shown.startswith("\\x1b[2J\\u202exxx") and len(shown) < 200
    (shown,) = tracefile.read(json.dumps({"work": [], "x" * 10**6: 1}))  # type: ignore[misc]
    assert len(shown) < 200
    for name in ("\x9b2J", "a\u202eb", "a\u2028b"):
        found = tracefile.read(json.dumps({"work": [JOB | {"user": name}]}))
        assert isinstance(found, list) and "which no name has" in found[0] and found[0].isprintable()
    found = tracefile.read(json.dumps({"work": [JOB | {"submit_s": 10**400}]}))
    assert isinstance(found, list) and len(found[0]) < 200


def test_an_audit_without_time_zones_is_refused() -> None:
    row = {"seq": 1, "at": "2027-01-04T00:00:00", "actor": "", "kind": "", "subject": "", "project": None}
    assert recorded.read(json.dumps([row | {"payload": {}}])) == [
        "0.at: '2027-01-04T00:00:00' has no time zone; write an instant such as 2027-01-04T00:00:00Z"
    ]
