"""How a claim gets out of its department: what its siblings lose lets it out, and how much of that it could do without.

Source: docs/scheduling.md, section 4: at every level below the common ancestor, those already picked counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..queue.pool_state import Pool
from ..queue.quota_state import NO_LIMIT, Holder, Right, Standing
from .rules import Asker, Rules, Taken


def is_department_full(pool: Pool, asker: Asker) -> bool:
    """Whether a claim within guarantee may take from no other department unless siblings lose something first."""
    department = asker.standing.parent
    if department is None or asker.right is not Right.GUARANTEE or asker.own_only:
        return False
    return department.right(asker.request.size) is not Right.GUARANTEE


def siblings_to_leave(rules: Rules, asked: Iterable[Holder]) -> list[Holder] | None:
    """Of those asked, in their order, whose leaving lets a claim out of its department by its own right; None: no set.

    Nobody need not leave: without any one of them the department would still be too full.
    """
    chosen: list[Holder] = []
    for holder in asked:
        if _lets_out(rules, chosen):
            break
        if rules.is_legal([*chosen, holder], entered=True):
            chosen.append(holder)
    if not _lets_out(rules, chosen):
        return None
    for holder in reversed(chosen[:-1]):
        without = [other for other in chosen if other is not holder]
        if _lets_out(rules, without):
            chosen = without
    return chosen


def _lets_out(rules: Rules, chosen: Sequence[Holder]) -> bool:
    return rules.outside_right(rules.sums(chosen)) is rules.asker.right


def leeway(rules: Rules) -> int:
    """How much more a claim's department could use beside it, and what it takes from other departments still be legal.

    In milli-GPU; :data:`.NO_LIMIT` where it takes nothing from others.
    """
    department = rules.asker.standing.parent
    if department is None or rules.notebook:
        return NO_LIMIT
    sums = rules.sums(())
    outside = [standing for standing in sums if not rules.is_sibling(standing)]
    if not outside:
        return NO_LIMIT
    rights = [right for right in (Right.GUARANTEE, Right.FAIR) if right >= rules.asker.right]
    legal = [right for right in rights if all(rules.may_lose_so_much(one, sums, right, ()) for one in outside)]
    return max((_leeway_by(rules, right, department, sums) for right in legal), default=0)


def _leeway_by(rules: Rules, right: Right, department: Standing, sums: Mapping[Standing, Taken]) -> int:
    used = department.use + rules.gain(department, sums)
    if right is Right.GUARANTEE:
        return department.guarantee - used
    if department.weight == 0 or not rules.asker.preemptible:
        return 0
    left = department.fair - used
    for victim in {one.parent for one in sums if one.parent not in (None, department)}:
        assert victim is not None, "it was just looked at"
        if victim.priority == department.priority and victim.weight:
            taken = rules.taken_from(victim, sums)
            above = victim.use - taken.firm - taken.lent - victim.guarantee
            left = min(left, above * department.weight // victim.weight - (used - department.guarantee))
    return left
