"""What is kept of how notebooks are used: the newest report of each server, and what the controllers note of it.

Neither counts as a change of the store: no version grows, and the audit says nothing. Instants are integers,
milliseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NoteKind = Literal["activity", "idle", "enforcement"]
"""``activity``: what was seen of a notebook within some minutes; ``idle``: its newest classification;
``enforcement``: a warning about a workload that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookReport:
    """The newest report of a notebook's server, as it was sent, and when it arrived.

    ``sequence`` grows within one ``instance`` of the server; ``gone`` are earlier instances, whose late reports do
    not count.
    """

    notebook: str
    instance: str
    sequence: int
    at: int
    body: Mapping[str, object]
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReport:
    """A notebook's server reported; one that comes late changes nothing. Refused for a slice that has ended."""

    notebook: str
    instance: str
    sequence: int
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostponeWarning:
    """A person postpones the warning of a notebook, at most ``keep_at_most`` times until it is used again.

    Refused as ``not_warned`` where no warning is under way, and as ``kept_enough``.
    """

    notebook: str
    actor: str
    keep_at_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeNotebook:
    """A kernel is about to start and wants the GPU: from now on the slice counts as used and is not lent.

    Asking again within 5 s changes nothing. Refused for a slice that has ended.
    """

    notebook: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a controller keeps for its successor, and for the api to show. ``slot`` tells several of a subject apart."""

    kind: NoteKind
    subject: str
    at: int
    document: Mapping[str, object]
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepNotes:
    """Write notes, and drop all notes of one kind about some subjects, and those of a subject below a slot."""

    notes: tuple[Note, ...] = ()
    over: tuple[tuple[NoteKind, str], ...] = ()
    below: tuple[tuple[NoteKind, str, int], ...] = ()
