"""A submitted job in the hands of a program: look at it, wait for it, change it, take what it left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..core.amounts import ranks_text
from ..wire import ExplainView, JobDetail, JobView
from .arguments import seconds
from .connection import Unreachable
from .streams import FINAL

if TYPE_CHECKING:
    from . import Client, Outputs

LOOK_EVERY_S = 1.0

AWAY_S = 120.0
"""How long a service that restarts is waited for."""


class Job:
    """One job. ``view`` is what was last seen of it; ``refresh`` looks again, and every change does."""

    def __init__(self, client: Client, view: JobView) -> None:
        self._client, self.view = client, view

    def __repr__(self) -> str:
        why = f": {self.view.reason.message}" if self.view.reason and self.view.state != "running" else ""
        return f"<Job {self.id} {self.view.name!r} {self.view.state}{why}>"

    @property
    def id(self) -> str:
        """Its id, by which every call of the client takes it."""
        return self.view.id

    @property
    def state(self) -> str:
        """queued, starting, running, pausing, paused, held, succeeded, failed or cancelled, as last seen."""
        return self.view.state

    def refresh(self) -> JobDetail:
        """Look again; answers everything that is known, every rank of every attempt too."""
        detail = self._client.job(self.id)
        self.view = detail
        return detail

    def wait(self, *, progress: bool = False, timeout_s: float | None = None) -> JobView:
        """Wait until the job has ended; answers its last view, whether it succeeded or not.

        ``progress`` writes each change of state, reason and progress to standard error.
        Raises TimeoutError after ``timeout_s`` seconds; None waits as long as it takes.
        """
        told = _Teller(sys.stderr).tell if progress else _nothing
        for view in watch(self._client, self.id, timeout_s=timeout_s):
            self.view = view
            told(view)
        return self.view

    def logs(self, *, attempt: int | None = None, rank: int = 0) -> str:
        """The log of one attempt as it is now; None means the newest."""
        return self._client.logs(self.id, attempt=attempt, rank=rank)

    def follow(self, *, attempt: int | None = None, rank: int = 0) -> Iterator[str]:
        """The log as it is written, until the job has ended."""
        return self._client.follow_logs(self.id, attempt=attempt, rank=rank)

    def metrics(self) -> dict[str, float]:
        """The newest metrics the job reported, by name."""
        return dict(self.refresh().metrics)

    def explain(self) -> ExplainView:
        """Why it is where it is, and what would change that."""
        return self._client.explain(self.id)

    def outputs(self) -> Outputs:
        """The files it left; ``truncated`` says that there are more than the service lists."""
        return self._client.outputs(self.id)

    def download(self, into: str | Path) -> list[Path]:
        """Copy every output below a folder; answers the files written."""
        return self._client.download(self.id, into)

    def hold(self) -> Job:
        """Stop it the way a pause does; it waits until it is released."""
        self.view = self._client.hold(self.id)
        return self

    def release(self) -> Job:
        """Queue it again after a hold, at its old position."""
        self.view = self._client.release(self.id)
        return self

    def cancel(self) -> Job:
        """End it for good: it is asked to end, and killed after the grace. Its log and outputs stay."""
        self.view = self._client.cancel(self.id)
        return self

    def clone(self, **changes: Any) -> Job:
        """The same job again; ``changes`` are fields of :class:`jupyter_gpu_quota.wire.CloneRequest`."""
        return self._client.clone(self.id, **changes)

    def rerun(self) -> Job:
        """The same code, command and environment again."""
        return self._client.rerun(self.id)


def _nothing(view: JobView) -> None:
    return None


def watch(
    client: Client,
    job: str,
    *,
    timeout_s: float | None = None,
    every_s: float = LOOK_EVERY_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[JobDetail]:
    """What is seen of a job, again and again until it has ended, the end included.

    A service that restarts meanwhile is waited for. Raises TimeoutError, Refused, Unreachable.
    """
    if timeout_s is not None:
        seconds(timeout_s)
    began = seen = clock()
    state = "unseen"
    while state not in FINAL:
        if timeout_s is not None and clock() - began >= timeout_s:
            raise TimeoutError(f"job {job} is still {state} after {timeout_s} s")
        if state != "unseen":
            sleep(every_s)
        try:
            view = client.job(job)
        except Unreachable:
            if state == "unseen" or clock() - seen >= AWAY_S:
                raise
            continue
        state, seen = view.state, clock()
        yield view


class _Teller:
    """Writes a line for each change that a person would want to see."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.last = out, ""

    def tell(self, view: JobView) -> None:
        line = describe(view)
        if line != self.last:
            self.out.write(f"{view.id} {line}\n")
            self.out.flush()
            self.last = line


def describe(view: JobView) -> str:
    """A job's state in one line: with its progress while it runs, with the reason while it does not."""
    parts = [view.state]
    if view.held_ranks:
        parts.append(ranks_text(view.ranks, view.min_ranks, view.held_ranks))
    if view.progress and view.state in ("running", "pausing", "succeeded"):
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(view.metrics.items()))
        parts.append(f"{view.progress.done}/{view.progress.total}" + (f" ({metrics})" if metrics else ""))
    outlives = view.reason is not None and view.reason.code in ("project_gone", "pool_gone")
    if view.reason and (outlives or view.state not in ("running", "succeeded")):
        parts.append(view.reason.message)
    if view.state == "failed" and view.exit_status is not None:
        parts.append(f"exit status {view.exit_status}")
    return " · ".join(parts)
