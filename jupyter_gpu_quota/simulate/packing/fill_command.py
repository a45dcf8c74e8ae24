"""The report of a folder's tasks on its own nodes, an empty cluster in which nothing ends: one run for each seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.model import WHOLE_DEVICE
from ..report import SIZES
from ..tracefile import MAX_GPUS
from .fill import FillFigures, capacity_milli, fill, marks_up_to
from .trace import ClusterTrace, Unreadable, read_folder

SATURATED = 100
"""From this percentage of requested GPUs on the cluster counts as saturated."""
MAX_TASKS = 1_000_000
"""Tasks of one run."""


def document(
    path: Path, *, demand: float, seeds: Sequence[int], progress: Callable[[str], None]
) -> dict[str, object] | str:
    """Fill the cluster of a folder for each seed. Returns the report, or a sentence about the fault of the folder.

    ``path``: the folder, or the one of its files of tasks to use. ``demand``: the requested GPU as a multiple of the
    cluster's. ``progress`` is called after each seed.
    """
    trace = read_folder(path) if path.is_dir() else read_folder(path.parent, path.name)
    if isinstance(trace, Unreadable):
        return trace.sentence
    percent = max(1, round(demand * 100))
    if (why := _refusal(trace, percent)) is not None:
        return why
    outcomes: list[FillFigures] = []
    for seed in seeds:
        outcomes.append(fill(trace.nodes, trace.tasks, seed, percent))
        progress(f"seed {seed}: {outcomes[-1].percent(percent):.2f} % allocated")
    return _report(outcomes, percent)


def _refusal(trace: ClusterTrace, percent: int) -> str | None:
    """Why the cluster cannot be filled, or not in a reasonable time."""
    gpus = capacity_milli(trace.nodes) // WHOLE_DEVICE
    if gpus > MAX_GPUS:
        return f"its nodes have {gpus} GPUs; at most {MAX_GPUS} can be filled."
    asked_milli = sum(task.gpu_milli for task in trace.tasks)
    if not asked_milli:
        return "none of the tasks asks for a GPU."
    # The tasks are drawn at random, and some request no GPU, or next to none.
    tasks = capacity_milli(trace.nodes) * percent * len(trace.tasks) // (100 * asked_milli)
    if tasks > MAX_TASKS:
        return (
            f"about {tasks} of its tasks are needed to ask for {percent} % of its GPUs; at most {MAX_TASKS}"
            " can be offered; name a smaller --demand, or a trace whose tasks request more."
        )
    return None


def _report(outcomes: Sequence[FillFigures], demand: int) -> dict[str, object]:
    """The report, with the keys of a replay; those about run times and waits are unknown."""
    last = _mean(outcomes, demand)
    nothing = dict.fromkeys(("p50", "p90", "p99", "max"))
    return {
        "seeds": [one.seed for one in outcomes],
        "gpu_allocation_percent": last,
        "gpu_utilisation_percent": None,
        "gpu_allocation_at_saturation_percent": last if demand >= SATURATED else None,
        "makespan_s": None,
        "wait_s": {size: dict(nothing) for size in SIZES},
        "pauses_per_job_max": 0,
        "guarantee_violations": 0,
        "jobs_total": sum(len(one.placements) for one in outcomes),
        "jobs_finished": 0,
        "format": 1,
        "simulated": True,
        "mode": "fill",
        "demand_percent": demand,
        "gpus": outcomes[0].capacity_milli // 1000,
        "jobs_placed": sum(placement is not None for one in outcomes for placement in one.placements),
        "allocated_percent": {str(mark): _mean(outcomes, mark) for mark in marks_up_to(demand)},
        "fill": [_curve(one, demand) for one in outcomes],
    }


def _curve(one: FillFigures, demand: int) -> dict[str, object]:
    """The requested and allocated percent of one seed, once each whole percent, from 1 on, was requested.

    A large task may pass several whole percents at once.
    """
    return {
        "seed": one.seed,
        "asked_percent": [round(100 * milli / one.capacity_milli, 3) for milli in one.asked_milli],
        "allocated_percent": [round(one.percent(mark), 3) for mark in range(1, demand + 1)],
    }


def _mean(outcomes: Sequence[FillFigures], mark: int) -> float:
    return round(sum(one.percent(mark) for one in outcomes) / len(outcomes), 3)
