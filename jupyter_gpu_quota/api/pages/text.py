"""Templates and the words in them: amounts, times, bars, states; what is written is escaped by the templates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from ...core.amounts import duration_text, gpu_text, host_text, ranks_text
from ...core.lifecycle import FINAL, HOLDS_GPU, WAITING
from ...core.model import JobState
from ...core.reasons import SERVER_STOPPED
from ...messages.exit_status import how_it_ended
from ...wire import DeviceView, JobDetail, JobView
from ..requests.resource import Answer, Call

if TYPE_CHECKING:
    from ..state.store_view import World

COLOURS = 8
OTHER = "other"
SIGNS = {
    "queued": "○", "starting": "◔", "running": "●", "pausing": "◑", "paused": "❙❙", "held": "■",
    "succeeded": "✓", "failed": "✕", "cancelled": "–", "requested": "○", "booked": "●", "lent": "◐",
    "refused": "✕", "returned": "–", "stopped": "■",
}  # fmt: skip
"""A shape for each state, so that colour is never the only sign."""


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
        "command": command_text,
        "control": control_of,
        "how_it_ended": how_it_ended,
    }
    environment.globals["signs"] = SIGNS
    return environment


def ranks_of(job: JobView) -> str:
    """The ranks of a job in words, nothing for a job of one."""
    return ranks_text(job.ranks, job.min_ranks, job.held_ranks)


def host_of(job: JobView) -> str | None:
    """What each rank of a job has of its node beside GPU; None where that is not stated."""
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
    """A colour for each project, by its place in the quota file: the first eight all differ."""
    return {name: f"c{place % COLOURS}" for place, name in enumerate(projects)}


def colour_of(project: str | None, colours: Mapping[str, str]) -> str:
    """The class of a project's colour; work that one may not see, or of a project that is gone, has its own."""
    return colours.get(project or "", OTHER)


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a device's bar, in thousandths of its width."""

    start: int
    width: int
    colour: str


def segments(device: DeviceView, colours: Mapping[str, str]) -> list[Segment]:
    """The bar of a device: its holders side by side, then foreign use."""
    parts = [(holder.gpu_milli, colour_of(holder.project, colours)) for holder in device.holders]
    parts.append((device.foreign_milli, "foreign"))
    found, start = [], 0
    for width, colour in parts:
        if width:
            found.append(Segment(start, width, colour))
            start += width
    return found


def command_text(command: Sequence[str]) -> str:
    """A command as it would be typed."""
    return shlex.join(command)


@dataclass(frozen=True, slots=True)
class Counts:
    running: int
    waiting: int
    held: int


def counts(world: World) -> Counts:
    """How many jobs there are of each kind, of all projects: numbers alone show nobody's work."""
    states = [record.job.state for record in world.mirror.jobs.values()]
    return Counts(
        running=sum(state in HOLDS_GPU for state in states),
        waiting=sum(state in WAITING for state in states),
        held=sum(state is JobState.HELD for state in states),
    )


# --- jobs -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the list, and whether its reader may change it."""

    job: JobView
    changeable: bool

    @property
    def actions(self) -> tuple[str, ...]:
        return actions_of(self.job) if self.changeable else ()

    @property
    def why(self) -> str:
        """Why it is where it is, where its state alone does not say that; of a failed one how it ended, too."""
        job, parts = self.job, list[str]()
        if job.reason and (job.state in TOLD or job.reason.code in ("project_gone", "pool_gone")):
            parts.append(job.reason.message)
        elif job.borrower:
            parts.append("Runs on notebook quota that no notebook uses now.")
        if job.state == "failed":
            parts.append(f"Its last attempt: {how_it_ended(job.exit_status)}.")
        return " ".join(parts)


TOLD = frozenset({"queued", "paused", "held", "pausing", "failed"})
"""States whose reason the list of jobs shows."""


TOLD_OF_NOTEBOOKS = frozenset(
    {"project_gone", "pool_gone", "device_quarantined", "device_unavailable", *SERVER_STOPPED}
)
"""Reasons that the list of notebooks shows of every state."""


def actions_of(job: JobView) -> tuple[str, ...]:
    """What may be done to a job as it is."""
    state = JobState(job.state)
    if state in FINAL or job.target == "cancelled":
        return ()
    if state is JobState.HELD or job.target == "held":
        return ("release", "cancel")
    return ("hold", "cancel")


def control_of(action: str) -> str:
    """The id of an action's button: hold and release are one button with two labels, so that focus stays on it."""
    return "hold-or-release" if action in ("hold", "release") else action


def first_start(job: JobDetail) -> datetime | None:
    """When its first attempt began, of a job that started more than once."""
    starts = [rank.started_at for rank in job.rank_records if rank.started_at is not None]
    return min(starts) if job.attempt > 1 and starts else None


@dataclass(frozen=True, slots=True)
class LogChoice:
    """One log that a job has: that of a rank of an attempt."""

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
    """One link of the filter; ``here`` says that it is in force."""

    label: str
    href: str
    here: bool


def job_filters(call: Call) -> dict[str, list[Filter]]:
    """Whose jobs, and in what state, as links that keep the other choice."""
    mine, project, live = call.flag("mine"), call.text("project"), call.flag("live")
    whose = [Filter("All I may see", _link(live=live), not mine and not project)]
    whose.append(Filter("Mine", _link(live=live, mine=True), mine))
    whose += [
        Filter(name, _link(live=live, project=name), project == name and not mine) for name in sorted(call.person.roles)
    ]
    what = [
        Filter("All", _link(mine=mine, project=project), not live),
        Filter("Not ended", _link(mine=mine, project=project, live=True), live),
    ]
    return {"Whose": whose, "State": what}


def _link(*, live: bool = False, mine: bool = False, project: str | None = None) -> str:
    chosen = {"live": "1" if live else "", "mine": "1" if mine else "", "project": project or ""}
    return "?" + urlencode({name: value for name, value in chosen.items() if value})


def pager(answer: Answer, call: Call) -> dict[str, Any]:
    """Where a listing stands, and the links to its neighbours."""
    assert isinstance(answer.body, Mapping)
    where = answer.body["_pagination"]
    offset, limit, total = where["offset"], where["limit"], where["total"]
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


@dataclass(frozen=True, slots=True)
class Cut:
    """What a page leaves out that shows the first part of a listing; ``truncated``: the listing leaves out some too."""

    shown: int
    total: int
    truncated: bool

    @property
    def says(self) -> str:
        """In words, nothing where all is shown."""
        more = "more than " if self.truncated else ""
        return f"the first {self.shown} of {more}{self.total:,}" if self.truncated or self.shown < self.total else ""


def cut_of(answer: Answer) -> Cut:
    """How much of a listing the first page of it is."""
    assert isinstance(answer.body, Mapping)
    total = answer.body["_pagination"]["total"]
    return Cut(shown=len(answer.body["items"]), total=total, truncated=bool(answer.body.get("truncated")))
