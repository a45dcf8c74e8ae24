"""The activity reports of a notebook server, and the service's answers: ``POST notebooks/{id}/activity``.

Reports have ages in milliseconds, never instants, because the server's clock may differ.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .fields import Wire
from .notebooks import IdleView

Printable = r"^[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"
"""No control characters, and none that change the direction of text, for pages and terminals."""

Word = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=Printable)]
Age = Annotated[int, Field(strict=True, ge=0, le=1 << 44)]
Pid = Annotated[int, Field(strict=True, ge=1, le=1 << 31)]


class KernelReport(Wire):
    """One kernel. ``state`` null is unknown; ``quiet_ms``: since its last message from a user or a cell.

    ``pid`` is in the server's namespace, null for a remote kernel. ``asks_gpu`` is false if its kernelspec says so.
    ``cpu_ms``: CPU time with all descendants, the measure of use on a simulated device. ``started``: start of its
    process in clock ticks since the boot, as in /proc. ``suspended``: it has no GPU memory until its next message.
    """

    id: Word
    name: Annotated[str, StringConstraints(max_length=128, pattern=Printable)]
    state: Literal["idle", "busy"] | None
    quiet_ms: Age | None
    running_ms: Age | None
    pid: Pid | None
    asks_gpu: bool
    cpu_ms: Age | None = None
    started: Age | None = None
    connections: Annotated[int, Field(strict=True, ge=0, le=1 << 20)] = 0
    suspended: bool = False


class ProgramReport(Wire):
    """A terminal, or another program of the server, with all its descendants."""

    name: Word
    kind: Literal["terminal", "proxied"]
    pid: Pid
    cpu_ms: Age | None = None
    started: Age | None = None


class ActivityReport(Wire):
    """``POST notebooks/{id}/activity``, with the server's own token.

    ``instance`` is new with each start of the server, and ``sequence`` grows within it; a late older report is
    ignored. ``running_ms``: since the server started. ``namespace`` is that of the pids, and ``ticks`` the time of this
    report on the clock of ``started``. ``asks_first``: the server requests its slice, which may be lent, before it
    starts a kernel. ``server_quiet_ms``: since the last request of a user to the server, a terminal or a proxied
    program, as the hub's culler counts it. ``suspension``: the result of its self-test, which runs once the policy has
    ``suspend``; ``suspension_why``: the cause of a failure.
    """

    instance: Word
    sequence: Annotated[int, Field(strict=True, ge=0, le=1 << 60)]
    running_ms: Age
    namespace: Annotated[str, StringConstraints(max_length=64, pattern=Printable)] = ""
    ticks: Age | None = None
    kernels: Annotated[list[KernelReport], Field(max_length=200)]
    programs: Annotated[list[ProgramReport], Field(max_length=200)]
    asks_first: bool = False
    server_quiet_ms: Age | None = None
    suspension: Literal["off", "testing", "ready", "unavailable"] = "off"
    suspension_why: Annotated[str, StringConstraints(max_length=300, pattern=Printable)] = ""


class WakeRequest(Wire):
    """``POST notebooks/{id}/actions/wake``, with the server's own token: a kernel will start and needs the GPU.

    A repeated request changes nothing. ``wait_s``: longest wait for the slice before the answer.
    """

    kernel: Word
    wait_s: Annotated[int, Field(strict=True, ge=0, le=30)] = 0


class WakeAnswer(Wire):
    """``ready``: the slice is not lent, and ``variables`` name its devices; ``waiting``: repeat the request.

    ``refused``: there is no slice for it now. ``reason`` and ``message`` explain the wait or the refusal.
    """

    state: Literal["ready", "waiting", "refused"]
    reason: str
    message: str
    variables: dict[str, str] = {}


class FreeOrder(Wire):
    """Shut down these kernels, if they are idle now and without a message for ``quiet_ms``.

    ``suspend``: kernels to suspend instead, if possible, with their GPU memory in MiB.
    """

    kernels: list[str]
    quiet_ms: int
    suspend: dict[str, int] = {}


class ActivityAnswer(Wire):
    """The answer to a report: the idle state, an order to free the GPU, and the longest time to the next report.

    ``suspend``: the policy suspends kernels, so that the server runs its self-test.
    """

    idle: IdleView
    free: FreeOrder | None = None
    suspend: bool = False
    report_in_ms: int = 30_000
