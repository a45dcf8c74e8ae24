"""Readings of devices in the REST API: ``samples``, for both directions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from .fields import NoNul, Wire

Label = Annotated[str, StringConstraints(max_length=128, pattern=NoNul)]
MAX_INTEGER = (1 << 63) - 1
"""The largest integer of a database."""


Sentence = Annotated[str, StringConstraints(max_length=1000, pattern=NoNul)]
Percent = Annotated[int, Field(strict=True, ge=0, le=100)]
Figure = Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]

MAX_WORKLOADS, MAX_PROCESSES, MAX_PARENTS = 200, 2_000, 16


class ProcessUseIn(Wire):
    """The use of a device by one process of a workload, as :class:`.core.samples.ProcessUse`; null is unknown."""

    handle: Label
    memory_mib: Figure | None
    percent: Percent | None
    used_at: datetime | None = None
    places: Annotated[list[tuple[Label, Figure, Figure]], Field(max_length=MAX_PARENTS)] = Field(default_factory=list)


class SampleIn(Wire):
    """One reading of one device, as :class:`.core.samples.DeviceSample`; null is unknown.

    The use of workloads that have no part of the device is left out when it is stored.
    """

    device: Label
    at: datetime
    utilisation_percent: Percent | None
    memory_used_mib: Figure | None
    simulated: bool = False
    coverage_permille: Annotated[int, Field(strict=True, ge=0, le=1000)] | None = None
    foreign_mib: Figure | None = None
    temperature_c: Figure | None = None
    power_w: Figure | None = None
    workloads: Annotated[dict[Label, Percent | None], Field(max_length=MAX_WORKLOADS)] = Field(default_factory=dict)
    workload_memory_mib: Annotated[dict[Label, Figure | None], Field(max_length=MAX_WORKLOADS)] = Field(
        default_factory=dict
    )
    processes: Annotated[
        dict[Label, Annotated[list[ProcessUseIn], Field(max_length=MAX_PROCESSES)]], Field(max_length=MAX_WORKLOADS)
    ] = Field(default_factory=dict)
    why: Annotated[dict[Label, Sentence], Field(max_length=MAX_WORKLOADS + 10)] = Field(default_factory=dict)


class SampleBatch(Wire):
    """``POST samples``: one node's readings; a repeated sequence number is accepted and ignored.

    A batch with a device that is not recorded on the node is refused as a whole (409, ``unknown_device``), and its
    sequence number stays free: the node sends it again, or newer readings alone. The agent of a node names its own.
    """

    node: Label
    sequence: Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]
    samples: Annotated[list[SampleIn], Field(max_length=10_000)]


class SampleView(Wire):
    """``GET samples``: a reading of one device; null is unknown, with the cause by field in ``why`` of the newest one.

    ``foreign_mib`` is the memory of foreign processes. ``allocated_milli``: the allocations of the device at that
    instant, in the readings of one device; else null.
    """

    node: str
    device: str
    at: datetime
    utilisation_percent: int | None
    memory_used_mib: int | None
    coverage_permille: int | None
    simulated: bool
    foreign_mib: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    allocated_milli: int | None = None
    why: dict[str, str] = Field(default_factory=dict)


class NodeDeviceView(Wire):
    """A device that its node is to read. ``lent``: those of the ``workloads`` that lent their part of it."""

    id: str
    uuid: str
    workloads: list[str]
    lent: list[str]


class IngestedView(Wire):
    """The answer to ``POST samples``: whether this batch was new, and the recorded devices of the node now."""

    accepted: bool
    devices: list[NodeDeviceView] = Field(default_factory=list)
