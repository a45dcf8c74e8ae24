"""The view of a job as every reader gets it, kept beside the state that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...wire.jobs import JobView


@dataclass(frozen=True, slots=True)
class RenderedJob:
    """A view, and its plain JSON values. ``shown``: the state that they were made from."""

    shown: tuple[int, ...]
    view: JobView
    document: Mapping[str, Any]
