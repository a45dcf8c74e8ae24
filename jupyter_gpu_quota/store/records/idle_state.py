"""The newest classification of a notebook's use, as the idleness controller notes it and the api shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ...core.idle.classification import Busy, Classification, Idle, IdleReason, Unknown
from .activity import Note

Word = Literal["busy", "idle", "unknown"]
KINDS: Mapping[Word, type[Classification]] = {"busy": Busy, "idle": Idle, "unknown": Unknown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """Whether a notebook's server can suspend kernels, why not, and how many are suspended."""

    can: bool = False
    why_not: str = ""
    suspended: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleState:
    """How one notebook was classified at an instant.

    ``lendable``: its slice may be lent. ``used_at``: when its GPU was last seen in use. ``sampled`` is the newest
    reading of its use, (percent, instant). ``suspension``: None before its server reported. ``quiet_ms``: how long a
    kernel must have been without a message to be shut down; ``suspendable``: kernels that may be suspended instead,
    with the MiB that each holds.
    """

    notebook: str
    at: int
    classification: Classification
    lendable: bool = False
    used_at: int | None = None
    sampled: tuple[int | None, int] | None = None
    suspension: Suspension | None = None
    quiet_ms: int = 0
    suspendable: Mapping[str, int] = field(default_factory=dict)

    def to_note(self) -> Note:
        plain = asdict(self)
        del plain["notebook"], plain["at"]
        classification = {**plain["classification"], "kind": word_of(self.classification)}
        return Note(
            kind="idle", subject=self.notebook, at=self.at, document={**plain, "classification": classification}
        )

    @classmethod
    def from_note(cls, note: Note) -> IdleState:
        plain: dict[str, Any] = dict(note.document)
        sampled, suspension = plain["sampled"], plain["suspension"]
        plain["classification"] = _classification(plain["classification"])
        plain["sampled"] = None if sampled is None else tuple(sampled)
        plain["suspension"] = None if suspension is None else Suspension(**suspension)
        return cls(notebook=note.subject, at=note.at, **plain)


def word_of(classification: Classification) -> Word:
    """A classification in one word, as REST says it."""
    return next(word for word, kind in KINDS.items() if isinstance(classification, kind))


def _classification(document: Mapping[str, Any]) -> Classification:
    plain = dict(document)
    kind = KINDS[plain.pop("kind")]
    plain["reason"] = IdleReason(plain["reason"])
    plain["figures"] = tuple((name, value) for name, value in plain["figures"])
    for name in ("kernels", "others"):
        if name in plain:
            plain[name] = tuple(plain[name])
    return kind(**plain)
