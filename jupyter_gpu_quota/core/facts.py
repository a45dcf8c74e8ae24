"""Observed facts, as backends report them and the store records them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .frozen import fast_frozen
from .job_ends import EndCause


@fast_frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class RankFact:
    """One rank of one attempt, as its supervisor recorded it.

    ``handle`` is the backend's own name for its first process or pod; only the backend interprets it. None: it has not
    begun. ``ended_at`` is None while it runs. ``exit_status`` is negative for a signal, None when it is unknown (lost).
    ``tree_gone``: no process of the attempt is left. ``pause_requested``: the pause file existed before the exit.
    ``saved_at`` is the newest change in the checkpoint directory. ``done``, ``total`` and ``metrics`` come from
    the progress file. ``refused``: the order was not carried out, and why. ``cause``: evidence beside the exit status.
    ``why_lost``: why a rank ended without an exit status, where the backend knows it. ``trouble``: why it has not begun
    yet, in the words of its node or cluster.
    """

    job: str
    attempt: int
    rank: int
    handle: str | None
    started_at: int | None
    ended_at: int | None = None
    exit_status: int | None = None
    tree_gone: bool = False
    pause_requested: bool = False
    completed: bool = False
    saved_at: int | None = None
    done: int | None = None
    total: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    refused: str | None = None
    cause: EndCause | None = None
    why_lost: str | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFact:
    """A device's health or foreign use changed; None leaves a field as it is.

    ``trouble``: why the device is unhealthy, such as "XID 79". ``fault``: an event that made the device unusable; the
    driver may not report it again. It remains until an admin clears it, or until a driver other than ``loaded`` is
    loaded.
    """

    device: str
    health: str | None = None
    foreign_milli: int | None = None
    uuid: str | None = None
    trouble: str | None = None
    fault: str | None = None
    loaded: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookFact:
    """The idle classification of a notebook. ``seen_empty``: a reading showed nothing of it on its device."""

    notebook: str
    activity: str
    seen_empty: bool = False


Fact = RankFact | DeviceFact | NotebookFact
