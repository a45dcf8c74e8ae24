"""Reasons in words: who, what was asked, what was true, what happens next."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.plan import Reason
from ..core.plan import ReasonCode as R

_BOOKS = (
    "{project} uses {used_milli} GPU of its training quota ({guarantee_milli} in force) and its fair share of "
    "{fair_milli}"
)

_SENTENCES: dict[R, tuple[str, str]] = {
    R.WITHIN_GUARANTEE: (
        "{project} asked for {asked_milli} GPU and used {used_milli} of its training quota "
        "({guarantee_milli} in force), so it {starts}.",
        "It {starts}, within its project's training quota.",
    ),
    R.WITHIN_FAIR_SHARE: (
        "{project} asked for {asked_milli} GPU and used {used_milli}; its training quota in force {is} "
        "{guarantee_milli} and its fair share {fair_milli}, so it {starts} and runs over quota while nobody claims "
        "that.",
        "It {starts}, over quota and within its project's fair share.",
    ),
    R.IDLE_SURPLUS: (
        "{project} asked for {asked_milli} GPU and used {used_milli}, above its fair share of {fair_milli}; the GPU "
        "would be idle, so it {starts} and runs until somebody with a right to it asks.",
        "It {starts} on GPUs that would be idle.",
    ),
    R.BORROWS_NOTEBOOK_QUOTA: (
        "{project} asked for {asked_milli} GPU; only notebook quota that no notebook uses now {is} free, so it "
        "{starts} on that and leaves as soon as a notebook needs it.",
        "It {starts} on notebook quota that no notebook uses now, and leaves as soon as one needs it.",
    ),
    R.WITHIN_NOTEBOOK_QUOTA: (
        "{project} asked for a notebook of {asked_milli} GPU and used {used_milli} of its notebook quota of "
        "{quota_milli}, so it {starts}.",
        "It {starts}, within its project's notebook quota.",
    ),
    R.RECLAIMED: (
        "{claimer_project} asked for {asked_milli} GPU for {claimer}, within its training quota "
        "({claimer_guarantee_milli} in force); {project} used {used_milli}, above its own ({guarantee_milli} in "
        "force). The job saves within {grace_s} s and is queued again in its old place.",
        "Another project claimed its training quota; the job is queued again in its old place.",
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
        "notebook quota that was not booked, or lent by an idle notebook. It leaves within {grace_s} s and is queued "
        "again in its old place.",
        "A notebook took back the quota on which the job ran; the job is queued again in its old place.",
    ),
    R.MOVED: (
        "{claimer_project} asked for {asked_milli} GPU in one place for {claimer}; so much is free, but in parts. This "
        "job of {project} saves within {grace_s} s and starts again at once on other devices.",
        "Free GPUs lay in parts; the job starts again at once on other devices.",
    ),
    R.SHRUNK: (
        "{claimer_project} asked for {asked_milli} GPU for {claimer}; this elastic job of {project} gives up "
        "{given_milli} GPU above its minimum. It saves within {grace_s} s and starts again at once with {kept_milli}.",
        "Another workload needs what the elastic job runs with above its minimum; it starts again at once, smaller.",
    ),
    R.GROWN: (
        "{given_milli} GPU would be idle, so this elastic job of {project} saves within {grace_s} s and starts again "
        "at once with {kept_milli} GPU.",
        "GPUs would be idle, so the elastic job starts again at once, larger.",
    ),
    R.TIME_LIMIT: (
        "The job ran for {ran_s} s and its time limit is {time_limit_s} s. It has {grace_s} s to save, then it ends "
        "as failed; submit it again with a longer limit.",
        "The job reached its time limit.",
    ),
    R.RANK_FAILED: (
        "A rank of {user}'s job ended badly, and the others would wait for it for ever. They have {grace_s} s to end; "
        "then the job is tried again if it has retries left.",
        "A rank of it ended badly, so the others were asked to end.",
    ),
    R.HELD_BY_PERSON: (
        "{user}'s job was held by a person. It has {grace_s} s to save and waits until it is released.",
        "It was held by a person and waits until it is released.",
    ),
    R.CANCELLED_BY_PERSON: (
        "{user}'s job was cancelled by a person. It has {grace_s} s to end.",
        "It was cancelled by a person.",
    ),
    R.OVER_ITS_SHARE: (
        "The job held {used_mib} MiB of device {device}, and its share is {share_mib} MiB. It was warned for "
        "{warned_s} s; now it is asked to save, and is held. Ask for a larger share, or make it use less, and release "
        "it or submit it again.",
        "It held more of its device's memory than its share, and was held.",
    ),
    R.HELD_TOO_WEAKLY: (
        "The job's share of device {device} was read back as memory {memory}, compute {compute}; the quota file "
        "accepted memory {least_memory} and compute {least_compute} at least. It was asked to save, and is held. "
        "Submit it again for a whole device, which is shared with nobody; or an admin mends the device or changes "
        "policy.enforcement, and it is released.",
        "Its share was held by less than the quota file accepts, and it was held.",
    ),
    R.NOTHING_HOLDS_IT: (
        "The job waits for a part of a device, and no device of its pool can hold it to that as the quota file asks: "
        "memory {least_memory} and compute {least_compute} at least, and the best, {device}, offers memory {memory}, "
        "compute {compute}. It is held before it starts. Submit it again for a whole device, which is shared with "
        "nobody; or an admin mends the devices or changes policy.enforcement, and it is released.",
        "No device of its pool could hold its share as the quota file asks, so it was held before it started.",
    ),
    R.STOPPED_OVER_SHARE: (
        "The police of shares had this notebook's server stopped: its processes held {used_mib} MiB of device "
        "{device}, and its share is {share_mib} MiB. It was warned for {warned_s} s. Its files are kept, the "
        "variables of its kernels are lost. Start it again with a larger share, or make it use less.",
        "The server was stopped: its processes held more of the device's memory than its share.",
    ),
    R.STOPPED_TOO_WEAK: (
        "This notebook's server was stopped: its share of device {device} was read back as memory {memory}, compute "
        "{compute}, and the quota file accepted memory {least_memory} and compute {least_compute} at least. Its files "
        "are kept, the variables of its kernels are lost. Start it again: if the quota file still asks for so much, "
        "with a whole device, which is shared with nobody, or without a GPU.",
        "The server was stopped: its share was held by less than the quota file accepts.",
    ),
    R.STOPPED_IDLE: (
        "This notebook's server was stopped: its GPU was freed as unused {freed_s} s before, and nothing happened in "
        "the server since. Its files are kept, the variables of its kernels are lost. It can be started again.",
        "The server was stopped: nothing had happened in it for as long as the quota file's stop_server_after.",
    ),
    R.DEVICE_UNHEALTHY: (
        "Device {device} of pool {pool} on node {node} is unhealthy or gone ({trouble}), and this {kind} has a part of "
        "it. "
        "Preemptible jobs are asked to save and are queued again in their old place, at the cost of no pause and no "
        "retry; notebooks and jobs that may not be preempted stay until they are stopped.",
        "A device that it has is unhealthy.",
    ),
    R.NODE_DRAINED: (
        "Node {node} is being drained by an admin, and this {kind} has a part of its device {device} of pool {pool}. "
        "Preemptible jobs are asked to save and are queued again in their old place, at the cost of no pause; jobs "
        "that may not be preempted and notebooks stay until they are stopped.",
        "An admin drains a node that it runs on.",
    ),
    R.DRAIN_DEADLINE: (
        "The drain deadline of the quota file is reached: {project} runs {used_milli} GPU of work that may not be "
        "preempted in pool {pool}, and its training quota there is {quota_milli}. The job saves within {grace_s} s and "
        "is queued again in its old place.",
        "Its quota was lowered, and the drain deadline of the quota file is reached.",
    ),
    R.LENT_WHILE_IDLE: (
        "The notebook is idle and nothing of it is on its GPU, so its slice of {gpu_milli} GPU in pool {pool} is lent "
        "to preemptible jobs. It stays booked for {release_after_s} s: when the notebook is used again, those jobs "
        "leave within {lent_grace_s} s and it has its slice back.",
        "The notebook is idle, so its slice is lent; it has it back when it is used again.",
    ),
    R.SLICE_RELEASED: (
        "The notebook was idle for {release_after_s} s after its slice of {gpu_milli} GPU was lent, so the slice "
        "returned to the notebook quota of {project} in pool {pool}. The notebook runs on, and asks again when it "
        "needs a GPU.",
        "The notebook was idle for long, so its slice returned to its project's notebook quota.",
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
    R.PLACE_KEPT: (
        "{project} asked for {asked_milli} GPU and no such place is free; one is kept for it, and by the time limits "
        "of what runs there it starts within {within_s} s. Others start there only if they end before, or may be "
        "paused for it then.",
        "A place is kept for it; it starts when the work there ends, at its time limit at the latest.",
    ),
    R.ABOVE_FAIR_SHARE: (
        "{project} asked for {asked_milli} GPU; it uses {used_milli} and its fair share is {fair_milli}, so nobody is "
        "paused for it. It starts when a place that fits is idle.",
        "Its project would be above its fair share, so it starts only on idle GPUs.",
    ),
    R.ABOVE_LIMIT: (
        "{project} asked for {asked_milli} GPU; its limit is {limit_milli}, of which {notebook_milli} is kept for "
        "notebooks, and {used_milli} is in use. It starts when enough of that is freed or the limit is raised.",
        "Its project, or the department of its project, is at its limit.",
    ),
    R.ABOVE_TRAINING_QUOTA: (
        "{project} asked for {asked_milli} GPU that may not be preempted; its training quota is {quota_milli} and "
        "{used_milli} of that is in use by such jobs. It starts when it fits inside that quota beside them; a "
        "preemptible job may start on any idle GPU.",
        "A job that may not be preempted must fit inside the training quota.",
    ),
    R.ABOVE_NOTEBOOK_QUOTA: (
        "{project} asked for a notebook of {asked_milli} GPU; its notebook quota in pool {pool} is {quota_milli} and "
        "{used_milli} is in use. {way_out}",
        "The notebook quota of its project is used up. Choose a smaller slice or stop a notebook.",
    ),
    R.ABOVE_USER_CEILING: (
        "{user} asked for {asked_milli} GPU and uses {used_milli}; the ceiling for each user of {project} is "
        "{ceiling_milli}. It starts when enough of what {user} uses is freed.",
        "Its user is at the ceiling that the project has for each user.",
    ),
    R.VICTIMS_PROTECTED: (
        "{project} asked for {asked_milli} GPU within its fair share of {fair_milli}; what runs above its own share "
        "is still protected, by its minimum run time or because it was paused as often as it may be. It starts when "
        "that ends or a GPU is freed.",
        "What could be paused for it is still protected.",
    ),
    R.PAUSES_USED_UP: (
        "The job was paused {max_pauses} times within {per_s} s, which is as often as it may be. It starts where no "
        "training quota can take its place: when {project} has {asked_milli} GPU of its own ({guarantee_milli} in "
        "force) free, or when its oldest pause is out of that time.",
        "It was paused as often as it may be, and waits for a place that nobody can take.",
    ),
    R.DEVICE_QUARANTINED: (
        "{project} asked for {asked_milli} GPU; device {device} of pool {pool}, which it needs, is quarantined: "
        "processes of {holder}, attempt {attempt}, were killed and are still seen. It starts when they are gone.",
        "A device that it needs is quarantined, because processes on it that were killed are still seen.",
    ),
    R.DEVICES_OUT: (
        "{project} asked for {asked_milli} GPU; pool {pool} has that only together with {counted_devices} that "
        "cannot be given out now: {device} among them is {trouble}. It starts when enough of them are back.",
        "Devices that it needs cannot be given out now. It starts when they are back.",
    ),
    R.NEVER_FITS: (
        "{project} asked for {asked_milli} GPU in {counted_ranks}; pool {pool} has {capacity_milli} GPU and room for "
        "{counted_possible_ranks} when it is empty. It can never start there: ask for less or choose another "
        "pool.",
        "It can never start: no device takes what it asked for.",
    ),
    R.PROJECT_GONE: (
        "Project {project} is no longer in the quota file. This {kind} keeps what it has until {until}; nobody else is "
        "given it before.",
        "Its project is no longer in the quota file; it keeps what it has until it ends.",
    ),
    R.POOL_GONE: (
        "Pool {pool} is no longer in the quota file. This {kind} keeps what it has until {until}; nobody else is given "
        "it before.",
        "Its pool is no longer in the quota file; it keeps what it has until it ends.",
    ),
    R.NO_SUCH_PROJECT: (
        "Project {project} is no longer in the quota file, so this never starts. Ask an admin to put the project back, "
        "or cancel it and submit it to another project.",
        "Its project is no longer in the quota file. Ask an admin to put it back, or cancel it.",
    ),
    R.NO_SUCH_POOL: (
        "Pool {pool} is no longer in the quota file, so this never starts. Ask an admin to put the pool back, or "
        "cancel it and choose one of the pools that are listed.",
        "Its pool is no longer in the quota file. Ask an admin to put it back, or cancel it.",
    ),
    R.NO_DEVICE: (
        "{project} asked for a notebook of {asked_milli} GPU; pool {pool} has no device, so nothing starts there. "
        "Choose another pool, or no GPU.",
        "Its pool has no device. Choose another pool, or no GPU.",
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
        "{claimer_project} took over this place for {claimer}, within its training quota; the workload it was kept for "
        "waits on in its old place.",
        "A claim within a training quota took over this place.",
    ),
}


_ENDED: dict[R, str] = {
    R.TIME_LIMIT: "The job ran for {ran_s} s and its time limit was {time_limit_s} s, so it was ended; submit it again "
    "with a longer limit.",
}
"""What is told of a job that has ended, where the usual sentence says what it still has time for."""

_SPECIAL: dict[tuple[R, str], str] = {
    (R.WITHIN_NOTEBOOK_QUOTA, "was"): "The slice of {asked_milli} GPU was lent while the notebook was idle; it stayed "
    "booked, and the notebook has it back.",
    (R.ABOVE_LIMIT, "department"): "{project} asked for {asked_milli} GPU; the limit of its department {department} is "
    "{limit_milli}, of which {notebook_milli} is kept for notebooks, and {used_milli} is in use. It starts when enough "
    "of that is freed or the limit is raised.",
}
"""What is told where a figure says that the case is a special one."""

_TOO_WIDE: dict[R, str] = {
    R.ABOVE_LIMIT: "{project} asked for {asked_milli} GPU; the limit of {limited} is {limit_milli}, of which "
    "{notebook_milli} is kept for notebooks. It cannot start under that, whatever is free: ask for less, or for a "
    "higher limit.",
    R.ABOVE_TRAINING_QUOTA: "{project} asked for {asked_milli} GPU that may not be preempted; its training quota is "
    "{quota_milli}. It cannot start under that, whatever is free: ask for less, for a higher quota, or for GPU that "
    "may be preempted, which may start wherever it is idle.",
    R.ABOVE_USER_CEILING: "{user} asked for {asked_milli} GPU; the ceiling for each user of {project} is "
    "{ceiling_milli}. It cannot start under that, whatever is free: ask for less, or for a higher ceiling.",
}
"""What is told of a job that no GPU which is freed could help, because it alone is above what it is measured by."""

_MEASURED_BY = {
    R.ABOVE_LIMIT: "limit_milli",
    R.ABOVE_TRAINING_QUOTA: "quota_milli",
    R.ABOVE_USER_CEILING: "ceiling_milli",
}

_COUNTED = {"devices": "device", "ranks": "part", "possible_ranks": "such part"}


def sentence(reason: Reason, *, began: bool = False, ended: bool = False) -> str:
    """The reason in words with its figures, GPU amounts with two or three decimals; shorter where figures lack.

    ``began``: of something that has started, and does not start now; ``ended``: of something that is over.
    """
    words, short = _SENTENCES[reason.code]
    if ended:
        words = _ENDED.get(reason.code, short if "{grace_s}" in words else words)
    words = next((_SPECIAL[reason.code, name] for name, _ in reason.figures if (reason.code, name) in _SPECIAL), words)
    if is_too_wide(reason):
        words = _TOO_WIDE[reason.code]
    tense = _BEGAN if began else _BEGINS
    figures = tense | {name: _shown(name, value) for name, value in reason.figures}
    figures |= {f"counted_{name}": _counted(figures[name], what) for name, what in _COUNTED.items() if name in figures}
    if "project" in figures:
        figures["limited"] = (
            f"its department {figures['department']}" if "department" in figures else figures["project"]
        )
    if reason.code is R.ABOVE_NOTEBOOK_QUOTA:
        figures["way_out"] = _way_out(reason)
    figures["until"] = _UNTIL.get(figures.get("kind", ""), "it ends")
    try:
        return (
            _timed(words, figures).format_map(figures)
            + _short_of(figures)
            + _in_spite_of(reason.code, figures)
            + _by_deadline(reason.code, figures)
        )
    except KeyError:
        return short.format_map(tense)


def is_too_wide(reason: Reason) -> bool:
    """Whether it asks for more than its project, department or user may have in all."""
    asked, most = dict(reason.figures).get("asked_milli"), most_milli(reason)
    return isinstance(asked, int) and most is not None and asked > most


def most_milli(reason: Reason) -> int | None:
    """What the limit, training quota or ceiling it waits behind leaves to jobs in all; None behind anything else."""
    figures = dict(reason.figures)
    most, kept = figures.get(_MEASURED_BY.get(reason.code, "")), figures.get("notebook_milli", 0)
    return most - kept if isinstance(most, int) and isinstance(kept, int) else None


def _way_out(reason: Reason) -> str:
    """What helps a notebook that is above its quota: no slice is small enough where nothing of that is left."""
    figures = dict(reason.figures)
    used, quota = figures.get("used_milli"), figures.get("quota_milli")
    if not isinstance(used, int) or not isinstance(quota, int) or used < quota:
        return "Choose a smaller slice or stop a notebook."
    return "Stop a notebook." if used else "Choose another pool, or ask for notebook quota there."


def _counted(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"


_BEGINS = {"starts": "starts now", "is": "is"}
_BEGAN = {"starts": "started", "is": "was"}
_UNTIL = {
    "notebook": "its server stops",
    "preemptible job": "it ends, or is paused because others claim its GPU",
    "job with a deadline": "it ends, or the quota file's deadline for what drains is over",
}


def _short_of(figures: Mapping[str, str]) -> str:
    """What no node has beside the GPUs, where that is what it waits for."""
    if "memory_mib" not in figures:
        return ""
    words = " There are such GPUs, but no node has the {cpu_milli} CPU and {memory_mib} MiB for each rank beside them."
    return words.format_map(figures)


_PAUSED = frozenset({R.RECLAIMED, R.FAIR_SHARE_RECLAIMED, R.PREEMPTED_IN_PROJECT})


def _in_spite_of(code: R, figures: Mapping[str, str]) -> str:
    """Why a job was paused though it was protected; nothing for one that was not. Source: scheduling.md, section 4."""
    if code in _PAUSED and "min_runtime_s" in figures:
        was = "It had run {ran_s} s of its minimum run time of {min_runtime_s} s"
    elif code in _PAUSED and "max_pauses" in figures:
        was = "It had been paused {max_pauses} times within {per_s} s, which is as often as it may be"
    else:
        return ""
    words = f" {was}; the claim is within a training quota and nothing else could satisfy it, so it was allowed."
    return _timed(words, figures).format_map(figures)


def _by_deadline(code: R, figures: Mapping[str, str]) -> str:
    if code is not R.NODE_DRAINED or "left_s" not in figures:
        return ""
    return f" The drain has a deadline, in {figures['left_s']} s: then such jobs, too, are asked to save and leave."


def _timed(words: str, figures: Mapping[str, str]) -> str:
    """The words with their times as people say them."""
    for name, seconds in figures.items():
        if name.endswith("_s"):
            words = words.replace(f"{{{name}}} s", time_text(seconds))
    return words


def time_text(seconds: int | str) -> str:
    """A time to the second: "90 s", "10 minutes", "23 hours 59 minutes 42 s"."""
    if not str(seconds).isdigit():
        return f"{seconds} s"
    parts, rest = [], int(seconds)
    if rest >= 120:
        for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
            count, rest = divmod(rest, size)
            parts += [f"{count} {name}" if count == 1 else f"{count} {name}s"] * (count > 0)
    return " ".join(parts + [f"{rest} s"] * (rest > 0 or not parts))


def gpus(milli: int) -> str:
    """An amount as people read it: 500 is 0.50, 125 is 0.125."""
    sign, milli = ("-", -milli) if milli < 0 else ("", milli)
    whole, rest = divmod(milli, 1000)
    return f"{sign}{whole}.{rest // 10:02d}" if rest % 10 == 0 else f"{sign}{whole}.{rest:03d}"


def _shown(name: str, value: int | str) -> str:
    return gpus(value) if name.endswith("_milli") and isinstance(value, int) else str(value)
