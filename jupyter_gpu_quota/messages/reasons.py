"""Reasons as sentences: the request, the figures that decided, and the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from ..core.job_ends import JobEnd
from ..core.reason_codes import ReasonCode as R
from ..core.reason_figures import code_of, exceeds_bound_alone, figure_pairs, figures_of, reason_from
from ..core.reasons import (
    AboveLimit,
    AboveNotebookQuota,
    AboveTrainingQuota,
    AboveUserCeiling,
    BackfillReserved,
    BehindOverdueJob,
    ByUser,
    DeviceUnavailable,
    EnforcementTooWeak,
    Figure,
    NodeDrained,
    NoFreeGpu,
    OverShare,
    Preempted,
    Reason,
    Waiting,
    WithinNotebookQuota,
)
from .job_ends import BY_NAME, job_end_figures
from .planned_start import planned_sentence
from .reason_sentences import BACKFILL, NOTEBOOK_WITHOUT_ROOM, SENTENCES
from .rendering import instant_text, rendered

_ENDED: Mapping[R, str] = {
    R.TIME_LIMIT: "The job ran for {ran_s:time} and its time limit was {time_limit_s:time}, so it was ended; submit it "
    "again with a longer limit.",
}
"""The sentences about an ended job, if the usual sentence describes its grace period."""

_SLICE_BACK = (
    "The slice of {asked_milli:gpu} GPU was lent while the notebook was idle; it stayed booked, and the notebook has "
    "it back."
)
_DEPARTMENTS_LIMIT = (
    "{project} asked for {asked_milli:gpu} GPU; the limit of its department {department} is {limit_milli:gpu}, of "
    "which {notebook_milli:gpu} is kept for notebooks, and {used_milli:gpu} is in use. It starts when enough of that "
    "is freed or the limit is raised."
)
_SOME_RESERVED = "{project} asked for {asked_milli:gpu} GPU and no devices that fit are free; some are reserved for it."
_BEYOND_GUARANTEES = (
    " No devices are reserved for it: notebooks, and the other projects within their training quotas, may claim "
    "{others_milli:gpu} of the pool's {capacity_milli:gpu} GPU, and it does not fit beside them. It starts when more "
    "of that is idle; ask for less, or for more quota."
)
_OVERDUE = (
    " It has waited for {waited_s:time} without ever starting, longer than policy.patience of the quota file: younger "
    "jobs of {project} start only if they end before its planned start, in about {planned_s:time}."
)
_OF_OVERDUE_JOB = " A job with a time limit of at most {most_s:time} would start before."
_NEVER_UNDER = "It cannot start until that changes, however many GPUs are free"
_ADVICE: Mapping[R, str] = {
    R.ABOVE_LIMIT: ": ask for less, or for a higher limit",
    R.ABOVE_TRAINING_QUOTA: ": ask for less or for a higher quota, or make it preemptible, so that it may start on any "
    "idle GPU",
    R.ABOVE_USER_CEILING: ": ask for less, or for a higher ceiling",
}
_TOO_WIDE: Mapping[R, str] = {
    R.ABOVE_LIMIT: "{project} asked for {asked_milli:gpu} GPU; the limit of {limited} is {limit_milli:gpu}, of which "
    "{notebook_milli:gpu} is kept for notebooks. " + _NEVER_UNDER,
    R.ABOVE_TRAINING_QUOTA: "{project} requested {asked_milli:gpu} GPU for a non-preemptible job; its training quota "
    "is {quota_milli:gpu}. " + _NEVER_UNDER,
    R.ABOVE_USER_CEILING: "{user} asked for {asked_milli:gpu} GPU; the ceiling for each user of {project} is "
    "{ceiling_milli:gpu}. " + _NEVER_UNDER,
}
"""The sentences about a job that alone exceeds its limit, quota or ceiling: freed GPUs do not start it, an edit of the
quota file or a window of the calendar may."""

_BEGINS: dict[str, Figure] = {"starts": "starts now", "is": "is", "are": "are"}
_BEGAN: dict[str, Figure] = {"starts": "started", "is": "was", "are": "were"}
_UNTIL = {
    "notebook": "its server stops",
    "preemptible job": "it ends, or is paused because other projects claim its GPUs",
    "job with a deadline": "it ends, or the quota file's drain deadline passes",
}


def short_sentence(code: str) -> str | None:
    """The sentence of a reason without its figures, of work that has not started; None for another release's code."""
    pair = {reason.value: each for reason, each in SENTENCES.items()}.get(code)
    return rendered(pair[1], _BEGINS) if pair else None


