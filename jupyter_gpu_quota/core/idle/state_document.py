"""A stage of the ladder as a plain JSON value and back: what the store keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from .state_machine import Freed, Freeing, InUse, Kept, Reported, Stage, Stopping, Warned

StageName = Literal["in_use", "reported", "warned", "freeing", "freed", "stopping"]
NAMES: Mapping[StageName, type[Stage]] = {
    "in_use": InUse,
    "reported": Reported,
    "warned": Warned,
    "freeing": Freeing,
    "freed": Freed,
    "stopping": Stopping,
}


def name_of(stage: Stage) -> StageName:
    """The word for a stage, as REST and events say it."""
    return next(name for name, kind in NAMES.items() if type(stage) is kind)


def to_document(stage: Stage) -> dict[str, Any]:
    """A stage as JSON values."""
    plain = {field.name: getattr(stage, field.name) for field in fields(stage)}
    kept = {"times": stage.kept.times, "at": stage.kept.at}
    kernels = {"kernels": list(plain["kernels"])} if "kernels" in plain else {}
    return {**plain, **kernels, "kept": kept, "stage": name_of(stage)}


def from_document(document: Mapping[str, Any]) -> Stage:
    """The stage that :func:`to_document` wrote."""
    plain = dict(document)
    kind = NAMES[plain.pop("stage")]
    plain["kept"] = Kept(**plain["kept"])
    if "kernels" in plain:
        plain["kernels"] = tuple(plain["kernels"])
    return kind(**plain)
