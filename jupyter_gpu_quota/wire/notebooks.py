"""Notebooks: requests for slices, their views and idle states."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .fields import AllocationView, Enforcement, Gpu, Name, NoNul, ReasonView, Wire


class NotebookRequest(Wire):
    """``POST notebooks``, only for the hub's spawner.

    ``user`` is the hub's user name, ``server`` "" for the default server. ``token_digest``: the SHA-256 of the server's
    token, to which the secret of the slice is bound; empty from an older spawner. Another digest is another start of
    the server: it gets a new slice, and an earlier one of the server ends.
    """

    user: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    server: Annotated[str, StringConstraints(max_length=255, pattern=NoNul)] = ""
    project: Name
    pool: Name | None = None
    gpu: Gpu
    token_digest: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""


class IdleView(Wire):
    """The idle state of a notebook.

    ``verdict`` is busy, idle or unknown, with ``reason`` and ``message``; ``state`` is that of the idle state machine:
    in_use, reported, warned, freeing, freed or stopping. ``free_in_ms``: remaining time of the countdown, null without
    one. ``used_ms``: time since the last use of the GPU, null if unknown; ``keeps_left``: how often the warning can
    still be postponed. ``noticed``: the user was notified that a busy kernel does not use the GPU.
    """

    verdict: Literal["busy", "idle", "unknown"]
    reason: str
    message: str
    state: Literal["in_use", "reported", "warned", "freeing", "freed", "stopping"]
    mode: Literal["report", "reclaim"]
    free_in_ms: int | None = None
    kernels: list[str] = []
    keeps_left: int = 0
    used_ms: int | None = None
    noticed: bool = False


class NotebookView(Wire):
    """One notebook's slice.

    ``state`` is requested, booked, lent (booked and idle), refused or returned; ``activity`` is busy, idle or unknown.
    ``borrowed``: other work runs on the lent slice; until then the slice is only offered. Null from an older service.
    ``idle`` is the idle state, null before the first classification. ``utilised_milli`` is the use of its slice by the
    newest reading; null with the cause in ``utilised_unknown`` if unknown. ``memory_used_mib`` is its use of the
    memory of its devices by the same reading; null if unknown.
    ``warning``: the warning of memory enforcement to a notebook that uses more memory than its share.
    """

    id: str
    user: str
    server: str
    project: str
    pool: str
    gpu_milli: int
    state: str
    reason: ReasonView | None
    requested_at: datetime
    booked_at: datetime | None
    ended_at: datetime | None
    allocations: list[AllocationView]
    activity: str
    enforcement: Enforcement | None
    simulated: bool
    cluster: str
    hub: str
    idle: IdleView | None = None
    utilised_milli: int | None = None
    utilised_unknown: str | None = None
    memory_used_mib: int | None = None
    warning: str | None = None
    borrowed: bool | None = None

    @property
    def shown_state(self) -> str:
        """The state as listings have it: a lent slice on which no work runs is only offered."""
        return "offered" if self.state == "lent" and self.borrowed is False else self.state


class PodDevicesView(Wire):
    """How the pod of a notebook gets its devices, by the settings kubernetes_* of the service.

    ``driver`` and ``device_class`` are of Dynamic Resource Allocation; an empty class has the name of the driver.
    """

    driver: str
    device_class: str
    fractions: Literal["auto", "dra", "reservation", "none"]


class RequestedSliceView(NotebookView):
    """The answer to ``POST notebooks``: the slice with its secret, for the server alone.

    With the secret the server reports its activity and requests its slice, and the service asks the hub for no token.
    ``pod_devices``: null without the backend kubernetes, and from an older service.
    """

    secret: Annotated[str | None, Field(repr=False)] = None
    pod_devices: PodDevicesView | None = None


class ChoiceView(Wire):
    """A project and pool in which a user may start a notebook, with the quota for its size.

    ``devices``: available devices of the pool; null from an older service. ``user_left_milli``: the user's remaining
    amount under the ceilings for each user of project and department; null without such a ceiling.
    """

    project: str
    pool: str
    quota_milli: int
    used_milli: int
    device_model: str | None
    device_memory_mib: int | None
    devices: int | None = None
    user_left_milli: int | None = None
