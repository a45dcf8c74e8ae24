"""The result of a preemption: what stops, what moves, and the devices that the preemptor gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..placement.place import Piece
from ..queue.quota_state import NO_LIMIT, Victim
from .rules import Preemptor


class Move(NamedTuple):
    """Work that stops and restarts on these pieces."""

    victim: Victim
    pieces: tuple[Piece, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Preemption:
    """A result: the victims stop or lose a reserved slot, then the preemptor starts on the pieces."""

    preemptor: Preemptor
    pieces: tuple[Piece, ...]
    victims: list[Victim] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    borrowed: bool = False
    used: dict[str, int] = field(default_factory=dict)
    """The use of each project concerned, and of its department, before the preemption, by key."""
    set_aside_milli: int = 0
    """The milli-GPU that earlier jobs of its project, above the fair share, have lost while the plan is minimized."""
    slack_milli: int = NO_LIMIT
    """The additional use that the preemptor's department may have while all victims stay legal."""
    kept_for: str = ""
    """The job whose backfill reservation kept devices from the preemptor, which may not enter it. Rule R30."""
    kept_from: tuple[Piece, ...] = ()
    """Those devices, and the amounts."""
    has_right: bool = False
    """It may enter the backfill reservation with which the plan began, as a last resort (R32)."""
    starts: bool = False
    """It is no claim: its job starts beside the claims, on free devices or, with victims, on devices taken over."""
    ended_early: bool = False
    """The bound on its work ended the search: a cheaper set may exist."""

    @property
    def shrunk(self) -> list[Victim]:
        """The victims that are the part of an elastic job which leaves, where the rest stays.

        Without those of jobs that an earlier claim of the plan shrinks: these give up more ranks in the same restart.
        """
        parts = self._parts_that_leave()
        return [victim for victim in parts if not victim.restarting] if parts else parts

    @property
    def shrunk_further(self) -> list[Victim]:
        """The other parts that leave: of jobs that an earlier claim of the plan shrinks."""
        return [victim for victim in self._parts_that_leave() if victim.restarting]

    def _parts_that_leave(self) -> list[Victim]:
        parts = [victim for victim in self.victims if victim.base is not None]
        if not parts:
            return parts
        gone = {victim.id for victim in self.victims if victim.base is None}
        return [victim for victim in parts if victim.id not in gone]
