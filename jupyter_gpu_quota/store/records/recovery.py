"""The recovery of a database that is older than the running work: its hold, and work that it does not have.

Both are notes, so they change neither the version of the store nor its schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...core.model import Placement
from ...core.recovery.differences import Difference, DifferenceKind
from ...core.recovery.evidence import KINDS, Evidence, document_of
from .activity import Note

HOLD, UNKNOWN = "hold", "unknown"
"""The subjects of the only note of kind recovery, and of the only one of kind unknown_work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An admin's order to continue; ``stop_unknown``: work that the database does not have is stopped."""

    actor: str
    at: int
    stop_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why no decision is made since an instant, and the differences that were found last.

    ``without_code``: how many waiting jobs lack their code bundles.
    """

    since: int
    why: tuple[Evidence, ...]
    differences: tuple[Difference, ...] = ()
    accepted: Accepted | None = None
    without_code: int = 0

    def note(self, now: int) -> Note:
        document = {
            "since": self.since,
            "why": [document_of(each) for each in self.why],
            "differences": [asdict(each) for each in self.differences],
            "accepted": None if self.accepted is None else asdict(self.accepted),
            "without_code": self.without_code,
        }
        return Note(kind="recovery", subject=HOLD, at=now, document=document)

    @classmethod
    def from_note(cls, note: Note) -> Hold:
        document: Mapping[str, Any] = note.document
        accepted = document["accepted"]
        return cls(
            since=document["since"],
            why=tuple(KINDS[each["code"]](**each["figures"]) for each in document["why"]),
            differences=tuple(_difference(each) for each in document["differences"]),
            accepted=None if accepted is None else Accepted(**accepted),
            without_code=document.get("without_code", 0),
        )


def _difference(document: Mapping[str, Any]) -> Difference:
    devices = document["devices"]
    named = {**document, "kind": DifferenceKind(document["kind"])}
    return Difference(**{**named, "devices": None if devices is None else tuple(devices)})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownWork:
    """An attempt that runs without a job in the database. Its parts count as foreign use; ``stops``: it is stopped."""

    job: str
    attempt: int
    placements: tuple[Placement, ...]
    stops: bool = False


def unknown_note(found: Iterable[UnknownWork], now: int) -> Note:
    """The only note of kind unknown_work."""
    return Note(kind="unknown_work", subject=UNKNOWN, at=now, document={"attempts": [asdict(each) for each in found]})


def unknown_from(note: Note | None) -> list[UnknownWork]:
    document: Mapping[str, Any] = {"attempts": []} if note is None else note.document
    return [
        UnknownWork(**{**each, "placements": tuple(Placement(**part) for part in each["placements"])})
        for each in document["attempts"]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDecisions:
    """Hold all decisions, or update the reasons and the differences of the hold. Only the leader sends it."""

    why: tuple[Evidence, ...]
    differences: tuple[Difference, ...]
    without_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRecovery:
    """Continue after a hold, as the work is now; refused as ``not_held`` where there is nothing to continue or stop."""

    actor: str
    stop_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetUnknownWork:
    """Jobs without a row whose processes are gone: their parts of devices are free again. Only the leader sends it."""

    jobs: tuple[str, ...]
