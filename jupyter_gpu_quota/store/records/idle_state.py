"""The newest classification of a notebook's use: a note of the idleness controller, which the API shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from ...core.idle.classification import Busy, Classification, Idle, Unknown
from .activity import Note

Word = Literal["busy", "idle", "unknown"]
KINDS: Mapping[Word, type[Classification]] = {"busy": Busy, "idle": Idle, "unknown": Unknown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """Whether a notebook's server can suspend kernels, the reason if not, and the number of suspended kernels."""

    can: bool = False
    why_not: str = ""
    suspended: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleState:
    """The classification of one notebook at an instant.

    ``lendable``: its slice may be lent. ``used_at``: the last use of its GPU. ``sampled`` is the newest
    reading of its use, (percent, instant). ``suspension``: None before its server reported. ``quiet_ms``: the time
    without messages after which a kernel is shut down; ``suspendable``: kernels that may be suspended instead,
    with the MiB that each holds, None while that is unknown.
    """

    notebook: str
    at: int
    classification: Classification
    lendable: bool = False
    used_at: int | None = None
    sampled: tuple[int | None, int] | None = None
    suspension: Suspension | None = None
    quiet_ms: int = 0
    suspendable: Mapping[str, int] | None = field(default_factory=dict)

    def to_note(self) -> Note:
        document = _STATES.dump_python(self, mode="json", exclude={"notebook", "at"})
        document["classification"]["kind"] = word_of(self.classification)
        return Note(kind="idle", subject=self.notebook, at=self.at, document=document)

    @classmethod
    def from_note(cls, note: Note) -> IdleState:
        document: dict[str, Any] = dict(note.document)
        classification = dict(document["classification"])
        document["classification"] = _CLASSIFICATIONS[classification.pop("kind")].validate_python(classification)
        return _STATES.validate_python({**document, "notebook": note.subject, "at": note.at})


_STATES = TypeAdapter(IdleState)
_CLASSIFICATIONS: Mapping[Word, TypeAdapter[Classification]] = {word: TypeAdapter(kind) for word, kind in KINDS.items()}


def word_of(classification: Classification) -> Word:
    """The word for a classification in REST."""
    return next(word for word, kind in KINDS.items() if isinstance(classification, kind))
