"""One message: what happened to whose notebook, what is lost by it and how to prevent that, as facts and as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, assert_never, get_args

from ..core.amounts import gpu_text

Event = Literal["warned", "freed", "stopping", "notified", "reported", "over_share", "too_weak", "stopped"]
EVENTS: tuple[Event, ...] = get_args(Event)
Lost = Literal["kernel_variables", "all_variables"]

LOST: Mapping[Event, Lost] = {
    "warned": "kernel_variables",
    "freed": "kernel_variables",
    "stopping": "all_variables",
    "over_share": "all_variables",
    "too_weak": "all_variables",
    "stopped": "all_variables",
}
"""What is gone once it has happened; of the other events nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What one person is told of one notebook.

    ``server`` is "" for the hub's default server; ``free_at`` and ``at`` are milliseconds since 1970 UTC. ``page`` is
    where the notebook can be kept, None where the hub says no public address. ``id`` stays the same with every attempt.
    ``why``: a sentence, of what the police of shares says; ``stop_at``: when the server is stopped.
    ``suspends``: by the policy kernels are suspended with their variables, where that can be.
    """

    id: str
    event: Event
    at: int
    hub: str
    user: str
    notebook: str
    server: str
    project: str
    pool: str
    gpu_milli: int
    kernels: tuple[str, ...] = ()
    free_at: int | None = None
    keeps_left: int = 0
    page: str | None = None
    why: str = ""
    stop_at: int | None = None
    suspends: bool = False

    @property
    def command(self) -> str | None:
        """What postpones it in a terminal of the notebook; None where there is nothing to postpone."""
        return f"jupyter gpu-quota keep {self.notebook}" if self.event == "warned" and self.keeps_left else None

    @property
    def lost(self) -> Lost | None:
        return LOST.get(self.event)


def subject(message: Message) -> str:
    """One line, without a full stop."""
    match message.event:
        case "warned":
            return f"The GPU of your notebook is freed at {_clock(message.free_at)} unless you use it"
        case "freed":
            return "The GPU of your notebook was freed"
        case "stopping":
            return "Your notebook server is stopped"
        case "notified":
            return "A busy kernel leaves the GPU of your notebook unused"
        case "reported":
            return "The GPU of your notebook is unused"
        case "over_share":
            return f"Your notebook server is stopped at {_clock(message.stop_at)} unless it frees GPU memory"
        case "too_weak":
            return (
                f"Your notebook server is stopped at {_clock(message.stop_at)}: its share of a GPU is held too weakly"
            )
        case "stopped":
            return "Your notebook server was stopped"
        case _:
            assert_never(message.event)


def text(message: Message) -> str:
    """The whole message as plain text, a paragraph each for what, for what is lost, and for what to do."""
    return "\n\n".join(part for part in (_what(message), _loss(message), _remedy(message)) if part) + "\n"


def _what(message: Message) -> str:
    thing = f"{_person(message)}, your {_server(message)} holds {gpu_text(message.gpu_milli)} GPU"
    thing += f" of pool {message.pool} for project {message.project}"
    match message.event:
        case "warned":
            return f"{thing} and does not use it. At {_clock(message.free_at)} {_kernels(message)} to free it."
        case "freed":
            return f"{thing} and did not use it. At {_clock(message.at)} {_kernels(message)} to free it."
        case "stopping":
            return f"{thing}, and nothing has happened in it for long. The hub is stopping that server."
        case "notified":
            return f"{thing}; a kernel there is busy and does not use it. Nothing is shut down."
        case "reported":
            return f"{thing} and does not use it. The policy only reports: nothing is shut down."
        case "over_share":
            return f"{thing}. {message.why} If that is still so at {_clock(message.stop_at)}, the server is stopped."
        case "too_weak":
            return (
                f"{thing}. {message.why} At {_clock(message.stop_at)} the server is stopped, unless that has changed."
            )
        case "stopped":
            return f"{_person(message)}, your {_server(message)} of project {message.project}. {message.why}"
        case _:
            assert_never(message.event)


def _person(message: Message) -> str:
    """A name as a hub knows it; where people sign themselves up they choose it, as they do those of servers."""
    return re.sub(r"(?<!\w)@|[^\w.@+ -]", "?", message.user)


def _server(message: Message) -> str:
    """People choose these names: nothing of them may be a mention or a link where a chat shows the text."""
    name = re.sub(r"[^\w.-]", "?", message.server)
    return f"notebook server “{name}”" if name else "notebook server"


def _kernels(message: Message) -> str:
    how = "suspended, or shut down if it cannot be," if message.suspends else "shut down"
    if len(message.kernels) == 1:
        return f"the kernel that holds it is {how}"
    return f"the {len(message.kernels)} kernels that hold it are {how.replace('it cannot', 'they cannot')}"


def _of_which(message: Message) -> str:
    return "of that kernel" if len(message.kernels) == 1 else "of those kernels"


def _loss(message: Message) -> str:
    if message.suspends and message.event in ("warned", "freed"):
        return (
            "A suspended kernel keeps its variables and gets its GPU back with its next cell; those of one that is "
            "shut down are lost. The server, its files and its other kernels live on."
        )
    match message.event:
        case "warned":
            return (
                f"The variables {_of_which(message)} will be lost. The server, its files and its other kernels live on."
            )
        case "freed":
            return "Their variables are lost. The server, its files and its other kernels live on."
        case "stopping":
            return "The variables of all its kernels are lost. Its files stay."
        case "over_share" | "too_weak":
            return "The variables of all its kernels will be lost with it. Its files stay."
        case "notified" | "reported" | "stopped":
            return ""
        case _:
            assert_never(message.event)


def _remedy(message: Message) -> str:
    match message.event:
        case "warned":
            return _how_to_keep(message)
        case "freed":
            return "A new kernel gets the GPU again."
        case "stopping":
            return "It can be started again from the hub's page."
        case "over_share":
            return "To keep it, free memory now: delete what you do not need, or shut down a kernel that holds the GPU."
        case "too_weak":
            return (
                "Save what you need now. The server can be started again with a whole device, which is shared with "
                "nobody, or without a GPU."
            )
        case "stopped":
            return ""
        case "notified" | "reported":
            return "If you do not need the GPU now, shut the kernel down, so that others can use it."
        case _:
            assert_never(message.event)


def _how_to_keep(message: Message) -> str:
    if message.command is None:
        return "To keep it, run a cell in that kernel. It was postponed as often as the policy allows."
    page = f"at {message.page}" if message.page else "on the hub's page “GPU quota”"
    times = "once more" if message.keeps_left == 1 else f"{message.keeps_left} more times"
    return (
        "To keep it, run a cell in that kernel. Or postpone this, which the policy allows "
        f"{times}: press Keep {page}, or type in a terminal\n\n    {message.command}"
    )


def _clock(at: int | None) -> str:
    return "an unknown time" if at is None else f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
