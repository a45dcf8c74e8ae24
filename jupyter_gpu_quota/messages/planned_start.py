"""The planned start of a backfill reservation as a sentence: a bound, or an estimate and what may delay it."""

from __future__ import annotations

from ..core.reason_figures import figures_of
from ..core.reasons import Reason, Waiting
from .rendering import names_text, rendered

PLANNED = (
    "By the time limits of the work there it starts within {within_s:time}, if no claim of another project comes "
    "before."
)
_BOUND = (
    "By the time limits of the work there it starts within {within_s:time} at the latest, unless a device fails, the "
    "quotas are edited, or {project} submits a job that starts before it."
)
_ESTIMATE = (
    "By the time limits of the work there it starts in about {within_s:time}. This is an estimate: jobs of {names} may "
    "start there first, {right}."
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
