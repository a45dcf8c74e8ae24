"""The first amount, counted upwards, with which a workload starts.

A larger amount may fail where a smaller one works, because other work comes first. So every amount at which a decision
can change is tried in order, and between one that fails and the next that works the boundary is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd

MAX_STEPS = 512
"""With this many multiples of the common divisor at most, all of them are tried."""
MAX_SUMS = 1024
"""Otherwise those are tried at which sums of sizes are reached, at most this many of them."""


def first_amount(starts: Callable[[int], bool], amounts: Iterable[int], most: int) -> int | None:
    """The first amount above 0, up to ``most``, that starts it; ``amounts``: those at which a plan can change."""
    fails = 0
    for works in sorted({amount for amount in amounts if 0 < amount <= most} | ({most} if most > 0 else set())):
        if starts(works):
            while works - fails > 1:
                middle = (fails + works) // 2
                fails, works = (fails, middle) if starts(middle) else (middle, works)
            return works
        fails = works
    return None


def common_steps(most: int, sizes: Iterable[int]) -> range | None:
    """The multiples of the largest common divisor of all sizes, up to ``most``; None where they are too many."""
    step = gcd(*sizes) or 1
    return range(step, most + 1, step) if most // step <= MAX_STEPS else None


def all_sums(sizes: Iterable[int]) -> set[int]:
    """The sums of all sets of sizes, as long as they are at most :data:`MAX_SUMS`."""
    found = {0}
    for size in sorted(sizes):
        more = found | {total + size for total in found}
        if len(more) > MAX_SUMS:
            break
        found = more
    return found


def doubled(tried: Iterable[int], most: int) -> set[int]:
    """A few amounts, and beyond the largest of them doubled ones, below ``most``."""
    found = {amount for amount in tried if 0 < amount < most}
    double = 2 * max(found, default=most)
    while double < most:
        found.add(double)
        double *= 2
    return found
