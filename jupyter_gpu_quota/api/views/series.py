"""The series of a job: its metrics, its progress, and the use of its devices."""

from __future__ import annotations

from ...store.records.rows import DONE, MEMORY, METRIC, USE, JobSeries
from ...wire import DeviceSeriesView, MetricsView, PointView
from .records import instant


def metrics_view(row: JobSeries | None) -> MetricsView:
    """The series as a view; empty before the first report."""
    if row is None:
        return MetricsView(width_s=None, metrics={}, progress=[], devices=[])
    devices = {name.removeprefix(kind) for kind in (USE, MEMORY) for name in row.series if name.startswith(kind)}
    return MetricsView(
        width_s=row.width_ms // 1000,
        metrics={name.removeprefix(METRIC): _points(row, name) for name in row.series if name.startswith(METRIC)},
        progress=_points(row, DONE),
        devices=[_of_device(row, device) for device in sorted(devices)],
    )


def _of_device(row: JobSeries, device: str) -> DeviceSeriesView:
    use, memory = _points(row, USE + device), _points(row, MEMORY + device)
    return DeviceSeriesView(device=device, utilised_milli=use, memory_mib=memory)


def _points(row: JobSeries, name: str) -> list[PointView]:
    return [
        PointView(at=instant(row.begins_at + slot * row.width_ms), mean=mean, min=least, max=greatest)
        for slot, _, mean, least, greatest in row.series.get(name, ())
    ]
