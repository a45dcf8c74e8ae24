"""What notebooks' servers tell of simulated devices, and no reading of those devices can: put into the readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...core.samples import KNOWN, UNKNOWN, DeviceSample
from .utilisation import NOT_TOLD, STALE_MS

SILENT = "its server has told nothing of it yet, or not for a minute"
OF_THE_DEVICE = "utilisation_percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a notebook uses of its simulated device, in percent of it, and when its server said so."""

    percent: int
    at: int


def with_told(row: DeviceSample, notebooks: Iterable[str], told: Mapping[str, Told]) -> DeviceSample:
    """A reading of a simulated device with what the notebooks that hold parts of it told; any other as it is."""
    if not row.simulated:
        return row
    found = {name: _percent(row, name, told.get(name)) for name in notebooks}
    use = {**row.workloads, **{name: percent for name, percent in found.items() if _is_news(row, name, percent)}}
    if use == row.workloads and not any(name in row.why for name in found):
        return row
    unseen = {name: SILENT if name in found else row.why.get(name, NOT_TOLD) for name in use if use[name] is None}
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


def _percent(row: DeviceSample, notebook: str, told: Told | None) -> int | None:
    known = row.workloads.get(notebook)
    return told.percent if known is None and told is not None and abs(row.at - told.at) <= STALE_MS else known


def _is_news(row: DeviceSample, notebook: str, percent: int | None) -> bool:
    """One that began after the reading is no part of it before its server told of it."""
    return percent is not None or notebook in row.workloads
