"""One notification about a job: it ended, failed or was paused, as fields and as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

JobEvent = Literal["job_ended", "job_failed", "job_paused"]
JOB_EVENTS: tuple[JobEvent, ...] = get_args(JobEvent)

SUBJECTS: Mapping[JobEvent, str] = {
    "job_ended": "Your job {name} {state}",
    "job_failed": "Your job {name} failed",
    "job_paused": "Your job {name} was paused",
}
ADVICE: Mapping[JobEvent, str] = {
    "job_ended": "Its outputs: jupyter gpu-quota outputs {job}",
    "job_failed": "The end of its log: jupyter gpu-quota logs --tail 20 {job}",
    "job_paused": "It is queued again. It continues from its checkpoint if it saved one, otherwise from its beginning. "
    "Why it waits: jupyter gpu-quota explain {job}",
}
STATES = {"succeeded": "succeeded", "cancelled": "was cancelled", "failed": "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMessage:
    """One notification for the owner of one job.

    ``state`` is the state of the job; ``why``: the cause as a sentence, empty if there is none. ``page`` is the page
    GPU quota, None if the hub has no public address. ``id`` is the same with every attempt to send it.
    """

    id: str
    event: JobEvent
    at: int
    hub: str
    user: str
    job: str
    name: str
    project: str
    pool: str
    gpu_milli: int
    state: str
    why: str = ""
    page: str | None = None


def subject_of_job(message: JobMessage) -> str:
    """One line, without a full stop."""
    return SUBJECTS[message.event].format_map(_figures(message))


def text_of_job(message: JobMessage) -> str:
    """The whole message as plain text: a paragraph each for the event, its cause, and the advice."""
    figures = _figures(message)
    event = "{user}, your job “{name}” ({job}) of project {project} in pool {pool} {outcome}.".format_map(figures)
    page = f"The page: {message.page}" if message.page else ""
    parts = (event, message.why, ADVICE[message.event].format_map(figures), page)
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(message: JobMessage) -> dict[str, str]:
    state = STATES.get(message.state, message.state)
    return {
        "name": _inert(message.name),
        "user": _inert(message.user),
        "job": message.job,
        "project": message.project,
        "pool": message.pool,
        "state": state,
        "outcome": "was paused" if message.event == "job_paused" else state,
    }


def _inert(text: str) -> str:
    """A text of the user without characters that could be a mention or markup in a chat."""
    return re.sub(r"(?<!\w)@|[^\w.@+ -]", "?", text)
