"""Checks after the kills: every job's diary agrees with the service's record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jupyter_gpu_quota.demo.temporary_hub import TemporaryHub
from tests.patience import Stopwatch
from tests.soak.rest_calls import request_until_answered
from tests.soak.stream import Sent, diary_lines

FINAL = {"succeeded", "failed", "cancelled"}


def records(hub: TemporaryHub, sent: Sequence[Sent]) -> dict[str, dict[str, Any]]:
    """The service's record of every acknowledged job; {} for an unknown one."""
    found = {}
    for one in sent:
        answer = request_until_answered("GET", f"{hub.service_api}/jobs/{one.job}", hub.admin_token)
        found[one.job] = answer.body if answer.status == 200 else {}
    return found


def wait_for_rest(hub: TemporaryHub, sent: Sequence[Sent], within_s: float) -> dict[str, dict[str, Any]]:
    """Wait until every job has ended, or the time is up. Returns the last record of each."""
    with Stopwatch() as watch:
        while True:
            known = records(hub, sent)
            if all(record.get("state") in FINAL for record in known.values()) or watch.seconds > within_s:
                return known
            time.sleep(0.5)


def check_audit(api: str, token: str) -> None:
    """The audit's hash chain is whole. ``api``: the address of the service's API; ``token``: of an admin."""
    verified = request_until_answered("GET", f"{api}/audit/verify", token)
    assert verified.status == 200 and verified.body["intact"] is True, verified.text


def broken_promises(sent: Sequence[Sent], known: dict[str, dict[str, Any]], diary: Path) -> Iterator[str]:
    """A sentence for each promise that does not hold."""
    lines = diary_lines(diary)
    yield from (f"job {n['job']} ran twice at once (attempt {n['attempt']})" for n in lines if n["event"] == "overlap")
    starts = Counter((line["job"], line["attempt"]) for line in lines if line["event"] == "start")
    yield from (
        f"attempt {attempt} of job {job} was started {n} times" for (job, attempt), n in starts.items() if n > 1
    )
    unknown = {line["job"] for line in lines} - {one.job for one in sent}
    yield from (f"job {job} ran, and its submission was never acknowledged" for job in unknown)
    for one in sent:
        yield from _broken_promises_of_job(one, known[one.job], [line for line in lines if line["job"] == one.job])


def _broken_promises_of_job(one: Sent, record: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[str]:
    what = f"job {one.job} ({one.kind} {one.code})"
    if not record:
        yield f"{what} was acknowledged and is lost"
        return
    if record["state"] not in FINAL:
        yield f"{what} did not end: {record['state']}, {record['reason']}"
        return
    ends = [line for line in lines if line["event"] == "end"]
    if not ends:
        yield f"{what} is {record['state']} and its processes recorded no end"
        return
    code = int(ends[-1]["code"])
    if (record["attempt"], record["exit_status"]) != (ends[-1]["attempt"], code):
        recorded = f"attempt {record['attempt']} with {record['exit_status']}"
        yield f"{what} ended attempt {ends[-1]['attempt']} with {code}; recorded is {recorded}"
    if record["state"] != ("succeeded" if code == 0 else "failed"):
        yield f"{what} exited with {code} and is recorded as {record['state']}"
