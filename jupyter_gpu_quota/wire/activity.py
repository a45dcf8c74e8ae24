"""What a notebook's server and the service tell each other about its use: ``POST notebooks/{id}/activity``.

The server reports ages, never instants: its clock may be another, and may be set. Milliseconds throughout.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from . import IdleView, Wire

Printable = r"^[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"
"""No control characters, and none that turn the direction of writing: it is shown on pages and in terminals."""

Word = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=Printable)]
Age = Annotated[int, Field(strict=True, ge=0, le=1 << 44)]
Pid = Annotated[int, Field(strict=True, ge=1, le=1 << 31)]


class KernelReport(Wire):
    """One kernel. ``state`` null is unknown; ``quiet_ms``: since its last message that a person or a cell caused.

    ``pid`` is in the server's own namespace, null for a kernel that runs elsewhere. ``asks_gpu`` is false where its
    kernelspec says so. ``cpu_ms``: what it and all processes below it used of the CPU; a simulated device goes by that.
    ``started``: when its process did, in clock ticks since its machine's start, as /proc has it. ``suspended``: it
    lives without its GPU, and wakes with its next message.
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
    """A terminal, or another program that the server runs; with it count all processes below it."""

    name: Word
    kind: Literal["terminal", "proxied"]
    pid: Pid
    cpu_ms: Age | None = None
    started: Age | None = None


class ActivityReport(Wire):
    """``POST notebooks/{id}/activity``, with the server's own token.

    ``instance`` is new with each start of the server, and ``sequence`` grows within it: an older report that comes
    late says nothing. ``running_ms``: since the server started. ``namespace`` is that of the pids, and ``ticks`` the
    time of this look by the clock of their starts. ``asks_first``: the server knows that its slice may be lent, and
    from now on asks for it before it starts a kernel. ``suspension``: whether it can suspend kernels, by its self-test,
    which it makes once the policy says ``suspend``; ``suspension_why``: why it cannot.
    """

    instance: Word
    sequence: Annotated[int, Field(strict=True, ge=0, le=1 << 60)]
    running_ms: Age
    namespace: Annotated[str, StringConstraints(max_length=64, pattern=Printable)] = ""
    ticks: Age | None = None
    kernels: Annotated[list[KernelReport], Field(max_length=200)]
    programs: Annotated[list[ProgramReport], Field(max_length=200)]
    asks_first: bool = False
    suspension: Literal["off", "testing", "ready", "unavailable"] = "off"
    suspension_why: Annotated[str, StringConstraints(max_length=300, pattern=Printable)] = ""


class WakeRequest(Wire):
    """``POST notebooks/{id}/actions/wake``, with the server's own token: a kernel is about to start and wants the GPU.

    Asking again changes nothing. ``wait_s``: how long to wait for the slice before the answer.
    """

    kernel: Word
    wait_s: Annotated[int, Field(strict=True, ge=0, le=30)] = 0


class WakeAnswer(Wire):
    """``ready``: the slice is the notebook's alone and ``variables`` name its devices; ``waiting``: ask again.

    ``refused``: there is no slice for it now. ``reason`` and ``message`` say who waits for whom, and what to do.
    """

    state: Literal["ready", "waiting", "refused"]
    reason: str
    message: str
    variables: dict[str, str] = {}


class FreeOrder(Wire):
    """Shut these kernels down, each only if it is idle now and has been without a message for ``quiet_ms``.

    ``suspend``: those that are suspended instead, where the server can, with the MiB of GPU memory that each holds.
    """

    kernels: list[str]
    quiet_ms: int
    suspend: dict[str, int] = {}


class ActivityAnswer(Wire):
    """The answer to a report: the notebook as it is judged, what to shut down, and when to report again at most.

    ``suspend``: the policy says that kernels are suspended where that can be, so a server finds out whether it can.
    """

    idle: IdleView
    free: FreeOrder | None = None
    suspend: bool = False
    report_in_ms: int = 30_000


__all__ = [
    "ActivityAnswer",
    "ActivityReport",
    "FreeOrder",
    "IdleView",
    "KernelReport",
    "ProgramReport",
    "WakeAnswer",
    "WakeRequest",
]
