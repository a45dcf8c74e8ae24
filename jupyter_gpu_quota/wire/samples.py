"""Readings of devices in the REST API: ``samples``, for both directions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from .fields import NoNul, Wire

Label = Annotated[str, StringConstraints(max_length=128, pattern=NoNul)]
MAX_INTEGER = (1 << 63) - 1
"""The largest integer of a database."""


class SampleIn(Wire):
    device: Label
    at: datetime
    utilisation_percent: Annotated[int, Field(strict=True, ge=0, le=100)] | None
    memory_used_mib: Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)] | None
    simulated: bool = False


class SampleBatch(Wire):
    """``POST samples``: one node's readings; a repeated sequence number is accepted and ignored.

    A batch with a device that is not recorded on the node is refused as a whole (409, ``unknown_device``), and its
    sequence number stays free: the node sends it again, or newer readings alone.
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


class IngestedView(Wire):
    """The answer to ``POST samples``: whether this batch was new."""

    accepted: bool
