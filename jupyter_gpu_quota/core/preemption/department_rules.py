"""Department rules of a preemption: when a preemptor may take from other departments.

Its department must be entitled to what it gains. What sibling projects lose to the preemptor is no gain, so victims in
the department may be needed before victims outside it are allowed. Source: docs/scheduling.md, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..queue.pool_state import PoolState
from ..queue.quota_state import NO_LIMIT, Entitlement, QuotaState, Victim
from .rules import Loss, PreemptionRules, Preemptor


def is_department_full(pool: PoolState, preemptor: Preemptor) -> bool:
    """Whether a preemptor within its guarantee needs victims in its department before it may take from others."""
    department = preemptor.project.parent
    if department is None or preemptor.entitlement is not Entitlement.GUARANTEE or preemptor.own_only:
        return False
    return department.entitlement(preemptor.request.size) is not Entitlement.GUARANTEE


def sibling_victims(rules: PreemptionRules, candidates: Iterable[Victim]) -> list[Victim] | None:
    """Choose from candidates, in their order, those whose loss entitles the preemptor outside; None if no set does.

    The set is minimal: without any one of them the department would still be too full.
    Rule R36.
    """
    chosen: list[Victim] = []
    for victim in candidates:
        if _is_entitled_outside(rules, chosen):
            break
        if rules.is_allowed([*chosen, victim], assume_entitled=True):
            chosen.append(victim)
    if not _is_entitled_outside(rules, chosen):
        return None
    for victim in reversed(chosen[:-1]):
        without = [other for other in chosen if other is not victim]
        if _is_entitled_outside(rules, without):
            chosen = without
    return chosen


def _is_entitled_outside(rules: PreemptionRules, chosen: Sequence[Victim]) -> bool:
    return rules.entitlement_outside(rules.losses(chosen)) is rules.preemptor.entitlement


def department_slack(rules: PreemptionRules) -> int:
    """The additional use, in milli-GPU, that the department may have while its victims outside it stay allowed.

    :data:`.NO_LIMIT` without such victims. Bounds what minimizing may give back to siblings.
    """
    department = rules.preemptor.project.parent
    if department is None or rules.notebook:
        return NO_LIMIT
    losses = rules.losses(())
    outside = [project for project in losses if not rules.is_sibling(project)]
    if not outside:
        return NO_LIMIT
    allowed = [
        entitlement
        for entitlement in (Entitlement.GUARANTEE, Entitlement.FAIR)
        if entitlement >= rules.preemptor.entitlement
        and all(rules.is_loss_allowed(one, losses, entitlement, ()) for one in outside)
    ]
    return max((_slack_within(rules, entitlement, department, losses) for entitlement in allowed), default=0)


def _slack_within(
    rules: PreemptionRules, entitlement: Entitlement, department: QuotaState, losses: Mapping[QuotaState, Loss]
) -> int:
    """The slack while the department's gain stays within its guarantee, or its fair share."""
    used = department.use + rules.department_gain(department, losses)
    if entitlement is Entitlement.GUARANTEE:
        return department.guarantee - used
    if department.weight == 0 or not rules.preemptor.preemptible:
        return 0
    left = department.fair - used
    for other in {one.parent for one in losses if one.parent not in (None, department)}:
        assert other is not None, "None was filtered out"
        if other.priority == department.priority and other.weight:
            loss = rules.loss_of(other, losses)
            above = other.use - loss.firm - loss.borrowed - other.guarantee
            left = min(left, above * department.weight // other.weight - (used - department.guarantee))
    return left
