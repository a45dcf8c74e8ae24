"""P12: a plan starts only what waits, stops only what runs, and names each workload once for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..steps import STARTS, Action, Step

Found = Iterator[tuple[str, str]]


def check(step: Step) -> Found:
    for kinds in (STARTS, ("pause", "stop"), ("reserve",)):
        for name, count in Counter(one.workload for one in step.of_kind(*kinds)).items():
            if count > 1:
                yield "P12", f"{name} has {count} actions {'/'.join(kinds)} in one plan"
    for action in step.of_kind(*STARTS):
        yield from _start(step, action)
    for action in step.of_kind("pause"):
        job = step.before.jobs.get(action.workload)
        if job is None or not job.runs:
            yield "P12", f"{action.workload} is paused, and does not run"


def _start(step: Step, action: Action) -> Found:
    state, name = step.before, action.workload
    if name in state.notebooks:
        if name in state.held:
            yield "P12", f"notebook {name} starts, and has a slice already"
        return
    job = state.jobs.get(name)
    if job is None or not job.waits or name in state.held:
        yield "P12", f"{name} starts, and does not wait"
    elif action.attempt != job.attempt + 1:
        yield "P12", f"{name} starts attempt {action.attempt} after {job.attempt}"
