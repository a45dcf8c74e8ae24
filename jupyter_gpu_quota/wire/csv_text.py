"""Tables as comma-separated values: the same bytes from the command line and the REST API."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from .cluster import CostView, UsageView

USAGE_COLUMNS = (
    "by", "name", "begins_at", "ends_at", "allocated_milli_s", "used_milli_s", "utilisation_percent",
    "coverage_percent", "used_unknown", "started_jobs", "wait_mean_s", "wait_max_s", "simulated", "cost", "job_name",
)  # fmt: skip


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """A header and rows as CSV; None is an empty cell.

    An apostrophe protects a cell that a spreadsheet would run as a formula.
    """
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(columns)
    for row in rows:
        cells = ["" if row[name] is None else str(row[name]) for name in columns]
        out.writerow([f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell for cell in cells])
    return text.getvalue()


def usage_csv(by: str, rows: Iterable[UsageView]) -> str:
    """Usage by a key; what is unknown is empty."""
    dumped = ((each, each.model_dump(mode="json")) for each in rows)
    return csv_text(USAGE_COLUMNS, ({"by": by, **row, "cost": cost_text(each.costs)} for each, row in dumped))


def cost_text(costs: Sequence[CostView]) -> str:
    return ", ".join(f"{Decimal(cost.amount_milli) / 1000:.2f} {cost.currency}" for cost in costs)
