"""Filters and values of the templates: amounts, times, bars, states. The templates escape all text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from ...core.amounts import duration_text, gpu_text, host_text, ranks_text
from ...core.lifecycle import FINAL, HOLDS_GPU, WAITING
from ...core.model import JobState
from ...core.reason_codes import SERVER_STOPPED
from ...messages.exit_status import exit_text
from ...wire import DeviceView, JobDetail, JobView
from ..requests.call import Answer, Call

if TYPE_CHECKING:
    from ..state.store_view import StoreView

COLOURS = 8
OTHER = "other"
SIGNS = {
    "queued": "○", "starting": "◔", "running": "●", "pausing": "◑", "paused": "❙❙", "held": "■",
    "succeeded": "✓", "failed": "✕", "cancelled": "–", "requested": "○", "booked": "●", "lent": "◐",
    "refused": "✕", "returned": "–", "stopped": "■",
}  # fmt: skip
"""A sign for each state, so that states differ not only by colour."""


def render(template: str, **content: Any) -> str:
    return _environment().get_template(template).render(**content)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("jupyter_gpu_quota.api.pages", "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "gpu": gpu_text,
        "host": host_of,
        "ranks": ranks_of,
        "duration": duration_text,
        "size": size_text,
        "stamp": stamp,
        "colour": colour_of,
        "segments": segments,
        "command": shlex.join,
        "control": control_of,
        "exit_text": exit_text,
    }
    environment.globals["signs"] = SIGNS
    return environment


def ranks_of(job: JobView) -> str:
    """The ranks of a job in words, nothing for a job of one."""
    return ranks_text(job.ranks, job.min_ranks, job.held_ranks)


def host_of(job: JobView) -> str | None:
    """CPU and memory of each rank of a job; None where the job has neither."""
    return host_text(job.cpu_milli, job.memory_mib, job.ranks)


def size_text(size: int) -> str:
    """Bytes as people read them."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min(len(units) - 1, max(0, size.bit_length() - 1) // 10)
    return f"{size} B" if not step else f"{size / 1024**step:.1f} {units[step]}"


def stamp(at: datetime) -> str:
    """An instant in words, in UTC; a script shows it in the reader's own time."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def colours_of(projects: Sequence[str]) -> dict[str, str]:
    """A colour for each project, by its position in the quota file: the first eight all differ."""
    return {name: f"c{position % COLOURS}" for position, name in enumerate(projects)}


def colour_of(project: str | None, colours: Mapping[str, str]) -> str:
    """The class of a project's colour; invisible work and removed projects have the class ``other``."""
    return colours.get(project or "", OTHER)


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a device's bar, in thousandths of its width."""

    start: int
    width: int
    colour: str


def segments(device: DeviceView, colours: Mapping[str, str]) -> list[Segment]:
    """The bar of a device: its allocations side by side, then foreign use."""
    parts = [(holder.gpu_milli, colour_of(holder.project, colours)) for holder in device.holders]
    parts.append((device.foreign_milli, "foreign"))
    found, start = [], 0
    for width, colour in parts:
        if width:
            found.append(Segment(start, width, colour))
            start += width
    return found


def counts(store_view: StoreView) -> dict[str, int]:
    """The number of jobs in each group of states, of all projects: numbers do not disclose work of others."""
    groups = {"running": HOLDS_GPU, "waiting": WAITING, "held": {JobState.HELD}}
    states = [record.job.state for record in store_view.mirror.jobs.values()]
    return {group: sum(state in members for state in states) for group, members in groups.items()}


# --- jobs -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the list, and whether its reader may change it."""

    job: JobView
    may_change: bool

    @property
    def actions(self) -> tuple[str, ...]:
        return actions_of(self.job) if self.may_change else ()

    @property
    def why(self) -> str:
        """The reason for its state, where the state needs one."""
        job, parts = self.job, list[str]()
        if job.reason and (job.state in EXPLAINED_STATES or job.reason.code in ("project_gone", "pool_gone")):
            parts.append(job.reason.message)
        elif job.borrower:
            parts.append("Runs on notebook quota that no notebook uses now.")
        return " ".join(parts)


EXPLAINED_STATES = frozenset({"queued", "paused", "held", "pausing", "failed", "cancelled"})
"""States whose reason the list of jobs shows."""


