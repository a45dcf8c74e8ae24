"""The body of the webhook: a message as one JSON document, as the Standard Webhooks specification shapes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..core.amounts import gpu_text
from .message import Event, Lost, Message, subject, text

Type = Literal[
    "notebook.warned",
    "notebook.freed",
    "notebook.stopping",
    "notebook.notified",
    "notebook.reported",
    "notebook.over_share",
    "notebook.too_weak",
    "notebook.stopped",
]


class NoticeData(BaseModel):
    """What happened to which notebook. Members may be added; none is taken away in format 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    id: str = Field(description="The same with every attempt: drop what you have seen. Also the header webhook-id.")
    event: Event
    hub: str = Field(description="The name of the hub, c.GPUQuota.hub.")
    user: str = Field(description="The hub's name of the person whose notebook it is.")
    notebook: str = Field(description="The id of the slice, as in the REST API.")
    server: str = Field(description="The hub's name of the server; empty for the default one.")
    project: str
    pool: str
    gpu: str = Field(description="The share in GPUs, an exact decimal number.")
    kernels: list[str] = Field(description="Ids of the kernels that are to be shut down; of warned alone.")
    free_at: datetime | None = Field(description="When they are shut down unless something happens; of warned alone.")
    lost: Lost | None = Field(
        description="kernel_variables: of the kernels that hold the GPU, but of those that are suspended; "
        "all_variables: of the server; null: nothing."
    )
    keeps_left: int = Field(ge=0, description="How often it can be postponed.")
    keep_command: str | None = Field(description="What postpones it in a terminal of the notebook.")
    page: str | None = Field(description="The page on which it can be postponed; null where no address is known.")
    subject: str
    why: str | None = Field(default=None, description="Why, in a sentence; of over_share, too_weak and stopped alone.")
    stop_at: datetime | None = Field(
        default=None, description="When the server is stopped; of over_share and too_weak."
    )


class NoticeDocument(BaseModel):
    """The whole body. ``text`` stands where chat programs look for what to show."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Type
    timestamp: datetime = Field(description="When it happened, not when it was sent: the header webhook-timestamp.")
    data: NoticeData
    text: str


def document(message: Message) -> NoticeDocument:
    """A message as the webhook's body."""
    data = NoticeData(
        id=message.id,
        event=message.event,
        hub=message.hub,
        user=message.user,
        notebook=message.notebook,
        server=message.server,
        project=message.project,
        pool=message.pool,
        gpu=gpu_text(message.gpu_milli),
        kernels=list(message.kernels),
        free_at=None if message.free_at is None else _instant(message.free_at),
        lost=message.lost,
        keeps_left=message.keeps_left,
        keep_command=message.command,
        page=message.page,
        subject=subject(message),
        why=message.why or None,
        stop_at=None if message.stop_at is None else _instant(message.stop_at),
    )
    kind: dict[str, Any] = {"type": f"notebook.{message.event}"}
    return NoticeDocument(timestamp=_instant(message.at), data=data, text=text(message), **kind)


def body(message: Message) -> bytes:
    """What is sent, and signed, byte for byte."""
    return document(message).model_dump_json().encode()


def schema() -> dict[str, Any]:
    """The JSON Schema of the body."""
    return NoticeDocument.model_json_schema(mode="serialization")


def _instant(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
