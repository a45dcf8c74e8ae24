# ruff: noqa: E701 - records with equal figures are a table
"""Why a job failed, as records: the first rank that failed, its node, its exit status and the evidence beside it."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from .reason_codes import ReasonCode
from .reason_record import record


class EndCause(StrEnum):
    """Evidence of a job supervisor for the end of a rank, beside the exit status."""

    OUT_OF_MEMORY = "out_of_memory"  # the kernel killed a process of its cgroup because memory was exhausted
    OOM_KILL_ON_NODE = "oom_kill_on_node"  # it was killed, and so was some process of the node, for memory
    STORAGE_LIMIT = "storage_limit"  # it wrote more than its limit
    SUPERVISOR_LOST = "supervisor_lost"  # its supervisor ended before it


@record
class RankEnd:
    """``exit_status`` is negative for a signal. ``was``: "pausing" if the rank failed after a pause request.

    ``oom_kill``: "on its node" if the kernel killed some process there because memory was exhausted, while it ran.

    A job of one rank has no ``rank`` and no ``ranks``. A job that ended under a release without these records has the
    exit status alone.
    """

    code: ClassVar[ReasonCode]
    exit_status: int
    rank: int | None = None
    ranks: int | None = None
    node: str | None = None
    was: str | None = None
    oom_kill: str | None = None


# fmt: off
class CommandFailed(RankEnd): __slots__ = ()
class CommandKilled(RankEnd): __slots__ = ()
class OutOfMemory(RankEnd): __slots__ = ()
class StorageLimit(RankEnd): __slots__ = ()
# fmt: on


@record
class SupervisorLost:
    """The exit status is not that of the command."""

    code: ClassVar[ReasonCode] = ReasonCode.SUPERVISOR_LOST
    rank: int | None = None
    ranks: int | None = None
    node: str | None = None


@record
class CommandNotStarted:
    """``trouble``: why the backend did not start the rank."""

    code: ClassVar[ReasonCode] = ReasonCode.COMMAND_NOT_STARTED
    trouble: str
    rank: int | None = None
    ranks: int | None = None
    node: str | None = None


JobEnd = CommandFailed | CommandKilled | OutOfMemory | StorageLimit | SupervisorLost | CommandNotStarted

_BY_CAUSE: dict[EndCause, type[OutOfMemory | StorageLimit]] = {
    EndCause.OUT_OF_MEMORY: OutOfMemory,
    EndCause.STORAGE_LIMIT: StorageLimit,
}


def job_end(
    exit_status: int | None,
    cause: EndCause | None = None,
    *,
    rank: int | None = None,
    ranks: int | None = None,
    node: str | None = None,
    was: str | None = None,
) -> JobEnd:
    """The record of a rank that failed; an exit status of None is that of a lost one."""
    if exit_status is None or cause is EndCause.SUPERVISOR_LOST:
        return SupervisorLost(rank=rank, ranks=ranks, node=node)
    kind: type[CommandFailed | CommandKilled | OutOfMemory | StorageLimit]
    kind = CommandKilled if exit_status < 0 else CommandFailed
    oom_kill = "on its node" if cause is EndCause.OOM_KILL_ON_NODE else None
    if cause in _BY_CAUSE:
        kind = _BY_CAUSE[cause]
    return kind(exit_status=exit_status, rank=rank, ranks=ranks, node=node, was=was, oom_kill=oom_kill)
