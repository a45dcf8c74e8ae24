"""A state of the idle state machine as a plain JSON value and back, for the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from .state_machine import Freed, Freeing, InUse, Kept, MachineState, Reported, Stopping, Warned

MachineStateName = Literal["in_use", "reported", "warned", "freeing", "freed", "stopping"]
NAMES: Mapping[MachineStateName, type[MachineState]] = {
    "in_use": InUse,
    "reported": Reported,
    "warned": Warned,
    "freeing": Freeing,
    "freed": Freed,
    "stopping": Stopping,
}


def name_of(stage: MachineState) -> MachineStateName:
    """The name of a state in REST and events."""
    return next(name for name, kind in NAMES.items() if type(stage) is kind)


def to_document(stage: MachineState) -> dict[str, Any]:
    """A state as JSON values."""
    plain = {field.name: getattr(stage, field.name) for field in fields(stage)}
    kept = {"times": stage.kept.times, "at": stage.kept.at}
    kernels = {"kernels": list(plain["kernels"])} if "kernels" in plain else {}
    return {**plain, **kernels, "kept": kept, "stage": name_of(stage)}


def from_document(document: Mapping[str, Any]) -> MachineState:
    """The state that :func:`to_document` wrote."""
    plain = dict(document)
    kind = NAMES[plain.pop("stage")]
    plain["kept"] = Kept(**plain["kept"])
    if "kernels" in plain:
        plain["kernels"] = tuple(plain["kernels"])
    return kind(**plain)
