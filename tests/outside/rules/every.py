"""All checks of one step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ..steps import Step
from . import capacity, claims, edits, idle, lost, patience, quotas, reservation, turn, unserved, victims

CHECKS = (capacity, quotas, claims, victims, lost, idle, turn, unserved, reservation, edits, patience)


def check(step: Step) -> Iterator[tuple[str, str]]:
    """Everything that is wrong with one plan: the number of the rule, and the figures.

    A plan names only the first claim of an elastic job that gives up ranks. It is legal if the ranks can be divided
    among its claims so that each of them is (R43).
    """
    found = list(_check(step))
    others = islice(step.divisions(), 1, None) if found else ()
    if all(any(True for _ in _check(Step(step.before, step.plan, one))) for one in others):
        yield from found


def _check(step: Step) -> Iterator[tuple[str, str]]:
    for one in CHECKS:
        yield from one.check(step)
