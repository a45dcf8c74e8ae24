"""Arguments, results and errors of the store's calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...core.model import JobState

MAX_LEASE_MS = 3_000
CLOCK_TOLERANCE_MS = 1_000
"""By how much the clocks of two controllers may differ: neither then takes a lease that the other one still renews."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to decide until ``expires_at``; ``fencing`` grows with every holder, and every order carries it."""

    holder: str
    fencing: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """Nothing was written: the lease was lost, or a row that the plan depends on changed after its snapshot."""

    seen: int
    current: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a listing, newest first."""

    offset: int = 0
    limit: int = 100


FIRST_PAGE = Page()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """The jobs of a listing. ``projects`` None means all; ``user`` narrows to one owner; ``live`` to unfinished ones.

    ``since``: jobs submitted at that instant or later; ``search``: jobs whose name or command contains the text, in
    upper or lower case, or whose id begins with it or, from 4 characters on, contains it. ``reader`` sees their own
    jobs, those of the projects in ``member_of`` (None: of all) that are not private, and private ones of the projects
    in ``led``.
    """

    projects: tuple[str, ...] | None = None
    user: str | None = None
    live: bool = False
    states: tuple[JobState, ...] = ()
    reader: str | None = None
    member_of: tuple[str, ...] | None = None
    led: tuple[str, ...] = ()
    since: int | None = None
    search: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReader:
    """A reader who sees the hours of their own work, and those of all work of ``projects``."""

    user: str
    projects: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Rows of the audit: from ``since`` until before ``until``; of these projects, actors and kinds, None: of all."""

    since: int | None = None
    until: int | None = None
    projects: tuple[str, ...] | None = None
    actors: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None


JobColumn = Literal["submitted_at", "state", "user", "project", "priority", "duration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """The order of a listing of jobs; equal ones are listed newest first.

    ``state`` is in the order of a job's life, ``user`` by name. ``duration`` is from the first start to the end, or to
    ``now``; jobs that never started are last.
    """

    by: JobColumn = "submitted_at"
    descending: bool = True
    now: int = 0


NEWEST_FIRST = JobOrder()


class StoreUnavailable(Exception):
    """The database cannot be used now (full, locked, read-only, missing). Nothing of this call was written.

    Where the connection to a server was lost while it committed, the call may have been written: the message says so,
    and a request is repeated with the same id or key. The message is for every user. ``detail`` is for the log: it may
    have the host and port of the database's server.
    """

    def __init__(self, message: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail

    def log_text(self) -> str:
        """The message and the detail."""
        return f"{self} ({self.detail})" if self.detail else str(self)


class LeaseLost(Exception):
    """Another controller holds the lease, or it ended: nothing of this call was written."""


class NotOpenYet(StoreUnavailable):
    """The process has just started and opens the database: callers wait, and no warning is logged."""
