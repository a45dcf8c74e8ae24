"""The report of ``fill``: tasks offered one by one to an empty cluster, nothing ends; one experiment for each seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from .report import SIZES

SATURATED = 100.0
"""Percent of the cluster's GPUs that must have been asked for before it counts as saturated."""


class FillFigures(Protocol):
    """What one experiment found. ``curve``: after so many percent of the GPUs were asked for, so many are given out."""

    @property
    def tasks(self) -> int: ...

    @property
    def placed(self) -> int: ...

    @property
    def curve(self) -> Sequence[tuple[float, float]]: ...


def document(
    folder: Path, *, demand: float, seeds: Sequence[int], told: Callable[[str], None]
) -> dict[str, object] | list[str]:
    """Fill the cluster of a folder for each seed. Answers the report, or what is wrong with the folder.

    ``told`` hears how far it is. The tasks are placed by the core, as the queue places them.
    """
    if find_spec(".fill", __package__) is None or find_spec(".trace", __package__) is None:
        return ["this release plays traces of work, and has no fill"]
    read: Any = import_module(".trace", __package__).read
    fill: Any = import_module(".fill", __package__).fill
    found = read(folder)
    if isinstance(found, list):
        return found
    nodes, tasks = found
    outcomes: list[FillFigures] = []
    for seed in seeds:
        outcomes.append(fill(nodes, tasks, seed, demand))
        told(f"seed {seed}: {outcomes[-1].curve[-1][1]:.2f} % given out")
    return _report(outcomes, seeds)


def _report(outcomes: Sequence[FillFigures], seeds: Sequence[int]) -> dict[str, object]:
    """The same keys as of a replay; nothing waits, runs or ends, so what that would say is unknown."""
    last = _mean([one.curve[-1][1] for one in outcomes])
    nothing = dict.fromkeys(("p50", "p90", "p99", "max"))
    return {
        "seeds": list(seeds),
        "gpu_allocation_percent": last,
        "gpu_utilisation_percent": None,
        "gpu_allocation_at_saturation_percent": last if outcomes[0].curve[-1][0] >= SATURATED else None,
        "makespan_s": None,
        "wait_s": {size: dict(nothing) for size in SIZES},
        "pauses_per_job_max": 0,
        "guarantee_violations": 0,
        "jobs_total": sum(one.tasks for one in outcomes),
        "jobs_finished": 0,
        "format": 1,
        "simulated": True,
        "jobs_placed": sum(one.placed for one in outcomes),
        "fill": [
            {
                "seed": seed,
                "offered_percent": [round(at, 3) for at, _ in one.curve],
                "allocated_percent": [round(given, 3) for _, given in one.curve],
            }
            for seed, one in zip(seeds, outcomes, strict=True)
        ],
    }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)
