"""What an executor can do. Every call is idempotent; ``observe`` sees its effect on a later tick, nobody assumes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..core.facts import RankFact
from ..core.frozen import quickly_made
from ..core.model import Device, Node, Placement


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """Start one attempt of a job on devices it owns. ``account`` None means the service's own account.

    ``devices`` are the Device records named by the placements. ``python`` is the environment's interpreter, if any.
    ``project`` is whose job it is.
    """

    job: str
    attempt: int
    fencing: int
    command: tuple[str, ...]
    placements: tuple[Placement, ...]
    devices: tuple[Device, ...]
    account: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    bundle: str | None = None
    directory: str = "."
    live: bool = False
    ranks: int = 1
    outputs_limit_mib: int | None = None
    python: str | None = None
    project: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOrder:
    """Ask an attempt to leave: pause file, SIGTERM, ``grace_s``, then kill of the whole tree."""

    job: str
    attempt: int
    fencing: int
    grace_s: int
    reason: str


class Executor(Protocol):
    """Carries out orders on one cluster. Fencing numbers older than the newest seen are refused where the effect is."""

    def inventory(self) -> tuple[tuple[Node, ...], tuple[Device, ...]] | None:
        """The nodes and devices that are there now (pools are not set here); None: that cannot be told now."""

    def start(self, order: StartOrder) -> None: ...

    def leave(self, order: LeaveOrder) -> None: ...

    def observe(self) -> Sequence[RankFact]:
        """Every attempt that still has something to tell, those adopted after a restart included."""

    def settled(self, job: str, attempt: int) -> None:
        """The end of this attempt is in the store: it need not be told again."""

    def forget(self, job: str) -> None:
        """Remove everything kept for a job (retention)."""

    def pids(self) -> Mapping[str, frozenset[int]]:
        """Live process ids by job id, for the sampler."""

    def fence(self, fencing: int) -> None:
        """Tell the place of effect that this leader rules from now on; older orders are refused. Durable."""
