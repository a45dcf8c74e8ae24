"""Traces in which an earlier release starved a job or a project: regular streams of jobs, replayed by the simulator.

The pictures of docs/explanation/queue-changes.md show the same traces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.simulate import tracefile
from jupyter_gpu_quota.simulate.tracefile import Trace

HOUR_S = 3600
DAY_S = 24 * HOUR_S


class Stream(NamedTuple):
    """``count`` equal jobs of a project, one every ``every_s``; ``more`` has further fields of the trace's rows."""

    name: str
    project: str
    gpu: float
    duration_s: int
    time_limit_s: int
    count: int = 1
    first_s: int = 0
    every_s: int = 0
    more: tuple[tuple[str, Any], ...] = ()

    def rows(self) -> Iterator[dict[str, Any]]:
        for at in range(self.count):
            yield {
                "kind": "training",
                "id": f"{self.name}-{at:03d}" if self.count > 1 else self.name,
                "submit_s": self.first_s + at * self.every_s,
                "project": self.project,
                "gpu": self.gpu,
                "duration_s": self.duration_s,
                "time_limit_s": self.time_limit_s,
                **dict(self.more),
            }


class Case(NamedTuple):
    """One trace with its quotas. ``job``: the job that waited for ever; for two endless demands the lesser project."""

    nodes: tuple[dict[str, Any], ...]
    projects: tuple[str, ...]
    streams: tuple[Stream, ...]
    job: str = ""
    project: str = ""
    policy: str = ""

    def trace(self) -> Trace:
        work = [row for stream in self.streams for row in stream.rows()]
        found = tracefile.read(json.dumps({"format": 1, "nodes": list(self.nodes), "work": work}))
        assert isinstance(found, Trace), found
        return found

    def quota(self) -> QuotaFile:
        rows = "".join(f"  - {{{row}}}\n" for row in self.projects)
        found = quotafile.parse(f"version: 1\npools: [{{name: all}}]\nprojects:\n{rows}{self.policy}")
        assert isinstance(found, QuotaFile), found
        return found


def node(name: str, gpus: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "gpus": gpus, **more}


def project(name: str, training: int, weight: int = 1) -> str:
    return f"name: {name}, quota: {{all: {{training: {training}, weight: {weight}}}}}"


def _fixed(name: str, duration_s: int, model: str) -> Stream:
    more = (("gpu_model", model), ("preemptible", False))
    return Stream(name, "stream", 1, duration_s, 4 * HOUR_S, more=more)


def _endless(gpus: int, *, until_s: int = 14 * DAY_S) -> tuple[Stream, ...]:
    """Two projects that submit a job of an hour every half hour: more than there is room for."""
    return tuple(
        Stream(name, name, gpus, HOUR_S, 2 * HOUR_S, count=until_s // 1800, every_s=1800) for name in ("a", "b")
    )


LESSER = (project("a", 0), project("b", 0, weight=2))
GANG_AND_STREAM = (project("gang", 4), project("stream", 4), project("third", 0))
SAVES = (("saves_in_s", 5),)

CASES = {
    "never-paused": Case(
        nodes=(node("n", 4),),
        projects=(project("a", 0), project("b", 0)),
        streams=(
            Stream("gang", "a", 2, HOUR_S, 2 * HOUR_S, first_s=600),
            *(Stream(f"b{at}", "b", 1, 1800 * at, 1800 * at + 60) for at in (1, 2, 3, 4)),
            Stream("b", "b", 1, 2 * HOUR_S, 7260, count=96, first_s=1, every_s=1800),
        ),
        job="gang",
        policy="policy: {preemption: {min_runtime: 10m, grace: 60s, max_pauses: 0, per: 24h}}\n",
    ),
    "quarters": Case(
        nodes=(node("n1", 4), node("n2", 4)),
        projects=GANG_AND_STREAM,
        streams=(
            Stream("gang", "gang", 4, 2 * HOUR_S, 4 * HOUR_S, first_s=4 * HOUR_S),
            Stream("first", "stream", 0.25, 5400, 7200, count=16, more=SAVES),
            Stream("stream", "stream", 0.25, 5400, 7200, count=144, first_s=300, every_s=300, more=SAVES),
            Stream("many", "third", 1, 5400, 7200, count=8, more=SAVES),
            Stream("third", "third", 1, 5400, 7200, count=43, first_s=1000, every_s=1000, more=SAVES),
        ),
        job="gang",
        policy="policy: {preemption: {min_runtime: 0s, grace: 60s, max_pauses: 4, per: 24h}}\n",
    ),
    "two-nodes": Case(
        nodes=(node("n1", 4, gpu_model="A"), node("n2", 4, gpu_model="B")),
        projects=GANG_AND_STREAM,
        streams=(
            Stream("gang", "gang", 4, 2 * HOUR_S, 4 * HOUR_S, first_s=1800),
            _fixed("a0", 3600, "A"),
            _fixed("a1", 6000, "A"),
            _fixed("b0", 4800, "B"),
            _fixed("b1", 7200, "B"),
            Stream("s", "stream", 1, 5400, 7200, count=144, first_s=1, every_s=1200, more=(("preemptible", False),)),
            Stream("many", "third", 1, 5400, 7200, count=8),
            Stream("third", "third", 1, 5400, 7200, count=164, first_s=8000, every_s=1000),
        ),
        job="gang",
    ),
    "above-fair-share": Case(
        nodes=(node("n", 2),),
        projects=(project("a", 0), project("b", 0)),
        streams=(
            Stream("gang", "a", 2, 2 * HOUR_S, 4 * HOUR_S, first_s=HOUR_S),
            Stream("first", "b", 1, 2 * HOUR_S, 3 * HOUR_S, count=2),
            Stream("b", "b", 1, 2 * HOUR_S, 3 * HOUR_S, count=335, first_s=HOUR_S, every_s=HOUR_S),
        ),
        job="gang",
    ),
    "weights-one-gpu": Case(nodes=(node("n", 1),), projects=LESSER, streams=_endless(1), project="a"),
    "weights-two-gpus": Case(nodes=(node("n", 2),), projects=LESSER, streams=_endless(2), project="a"),
}


def names(*, endless: bool) -> Iterable[str]:
    """The traces of two endless demands, or those with one job that waited."""
    return [name for name, case in CASES.items() if bool(case.project) == endless]
