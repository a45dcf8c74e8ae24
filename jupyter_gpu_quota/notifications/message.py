"""One notification: the event of a notebook, the loss and how to prevent it, as fields and as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple, get_args

from ..core.amounts import gpu_text
from .job_message import JobMessage, subject_of_job, text_of_job

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
"""The variables that an event loses; the other events lose nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One notification for the owner of one notebook.

    ``server`` is "" for the hub's default server; ``free_at`` and ``at`` are milliseconds since 1970 UTC. ``page`` is
    where the notebook can be kept, None if the hub has no public address. ``id`` is the same with every attempt.
    ``why``: the cause as a sentence, from the enforcement of shares; ``stop_at``: when the server is stopped.
    ``suspends``: the policy suspends kernels with their variables, if possible.
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
        """The command that postpones it in a terminal of the notebook; None if there is nothing to postpone."""
        return f"jupyter gpu-quota keep {self.notebook}" if self.event == "warned" and self.keeps_left else None

    @property
    def lost(self) -> Lost | None:
        return LOST.get(self.event)


OTHERS_UNAFFECTED = "The server, its files and its other kernels are not affected."
SERVER_LOST = "The variables of all its kernels will be lost with it. Its files stay."
SHUT_DOWN = "If you do not need the GPU now, shut the kernel down, so that others can use it."


class Texts(NamedTuple):
    """The texts of one event, with ``{names}`` of :func:`_figures`: one line, then one paragraph each."""

    subject: str
    event: str
    loss: str = ""
    advice: str = ""


TEXTS: Mapping[Event, Texts] = {
    "warned": Texts(
        "The GPU of your notebook will be freed at {free_at} unless you use it",
        "{slice} and does not use it. At {free_at} {kernels} to free it.",
        f"The variables {{of_which}} will be lost. {OTHERS_UNAFFECTED}",
        "To keep it, run a cell in that kernel. {keep}",
    ),
    "freed": Texts(
        "The GPU of your notebook was freed",
        "{slice} and did not use it. At {at} {ended_kernels} to free it.",
        f"The variables {{of_which}} are lost. {OTHERS_UNAFFECTED}",
        "A new kernel gets the GPU again.",
    ),
    "stopping": Texts(
        "Your notebook server is stopped",
        "{slice}, and it was idle for a long time. The hub is stopping that server.",
        "The variables of all its kernels are lost. Its files stay.",
        "It can be started again from the hub's page.",
    ),
    "notified": Texts(
        "A busy kernel does not use the GPU of your notebook",
        "{slice}; a kernel of it is busy and does not use the GPU. Nothing is shut down.",
        advice=SHUT_DOWN,
    ),
    "reported": Texts(
        "The GPU of your notebook is unused",
        "{slice} and does not use it. The policy only reports: nothing is shut down.",
        advice=SHUT_DOWN,
    ),
    "over_share": Texts(
        "Your notebook server will be stopped at {stop_at} unless it frees GPU memory",
        "{slice}. {why} If this is still so at {stop_at}, the server is stopped.",
        SERVER_LOST,
        "To keep it, free memory now: delete data that you do not need, or shut down a kernel that uses the GPU.",
    ),
    "too_weak": Texts(
        "Your notebook server will be stopped at {stop_at}: its GPU share is enforced too weakly",
        "{slice}. {why} At {stop_at} the server is stopped, unless this has changed.",
        SERVER_LOST,
        "Save what you need now. The server can be started again with a whole device, which is not shared, or without "
        "a GPU.",
    ),
    "stopped": Texts("Your notebook server was stopped", "{server} of project {project}. {why}"),
}


def subject(message: Message | JobMessage) -> str:
    """One line, without a full stop."""
    if isinstance(message, JobMessage):
        return subject_of_job(message)
    return TEXTS[message.event].subject.format_map(_figures(message))


def text(message: Message | JobMessage) -> str:
    """The whole message as plain text: a paragraph each for the event, the loss, and the advice."""
    if isinstance(message, JobMessage):
        return text_of_job(message)
    _, event, loss, advice = TEXTS[message.event]
    if message.suspends and message.event in ("warned", "freed"):
        loss = (
            "A suspended kernel keeps its variables and gets its GPU back with its next cell; those of one that is "
            f"shut down are lost. {OTHERS_UNAFFECTED}"
        )
    return "\n\n".join(part for part in (event, loss, advice) if part).format_map(_figures(message)) + "\n"


def _figures(message: Message) -> dict[str, str]:
    server = f"{_printable_user(message)}, your {_printable_server(message)}"
    gpu = gpu_text(message.gpu_milli)
    one = len(message.kernels) == 1
    return {
        "server": server,
        "slice": f"{server} has {gpu} GPU of pool {message.pool} for project {message.project}",
        "project": message.project,
        "why": message.why,
        "kernels": _kernels(message),
        "ended_kernels": _kernels(message, ended=True),
        "of_which": "of that kernel" if one else "of those kernels",
        "keep": _keep_advice(message) if message.event == "warned" else "",
        **{name: _clock_text(getattr(message, name)) for name in ("at", "free_at", "stop_at")},
    }


def _kernels(message: Message, *, ended: bool = False) -> str:
    """The kernels on the GPU, and what will be done to them, or was; rows of an earlier release may name none."""
    count, is_one = len(message.kernels), len(message.kernels) == 1
    unless = f"{'it' if is_one else 'they'} {'could not' if ended else 'cannot'} be"
    how = f"suspended, or shut down if {unless}," if message.suspends else "shut down"
    named = "kernel" if is_one else f"{count} kernels" if count else "kernels"
    verb = ("was" if is_one else "were") if ended else ("is" if is_one else "are")
    return f"the {named} on it {verb} {how}"


def _printable_user(message: Message) -> str:
    """The user name, without characters that could be a mention or markup in a chat."""
    return re.sub(r"(?<!\w)@|[^\w.@+ -]", "?", message.user)


def _printable_server(message: Message) -> str:
    """The server, without characters that could be a mention or markup in a chat."""
    name = re.sub(r"[^\w.-]", "?", message.server)
    return f"notebook server “{name}”" if name else "notebook server"


def _keep_advice(message: Message) -> str:
    if message.command is None:
        return "It was postponed as often as the policy allows."
    page = f"at {message.page}" if message.page else "on the hub's page “GPU quota”"
    times = "once more" if message.keeps_left == 1 else f"{message.keeps_left} more times"
    return (
        f"Or postpone this, which the policy allows {times}: press Keep {page}, or type in a terminal"
        f"\n\n    {message.command}"
    )


def _clock_text(at: int | None) -> str:
    return "an unknown time" if at is None else f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
