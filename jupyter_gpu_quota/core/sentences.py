"""Reasons in words: who, what was asked, what was true, what happens next."""

from __future__ import annotations

from .plan import Reason
from .plan import ReasonCode as R

_BOOKS = "{project} uses {used_milli} GPU of its guarantee of {guarantee_milli} and its fair share of {fair_milli}"

_SENTENCES: dict[R, tuple[str, str]] = {
    R.WITHIN_GUARANTEE: (
        "{project} asked for {asked_milli} GPU and used {used_milli} of its guarantee of {guarantee_milli}, "
        "so it starts now.",
        "It starts now, within its project's guarantee.",
    ),
    R.WITHIN_FAIR_SHARE: (
        "{project} asked for {asked_milli} GPU and used {used_milli}; its guarantee is {guarantee_milli} and its "
        "fair share now {fair_milli}, so it starts now and runs over quota while nobody claims that.",
        "It starts now, over quota and within its project's fair share.",
    ),
    R.IDLE_SURPLUS: (
        "{project} asked for {asked_milli} GPU and used {used_milli}, above its fair share of {fair_milli}; the GPU "
        "would be idle, so it starts now and runs until somebody with a right to it asks.",
        "It starts now on GPUs that would be idle.",
    ),
    R.BORROWS_NOTEBOOK_QUOTA: (
        "{project} asked for {asked_milli} GPU; only notebook quota that nobody has booked is free, so it starts "
        "there now and leaves as soon as a notebook asks.",
        "It starts now on notebook quota that nobody has booked, and leaves as soon as a notebook asks.",
    ),
    R.WITHIN_NOTEBOOK_QUOTA: (
        "{project} asked for a notebook of {asked_milli} GPU and used {used_milli} of its notebook quota of "
        "{quota_milli}, so it starts now.",
        "It starts now, within its project's notebook quota.",
    ),
    R.RECLAIMED: (
        "{claimer_project} asked for {asked_milli} GPU for {claimer}, within its guarantee of "
        "{claimer_guarantee_milli}; {project} used {used_milli}, above its guarantee of {guarantee_milli}. "
        "The job saves within {grace_s} s and is queued again in its old place.",
        "Another project claimed its guarantee; the job is queued again in its old place.",
    ),
    R.FAIR_SHARE_RECLAIMED: (
        "{claimer_project} asked for {asked_milli} GPU for {claimer}, within its fair share of "
        "{claimer_fair_milli}; {project} used {used_milli}, above its fair share of {fair_milli}. "
        "The job saves within {grace_s} s and is queued again in its old place.",
        "Another project claimed its fair share; the job is queued again in its old place.",
    ),
    R.PREEMPTED_IN_PROJECT: (
        "{claimer} of the same project {project} has job priority {claimer_priority}, this job {priority}, and no "
        "other GPU was free. The job saves within {grace_s} s and is queued again in its old place.",
        "A job of higher priority in the same project needs the GPU; this one is queued again in its old place.",
    ),
    R.BORROWER_RETURNS: (
        "{claimer_project} asked for a notebook of {asked_milli} GPU within its notebook quota; the job ran on "
        "notebook quota that was not booked. It leaves within {grace_s} s and is queued again in its old place.",
        "A notebook took back the quota on which the job ran; the job is queued again in its old place.",
    ),
    R.TIME_LIMIT: (
        "The job ran for {ran_s} s and its time limit is {time_limit_s} s. It has {grace_s} s to save, then it ends "
        "as failed; submit it again with a longer limit.",
        "The job reached its time limit.",
    ),
    R.HELD_BY_PERSON: (
        "{user}'s job was held by a person. It has {grace_s} s to save and waits until it is released.",
        "It was held by a person and waits until it is released.",
    ),
    R.CANCELLED_BY_PERSON: (
        "{user}'s job was cancelled by a person. It has {grace_s} s to end.",
        "It was cancelled by a person.",
    ),
    R.NO_FREE_GPU: (
        "{project} asked for {asked_milli} GPU; no place for it is free and nobody may be paused for it. "
        + _BOOKS
        + ". It starts when enough is freed.",
        "It asked for a GPU and none that it fits on is free. It starts when one is freed.",
    ),
    R.WAITS_FOR_DRAIN: (
        "A place of {asked_milli} GPU is reserved; it starts as soon as the work that still runs there has left.",
        "Its place is reserved; it starts as soon as the work that still runs there has left.",
    ),
    R.BEHIND_OTHERS: (
        "{project} asked for {asked_milli} GPU and work of the same kind is served before it. "
        + _BOOKS
        + ". It starts when those before it have started.",
        "Others are served before it.",
    ),
    R.ABOVE_FAIR_SHARE: (
        "{project} asked for {asked_milli} GPU; it uses {used_milli} and its fair share is {fair_milli}, so nobody is "
        "paused for it. It starts when a place that fits is idle.",
        "Its project would be above its fair share, so it starts only on idle GPUs.",
    ),
    R.ABOVE_LIMIT: (
        "{project} asked for {asked_milli} GPU; its limit is {limit_milli}, of which {notebook_milli} is kept for "
        "notebooks, and {used_milli} is in use. It starts when enough of that is freed or the limit is raised.",
        "Its project is at its limit.",
    ),
    R.ABOVE_TRAINING_QUOTA: (
        "{project} asked for {asked_milli} GPU that may not be preempted; its training quota is {quota_milli} and "
        "{used_milli} of that is in use by such jobs. It starts when it fits inside that quota beside them; a "
        "preemptible job may start on any idle GPU.",
        "A job that may not be preempted must fit inside the training quota.",
    ),
    R.ABOVE_NOTEBOOK_QUOTA: (
        "{project} asked for a notebook of {asked_milli} GPU; its notebook quota in pool {pool} is {quota_milli} and "
        "{used_milli} is in use. Choose a smaller slice or stop a notebook.",
        "The notebook quota of its project is used up. Choose a smaller slice or stop a notebook.",
    ),
    R.VICTIMS_PROTECTED: (
        "{project} asked for {asked_milli} GPU within its fair share of {fair_milli}; what runs above its own share "
        "is still protected, by its minimum run time or because it was paused as often as it may be. It starts when "
        "that ends or a GPU is freed.",
        "What could be paused for it is still protected.",
    ),
    R.PAUSES_USED_UP: (
        "The job was paused {max_pauses} times within {per_s} s, which is as often as it may be. It starts where no "
        "guarantee can take its place: when {project} has {asked_milli} GPU of its guarantee of {guarantee_milli} "
        "free, or when its oldest pause is out of that time.",
        "It was paused as often as it may be, and waits for a place that nobody can take.",
    ),
    R.NEVER_FITS: (
        "{project} asked for {asked_milli} GPU in {ranks} part(s); pool {pool} has {capacity_milli} GPU and room for "
        "{possible_ranks} such part(s) when it is empty. It can never start there: ask for less or choose another "
        "pool.",
        "It can never start: no device takes what it asked for.",
    ),
    R.NO_SUCH_PROJECT: (
        "There is no project {project} any more. Submit the job to a project you are a member of.",
        "Its project does not exist.",
    ),
    R.NO_SUCH_POOL: (
        "There is no pool {pool}. Choose one of the pools that are listed.",
        "Its pool does not exist.",
    ),
    R.CLAIM_ENDED: (
        "The workload that this place was kept for no longer waits for it.",
        "The workload that this place was kept for no longer waits for it.",
    ),
    R.RESERVED_DEVICE_LOST: (
        "A device of the reserved place can no longer be given out; another place is chosen.",
        "A device of the reserved place can no longer be given out; another place is chosen.",
    ),
    R.DRAIN_TAKEN_OVER: (
        "{claimer_project} took over this place for {claimer}, within its guarantee; the workload it was kept for "
        "waits on in its old place.",
        "A claim within a guarantee took over this place.",
    ),
}


def sentence(reason: Reason) -> str:
    """The reason in words with its figures, GPU amounts with two or three decimals; shorter where figures lack."""
    words, short = _SENTENCES[reason.code]
    figures = {name: _shown(name, value) for name, value in reason.figures}
    try:
        return words.format_map(figures)
    except KeyError:
        return short


def gpus(milli: int) -> str:
    """An amount as people read it: 500 is 0.50, 125 is 0.125."""
    sign, milli = ("-", -milli) if milli < 0 else ("", milli)
    whole, rest = divmod(milli, 1000)
    return f"{sign}{whole}.{rest // 10:02d}" if rest % 10 == 0 else f"{sign}{whole}.{rest:03d}"


def _shown(name: str, value: int | str) -> str:
    return gpus(value) if name.endswith("_milli") and isinstance(value, int) else str(value)
