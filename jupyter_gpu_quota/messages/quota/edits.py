"""The effects of an edit of the quota file as sentences, by edited field and by effect on work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from ...core.amounts import counted, gpu_text
from ...core.enforcement.levels import EnforcementOffer, RequiredEnforcement, best_offer
from ...core.explain.preview import Affected, Effect, OwnerInPool
from ...core.model import Amounts, Job, JobState
from ..rendering import instant_text, open_text, rendered

AMOUNTS = {
    "notebook_milli": "notebook quota",
    "training_milli": "training quota",
    "limit_milli": "limit",
    "weight": "weight",
    "user_notebook_milli": "notebook ceiling for each user",
    "user_jobs_milli": "jobs ceiling for each user",
}
"""The words for each amount of a project or department in a pool."""

SENTENCES = {
    "name": "The file removes {section} {name}, which has {work}.",
    "members": (
        "{subject} continues, but {user} is no longer a member of {project}: {user} {keeps}, and starts nothing new."
    ),
    "user_jobs_milli": (
        "The jobs of {user} have {used:gpu} GPU of {owner} in pool {pool}, and its ceiling for each user's jobs "
        "becomes {becomes:gpu}{when}: they continue, and nothing more starts above that."
    ),
    "user_notebook_milli": (
        "The notebooks of {user} have {used:gpu} GPU of {owner} in pool {pool}, and its ceiling for each user's "
        "notebooks becomes {becomes:gpu}{when}: they continue, and nothing more starts above that."
    ),
    "limit_milli": (
        "{owner} has {used:gpu} GPU in use in pool {pool}, and its limit becomes {becomes:gpu}{when}: running work "
        "continues, and nothing more starts above that."
    ),
    "training_milli": (
        "{owner} has a training quota of {quota:gpu} GPU in pool {pool}, and its ceiling for each user's jobs is "
        "0{when}: no job starts."
    ),
    "notebook_milli": (
        "{owner} has a notebook quota of {quota:gpu} GPU in pool {pool}, and its ceiling for each user's notebooks is "
        "0{when}: no notebook starts."
    ),
    "order": "The calendar's windows are in another order: of those that are open together the last one wins.",
    "drain_by": (
        "Drain deadline: from {at} on, work that may not be preempted and is above its quota is stopped and queued "
        "again. At present it affects {work}."
    ),
    "mode": (
        "policy.idle.mode becomes reclaim: until now GPUs of idle notebooks were only reported, from now on they are "
        "freed. Notebooks with a slice now: {notebooks}. Each whose GPU is unused for {gpu_waited_for_s} s and whose "
        "kernels are idle for {kernel_waited_for_s} s while work waits in its pool, or for {gpu_s} s and {kernel_s} s "
        "while none waits, is warned, and its kernels are shut down {warn_for_s} s later, with their variables where "
        "they are not suspended. `jupyter gpu-quota notebooks` shows which are idle."
    ),
    "suspend": (
        "policy.idle.suspend works only where a notebook's server can suspend: each server tests that itself, `jupyter "
        "gpu-quota notebooks` shows which cannot, and `jupyter gpu-quota doctor` why. There idle kernels are shut down."
    ),
    "data": (
        "The file no longer gives the data {data} to users whose jobs were submitted with it. Waiting jobs that will "
        "be held: {waiting}. Running jobs that continue, and are held instead of starting again: {running}."
    ),
    "keep": (
        "Outputs of project {project} are removed {keep} after the end of their job, those of jobs that ended earlier "
        "at once. Until now they were kept {was}."
    ),
    "keep jobs": (
        "Ended jobs of all projects, with their logs and outputs, are removed {kept} after their end, those that ended "
        "earlier at once. Until now they were kept for {was}: for the longest of `storage.keep`, "
        "`policy.history.window` plus one day, and `c.GPUQuota.keep_jobs_days`."
    ),
    "suspend without reclaim": (
        "policy.idle.suspend has no effect in mode report: nothing is freed, so nothing is suspended."
    ),
    "suspend without a device": (
        "policy.idle.suspend has no effect here: there is no real device, so no kernel can be suspended. Idle kernels "
        "are shut down, and their variables are lost."
    ),
    "enforcement": "By policy.enforcement {ended}, {minutes} minutes after it is in force.",
    "enforcement held": (
        "{subject} has to save and is held {minutes} minutes after this is in force; unsaved work is lost. {why}"
    ),
    "enforcement stopped": (
        "The server of {subject} is stopped {minutes} minutes after this is in force, and its owner is warned {warned} "
        "minutes before; the variables of its kernels are lost. {why}"
    ),
    "enforcement waits": (
        "{subject} waits, and is held before it starts: the best device for it offers memory {memory}, compute "
        "{compute}; the file requires at least memory {least_memory}, compute {least_compute}."
    ),
}
"""The consequence of each edited field. A field with several consequences has a key for each."""


def edit_sentence(field: str, **figures: object) -> str:
    """The consequence of an edited field. Raises KeyError where a figure of its sentence is missing."""
    return rendered(SENTENCES[field], figures)


def pool_offers_sentence(
    pool: str, least: RequiredEnforcement, offers: Sequence[EnforcementOffer], read_at: int, mps_projects: Sequence[str]
) -> str:
    """The devices of a pool that cannot enforce fractions as a file requires; empty where all of them can.

    ``mps_projects``: the projects whose jobs can have more than these offers, by an MPS daemon.
    """
    weak = [each for each in offers if not each.is_enough(least)]
    unknown, short = [each for each in weak if each.unsure], [each for each in weak if not each.unsure]
    if not weak:
        return ""
    able = f"{len(offers) - len(weak)} of {counted(len(offers), 'device')}"
    parts = [
        f"Pool {pool}: policy.enforcement requires at least memory {least.memory} and compute {least.compute}, and "
        f"{able} can enforce this for a fraction, as read at {instant_text(read_at)}."
    ]
    if short:
        best = best_offer(short)
        offered = f"memory {best.memory}, compute {best.compute} ({best.why})"
        parts.append(f"The best of the others, {best.device}, offers {offered}.")
    if unknown:
        parts.append(f"Unknown for {counted(len(unknown), 'device')}: {unknown[0].why}.")
    parts.append(NONE_ENFORCES if len(weak) == len(offers) else SOME_ENFORCE)
    if mps_projects:
        parts.append(f"An MPS daemon enforces this for jobs of {' and '.join(mps_projects)}; they are not refused.")
    return " ".join([*parts, ENFORCEMENT_ADVICE])


NONE_ENFORCES = (
    "Requests for less than a whole device are refused there, and jobs that wait for less are held; whole devices, "
    "which are shared with no other workload, can be used."
)
SOME_ENFORCE = "A fraction that is placed on another device is warned and stopped when that is read back."
ENFORCEMENT_ADVICE = (
    "To use fractions there, require less in policy.enforcement, or fix what `jupyter gpu-quota doctor` reports as "
    "lacking."
)


def owner_text(place: OwnerInPool) -> str:
    """A project by its name, a department as one."""
    return f"department {place[1]}" if place[0] else place[1]


def since_text(now: int, at: int, windows: Sequence[str]) -> str:
    """The open calendar windows and the first instant; empty for now without an open window."""
    opened = f" while {open_text(windows)}" if windows else ""
    if at == now:
        return opened
    return f"{opened}{',' if opened else ''} from {instant_text(at)}{'' if opened else ' on'}"


def work_text(jobs: int, notebooks: int) -> str:
    """An amount of work, such as "2 jobs and 1 notebook slice"."""
    parts = ((jobs, "job"), (notebooks, "notebook slice"))
    return " and ".join(counted(number, noun) for number, noun in parts if number)


# --- the calendar ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Openings:
    """A calendar window from ``now`` to ``until``: first and last instant of each opening, that of now included."""

    timezone: str
    now: int
    until: int
    runs: Sequence[tuple[int, int]]

    @property
    def is_open(self) -> bool:
        return bool(self.runs) and self.runs[0][0] <= self.now

    def text(self) -> str:
        if not self.runs:
            return "it does not open within two years"
        begins_at, ends_at = self.runs[0]
        until = f"until {self._local(ends_at)} {self.timezone}"
        if ends_at >= self.until:
            until = "and stays open for at least two years"
        if not self.is_open:
            return f"it opens next at {self._instant(begins_at)}, {until}"
        again = f", and opens next at {self._instant(self.runs[1][0])}" if len(self.runs) > 1 else ""
        return f"it is open now, {until}{again}"

    def _instant(self, at: int) -> str:
        return f"{self._local(at)} {self.timezone} ({instant_text(at)})"

    def _local(self, at: int) -> str:
        return f"{datetime.fromtimestamp(at / 1000, ZoneInfo(self.timezone)):%Y-%m-%dT%H:%M}"


def window_sentence(name: str, before: Openings | None, after: Openings | None, *, moved: bool) -> str:
    """A calendar window that is added, removed or changed; ``moved``: its times are changed."""
    without = f" Without this edit {before.text()}." if before and (moved or after is None) else ""
    if after is None:
        return f"Calendar {name} is removed.{without}"
    return f"Calendar {name} is {'changed' if before else 'new'}: {after.text()}.{without}"


def window_amounts_sentence(
    name: str,
    place: OwnerInPool,
    keys: Iterable[str],
    *,
    now: Amounts | None,
    then: Amounts | None,
    was_open: Amounts | None,
    opens: Amounts | None,
    others: Sequence[str],
) -> str:
    """The amounts of an owner in a pool around a calendar window: "training quota 3 now, 2 while it is open".

    ``now`` and ``then``: in force before and after the edit. ``was_open`` and ``opens``: at the next opening of the
    window before and after it, when ``others`` change them, too. None without the owner or the window.
    """
    department, owner, pool = place
    parts = []
    for key in keys:
        values = [_amount_text(now, key, " now")]
        if then is not None and (now is None or getattr(then, key) != getattr(now, key)):
            values.append(_amount_text(then, key, " once this is in force"))
        if opens is None:
            values.append(_amount_text(was_open, key, " while it was open"))
        else:
            is_same = was_open is None or getattr(was_open, key) == getattr(opens, key)
            instead = "" if is_same else f" instead of {_amount_text(was_open, key)}"
            values.append(_amount_text(opens, key, f"{instead} while it is open"))
        parts.append(f"{AMOUNTS[key]} {', '.join(filter(None, values))}")
    also = f" (with {' and '.join(others)} open, too)" if others else ""
    return (
        f"Calendar {name}, {'department' if department else 'project'} {owner}, pool {pool}: {'; '.join(parts)}{also}."
    )


def _amount_text(amounts: Amounts | None, key: str, words: str = "") -> str:
    if amounts is None:
        return ""
    value: int | None = getattr(amounts, key)
    return ("none" if value is None else str(value) if key == "weight" else gpu_text(value)) + words


# --- affected work --------------------------------------------------------------------------------------------------
EFFECTS: Mapping[Effect, str] = {
    Effect.PAUSED: "runs now and is {paused} and queued again at its old position{then}{anyway}",
    Effect.OVER_QUOTA: "continues for now, and is paused when others claim its GPUs. {after}",
    Effect.DRAINS: "keeps its GPUs. {after}",
    Effect.RUNS_ON: "continues; without this file it is paused.",
    Effect.STARTS: "starts. Without this file it waits: {before}",
    Effect.WAITS: "waits: {after} {without}",
    Effect.REFUSED: "is refused: {after}",
}
"""The effect of another quota file on one job or notebook."""


def affected_sentence(affected: Affected, subject: str, *, before: str, after: str) -> str:
    """The effect on one workload. ``before`` and ``after``: its reasons under both files as sentences, or empty."""
    if affected.effect is Effect.WAITS and affected.work.state is JobState.HELD:
        return f"{subject} is held, and waits if it is released: {after}"
    by = affected.deadline_at
    figures = {
        "before": before,
        "after": after or (_leaves_pool_text(affected) if affected.loses_device else _over_quota_text(affected)),
        "paused": "paused" if by is None else f"stopped by the drain deadline {instant_text(by)}",
        "then": f"; then it waits: {after}" if after else ", and starts again when others have started.",
        "anyway": " Without this file it loses its GPUs, too." if affected.anyway else "",
        "without": _without_file_text(affected, before),
    }
    return f"{subject} {rendered(EFFECTS[affected.effect], figures)}"


def _without_file_text(affected: Affected, before: str) -> str:
    """The state of waiting work if the old file stays."""
    if affected.before is None:
        return "Without this file it starts."
    same = affected.after is not None and affected.before.code is affected.after.code
    return f"Without this file it waits{'' if same else ' for another reason'}: {before}"


def _leaves_pool_text(affected: Affected) -> str:
    end = _end_text(affected)
    return f"This file moves devices that it has out of pool {affected.work.pool}; it stays on them until {end}."


def _over_quota_text(affected: Affected) -> str:
    """The effect of a lowered quota on running work: the amount over quota, and the end of the work."""
    work, used, quota = affected.work, affected.used_milli or 0, affected.quota_milli or 0
    is_job = isinstance(work, Job)
    fixed = " that may not be preempted" if isinstance(work, Job) and not work.preemptible else ""
    ends = "" if affected.effect is Effect.OVER_QUOTA else f" It stays until {_end_text(affected)}."
    was = max(0, used - (affected.had_milli or 0))
    above = f"{gpu_text(used - quota)} GPU of that is over quota"
    if was:
        above = f"it goes from {gpu_text(was)} to {gpu_text(used - quota)} GPU over quota"
    owner = work.project if affected.department is None else f"department {affected.department}"
    return (
        f"{owner} uses {gpu_text(used)} GPU{fixed} in pool {work.pool} and its {'training' if is_job else 'notebook'} "
        f"quota becomes {gpu_text(quota)}: {above}.{ends}"
    )


def _end_text(affected: Affected) -> str:
    if not isinstance(affected.work, Job):
        return "its server stops"
    by = affected.deadline_at
    return "it ends" if by is None else f"it ends, or the drain deadline {instant_text(by)} stops it"
