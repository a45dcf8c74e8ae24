"""Ids of events: what a client that resumes with one knows."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from ...store.records.rows import Position
from ..access.permissions import Person
from .store_view import StoreView

_ID = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})-([0-9a-f]{0,64})-([0-9a-f]{8}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventId:
    """The version that a client has, with the position of the database and a digest of the client's roles then.

    An id that is a version alone, as ``ChangedView.version``, has neither: a client that resumes with it does not learn
    of a restore or of new roles.
    """

    version: int
    position: Position | None = None
    roles: str = ""

    @classmethod
    def of(cls, version: int, position: Position, person: Person) -> EventId:
        return cls(version=version, position=position, roles=_digest(person))

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """None if the text is no id of an event."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        version, seq, link, roles = found.groups()
        position = None if seq is None else Position(audit_seq=int(seq), audit_hash=link)
        return cls(version=int(version), position=position, roles=roles or "")

    def __str__(self) -> str:
        if self.position is None:
            return str(self.version)
        return f"{self.version}-{self.position.audit_seq}-{self.position.audit_hash}-{self.roles}"

    async def is_continued(self, view: StoreView, person: Person) -> bool:
        """Whether the changes since this version are all that the client lacks: no restore, and the same roles."""
        if self.version > view.mirror.version:
            return False
        if self.position is None:
            return True
        return self.roles == _digest(person) and await view.read_long(view.store.has_position, self.position)


def _digest(person: Person) -> str:
    roles = json.dumps([sorted(person.roles.items()), person.admin])
    return hashlib.sha256(roles.encode()).hexdigest()[:8]
