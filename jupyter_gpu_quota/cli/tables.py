"""Results as tables for people, or as one JSON document with the service's field names."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from pydantic import BaseModel

from ..core.amounts import gpu_text
from .prose import COLUMNS, terminal_width, wrapped
from .session import print_stderr

WIDE = 240
"""Width of a table with --wide."""
NARROW = 160
"""In lines of fewer columns a table has only the important ones."""

all_columns = click.option("--wide", is_flag=True, help=f"Print all columns, in lines of up to {WIDE}.")


def is_narrow(*, wide: bool) -> bool:
    """Whether a table has only its important columns."""
    return not wide and (terminal_width() or COLUMNS) < NARROW


def show(
    items: Sequence[BaseModel],
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    json_: bool,
    wide: bool = False,
    states: bool = False,
    notes: Sequence[str] | None = None,
) -> None:
    """Print a listing: the items as JSON, or the rows as a table; ``empty`` says what would be there.

    ``states``: the column STATE begins with the state of a job, which has a colour on a terminal. ``notes``: a line
    below each row, unless it is empty; the row itself is one line then.
    """
    if json_:
        print_json([item.model_dump(mode="json") for item in items])
    elif not items:
        print_stderr(empty)
    else:
        print_table(columns, rows, wide=wide, state_at=columns.index("STATE") if states else None, notes=notes)


NOTE_INDENT = "    "

STATE_STYLES = {
    "running": "green",
    "starting": "green",
    "pausing": "yellow",
    "paused": "yellow",
    "held": "magenta",
    "queued": "cyan",
    "failed": "bold red",
    "cancelled": "dim",
    "succeeded": "bold green",
}
"""The colours of a job's states; the variable NO_COLOR turns them off."""


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    wide: bool = False,
    state_at: int | None = None,
    notes: Sequence[str] | None = None,
) -> None:
    """Print rows under their columns. No header is split, and no cell of a first column of at most half the width.

    ``state_at``: the column of states, whose first word has the colour of its state. ``notes``: see :func:`show`.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[plain_text(cell) for cell in row] for row in rows]
    width = WIDE if wide else terminal_width() or COLUMNS
    fits = max((len(row[0]) for row in cells), default=0) <= width // 2
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", min_width=len(column), no_wrap=index == 0 and fits)
    one_line: dict[str, Any] = {} if notes is None else {"no_wrap": True, "overflow": "ellipsis"}
    for row in cells:
        texts = [Text(cell, **one_line) for cell in row]
        if state_at is not None:
            state = row[state_at].partition(" ")[0]
            texts[state_at].stylize(STATE_STYLES.get(state, ""), 0, len(state))
        table.add_row(*texts)
    console = Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)
    with console.capture() as printed:
        console.print(table)
    header, *lines = printed.get().split("\n")[:-1]
    for line, note in zip([header, *lines], ["", *(notes or [""] * len(lines))], strict=True):
        click.echo(line, color=True)  # the console knows whether there are colours
        if note:
            click.echo(f"{NOTE_INDENT}{wrapped(plain_text(note), indent=len(NOTE_INDENT))}")


def print_facts(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line; a longer value continues below itself."""
    known = [(name, plain_text(value)) for name, value in rows]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {wrapped(value, indent=width + 2)}")


def plain_text(value: object) -> str:
    """A cell: unknown as "-", instants in UTC, no control characters."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case _:
            return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(value))


def gpu_or_none(milli: int | None) -> str | None:
    """An amount in GPUs, such as "0.5"; None stays unknown."""
    return None if milli is None else gpu_text(milli)


def use_text(milli: int | None, unknown: str | None) -> str | None:
    """The use of an allocation; "unknown" if there is no reading, None if there is no allocation."""
    return gpu_or_none(milli) if milli is not None else "unknown" if unknown else None


def share_text(milli: int, simulated: bool) -> str:
    """A share as every table shows it, such as "0.5 (simulated)"."""
    return f"{gpu_text(milli)}{' (simulated)' if simulated else ''}"
