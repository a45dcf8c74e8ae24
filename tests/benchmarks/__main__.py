"""``python -m tests.benchmarks [FILE]``: measure everything that was promised, print it, write it as JSON.

What is timed stands beside each figure. Nothing here is a test: a figure depends on the machine, which is named.
``--only`` names parts. The exit code is 1 where a part could not be measured, which is said, or a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from jupyter_gpu_quota.simulate.bank import VARIANTS
from tests.benchmarks import bank, claims, decide, idle, idle_accuracy, kueue, kueue_live, slices, submissions, tick
from tests.benchmarks.figures import Figure, machine, show
from tests.benchmarks.hubs import hub_with_quota

LARGEST, SMALLEST = 500, 50
DECIDE_MS = 250.0


def of_claims() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, hub_with_quota(Path(folder)) as stage:
        return claims.figures(stage)


def of_idle() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, hub_with_quota(Path(folder)) as stage:
        return idle.figures(stage)


def of_slices() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        return slices.slice_figures(Path(folder))


def of_spawns() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        return slices.spawn_figures(Path(folder))


def of_decide() -> list[Figure]:
    """Snapshot object to Plan, and how the cost grows from 50 to 500 nodes."""
    rows = {(row.situation, row.nodes): row for row in decide.measure((SMALLEST, LARGEST))}
    return [figure for row in rows.values() for figure in (_cost(row), *_growth(row, rows))]


def _cost(row: decide.Row) -> Figure:
    size = f"{row.nodes} nodes x 8, {row.running} running, {row.queued} queued, {row.actions} actions"
    timed = f"Snapshot object to Plan, CPU time, best of 3; {size}"
    bound = DECIDE_MS if row.nodes == LARGEST else None
    name = f"decide, {row.nodes} nodes: {row.situation}"
    return Figure(name=name, value=row.milliseconds, unit="ms", timed=timed, bound=bound)


def _growth(row: decide.Row, rows: Mapping[tuple[str, int], decide.Row]) -> list[Figure]:
    if row.nodes != LARGEST:
        return []
    times = row.milliseconds / rows[row.situation, SMALLEST].milliseconds
    timed = f"cost at {LARGEST} nodes by cost at {SMALLEST}"
    return [
        Figure(
            name=f"decide, growth: {row.situation}", value=times, unit="times", timed=timed, bound=LARGEST / SMALLEST
        )
    ]


def of_submissions() -> list[Figure]:
    return asyncio.run(submissions.measure())


def of_bank() -> list[Figure]:
    return [figure for variant in VARIANTS.values() for figure in bank.figures(variant)]


def of_kueue_live() -> list[Figure]:
    return [figure for name in kueue_live.SHAPES for figure in kueue_live.figures(name)]


PARTS: dict[str, tuple[str, Callable[[], Sequence[Figure]]]] = {
    "claims": ("A claim within guarantee", of_claims),
    "slices": ("The slice of a notebook", of_slices),
    "spawns": ("The whole start of a notebook", of_spawns),
    "decide": ("Deciding", of_decide),
    "tick": ("A tick by its steps", tick.figures),
    "submissions": ("Submissions", of_submissions),
    "idle": ("An idle service", of_idle),
    "idle-accuracy": ("Idle notebooks", idle_accuracy.figures),
    "kueue": ("Kueue's experiment in virtual time", kueue.figures),
    "kueue-live": ("Kueue's experiments in real time", of_kueue_live),
    "bank": ("The bank, a week in virtual time", of_bank),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=Path("benchmarks.json"))
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args(list(arguments))
    console = Console() if sys.stdout.isatty() else Console(width=170)
    here = machine()
    console.print(*(f"{name}: {value};" for name, value in here.items()), highlight=False)
    measured, broken = dict[str, list[Figure]](), dict[str, str]()
    for part in options.only:
        _measure(part, console, measured, broken)
    _write(options.file, here, measured, broken)
    missed = [figure.name for figures in measured.values() for figure in figures if figure.holds is False]
    console.print(f"Written to {options.file}. Bounds missed: {', '.join(missed) or 'none'}.", highlight=False)
    return 1 if missed or broken else 0


def _measure(part: str, console: Console, measured: dict[str, list[Figure]], broken: dict[str, str]) -> None:
    title, figures_of = PARTS[part]
    try:
        measured[part] = list(figures_of())
    except Exception as error:  # one part that fails leaves the others to be measured, and is told
        broken[part] = f"{type(error).__name__}: {error}"
        console.print(f"[bold red]{title} could not be measured[/]", traceback.format_exc(limit=-3), highlight=False)
    else:
        show(console, title, measured[part])


def _write(file: Path, here: dict[str, object], measured: dict[str, list[Figure]], broken: dict[str, str]) -> None:
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": here,
        "figures": {
            part: [{**asdict(one), "holds": one.holds} for one in figures] for part, figures in measured.items()
        },
        "not_measured": broken,
    }
    file.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