EXPLAINED_NOTEBOOK_REASONS = frozenset(
    {"project_gone", "pool_gone", "device_quarantined", "device_unavailable", *SERVER_STOPPED}
)
"""Reasons that the list of notebooks shows of every state."""


def actions_of(job: JobView) -> tuple[str, ...]:
    """The actions that are possible in the job's state."""
    state = JobState(job.state)
    if state in FINAL or job.target == "cancelled":
        return ()
    if state is JobState.HELD or job.target == "held":
        return ("release", "cancel")
    return ("hold", "cancel")


def control_of(action: str) -> str:
    """The id of an action's button: hold and release are one button with two labels, so that it keeps the focus."""
    return "hold-or-release" if action in ("hold", "release") else action


def first_start(job: JobDetail) -> datetime | None:
    """The start of the first attempt of a job that started more than once; else None."""
    starts = [rank.started_at for rank in job.rank_records if rank.started_at is not None]
    return min(starts) if job.attempt > 1 and starts else None


@dataclass(frozen=True, slots=True)
class LogChoice:
    """One log of a job: that of a rank of an attempt."""

    attempt: int
    rank: int
    label: str

    @property
    def value(self) -> str:
        return f"{self.attempt}.{self.rank}"


def log_choices(job: JobDetail) -> list[LogChoice]:
    """Every log of a job, the newest attempt first; ranks are named where there is more than one."""
    parts = sorted({(-rank.attempt, rank.rank) for rank in job.rank_records})
    return [
        LogChoice(-attempt, rank, f"attempt {-attempt}" + (f", rank {rank}" if job.ranks > 1 else ""))
        for attempt, rank in parts
    ]


@dataclass(frozen=True, slots=True)
class Filter:
    """One link of the filter; ``here``: it is the current one."""

    label: str
    href: str
    here: bool


def job_filters(call: Call) -> dict[str, list[Filter]]:
    """The filters by owner and by state, as links that keep the other choice."""
    mine, project, live = call.flag("mine"), call.text("project"), call.flag("live")
    owners = [Filter("All visible", _link(live=live), not mine and not project)]
    owners.append(Filter("Mine", _link(live=live, mine=True), mine))
    owners += [
        Filter(name, _link(live=live, project=name), project == name and not mine) for name in sorted(call.person.roles)
    ]
    states = [
        Filter("All", _link(mine=mine, project=project), not live),
        Filter("Not ended", _link(mine=mine, project=project, live=True), live),
    ]
    return {"Owner": owners, "State": states}


def _link(*, live: bool = False, mine: bool = False, project: str | None = None) -> str:
    chosen = {"live": "1" if live else "", "mine": "1" if mine else "", "project": project or ""}
    return "?" + urlencode({name: value for name, value in chosen.items() if value})


def pager(answer: Answer, call: Call) -> dict[str, Any]:
    """The position of a page in its listing, and the links to its neighbours."""
    assert isinstance(answer.body, Mapping)
    pagination = answer.body["_pagination"]
    offset, limit, total = pagination["offset"], pagination["limit"], pagination["total"]
    kept = {name: word for name in ("mine", "project", "live", "since", "state") if (word := call.text(name))}

    def link(start: int) -> str:
        return "?" + urlencode({**kept, "offset": start, "limit": limit})

    return {
        "first": offset + 1,
        "last": min(offset + limit, total),
        "total": total,
        "newer": link(max(0, offset - limit)) if offset else None,
        "older": link(offset + limit) if offset + limit < total else None,
    }


class Cut(NamedTuple):
    """The first part of a listing that a page shows, as a phrase; ``truncated``: the listing itself is incomplete."""

    says: str
    total: int
    truncated: bool


def cut_of(answer: Answer) -> Cut:
    """The part of a listing that its first page shows; the phrase is empty where all is shown."""
    assert isinstance(answer.body, Mapping)
    shown, total, truncated = len(answer.items), answer.body["_pagination"]["total"], answer.body.get("truncated")
    more = "more than " if truncated else ""
    phrase = f"the first {shown} of {more}{total:,}" if truncated or shown < total else ""
    return Cut(phrase, total, bool(truncated))
