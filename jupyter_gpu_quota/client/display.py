"""Tables and facts as HTML and as text, for the output of a cell. Every value is escaped."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

Row = Sequence[object]

MAX_ROWS = 200
"""Rows of a table in a cell's output."""


def plain_text(value: object) -> str:
    """A value in one line: unknown as "-", instants in UTC, no control characters."""
    match value:
        case None | "":
            return "-"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case _:
            return "".join(each if each.isprintable() else "?" for each in str(value))


def html_table(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """A table as HTML, with at most MAX_ROWS rows."""
    shown, more = _shown(rows)
    head = "".join(f"<th scope='col' style='text-align:left'>{_cell(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(_td(cell) for cell in row) + "</tr>" for row in shown)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more and f'<p>{more}</p>'}"


def html_facts(facts: Iterable[tuple[str, object]], done: int = 0, total: int = 0) -> str:
    """Names and values as HTML, with a progress bar if there is a ``total``."""
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left'>{_cell(name)}</th>{_td(value)}</tr>" for name, value in facts
    )
    bar = f"<progress value='{done:d}' max='{total:d}' aria-label='progress'></progress>" if total > 0 else ""
    return f"<table><tbody>{rows}</tbody></table>{bar}"


def text_table(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """A table as text, with at most MAX_ROWS rows."""
    shown, more = _shown(rows)
    cells = [[plain_text(cell) for cell in row] for row in [columns, *shown]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([*lines, more] if more else lines)


def html_title(text: str) -> str:
    return f"<h4>{_cell(text)}</h4>"


def _shown(rows: Iterable[Row]) -> tuple[list[Row], str]:
    every = list(rows)
    left = len(every) - MAX_ROWS
    return every[:MAX_ROWS], f"and {left} more" if left > 0 else ""


def _cell(value: object) -> str:
    return html.escape(plain_text(value))


def _td(value: object) -> str:
    return f"<td style='text-align:left'>{_cell(value)}</td>"


def progress_display(thing: object) -> Callable[[str], None]:
    """A function that shows the present state of ``thing``, which a line describes.

    In a kernel it updates one output with the display of ``thing``. Elsewhere it writes the line to standard error.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return lambda line: print(line, file=sys.stderr, flush=True)
    from IPython.display import display

    handle = display(thing, display_id=True)
    return lambda line: handle.update(thing)
