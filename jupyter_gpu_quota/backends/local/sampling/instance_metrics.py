"""The use of MIG instances between two readings, by the GPU performance metrics (GPM) that drivers have from Hopper on.

NVML has no utilisation of an instance or of its processes; these metrics are counters of the hardware, so that no use
between two readings is missed. They cover a GPU instance with all its compute instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from .reading import FIRST_READING

NVOFA_1_UTIL, NVENC_UTIL = 51, range(166, 170)
"""The second engine for optical flow, and the encoders; earlier releases of nvidia-ml-py have no names for them."""

METRICS = (
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    *range(pynvml.NVML_GPM_METRIC_NVDEC_0_UTIL, pynvml.NVML_GPM_METRIC_NVDEC_7_UTIL + 1),
    *range(pynvml.NVML_GPM_METRIC_NVJPG_0_UTIL, pynvml.NVML_GPM_METRIC_NVJPG_7_UTIL + 1),
    pynvml.NVML_GPM_METRIC_NVOFA_0_UTIL,
    NVOFA_1_UTIL,
    *NVENC_UTIL,
)
"""Each is a percentage of the time between two samples. The first is compute and graphics, the others are engines."""

ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND)
"""Results of an engine that the instance does not have, or the driver does not know."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A call failed, and why. ``code`` is NVML's, or -1."""

    why: str
    code: int = -1


class InstanceMetrics:
    """The samples of the previous reading, by the UUID of the instance.

    ``call`` calls a function of NVML for a device and returns its result, or Unknown.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._before: dict[str, Any] = {}
        self._now: dict[str, Any] = {}

    def begin(self) -> None:
        """Begin a reading: the samples of the last one are the previous ones; those of instances that are gone end."""
        for uuid, sample in self._before.items():
            self._call(uuid, "nvmlGpmSampleFree", sample)
        self._before, self._now = self._now, {}

    def percent(self, uuid: str, physical: Any, instance: Any) -> Any:
        """The use of an instance since the previous reading, rounded up to percent, by its busiest engine; or Unknown.

        ``physical`` and ``instance`` are the handles of the device and of the instance.
        """
        number = self._call(uuid, "nvmlDeviceGetGpuInstanceId", instance)
        sample = number if isinstance(number, Unknown) else self._call(uuid, "nvmlGpmSampleAlloc")
        if isinstance(sample, Unknown):
            return sample
        taken = self._call(uuid, "nvmlGpmMigSampleGet", physical, number, sample)
        if isinstance(taken, Unknown):
            self._call(uuid, "nvmlGpmSampleFree", sample)
            return taken
        self._now[uuid] = sample
        before = self._before.get(uuid)
        if before is None:
            return Unknown(FIRST_READING)
        found = self._call(uuid, "nvmlGpmMetricsGet", _query(before, sample))
        return found if isinstance(found, Unknown) else _busiest(found.metrics[: len(METRICS)])


def _query(before: Any, now: Any) -> Any:
    query = pynvml.c_nvmlGpmMetricsGet_t()
    query.version, query.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
    query.sample1, query.sample2 = before, now
    for place, metric in enumerate(METRICS):
        query.metrics[place].metricId = metric
    return query


def _busiest(metrics: Sequence[Any]) -> int | Unknown:
    """The highest of the metrics; Unknown if compute, or an engine that the instance has, could not be read."""
    highest = 0
    for place, metric in enumerate(metrics):
        code, value = int(metric.nvmlReturn), float(metric.value)
        if place and code in ABSENT:
            continue
        if code:
            return Unknown(f"NVML: metric {metric.metricId} of the instance: {pynvml.NVMLError(code)}", code)
        if not 0 <= value <= 100:  # also not a number
            return Unknown(f"NVML reports {value} percent for metric {metric.metricId} of the instance")
        highest = max(highest, math.ceil(value))
    return highest
