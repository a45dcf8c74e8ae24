"""A submitted job: read its state, wait for it, change it, download its outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.amounts import gpu_text, ranks_text
from ..wire import ExplainView, JobDetail, JobView
from .arguments import checked_timeout_s
from .connection import Refused, Unreachable
from .display import html_facts, html_table, progress_display, text_table
from .listing import Listing
from .streams import FINAL

if TYPE_CHECKING:
    from . import Client, Outputs

POLL_EVERY_S = 1.0

RESTART_WAIT_S = 120.0
"""How long ``watch`` waits for a service that restarts or cannot answer for now."""


COLUMNS = ("id", "name", "project", "user", "GPU", "state")


class Jobs(Listing[JobView]):
    """Jobs of a listing; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, map(_row, self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(text_table(COLUMNS, map(_row, self)))


def _row(view: JobView) -> tuple[object, ...]:
    return view.id, view.name, view.project, view.user, gpu_text(view.whole_milli), describe(view)


class Job:
    """One job. ``view`` is its last known state; ``refresh`` and every change bring it up to date.

    ``notes``: after a submission, sentences about the files of its folder that were not sent.
    """

    def __init__(self, client: Client, view: JobView, notes: tuple[str, ...] = ()) -> None:
        self._client, self.view, self.notes = client, view, notes

    def __repr__(self) -> str:
        why = f": {self.view.reason.message}" if self.view.reason and self.view.state != "running" else ""
        return f"<Job {self.id} {self.view.name!r} {self.view.state}{why}>"

    def _repr_html_(self) -> str:
        view = self.view
        facts = {"job": view.id, "name": view.name, "project": view.project, "pool": view.pool}
        more = {"GPU": gpu_text(view.whole_milli), "state": describe(view)}
        progress = view.progress
        return html_facts({**facts, **more}.items(), *((progress.done, progress.total) if progress else ()))

    @property
    def id(self) -> str:
        """Its id, the argument of the client's calls."""
        return self.view.id

    @property
    def state(self) -> str:
        """queued, starting, running, pausing, paused, held, succeeded, failed or cancelled, as last known."""
        return self.view.state

    def refresh(self) -> JobDetail:
        """Read the job again, with every rank of every attempt."""
        detail = self._client.job(self.id)
        self.view = detail
        return detail

    def wait(self, *, progress: bool = False, timeout_s: float | None = None) -> JobView:
        """Wait until the job has ended; returns its last view, whether it succeeded or not.

        ``progress`` writes each change of state, reason and progress to standard error; in a notebook it keeps one
        output up to date.
        Raises TimeoutError after ``timeout_s`` seconds; None waits without a limit.
        """
        show, shown = progress_display(self) if progress else None, ""
        for view in watch(self._client, self.id, timeout_s=timeout_s):
            self.view = view
            if show is not None and (line := f"{view.id} {describe(view)}") != shown:
                show(line)
                shown = line
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
        """Why it waits or was paused, and which change would start it."""
        return self._client.explain(self.id)

    def outputs(self) -> Outputs:
        """The files in its outputs folder; ``truncated``: the folder has more than the service lists."""
        return self._client.outputs(self.id)

    def download(self, into: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Copy every output below a folder; returns the files written. See :meth:`Client.download`."""
        return self._client.download(self.id, into, overwrite=overwrite)

    def remove_outputs(self) -> None:
        """Remove its outputs when it has ended, which frees space of its project; its log stays."""
        self._client.remove_outputs(self.id)

    def hold(self) -> Job:
        """Pause it until it is released."""
        self.view = self._client.hold(self.id)
        return self

    def release(self) -> Job:
        """Queue it again after a hold, at its old position."""
        self.view = self._client.release(self.id)
        return self

    def cancel(self) -> Job:
        """End it: SIGTERM, then SIGKILL after the grace period. Its log and outputs stay."""
        self.view = self._client.cancel(self.id)
        return self

    def clone(self, **changes: Any) -> Job:
        """Queue the job again; ``changes`` are fields of :class:`jupyter_gpu_quota.wire.CloneRequest`."""
        return self._client.clone(self.id, **changes)

    def rerun(self, *, secrets: Mapping[str, str] | None = None) -> Job:
        """Queue the same code, command, environment and data again; ``secrets`` are not kept, and are given again."""
        return self._client.rerun(self.id, secrets=secrets)


def watch(
    client: Client,
    job: str,
    *,
    timeout_s: float | None = None,
    every_s: float = POLL_EVERY_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[JobDetail]:
    """The state of a job, every ``every_s`` seconds until it has ended, the end included.

    It waits for a service that restarts, and for its database and hub. Raises TimeoutError, Refused, Unreachable.
    """
    if timeout_s is not None:
        checked_timeout_s(timeout_s)
    began = seen = clock()
    state = "unseen"
    while state not in FINAL:
        if state != "unseen":
            left_s = every_s if timeout_s is None else began + timeout_s - clock()
            if left_s <= 0:
                raise TimeoutError(f"job {job} is still {state} after {timeout_s} s")
            sleep(min(every_s, left_s))
        try:
            view = client.job(job)
        except Unreachable:
            if state == "unseen" or clock() - seen >= RESTART_WAIT_S:
                raise
            continue
        except Refused as refusal:
            if not refusal.is_temporary:
                raise
            if clock() - seen >= RESTART_WAIT_S:
                raise Unreachable(refusal.message) from None
            state = "unknown" if state == "unseen" else state
            continue
        state, seen = view.state, clock()
        yield view


def describe(view: JobView) -> str:
    """A job's state in one line, with its progress or the reason for which it does not run."""
    parts = [view.state]
    if view.held_ranks:
        parts.append(ranks_text(view.ranks, view.min_ranks, view.held_ranks))
    if view.progress and view.state in ("running", "pausing", "succeeded"):
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(view.metrics.items()))
        parts.append(f"{view.progress.done}/{view.progress.total}" + (f" ({metrics})" if metrics else ""))
    outlives = view.reason is not None and view.reason.code in ("project_gone", "pool_gone")
    if view.reason and (outlives or view.state not in ("running", "succeeded")):
        parts.append(view.reason.message)
    elif view.state == "failed" and view.exit_status is not None:  # of an older service
        parts.append(f"exit status {view.exit_status}")
    return " · ".join(parts)
