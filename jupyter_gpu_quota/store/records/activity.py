"""The use of notebooks: the newest report of each server, and the notes of the controllers.

Neither changes the version of the store or the audit. Instants are integers,
milliseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NoteKind = Literal[
    "activity",
    "idle",
    "enforcement",
    "loop",
    "recovery",
    "unknown_work",
    "job_events",
    "retention",
    "outputs",
    "outputs_removal",
]
"""``activity``: the use of a notebook within some minutes; ``idle``: its newest classification;
``enforcement``: an active warning about a workload; ``loop``: the status of a control loop; ``recovery``: the hold of
an older database; ``unknown_work``: an attempt that runs without a job in the database; ``job_events``: the version up
to which the events of jobs were notified; ``retention``: the last removal of ended jobs, and the space of all outputs;
``outputs``: the size of an ended job's outputs, and their removal; ``outputs_removal``: a user's request of that."""

OUTPUTS_TOTAL = "outputs"
"""The subject of the note with the space of the outputs in MiB, by project."""

LATE_CLOCK_MS = 10_000
"""A reader of what is new begins this much earlier: another process stored some of it, whose clock may be late."""

LOOP_STATUS_EVERY_MS = 60_000
"""How often the leader stores the status of every loop; an older note is of a loop that runs no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookReport:
    """The newest report of a notebook's server, unchanged, and the instant of its arrival.

    ``sequence`` grows within one ``instance`` of the server; ``gone`` are earlier instances, whose late reports are
    ignored.
    """

    notebook: str
    instance: str
    sequence: int
    at: int
    body: Mapping[str, object]
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReport:
    """Store a report of a notebook's server; a late one changes nothing. Refused for a slice that has ended."""

    notebook: str
    instance: str
    sequence: int
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostponeWarning:
    """Postpone the warning of a notebook, at most ``keep_at_most`` times until it is used again.

    Refused as ``not_warned`` where no warning is active, and as ``kept_enough``.
    """

    notebook: str
    actor: str
    keep_at_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeNotebook:
    """A kernel starts and needs the GPU: from now on the slice counts as used and is not lent.

    A repeated request within 5 s changes nothing. Refused for a slice that has ended.
    """

    notebook: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """State that a controller stores for its successor and the API. ``slot`` distinguishes notes of one subject."""

    kind: NoteKind
    subject: str
    at: int
    document: Mapping[str, object]
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepNotes:
    """Write notes. Delete the notes of a kind on the subjects in ``over``, and those in ``below`` under a slot."""

    notes: tuple[Note, ...] = ()
    over: tuple[tuple[NoteKind, str], ...] = ()
    below: tuple[tuple[NoteKind, str, int], ...] = ()
