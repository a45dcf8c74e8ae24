"""Evidence of a notebook's use (GPU readings, reports of its server, kernels, other programs), and the idle policy.

Instants are integers in milliseconds since 1970 UTC, all by one clock (that of the service): a server reports ages,
which are subtracted from the instant its report arrived. What is not known is None, and None is never 0 or idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class KernelState(StrEnum):
    """The state of a kernel by its messages. One that starts or restarts is busy; a dead one is no kernel."""

    IDLE = "idle"
    BUSY = "busy"


class ProgramKind(StrEnum):
    """The kinds of programs in a notebook's server beside its kernels."""

    TERMINAL = "terminal"
    PROXIED = "proxied"
    STRAY = "stray"  # a process whose kernel or program is gone


class IdleMode(StrEnum):
    """``report`` shows what would be freed and frees nothing; ``reclaim`` frees."""

    REPORT = "report"
    RECLAIM = "reclaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One reading of the use of the GPU by a notebook's own processes.

    ``percent`` is above 0 if any of them used it since the reading before; None is unknown, and ``why`` the cause.
    ``used_at``: when the last of that use was, where the reading has it; otherwise it may have been at ``at``.
    ``users`` are the kernels and programs that used it, as far as known.
    """

    at: int
    percent: int | None
    why: str = ""
    used_at: int | None = None
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One living kernel. ``last_message_at`` counts messages of a user or a cell, not of a reconnecting tab.

    ``holds_gpu``: it has memory on the device. ``connections`` are open tabs; they are shown, and are no evidence.
    """

    id: str
    state: KernelState | None
    started_at: int | None
    last_message_at: int | None
    holds_gpu: bool | None
    connections: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """A terminal or a server-proxied program, with all processes below it; ``used_gpu_at``: when it last did."""

    name: str
    kind: ProgramKind
    holds_gpu: bool | None
    used_gpu_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookActivity:
    """The evidence about one notebook, for its classification.

    ``samples`` and ``reports`` (the instants at which the server's reports arrived) are in the order of arrival.
    ``kernels`` None: the server never reported, so they are not known; they and ``programs`` are of the
    newest report. ``kept_at``: when a person last postponed the warning; ``asked_at``: when a starting kernel last
    requested the GPU. ``server_used_at``: when the server itself was last used, None where that is not known.
    """

    notebook: str
    started_at: int | None
    samples: tuple[GpuSample, ...] = ()
    reports: tuple[int, ...] = ()
    kernels: tuple[KernelRecord, ...] | None = None
    programs: tuple[ProgramRecord, ...] = ()
    kept_at: int | None = None
    asked_at: int | None = None
    server_used_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """When a notebook is idle and what follows, in seconds. Source: the quota file's ``policy.idle``.

    While no work waits for its GPU, ``when_nobody_waits_s`` replaces the shorter waits.
    ``busy_notify_after_s``: notify, and only notify, a person whose kernel is busy without using the GPU for so long;
    None: never. A notebook is unknown for ``grace_s`` after a start. ``coverage_percent`` of the expected readings and
    reports must be there, and no more than ``missed_at_most`` of them may be missing in a row.
    ``suspend``: kernels are suspended rather than shut down, where their server can.
    """

    mode: IdleMode = IdleMode.REPORT
    gpu_idle_after_s: int = 1_200
    kernel_idle_after_s: int = 1_200
    when_nobody_waits_s: int = 7_200
    warn_for_s: int = 300
    keep_at_most: int = 3
    release_after_s: int = 7_200
    stop_server_after_s: int = 43_200
    busy_notify_after_s: int | None = None
    suspend: bool = False
    grace_s: int = 300
    sample_every_s: int = 10
    report_every_s: int = 30
    coverage_percent: int = 90
    missed_at_most: int = 2

    def gpu_after_s(self, *, waiting: bool) -> int:
        """How long the GPU must have been unused before the notebook is idle."""
        return self.gpu_idle_after_s if waiting else max(self.gpu_idle_after_s, self.when_nobody_waits_s)

    def kernel_after_s(self, *, waiting: bool) -> int:
        """How long every kernel must have been without a message before the notebook is idle."""
        return self.kernel_idle_after_s if waiting else max(self.kernel_idle_after_s, self.when_nobody_waits_s)

    def max_gap_ms(self, every_s: int) -> int:
        """The longest time between two entries of a series with this period; an entry may be late by half a period."""
        return every_s * 500 * (2 * self.missed_at_most + 3)
