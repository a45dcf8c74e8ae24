"""The next instant at which windows of the calendar bring the amounts that start a workload.

Source: docs/scheduling.md, section 6.
"""

from __future__ import annotations

from dataclasses import replace

from ..quota.in_force import in_force, open_windows
from .trials import Trials

MAX_INSTANTS = 8
"""This many different sets of amounts are tried at most."""


def bringing_window(trials: Trials) -> tuple[int, tuple[str, ...]] | None:
    """The first instant whose amounts start the workload now, and the names of the windows that open or close then."""
    policy, now = trials.what_if.policy, trials.what_if.snapshot.now
    instants = sorted({at for one in policy.windows for at in (one.begins_at, one.ends_at) if at > now})
    tried = [in_force(policy, now).projects, in_force(policy, now).departments]
    seen = [tried]
    for at in instants:
        then = in_force(policy, at)
        amounts = [then.projects, then.departments]
        if amounts in seen:
            continue
        if len(seen) > MAX_INSTANTS:
            return None
        seen.append(amounts)
        if trials.starts(policy=replace(then, windows=())):
            return at, _changed_at(trials, at)
    return None


def _changed_at(trials: Trials, at: int) -> tuple[str, ...]:
    policy = trials.what_if.policy
    before = {one.name for one in open_windows(policy, at - 1)}
    after = {one.name for one in open_windows(policy, at)}
    return tuple(sorted(after - before)) or tuple(sorted(before - after))