def sentence(reason: Reason, *, began: bool = False, ended: bool = False, advised: bool = True) -> str:
    """The reason with its figures; a short sentence for a stored reason that lacks some.

    ``began``: the workload has started; ``ended``: the job has ended. Not ``advised``: the changes that would start it
    were tried, and follow, so the sentence suggests none.
    """
    figures = figures_of(reason) | (_BEGAN if began else _BEGINS)
    if reason.code not in SENTENCES:
        return f"The reason is {reason.code}, which this release does not know."
    code = R(reason.code)
    full, short = SENTENCES[code]
    if ended:
        full = _ENDED.get(code, short if "{grace_s:" in full else full)
    if isinstance(reason, JobEnd):
        figures |= job_end_figures(reason)
    figures["until"] = _UNTIL.get(str(figures.get("kind")), "it ends")
    try:
        return rendered(_special_sentence(reason, advised=advised) or full, figures) + _addition(reason, figures)
    except KeyError:
        return rendered(short, figures)


def with_user_name(reason: Reason, name_of: Callable[[str], str]) -> Reason:
    """The reason with the people in it by name instead of by id."""
    pairs = figure_pairs(reason)
    if not any(name in _PEOPLE for name, _ in pairs):
        return reason
    return reason_from(
        code_of(reason), ((name, name_of(str(value)) if name in _PEOPLE else value) for name, value in pairs)
    )


_PEOPLE = ("user", "by")
"""Figures with the id of a user."""


def warning(reason: OverShare | EnforcementTooWeak) -> str:
    """The warning to the owner of a share."""
    match reason:
        case OverShare():
            words = "It uses {used_mib} MiB of device {device}, and its share is {share_mib} MiB."
        case EnforcementTooWeak():
            words = (
                "Its share of device {device} is enforced at memory {memory}, compute {compute}; the quota file "
                "requires at least memory {least_memory}, compute {least_compute}."
            )
        case _:
            assert_never(reason)
    return rendered(words, figures_of(reason))


def _special_sentence(reason: Reason, *, advised: bool) -> str | None:
    """The sentence of a special case; None for the usual sentence."""
    match reason:
        case WithinNotebookQuota(was="lent"):
            return _SLICE_BACK
        case ByUser(by=str()):
            return BY_NAME[reason.code][reason.grace_s is None]
        case AboveLimit() if exceeds_bound_alone(reason):
            owner = "{project}" if reason.department is None else "its department {department}"
            return _too_wide(reason.code, advised=advised).replace("{limited}", owner)
        case AboveTrainingQuota() | AboveUserCeiling() if exceeds_bound_alone(reason):
            return _too_wide(reason.code, advised=advised)
        case AboveLimit(department=str()):
            return _DEPARTMENTS_LIMIT
        case NoFreeGpu(limit_milli=None, notebook_milli=int()):
            return NOTEBOOK_WITHOUT_ROOM
        case BackfillReserved(delaying=int()):
            return f"{_SOME_RESERVED} {planned_sentence(reason)}{BACKFILL}"
        case _:
            return None


def _too_wide(code: R, *, advised: bool) -> str:
    return f"{_TOO_WIDE[code]}{_ADVICE[code] if advised else ''}."


def _addition(reason: Reason, figures: Mapping[str, Figure]) -> str:
    """A second sentence of some reasons; empty for the others."""
    words = ""
    match reason:
        case AboveNotebookQuota():
            words = _advice(reason)
        case NodeDrained(left_s=int()):
            words = " The drain's deadline is in {left_s:time}; after it such jobs, too, are stopped and queued again."
        case Preempted(min_runtime_s=int()):
            words = " It had run {ran_s:time} of its minimum run time of {min_runtime_s:time}" + _PROTECTION_IGNORED
        case Preempted(max_pauses=int()):
            words = " It had {max_pauses:pause} within {per_s:time}, its limit" + _PROTECTION_IGNORED
        case BehindOverdueJob(most_s=int()):
            words = _OF_OVERDUE_JOB
        case DeviceUnavailable(cluster=str(), unread_since_at=int(since)):
            words = f" Cluster {{cluster}} cannot be read since {instant_text(since)}; work that runs there is kept."
        case Waiting():
            words = _BEYOND_GUARANTEES if "others_milli" in figures else ""
            words += _OVERDUE if "waited_s" in figures else ""
    if "memory_mib" in figures:
        words += " GPUs that fit are free, but no node has {cpu_milli:gpu} CPU and {memory_mib} MiB for each rank."
    return rendered(words, figures)


_PROTECTION_IGNORED = "; the claim is within a training quota and nothing else could satisfy it, so this was allowed."


WHERE_NOTEBOOKS = "the hub's page Services > gpu-quota lists them with their users"


def _advice(reason: AboveNotebookQuota) -> str:
    """Advice for a notebook above its quota; no slice is small enough if the quota is used up."""
    if reason.used_milli < reason.quota_milli:
        return f" Choose a smaller slice, or stop a notebook of {reason.project}; {WHERE_NOTEBOOKS}."
    return (
        f" Stop a notebook of {reason.project}; {WHERE_NOTEBOOKS}."
        if reason.used_milli
        else " Choose another pool, or ask for notebook quota there."
    )
