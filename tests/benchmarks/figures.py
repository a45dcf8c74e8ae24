"""A figure of the benchmark table, with its measured interval and its bound."""

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
    """One measured value. ``bound`` is the largest and ``least`` the smallest allowed value, in the same unit.

    Both are None where the figure only informs. ``peers``: the figures of other schedulers, each with its source.
    """

    name: str
    value: float
    unit: str
    timed: str
    bound: float | None = None
    least: float | None = None
    peers: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether it is within its bound; None without one."""
        if self.bound is None and self.least is None:
            return None
        return (self.bound is None or self.value <= self.bound) and (self.least is None or self.value >= self.least)

    @property
    def promised(self) -> str:
        """The bound as text."""
        words = [f"at most {self.bound:g}"] if self.bound is not None else []
        words += [f"at least {self.least:g}"] if self.least is not None else []
        return f"{', '.join(words)} {self.unit}" if words else ""


def spread(name: str, values: Sequence[float], unit: str, timed: str, *, median_at_most: float | None = None,
           worst_at_most: float | None = None) -> list[Figure]:  # fmt: skip
    """Median and worst of a series."""
    counted = f"{timed}; {len(values)} runs"
    return [
        Figure(name=f"{name}, median", value=median(values), unit=unit, timed=counted, bound=median_at_most),
        Figure(name=f"{name}, worst", value=max(values), unit=unit, timed=counted, bound=worst_at_most),
    ]


def show(console: Console, title: str, figures: Sequence[Figure]) -> None:
    """A part's table."""
    table = Table(title=title, title_justify="left", expand=False)
    for heading in ("figure", "measured", "promised", "", "others", "what is timed"):
        table.add_column(heading, justify="right" if heading == "measured" else "left", overflow="fold")
    for one in figures:
        verdict = {None: "", True: "[green]holds[/]", False: "[bold red]missed[/]"}[one.holds]
        table.add_row(one.name, f"{one.value:.4g} {one.unit}", one.promised, verdict, one.peers, one.timed)
    console.print(table)


def print_plainly(figures: Sequence[Figure]) -> None:
    """One line for each, for a part that is run by itself."""
    for one in figures:
        verdict = {None: "", True: "holds", False: "MISSED"}[one.holds]
        row = (f"{one.name:60}", f"{one.value:10.4g} {one.unit:8}", f"{one.promised:24}", f"{verdict:7}", one.peers)
        print(*row, one.timed, flush=True)


def machine() -> dict[str, object]:
    """The machine and its load."""
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
