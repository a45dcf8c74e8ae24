"""The use of simulated devices, which only the servers of notebooks know: added to the readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ...core.samples import KNOWN, UNKNOWN, DeviceSample
from .utilisation import NO_REASON, STALE_MS

SILENT = "its server has not reported its use yet, or not for a minute"
OF_THE_DEVICE = "utilisation_percent"


class Reported(NamedTuple):
    """A notebook's use of its simulated device, in percent of it, and the instant of the report."""

    percent: int
    at: int


def with_reports(row: DeviceSample, notebooks: Iterable[str], reported: Mapping[str, Reported]) -> DeviceSample:
    """A reading of a simulated device with the reports of its notebooks; any other reading as it is."""
    if not row.simulated:
        return row
    found = {name: _percent(row, name, reported.get(name)) for name in notebooks}
    use = {
        **row.workloads,
        **{name: percent for name, percent in found.items() if percent is not None or name in row.workloads},
    }
    if use == row.workloads and not any(name in row.why for name in found):
        return row
    unseen = {name: SILENT if name in found else row.why.get(name, NO_REASON) for name in use if use[name] is None}
    why = {figure: text for figure, text in row.why.items() if figure not in use and figure != OF_THE_DEVICE} | unseen
    percents = [percent for percent in use.values() if percent is not None]
    whole = len(percents) == len(use)
    return replace(
        row,
        workloads=use,
        utilisation_percent=min(100, sum(percents)) if whole else None,
        coverage_permille=KNOWN if whole else UNKNOWN,
        why=why if whole else {**why, OF_THE_DEVICE: next(iter(unseen.values()))},
    )


def _percent(row: DeviceSample, notebook: str, report: Reported | None) -> int | None:
    known = row.workloads.get(notebook)
    use_report = known is None and report is not None and abs(row.at - report.at) <= STALE_MS
    return report.percent if report is not None and use_report else known
