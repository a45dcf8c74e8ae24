"""The facts that the scenario must show, each observed in the process table or on the disk.

A fact is missing where its step failed or showed something else. It is not reached where the demo ended before.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

from rich.table import Table

from ..core.amounts import gpu_text
from ..core.model import WHOLE_DEVICE


def share_text(milli: int) -> str:
    """A share as a fraction and in the unit of the variables of processes: "1/8 GPU (125 milli)"."""
    share = Fraction(milli, WHOLE_DEVICE)
    text = str(share) if share.numerator == 1 else gpu_text(milli)
    return f"{text} GPU ({milli} milli)"


@dataclass(slots=True)
class Fact:
    """One fact. ``at_s`` is seconds since the scenario began; ``ok`` is None until its step ended."""

    key: str
    name: str
    seen: str = ""
    at_s: float | None = None
    ok: bool | None = None


RESULTS = {True: "[green]ok[/]", False: "[bold red]missing[/]", None: "[yellow]not reached[/]"}


class Facts:
    """All facts, in the order of the scenario."""

    def __init__(self, names: dict[str, str]) -> None:
        self.begun = time.monotonic()
        self.rows = {key: Fact(key, name) for key, name in names.items()}

    def now_s(self) -> float:
        """Seconds since the scenario began."""
        return time.monotonic() - self.begun

    def note(self, key: str, seen: str, *, ok: bool = True) -> Fact:
        """Note an observation. A fact that was once contradicted stays so."""
        row = self.rows[key]
        row.seen, row.at_s, row.ok = seen, self.now_s(), ok and row.ok is not False
        return row

    def miss(self, key: str) -> None:
        """Note that a fact was not seen in its step, if nothing was noted."""
        row = self.rows[key]
        if row.ok is None:
            row.seen, row.ok = "not seen", False

    def missing(self) -> list[str]:
        """The names of the facts that were not observed, or contradicted."""
        return [row.name for row in self.rows.values() if row.ok is not True]

    def table(self) -> Table:
        """The facts in the order in which they were observed."""
        table = Table(title="Observed from outside", title_justify="left", show_lines=False)
        for heading, justify in (("fact", "left"), ("observed", "left"), ("at", "right"), ("result", "left")):
            table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for row in sorted(self.rows.values(), key=lambda row: math.inf if row.at_s is None else row.at_s):
            at = "" if row.at_s is None else f"{row.at_s:.1f} s"
            table.add_row(row.name, row.seen, at, RESULTS[row.ok])
        return table

    def write(self, path: Path, more: dict[str, object]) -> None:
        """Write the facts as one JSON document; ``more`` goes beside them."""
        document = {**more, "ok": not self.missing(), "facts": [asdict(row) for row in self.rows.values()]}
        path.write_text(json.dumps(document, indent=1) + "\n")
