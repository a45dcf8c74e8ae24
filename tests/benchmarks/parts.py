"""The parts of the benchmark table, each with its full and its quick measurement."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpu_quota.demo.temporary_hub import TemporaryHub
from tests.benchmarks.figures import Figure
from tests.benchmarks.idle_detection import accuracy
from tests.benchmarks.kube import fractions as kube_fractions
from tests.benchmarks.kube import shapes as kube_shapes
from tests.benchmarks.packing import openb
from tests.benchmarks.scheduling import bank, decide, explain, history, kueue, kueue_live, large, shapes
from tests.benchmarks.service import claims, idle, pages, reports, sampler, sidebar, slices, streams, submissions, wake
from tests.benchmarks.service.hubs import hub_with_quota
from tests.benchmarks.store import tick, usage

MAX_NODES, MIN_NODES = 500, 50
DECIDE_MS = 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``measure`` takes whether a quick run is enough. Any exception is a failure; no figures: it cannot run here."""

    title: str
    measure: Callable[[bool], Sequence[Figure]]


@contextmanager
def _hub() -> Iterator[TemporaryHub]:
    with tempfile.TemporaryDirectory() as folder, hub_with_quota(Path(folder)) as hub:
        yield hub


def of_claims(quick: bool) -> Sequence[Figure]:
    """In a real hub."""
    with _hub() as hub:
        return claims.figures(hub, 10) if quick else claims.figures(hub)


def of_idle(quick: bool) -> Sequence[Figure]:
    """In a real hub."""
    with _hub() as hub:
        return idle.figures(hub)


def of_slices(quick: bool) -> Sequence[Figure]:
    """By the spawner's own clock."""
    with tempfile.TemporaryDirectory() as folder:
        return slices.slice_figures(Path(folder))


def of_spawns(quick: bool) -> Sequence[Figure]:
    """With and without the product."""
    with tempfile.TemporaryDirectory() as folder:
        return slices.spawn_figures(Path(folder))


def of_decide(quick: bool) -> Sequence[Figure]:
    """Snapshot object to Plan, and how the cost grows from 50 to 500 nodes."""
    rows = {(row.situation, row.nodes): row for row in decide.measure((MIN_NODES, MAX_NODES), 1 if quick else 5)}
    return [figure for row in rows.values() for figure in (_cost(row), *_growth(row, rows))]


def _cost(row: decide.Row) -> Figure:
    size = f"{row.nodes} nodes x 8, {row.running} running, {row.queued} queued, {row.actions} actions"
    timed = f"Snapshot object to Plan, CPU time, best of 5; {size}"
    bound = DECIDE_MS if row.nodes == MAX_NODES else None
    name = f"decide, {row.nodes} nodes: {row.situation}"
    return Figure(name=name, value=row.milliseconds, unit="ms", timed=timed, bound=bound)


def _growth(row: decide.Row, rows: Mapping[tuple[str, int], decide.Row]) -> list[Figure]:
    if row.nodes != MAX_NODES:
        return []
    times = row.milliseconds / rows[row.situation, MIN_NODES].milliseconds
    timed = f"cost at {MAX_NODES} nodes by cost at {MIN_NODES}"
    name = f"decide, growth: {row.situation}"
    return [Figure(name=name, value=times, unit="times", timed=timed, bound=MAX_NODES / MIN_NODES)]


def of_submissions(quick: bool) -> Sequence[Figure]:
    """Over HTTP."""
    return asyncio.run(submissions.measure(5.0 if quick else 30.0))


def of_shapes(quick: bool) -> Sequence[Figure]:
    """One decide on each of the shapes; a quick run leaves the largest out."""
    rows = [shape for shape in shapes.SHAPES if not quick or shape.bound_s <= 1.0]
    timed = "Snapshot object to Plan, CPU time, best of 3"
    how = "KAI-Scheduler d5bc503a, in process on two cores"
    return [
        Figure(
            name=shape.name,
            value=shapes.measure(shape) * 1000,
            unit="ms",
            timed=timed,
            bound=shape.bound_s * 1000,
            peers="" if shape.peer == "-" else f"{how}: {shape.peer}",
        )
        for shape in rows
    ]


def of_kueue_live(quick: bool) -> Sequence[Figure]:
    """On the real clock; a quick run submits a tenth of the jobs."""
    return [figure for name in kueue_live.SHAPES for figure in kueue_live.figures(name, 0.1 if quick else 1.0)]


PARTS: dict[str, Part] = {
    "openb": Part(title="Packing the openb trace", measure=openb.figures),
    "bank": Part(title="The bank, a week in virtual time", measure=bank.all_figures),
    "kueue": Part(title="Kueue's experiment in virtual time", measure=lambda quick: kueue.figures()),
    "kueue-live": Part(title="Kueue's experiments in real time", measure=of_kueue_live),
    "shapes": Part(title="Decisions on published shapes", measure=of_shapes),
    "decide": Part(title="Decisions", measure=of_decide),
    "explain": Part(title="Explanations", measure=explain.figures),
    "tick": Part(
        title="A tick by its steps", measure=lambda quick: tick.figures(tick.SIZES[:2] if quick else tick.SIZES)
    ),
    "large": Part(title="100,000 devices", measure=large.figures),
    "history": Part(title="Surplus by weight over time", measure=lambda quick: history.figures(8 if quick else 14)),
    "claims": Part(title="A claim within guarantee", measure=of_claims),
    "slices": Part(title="The slice of a notebook", measure=of_slices),
    "spawns": Part(title="The whole start of a notebook", measure=of_spawns),
    "submissions": Part(title="Submissions", measure=of_submissions),
    "idle": Part(title="An idle service", measure=of_idle),
    "reports": Part(title="Notebooks that report", measure=reports.figures),
    "streams": Part(title="Open front ends", measure=streams.figures),
    "sidebar": Part(title="The sidebar of JupyterLab", measure=sidebar.figures),
    "wake": Part(title="A kernel whose slice is lent", measure=wake.figures),
    "pages": Part(title="The pages in a browser", measure=pages.figures),
    "idle-accuracy": Part(title="Idle notebooks", measure=lambda quick: accuracy.figures()),
    "sampler": Part(title="Device readings", measure=sampler.figures),
    "usage": Part(title="A month of use", measure=usage.figures),
    "kube": Part(title="Kubernetes: jobs on kwok nodes", measure=kube_shapes.figures),
    "kube-fractions": Part(title="Kubernetes: fractions on kwok nodes", measure=kube_fractions.figures),
}
