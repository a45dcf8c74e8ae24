"""The README's figures, from what ``make bench`` wrote: `python docs/_ext/figures.py FILE.json`.

The file is kept whole as ``docs/figures.json``; the README's table is made from it and from nothing else, and shows
every figure that has a bound, the missed ones too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "figures.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"
REST = "All figures of that run are in [docs/figures.json](docs/figures.json)."
NONE = "No figures are recorded in this checkout. `make bench` measures them on your machine.\n"


def rendered(document: Mapping[str, Any] | None) -> str:
    """The README's text for one run of the benchmarks; for None, that there is none."""
    if document is None:
        return NONE
    rows = [_row(figure) for part in document["figures"].values() for figure in part if figure.get("bound") is not None]
    head = ["| figure | measured | promised | what is timed |", "|---|---|---|---|"]
    broken = [f"\nNot measured: {part} ({why})." for part, why in document["not_measured"].items()]
    return "\n".join([_machine(document), "", *head, *rows, *broken, "", REST]) + "\n"


def _row(figure: Mapping[str, Any]) -> str:
    promised = f"at most {figure['bound']:g} {figure['unit']}"
    return f"| {figure['name']} | {figure['value']:.4g} {figure['unit']} | {promised} | {figure['timed']} |"


def _machine(document: Mapping[str, Any]) -> str:
    """On what, and when; a load from before the first measurement is told, since it weighs on every figure."""
    one = document["machine"]
    where = f"{one['cores']} cores ({one['cpu']}), {one['memory_mib'] / 1024:.0f} GiB, Python {one['python']}"
    return (
        f"Measured by `make bench` on {where}, on {document['at'][:10]}, at a load of {one['load_before']:.1f} before:"
    )


def recorded() -> Mapping[str, Any] | None:
    """The run that is kept in this checkout, None without one."""
    found: Mapping[str, Any] | None = json.loads(RECORDED.read_text()) if RECORDED.exists() else None
    return found


def shown() -> str:
    """What the README says between the marks."""
    return README.read_text().partition(BEGIN)[2].partition(END)[0]


def main(path: str) -> None:
    """Keep a run, and write the README's table from it."""
    text = Path(path).read_text()
    before, _, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}{rendered(json.loads(text))}{END}{after}")
    RECORDED.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
