"""``python -m tests.benchmarks``: measure all figures, print them, and store them in docs/figures.json.

Each figure names the measured interval and the figures of other schedulers, with their sources. Figures are not tests:
they depend on the machine, which is recorded. Each part is measured in its own process, so that no part depends on the
memory of another. ``--only NAME ...`` measures these parts and leaves the others in the file unchanged, each with its
own machine, instant and load; ``--quick`` measures less of each part, and stores nothing without ``--file``. The exit
code is 1 if a part could not be measured, which is reported, or missed a bound.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.figures import Figure, machine, show
from tests.benchmarks.parts import PARTS

STORED = Path(__file__).parents[2] / "docs" / "figures.json"


def main(arguments: Sequence[str]) -> int:
    """Measure the requested parts; return the exit code."""
    options = _options(arguments)
    file: Path | None = options.file or (None if options.quick else STORED)
    console = Console() if sys.stdout.isatty() else Console(width=170)
    console.print(*(f"{name}: {value};" for name, value in machine().items()), highlight=False)
    missed = list[str]()
    for name in options.only:
        measured = _measure(name, console, quick=options.quick)
        missed += _missed(measured)
        if file is not None:
            write(file, name, measured)
    stored = f"Stored in {file}." if file else "Nothing was stored."
    console.print(f"{stored} Missed: {', '.join(missed) or 'nothing'}.", highlight=False)
    return 1 if missed else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="less of each part")
    parser.add_argument("--file", type=Path, help=f"where to store the figures; docs/{STORED.name} unless --quick")
    return parser.parse_args(list(arguments))


def _measure(name: str, console: Console, *, quick: bool) -> dict[str, Any]:
    """One part: its figures, or why there are none, with the machine and the load before it."""
    part, here, began = PARTS[name], machine(), time.monotonic()
    document: dict[str, Any] = {"title": part.title, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    document |= {"machine": here, "quick": quick, "figures": []}
    try:
        figures = _measured_alone(name, quick)
    except Exception as error:  # a part that fails is reported, and the others are measured
        console.print(f"[bold red]{part.title} could not be measured[/]", traceback.format_exc(limit=-3))
        return {**document, "not_measured": f"{type(error).__name__}: {error}"}
    show(console, f"{part.title} ({name}, {time.monotonic() - began:.0f} s)", figures)
    if not figures:
        return {**document, "not_measured": "this machine lacks something that it needs"}
    return {**document, "figures": [_row(one) for one in figures]}


def _measured_alone(name: str, quick: bool) -> list[Figure]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as process:
        return process.submit(_figures, name, quick).result()


def _figures(name: str, quick: bool) -> list[Figure]:
    return list(PARTS[name].measure(quick))


def _row(one: Figure) -> dict[str, object]:
    return {**asdict(one), "promised": one.promised, "holds": one.holds}


def _missed(measured: dict[str, Any]) -> list[str]:
    if "not_measured" in measured:
        return [measured["title"]]
    return [row["name"] for row in measured["figures"] if row["holds"] is False]


def write(file: Path, name: str, measured: dict[str, Any]) -> None:
    """Replace one part in the file, atomically; parts keep their order."""
    known = json.loads(file.read_text())["parts"] if file.exists() else {}
    known[name] = measured
    parts = {each: known[each] for each in PARTS if each in known}
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(json.dumps({"format": 2, "parts": parts}, indent=1) + "\n")
    beside.replace(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
