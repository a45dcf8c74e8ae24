"""The tables of figures, from the results of ``make bench`` in ``figures.json``: `python docs/_scripts/figures.py`.

``docs/reference/figures.md`` has every part, with the machine, the date and the load before. The README has five
figures, and the names of all that missed their bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "figures.json"
PAGE = ROOT / "docs" / "reference" / "figures.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"
HEADLINES = {
    "openb": ("openb, GPU allocated at 130 % offered", "openb trace, GPU allocated at 130 % offered"),
    "bank": (
        "bank, usual, with lending: GPU use by that of one GPU each",
        "simulated bank: GPU use, relative to one GPU per user",
    ),
    "kueue-live": ("kueue baseline, real time", "Kueue's baseline experiment, real time"),
    "claims": ("claim, worst", "reclaim, from submit to start, slowest"),
    "slices": ("slice part of a notebook start, median", "slice in a notebook's start, median"),
}
"""The five figures of the README: by part the name of the figure, and its words there."""
HEAD = "| figure | measured | promised | others |\n|---|---|---|---|"
NONE = "This checkout has no figures. `make bench` measures them on your machine.\n"
REST = "[All figures](docs/reference/figures.md), with what is timed and the load of the machine."
INTRODUCTION = """# Figures

The results of `make bench`, part by part, from [figures.json](../figures.json). *Others* has the figures of other
schedulers, each with its source: *published*, *re-implemented* in the same harness, or *measured* on two cores.
"""


def rendered(document: Mapping[str, Any] | None) -> str:
    """The README's text for a document of figures; for None, a sentence that there are none."""
    if document is None:
        return NONE
    parts = {name: document["parts"][name] for name in HEADLINES if name in document["parts"]}
    rows = []
    for name, part in parts.items():
        of_part, words = HEADLINES[name]
        found = (row for row in part["figures"] if row["name"] == of_part)
        rows += [_row({**row, "name": words, "peers": _strongest(row["peers"])}) for row in found]
    machines = sorted({_machine(part["machine"]) for part in parts.values()})
    return "\n".join([HEAD, *rows, "", f"On {', and on '.join(machines)}. {_bounds(document)}", f"{REST}\n"])


def _bounds(document: Mapping[str, Any]) -> str:
    """How many figures have a bound, and the names of those that miss it, of parts that were not measured, too."""
    parts = document["parts"].values()
    figures = [figure for part in parts for figure in part["figures"] if figure["promised"]]
    missed = [figure["name"] for figure in figures if figure["holds"] is False]
    missed += [f"{part['title']} (not measured)" for part in parts if "not_measured" in part]
    if not missed:
        return f"All {len(figures)} figures with a bound are within it."
    verb = "misses" if len(missed) == 1 else "miss"
    return f"Of {len(figures)} figures with a bound, {len(missed)} {verb} it: {'; '.join(missed)}."


def _strongest(peers: str) -> str:
    """The first two; they stand strongest first."""
    return "; ".join(peers.split("; ")[:2])


def page(document: Mapping[str, Any] | None) -> str:
    """The whole page."""
    parts = map(_part, document["parts"].values()) if document else [NONE]
    return "\n".join([INTRODUCTION, *parts])


def _part(part: Mapping[str, Any]) -> str:
    head = f"## {part['title']}\n\n{_where(part)}\n"
    if "not_measured" in part:
        return f"{head}\nNot measured: {part['not_measured']}.\n"
    widened = HEAD.replace("others |", "others | what is timed |") + "---|"
    rows = [f"{_row(figure)} {figure['timed']} |" for figure in part["figures"]]
    return "\n".join([head, widened, *rows, ""])


def _row(figure: Mapping[str, Any]) -> str:
    missed = " (missed)" if figure["holds"] is False else ""
    value = f"{figure['value']:.4g} {figure['unit']}{missed}"
    return f"| {figure['name']} | {value} | {figure['promised']} | {figure['peers']} |"


def _where(part: Mapping[str, Any]) -> str:
    """The machine, the date and the load before, which affects every figure."""
    one = part["machine"]
    quick = " A quick run." if part["quick"] else ""
    return f"On {_machine(one)}, on {part['at'][:10]}, at a load of {one['load_before']:.1f} before.{quick}"


def _machine(one: Mapping[str, Any]) -> str:
    return f"{one['cores']} cores ({one['cpu']}), {one['memory_mib'] / 1024:.0f} GiB, Python {one['python']}"


def stored() -> Mapping[str, Any] | None:
    """The figures of this checkout; None where there are none."""
    found: Mapping[str, Any] | None = json.loads(KEPT.read_text()) if KEPT.exists() else None
    return found


def shown() -> str:
    """The text of the README between the marks."""
    return README.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Write the page and the README's table."""
    before, _, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}{rendered(stored())}{END}{after}")
    PAGE.write_text(page(stored()))


if __name__ == "__main__":
    main()
