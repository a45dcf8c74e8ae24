"""Why work of a simulation never started, as the shipped scheduler explains it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.explain.binding_reasons import decide_with_reasons
from ..core.lifecycle import WAITING
from ..core.model import Job, Notebook, NotebookState
from ..core.reason_figures import code_of
from ..messages.reasons import sentence
from .replay import Replay

MAX_GROUPS = 20
"""A report has at most so many groups: the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstarted:
    """A job or notebook that still waits for its first device, with the code and sentence of its reason."""

    workload: str
    project: str
    code: str
    message: str


def unstarted(replay: Replay) -> tuple[Unstarted, ...]:
    """The work that still waits at the end of a simulation; cancelled work is left out."""
    mirror, now = replay.controller.mirror, replay.clock.now
    policy = mirror.policy_at(now)
    snapshot = mirror.snapshot(now)
    waiting: list[Job | Notebook] = [job for job in snapshot.jobs if job.state in WAITING and not job.attempt]
    waiting += [notebook for notebook in snapshot.notebooks if notebook.state is NotebookState.REQUESTED]
    if policy is None or not waiting:
        return ()
    waits = decide_with_reasons(snapshot, policy).waits
    return tuple(
        Unstarted(
            workload=work.id,
            project=work.project,
            code=code_of(waits[work.id]),
            message=sentence(waits[work.id]).replace(work.user, replay.user_of(work.id)),
        )
        for work in waiting
        if work.id in waits
    )


def by_reason(worlds: Iterable[Iterable[Unstarted]]) -> list[dict[str, object]]:
    """The work by reason and project, the largest group first: its size, and the first of it with its sentence."""
    groups: dict[tuple[str, str], list[Unstarted]] = {}
    for world in worlds:
        for each in world:
            groups.setdefault((each.code, each.project), []).append(each)
    rows = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))[:MAX_GROUPS]
    return [
        {"reason": code, "project": project, "count": len(found), "such_as": found[0].workload,
         "message": found[0].message}
        for (code, project), found in rows
    ]  # fmt: skip
