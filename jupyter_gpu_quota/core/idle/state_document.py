"""A state of the idle state machine as a plain JSON value and back, for the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
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


def name_of(state: MachineState) -> MachineStateName:
    return next(name for name, kind in NAMES.items() if type(state) is kind)


def to_document(state: MachineState) -> dict[str, Any]:
    """A state as JSON values; its name is the member ``stage``, as in every release."""
    kernels = {} if isinstance(state, InUse | Freed | Stopping) else {"kernels": list(state.kernels)}
    return {**asdict(state), **kernels, "stage": name_of(state)}


def from_document(document: Mapping[str, Any]) -> MachineState:
    values = dict(document)
    kind = NAMES[values.pop("stage")]
    values["kept"] = Kept(**values["kept"])
    if "kernels" in values:
        values["kernels"] = tuple(values["kernels"])
    return kind(**values)
