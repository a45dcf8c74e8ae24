"""A figure of the benchmark table: what was timed is said beside it, with its bound if it has one."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. ``bound`` is what was promised, in the same unit; None where the figure only informs."""

    name: str
    value: float
    unit: str
    timed: str
    bound: float | None = None

    @property
    def holds(self) -> bool | None:
        return None if self.bound is None else self.value <= self.bound


def spread(name: str, values: Sequence[float], unit: str, timed: str, *, median_at_most: float | None = None,
           worst_at_most: float | None = None) -> list[Figure]:  # fmt: skip
    """Median and worst of a series."""
    counted = f"{timed}; {len(values)} runs"
    return [
        Figure(name=f"{name}, median", value=median(values), unit=unit, timed=counted, bound=median_at_most),
        Figure(name=f"{name}, worst", value=max(values), unit=unit, timed=counted, bound=worst_at_most),
    ]


def show(console: Console, title: str, figures: Sequence[Figure]) -> None:
    table = Table(title=title, title_justify="left", expand=False)
    for heading in ("figure", "value", "bound", "", "what is timed"):
        table.add_column(heading, justify="right" if heading in ("value", "bound") else "left", overflow="fold")
    for one in figures:
        bound = "" if one.bound is None else f"{one.bound:g} {one.unit}"
        verdict = {None: "", True: "[green]holds[/]", False: "[bold red]missed[/]"}[one.holds]
        table.add_row(one.name, f"{one.value:.4g} {one.unit}", bound, verdict, one.timed)
    console.print(table)


def machine() -> dict[str, object]:
    """What these figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = sorted({line.partition(":")[2].strip() for line in lines if line.startswith("model name")})
    return {
        "cpu": ", ".join(models) or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }
