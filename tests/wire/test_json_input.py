"""Documents from outside, through the command line: whatever they are, the refusal is short, soon and takes little."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.simulate import recorded_trace as recorded
from jupyter_gpu_quota.simulate import tracefile
from jupyter_gpu_quota.simulate.tracefile import Trace
from jupyter_gpu_quota.wire import json_input as intake
from jupyter_gpu_quota.wire import snapshot_document as snapshotfile
from jupyter_gpu_quota.wire.snapshot_document import SnapshotDocument

MANY = 500_000
ROOM = 1 << 30
"""Bytes that a refusal may take in all: a tenth of what it took to collect every error."""
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
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM)),
    )


def many(before: bytes, item: bytes, after: bytes) -> bytes:
    return before + (item + b",") * MANY + item + after


@pytest.mark.parametrize(
    ("command", "content", "words"),
    [
        pytest.param(
            "decide",
            many(b'{"policy":{"revision":1},"snapshot":{"version":1,"now":1,"jobs":[', b"{}", b"]}}"),
            "snapshot.jobs.0.id: it is needed",
            id="a snapshot of empty jobs",
        ),
        pytest.param(
            "decide",
            b'{"policy":{"revision":1},"snapshot":{%s}}' % b",".join(b'"k%d":1' % at for at in range(MANY)),
            "an object with the key 'k0' has more than 10000 keys",
            id="a snapshot of unknown keys",
        ),
        pytest.param(
            "decide",
            b'{"policy":{"revision":1},"snapshot":{%s,"k999":1}}' % b",".join(b'"k%d":1' % at for at in range(MANY)),
            "an object with the key 'k0' has more than 10000 keys",
            id="a snapshot of unknown keys, one of which stands twice",
        ),
        pytest.param(
            "simulate", many(b'{"work":[', b"{}", b"]}"), "work.0: it has no kind", id="a trace of empty work"
        ),
        pytest.param(
            "simulate", many(b"[", b"{}", b"]"), "0.seq: it is needed, and was not given", id="an audit of empty rows"
        ),
        pytest.param(
            "simulate",
            many(TRACE[:-1] + b',"quotas":{"version":1,"projects":[', b"{}", b"]}}"),
            "own quotas have 2000032 characters; more than 1000000 are not read",
            id="a trace with quotas of empty projects",
        ),
    ],
)
def test_a_million_faults_are_refused_by_the_first_in_little_room(
    command: str, content: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(content)
    done = run(command, "x", folder=tmp_path)
    assert done.returncode == 1 and words in done.stderr.partition("\n")[0], done.stderr[-400:]


def test_a_trace_tells_the_wrong_lines_of_the_first_thousand_that_has_one() -> None:
    good = "training,0,a,1,5\n"
    table = good * 3000 + "training,0,a,x,5\n" + good + "training,-1,a,1,5\n" + good * 3000 + "bad,0,a,1,5\n"
    found = tracefile.read_csv("kind,submit_s,project,gpu,duration_s\n" + table)
    assert isinstance(found, list) and [told.partition(":")[0] for told in found] == [
        "line 3002, gpu",
        "line 3004, submit_s",
    ]
    assert isinstance(tracefile.read_csv("kind,submit_s,project,gpu,duration_s\n" + good * 3000), Trace)


def test_more_work_than_is_played_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefile, "MOST_ITEMS", 2)
    found = tracefile.read(json.dumps({"work": [JOB] * 3}))
    assert found == ["work: there are more than 2 of them, the most of a trace"]


@pytest.mark.parametrize("command", ["decide", "simulate"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(gzip.compress, "it is packed (gzip); unpack it first", id="packed"),
        pytest.param(lambda text: b"PK\x03\x04" + text, "it is packed (zip); unpack it first", id="a zip file"),
        pytest.param(
            lambda text: text.decode().encode("utf-16"),
            "byte 0 cannot be read; save it as UTF-8",
            id="of another encoding",
        ),
        pytest.param(
            lambda text: text.replace(b"1", b"9" * 5000, 1),
            ": the number 9999999999... (of 5000 digits) is more than 9223372036854775807",
            id="a number of a page",
        ),
        pytest.param(lambda text: text.replace(b"1", b"NaN", 1), "NaN is no number", id="no number"),
        pytest.param(lambda _: b"[" * 300_000, "nested too deeply", id="nested without end"),
    ],
)
def test_what_is_no_document_is_told_with_what_to_do(command: str, change: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(change(SNAPSHOT if command == "decide" else TRACE))
    done = run(command, "x", folder=tmp_path)
    assert done.returncode == 1 and words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


def test_a_byte_order_mark_is_no_fault() -> None:
    assert isinstance(snapshotfile.read(b"\xef\xbb\xbf" + SNAPSHOT), SnapshotDocument)
    assert isinstance(tracefile.read(b"\xef\xbb\xbf" + TRACE), Trace)


def test_a_key_that_stands_twice_is_refused_and_not_chosen_from() -> None:
    twice = "the document: the key 'jobs' stands twice in one object; which one counts is a guess, leave one out"
    assert snapshotfile.read(SNAPSHOT.replace(b'"now":1', b'"now":1,"jobs":[],"jobs":[]')) == [twice]
    assert tracefile.read(TRACE.replace(b'"work"', b'"work":[],"work"')) == [twice.replace("jobs", "work")]
    assert recorded.read('[{"seq":1,"seq":2}]') == [twice.replace("the document", "the audit").replace("jobs", "seq")]


def test_more_bytes_or_values_than_are_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_VALUES", 2)
    assert snapshotfile.read(SNAPSHOT) == [
        "the document: it has more than 2 values, the most that are read",
    ]
    monkeypatch.setattr(intake, "LARGEST", 5)
    assert snapshotfile.read(SNAPSHOT) == ["the document: it has more than 5 bytes, the most that are read"]


def test_what_a_terminal_would_obey_is_shown_and_long_names_are_cut() -> None:
    (told,) = snapshotfile.read(json.dumps({**json.loads(SNAPSHOT), "\x1b[2J\u202e" + "x" * 10**6: 1}))  # type: ignore[misc]
    assert told.startswith("\\x1b[2J\\u202exxx") and len(told) < 200
    (told,) = tracefile.read(json.dumps({"work": [], "x" * 10**6: 1}))  # type: ignore[misc]
    assert len(told) < 200
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
