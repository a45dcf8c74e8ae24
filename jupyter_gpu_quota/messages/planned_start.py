"""The planned start of a backfill reservation as a sentence: a bound, or an estimate and what may delay it."""

from __future__ import annotations

from datetime import UTC, datetime

from ..core.model import MS_PER_S
from ..core.reason_codes import ReasonCode
from ..core.reason_figures import figures_of
from ..core.reasons import Reason, Waiting
from .rendering import names_text, rendered

_MINUTE_MS = 60 * MS_PER_S

PLANNED = (
    "Based on the time limits of the running work, it starts within {within_s:time} if no claim of another project "
    "comes first."
)
_BOUND = (
    "Based on the time limits of the running work, it starts within {within_s:time} at the latest, unless a device "
    "fails, the quotas are edited, or {project} submits a job that starts before it."
)
_ESTIMATE = (
    "Based on the time limits of the running work, it starts in about {within_s:time}. This is an estimate: jobs of "
    "{names} may start there first, {right}."
)
_WITHIN_QUOTA = "within the training quota"
_BY_PAST_USE = "within the training quota, or within the fair share with no more past use"


def planned_sentence(reason: Reason) -> str:
    """The sentence with the figures of a waiting job; "at the latest" only for a bound."""
    figures = figures_of(reason)
    if not isinstance(reason, Waiting) or reason.delaying is None:
        return rendered(PLANNED, figures)
    if not reason.delaying:
        return rendered(_BOUND, figures)
    above = reason.used_milli + reason.asked_milli > reason.guarantee_milli
    names = names_text(reason.delayed_by, reason.delaying)
    return rendered(_ESTIMATE, {**figures, "names": names, "right": _BY_PAST_USE if above else _WITHIN_QUOTA})


def start_sentence(at: int, reason: Reason) -> str:
    """The start of a waiting job, to the next whole minute, with its condition; from its instant and its reason."""
    upwards = -(-at // _MINUTE_MS) * _MINUTE_MS
    when = f"{datetime.fromtimestamp(upwards / MS_PER_S, UTC):%Y-%m-%d %H:%M} UTC"
    if reason.code is ReasonCode.WAITS_FOR_DRAIN:
        return f"Planned start: {when}, when the work that stops for it has ended or its grace is over."
    if reason.code is ReasonCode.PAUSES_USED_UP:
        return f"Estimated start: {when}, when its oldest pause is no longer counted."
    if "within_s" not in figures_of(reason):
        return f"Estimated start: {when}, based on the time limits of running work, if no other work starts before it."
    if isinstance(reason, Waiting) and reason.delaying == 0:
        return f"Planned start: {when} at the latest, based on the time limits of running work."
    return f"Planned start: {when}, based on the time limits of running work; other work may delay it."
