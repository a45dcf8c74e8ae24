"""The openb trace with other weights: more tasks of several GPUs, more tasks tied to a model; at six loads, five seeds.

``python -m tests.benchmarks.packing.weighted ROWS.jsonl [--mixes NAME ...] [--seeds 42 ...] [--policies NAME ...]``
appends a line for each run, leaves out those that the file has, and prints the table of means in Markdown. The page
docs/explanation/packing.md shows that of ``docs/figures/weighted.jsonl``. Each seed draws its own mix and order. The
peers are re-implemented (:mod:`.peers`) and run on the same tasks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from jupyter_gpu_quota.core.model import WHOLE_DEVICE
from jupyter_gpu_quota.simulate.packing.fill import capacity_milli
from jupyter_gpu_quota.simulate.packing.trace import ClusterTrace
from tests.benchmarks.packing.mixes import OF_CAPACITY, could_run
from tests.benchmarks.packing.one_by_one import place_one_by_one
from tests.benchmarks.packing.openb import PLACEMENT, POLICIES, read_trace

LOADS = (60, 80, 90, 100, 110, 130)
"""Percent of the cluster's GPU that was offered."""
SEEDS = (42, 43, 44, 45, 46)
SHOWN = ("random", "best-fit", "FGD", PLACEMENT)
SCARCE = {
    ("T4",): 46,
    ("V100M16", "V100M32"): 18,
    ("G2",): 17,
    ("P100",): 8,
    ("P100", "V100M16", "V100M32"): 5,
    ("P100", "T4", "V100M16", "V100M32"): 3,
    ("G2", "P100", "T4", "V100M16", "V100M32"): 2,
    ("G3",): 1,
}
"""Models that tasks of the production trace are tied to, by about their percentage: mostly scarce ones."""
Models = tuple[str, ...]
Means = dict[tuple[str, str], tuple[list[float], int]]
"""By mix and policy: the mean percent at each load, and the number of seeds."""
Draw = Callable[[Random], Models]


def more_multi_gpu(trace: ClusterTrace, times: int, seed: int) -> ClusterTrace:
    """Tasks drawn anew with so many times the share of tasks with several GPUs; they request as much as the trace."""
    drawn = Random(seed)
    many = [task for task in trace.tasks if task.gpu_milli > WHOLE_DEVICE]
    few = [task for task in trace.tasks if task.gpu_milli <= WHOLE_DEVICE]
    target = capacity_milli(trace.nodes) * OF_CAPACITY // 100
    tasks, requested = [], 0
    while requested < target:
        of_many = drawn.random() < times * len(many) / len(trace.tasks)
        tasks.append(drawn.choice(many if of_many else few))
        requested += tasks[-1].gpu_milli
    return replace(trace, tasks=tuple(tasks))


def tied(trace: ClusterTrace, percent: int, seed: int, draw: Draw) -> ClusterTrace:
    """A percentage of the GPU tasks run on some models only, those that ``draw`` returns."""
    drawn, tasks = Random(seed), []
    for task in trace.tasks:
        if task.gpu_milli and drawn.randrange(100) < percent:
            models = draw(drawn)
            possible = any(could_run(task, model, trace.nodes) for model in models)
            tasks.append(replace(task, models=tuple(sorted(models))) if possible else task)
        else:
            tasks.append(task)
    return replace(trace, tasks=tuple(tasks))


def by_devices(trace: ClusterTrace) -> Draw:
    """One model, by its number of devices."""
    models: list[Models] = [(node.model,) for node in trace.nodes for _ in range(node.gpus)]
    return lambda drawn: drawn.choice(models)


def by_scarce(_: ClusterTrace) -> Draw:
    """Models as in the production trace."""
    return lambda drawn: drawn.choices(list(SCARCE), list(SCARCE.values()))[0]


def _tied(percent: int, draw: Callable[[ClusterTrace], Draw]) -> Callable[[ClusterTrace, int], ClusterTrace]:
    return lambda trace, seed: tied(trace, percent, seed, draw(trace))


def _multi(times: int) -> Callable[[ClusterTrace, int], ClusterTrace]:
    return lambda trace, seed: more_multi_gpu(trace, times, seed)


WEIGHTED: dict[str, Callable[[ClusterTrace, int], ClusterTrace]] = {
    "default": lambda trace, _: trace,
    **{f"multi-GPU x{times}": _multi(times) for times in (2, 3, 4)},
    **{f"{percent} % tied": _tied(percent, by_devices) for percent in (10, 20, 25, 33)},
    **{f"{percent} % tied to scarce models": _tied(percent, by_scarce) for percent in (10, 20, 25, 33)},
}


def run(trace: ClusterTrace, mix: str, policy: str, seed: int) -> dict[str, Any]:
    """One run: the allocated percent at each load."""
    world = WEIGHTED[mix](trace, seed)
    began = time.process_time()
    figures = place_one_by_one(world.nodes, world.tasks, seed, POLICIES[policy](world, seed))
    cpu_s = time.process_time() - began
    percent = [round(figures.percent(load), 3) for load in LOADS]
    row = {"mix": mix, "policy": policy, "seed": seed, "percent": percent}
    return row | {"cpu_s": round(cpu_s, 2), "tasks": len(figures.placements)}


def paired(rows: Iterable[Mapping[str, Any]]) -> Means:
    """Mean percent by mix and policy, over the seeds that every policy of the mix has, with the number of seeds."""
    found: dict[str, dict[str, dict[int, Sequence[float]]]] = {}
    for row in rows:
        found.setdefault(row["mix"], {}).setdefault(row["policy"], {})[row["seed"]] = row["percent"]
    means: Means = {}
    for mix in (mix for mix in WEIGHTED if mix in found):
        seeds = set.intersection(*(set(runs) for runs in found[mix].values()))
        for policy in (policy for policy in POLICIES if seeds and policy in found[mix]):
            columns = zip(*(found[mix][policy][seed] for seed in sorted(seeds)), strict=True)
            means[mix, policy] = [round(mean(column), 2) for column in columns], len(seeds)
    return means


def table(means: Means) -> str:
    """The means in Markdown; a mean of the shipped placement below that of a peer is bold."""
    lines = [
        f"| mix | placement | {' | '.join(f'{load} %' for load in LOADS)} | seeds |",
        "|---" * (len(LOADS) + 3) + "|",
    ]
    for (mix, policy), (percent, seeds) in means.items():
        best = [
            max(column) for column in zip(*(each for (of, _), (each, _) in means.items() if of == mix), strict=True)
        ]
        shown = [
            f"**{value:.2f}**" if policy == PLACEMENT and value < most else f"{value:.2f}"
            for value, most in zip(percent, best, strict=True)
        ]
        lines.append(f"| {mix} | {'shipped' if policy == PLACEMENT else policy} | {' | '.join(shown)} | {seeds} |")
    return "\n".join(lines)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(path: Path, mixes: Sequence[str], policies: Sequence[str], seeds: Sequence[int]) -> None:
    """Append the runs that the file does not have."""
    trace, done = read_trace(), {(row["mix"], row["policy"], row["seed"]) for row in _rows(path)}
    for seed in seeds:
        for mix in mixes:
            for policy in policies:
                if (mix, policy, seed) not in done:
                    with path.open("a") as file:
                        file.write(json.dumps(run(trace, mix, policy, seed)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--mixes", nargs="+", choices=WEIGHTED, default=list(WEIGHTED))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=SHOWN)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    args = parser.parse_args()
    measure(args.rows, args.mixes, args.policies, args.seeds)
    print(table(paired(_rows(args.rows))))


if __name__ == "__main__":
    main()
