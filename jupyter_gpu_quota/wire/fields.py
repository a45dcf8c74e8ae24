"""The base class and the types of fields that all models share, and the models that several subjects use."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from .reason_schema import reasons_schema

NOTEBOOK_COMMAND = ("python", "-m", "jupyter_gpu_quota.notebook_job")
"""The beginning of the command of a job that runs a notebook; the notebook and its parameters follow."""

MAX_CHARACTER_BYTES = 4
"""The longest character in UTF-8: a part of a log begins with a whole character, and may be this much shorter."""

NAME = r"^[A-Za-z0-9]([A-Za-z0-9._ @+-]*[A-Za-z0-9._@+-])?$"
Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NAME)]
Models = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._ @+,-]*$")]
"""One or several device models, separated by commas."""
VariableName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
NoNul = r"^[^\x00]*$"
Argument = Annotated[str, StringConstraints(max_length=32_768, pattern=NoNul)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Priority = Annotated[int, Field(strict=True, ge=0, le=100)]
Gpu = Annotated[str, StringConstraints(min_length=1, max_length=32)]
Duration = Annotated[str, StringConstraints(max_length=32)]
IdempotencyKey = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NoNul)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Wire(BaseModel):
    """The base of every message: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _reason_schema(schema: dict[str, Any]) -> None:
    schema.clear()
    schema.update(reasons_schema())


class ReasonView(Wire):
    """A reason: a code of :class:`core.reason_codes.ReasonCode`, its figures and its sentence."""

    model_config = ConfigDict(json_schema_extra=_reason_schema)

    code: str
    figures: dict[str, int | str]
    message: str


class ErrorView(Wire):
    """The body of every 4xx and 5xx answer."""

    status: int
    message: str
    reason: str


class Pagination(Wire):
    offset: int
    limit: int
    total: int


class AllocationView(Wire):
    """One rank's share of one device; ``device_uuid`` is null until it is read back.

    ``device_memory_mib`` is the memory of the whole device.
    """

    rank: int
    device: str
    device_uuid: str | None
    gpu_milli: int
    memory_mib: int
    device_memory_mib: int | None = None


class Enforcement(Wire):
    """The enforcement that was read back: hardware, driver, mps, policed, cooperative or none.

    ``why``: why it is not stronger, and present faults; null if there are none.
    """

    memory: str
    compute: str
    why: str | None = None


class AffectedView(Wire):
    """An affected job or notebook; ``job`` is its id, null if the reader may not see it."""

    kind: Literal["job", "notebook"] = "job"
    job: str | None
    project: str | None
    user: str | None
    effect: Literal[
        "paused", "restarts", "over_quota", "drains", "stays", "runs_on", "starts", "waits", "refused",
        "loses_membership", "held", "stopped",
    ]  # fmt: skip
    message: str
