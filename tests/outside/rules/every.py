"""All checks of one step."""

from __future__ import annotations

from collections.abc import Iterator

from ..steps import Step
from . import capacity, claims, edits, idle, lost, patience, quotas, reservation, turn, unserved, victims

CHECKS = (capacity, quotas, claims, victims, lost, idle, turn, unserved, reservation, edits, patience)


def check(step: Step) -> Iterator[tuple[str, str]]:
    """Everything that is wrong with one plan: the number of the rule, and the figures."""
    for one in CHECKS:
        yield from one.check(step)
