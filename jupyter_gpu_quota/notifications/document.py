"""The body of a webhook request: a message as one JSON document, as Standard Webhooks specifies."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..core.amounts import gpu_text
from .job_message import JobEvent, JobMessage
from .message import Event, Lost, Message, subject, text

Type = Literal[
    "notebook.warned", "notebook.freed", "notebook.stopping", "notebook.notified",
    "notebook.reported", "notebook.over_share", "notebook.too_weak", "notebook.stopped",
    "job.ended", "job.failed", "job.paused",
]  # fmt: skip


class NotificationData(BaseModel):
    """The event and its notebook. Format 1 may gain members and loses none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    id: str = Field(
        description="The same with every attempt: ignore an id that was received before. Also the header webhook-id."
    )
    event: Event
    hub: str = Field(description="The name of the hub, c.GPUQuota.hub.")
    user: str = Field(description="The notebook's owner, by the hub's user name.")
    notebook: str = Field(description="The id of the slice, as in the REST API.")
    server: str = Field(description="The hub's name of the server; empty for the default server.")
    project: str
    pool: str
    gpu: str = Field(description="The share in GPUs, an exact decimal number.")
    kernels: list[str] = Field(
        description="Ids of the kernels that will be, or were, shut down or suspended; only of warned and freed."
    )
    free_at: datetime | None = Field(description="When they are shut down unless they are used; only of warned.")
    lost: Lost | None = Field(
        description="kernel_variables: those of the kernels that use the GPU, except suspended ones; "
        "all_variables: those of the server; null: nothing."
    )
    keeps_left: int = Field(ge=0, description="How often it can still be postponed.")
    keep_command: str | None = Field(description="The command that postpones it in a terminal of the notebook.")
    page: str | None = Field(description="The page on which it can be postponed; null if the address is unknown.")
    subject: str
    why: str | None = Field(
        default=None, description="The cause as a sentence; only of over_share, too_weak and stopped."
    )
    stop_at: datetime | None = Field(
        default=None, description="When the server is stopped; of over_share and too_weak."
    )


class JobNotificationData(BaseModel):
    """The event and its job. Format 1 may gain members and loses none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    id: str = Field(description="The same with every attempt to send it. Also the header webhook-id.")
    event: JobEvent
    hub: str = Field(description="The name of the hub, c.GPUQuota.hub.")
    user: str = Field(description="The job's owner, by the hub's user name.")
    job: str = Field(description="The id of the job, as in the REST API.")
    name: str
    project: str
    pool: str
    gpu: str = Field(description="The GPU of all its ranks, an exact decimal number.")
    state: str = Field(description="The state of the job: succeeded, failed, cancelled or paused.")
    why: str | None = Field(description="The cause as a sentence; of a failure or a pause.")
    page: str | None = Field(description="The page GPU quota; null if the address is unknown.")
    subject: str


class NotificationDocument(BaseModel):
    """The whole body. Chat programs show ``text``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Type
    timestamp: datetime = Field(description="Time of the event; the header webhook-timestamp is that of sending.")
    data: NotificationData | JobNotificationData
    text: str


def document(message: Message | JobMessage) -> NotificationDocument:
    """A message as the webhook's body."""
    if isinstance(message, JobMessage):
        return _of_job(message)
    same = ("id", "event", "hub", "user", "notebook", "server", "project", "pool", "lost", "keeps_left", "page")
    data = NotificationData(
        **{name: getattr(message, name) for name in same},
        gpu=gpu_text(message.gpu_milli),
        kernels=list(message.kernels),
        free_at=None if message.free_at is None else _instant(message.free_at),
        keep_command=message.command,
        subject=subject(message),
        why=message.why or None,
        stop_at=None if message.stop_at is None else _instant(message.stop_at),
    )
    kind: dict[str, Any] = {"type": f"notebook.{message.event}"}
    return NotificationDocument(timestamp=_instant(message.at), data=data, text=text(message), **kind)


def _of_job(message: JobMessage) -> NotificationDocument:
    same = ("id", "event", "hub", "user", "job", "name", "project", "pool", "state", "page")
    data = JobNotificationData(
        **{name: getattr(message, name) for name in same},
        gpu=gpu_text(message.gpu_milli),
        why=message.why or None,
        subject=subject(message),
    )
    kind: dict[str, Any] = {"type": message.event.replace("_", ".")}
    return NotificationDocument(timestamp=_instant(message.at), data=data, text=text(message), **kind)


def body(message: Message | JobMessage) -> bytes:
    """The bytes that are signed and sent."""
    return document(message).model_dump_json().encode()


def schema() -> dict[str, Any]:
    """The JSON Schema of the body."""
    return NotificationDocument.model_json_schema(mode="serialization")


def _instant(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
