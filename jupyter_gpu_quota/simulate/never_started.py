"""Why work of a simulated world had no device to the end, in the words of the scheduler that played it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.lifecycle import WAITING
from ..core.model import Job, Notebook, NotebookState
from ..core.reason_figures import code_of
from ..core.scheduling.decide import decide_and_explain
from ..messages.reasons import sentence
from .replay import Replay

MOST_TOLD = 20
"""So many reasons has a report, those of the most work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstarted:
    """One job or notebook that still waits for its first device, with its reason as a code and a sentence."""

    workload: str
    project: str
    code: str
    message: str


def unstarted(replay: Replay) -> tuple[Unstarted, ...]:
    """What still waits when a world ends; of what was taken back before, nothing is told."""
    mirror, now = replay.controller.mirror, replay.clock.now
    policy = mirror.policy_at(now)
    snapshot = mirror.snapshot(now)
    waiting: list[Job | Notebook] = [job for job in snapshot.jobs if job.state in WAITING and not job.attempt]
    waiting += [book for book in snapshot.notebooks if book.state is NotebookState.REQUESTED]
    if policy is None or not waiting:
        return ()
    waits = decide_and_explain(snapshot, policy).waits
    return tuple(
        Unstarted(
            workload=work.id,
            project=work.project,
            code=code_of(waits[work.id]),
            message=sentence(waits[work.id]).replace(work.user, replay.person_of(work.id)),
        )
        for work in waiting
        if work.id in waits
    )


def told(worlds: Iterable[Iterable[Unstarted]]) -> list[dict[str, object]]:
    """By reason and project, what most waits for first: how much of it there is, and the first with its sentence."""
    groups: dict[tuple[str, str], list[Unstarted]] = {}
    for world in worlds:
        for each in world:
            groups.setdefault((each.code, each.project), []).append(each)
    rows = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [
        {
            "reason": code,
            "project": project,
            "count": len(found),
            "such_as": found[0].workload,
            "message": found[0].message,
        }
        for (code, project), found in rows[:MOST_TOLD]
    ]
