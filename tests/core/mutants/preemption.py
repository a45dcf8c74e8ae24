"""The preemption rules that ``make mutants`` breaks, one mutant each."""

from __future__ import annotations

from tests.core.mutants.edits import edit, mutant

PREEMPTION_MUTANTS = (
    mutant(
        "entry looks at the project alone",
        edit(
            "preemption/rules.py:PreemptionRules.entitlement_outside",
            "department.entitlement(self.department_gain(department, losses))",
            "Entitlement.GUARANTEE",
        ),
    ),
    mutant(
        "a project at its quota is a victim",
        edit(
            "preemption/candidates.py:Candidates._above",
            "[one for one in projects if one.use > one.guarantee and one is not own]",
            "[one for one in projects if one.use >= one.guarantee and one is not own]",
        ),
        edit(
            "preemption/rules.py:PreemptionRules.may_lose",
            "level.use > threshold(level, entitlement)",
            "level.use >= threshold(level, entitlement)",
        ),
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "after + loss.largest_firm > level.guarantee",
            "after + loss.largest_firm >= level.guarantee",
        ),
    ),
    mutant(
        "a project at its fair share is a victim",
        edit(
            "preemption/candidates.py:Candidates._above",
            "[one for one in projects if one.use > one.fair and one is not own]",
            "[one for one in projects if one.use >= one.fair and one is not own]",
        ),
        edit(
            "preemption/rules.py:PreemptionRules.may_lose",
            "level.use > threshold(level, entitlement)",
            "level.use >= threshold(level, entitlement)",
        ),
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "after + max(loss.largest_firm, loss.largest_borrowed) <= level.fair",
            "after + max(loss.largest_firm, loss.largest_borrowed) < level.fair",
        ),
    ),
    mutant(
        "siblings on other devices do not entitle to other departments",
        edit("preemption/department_rules.py:is_department_full", "department is None", "True"),
    ),
    mutant(
        "a sibling whose loss entitles the preemptor is restored",
        edit(
            "preemption/minimize.py:minimize_victims",
            "all((other.slack_milli >= size for other in depending)) and _fits_without(pool, preemptions, victims)",
            "_fits_without(pool, preemptions, victims)",
        ),
    ),
    mutant(
        "victims already picked are not counted",
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "level.use - loss.firm - loss.borrowed",
            "level.use - loss.largest_firm",
        ),
    ),
    mutant(
        "no victim of the whole plan is restored",
        edit("preemption/minimize.py:minimize_victims", "enumerate(preemptions)", "enumerate(())"),
    ),
    mutant(
        "no victim of one slot is restored",
        edit(
            "preemption/search.py:_Search._in_order",
            "self._suffices(slot, without) and self.rules.is_allowed(without)",
            "False",
        ),
    ),
    mutant(
        "departments of victims are ignored",
        edit(
            "preemption/rules.py:PreemptionRules._compared",
            "(level,) if self.is_sibling(level) else level.levels",
            "(level,)",
        ),
    ),
    mutant(
        "imbalance may be switched",
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "self._stays_balanced(level, after, losses)",
            "True",
        ),
    ),
    mutant(
        "a reclaim by the victim is ignored",
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "after < level.guarantee and self._could_reclaim(level, after, chosen)",
            "False",
        ),
    ),
    mutant(
        "a gang needs room under the limit for all its ranks at the first",
        edit(
            "preemption/search.py:_Search._is_within",
            "min(self.rank + 1, request.ranks) * request.gpu_milli",
            "request.size",
        ),
    ),
    mutant(
        "at a limit a claim is placed on free devices",
        edit(
            "preemption/search.py:_Search.find",
            "self._has_unplaced_ranks() and self._is_under_limits() and self._place_without_victims()",
            "self._has_unplaced_ranks() and self._place_without_victims()",
        ),
    ),
    mutant(
        "for a gang a victim ends below its quota at once",
        edit(
            "preemption/search.py:_searches",
            "thorough and (not at_limit) and (not (guarantee_binds and preemptor.request.ranks > 1))",
            "thorough",
        ),
    ),
    mutant(
        "at a limit only victims that free room are picked",
        edit(
            "preemption/search.py:_searches",
            "thorough and (not at_limit) and (not (guarantee_binds and preemptor.request.ranks > 1))",
            "thorough and (not (guarantee_binds and preemptor.request.ranks > 1))",
        ),
    ),
    mutant(
        "work on unavailable devices needs room to be restored",
        edit(
            "preemption/minimize.py:_may_fit",
            "[piece.gpu_milli for victim in victims for piece in victim.pieces]",
            "[victim.size for victim in victims]",
        ),
    ),
    mutant(
        "work on surplus keeps a job out of its quota",
        edit(
            "preemption/rules.py:PreemptionRules._could_reclaim",
            "after < victim.size <= level.guarantee and (not victim.borrower)",
            "False",
        ),
    ),
    mutant(
        "a victim may end below its quota at once",
        edit(
            "preemption/search.py",
            "_SEARCH_MODES = ((False, False), (False, True), (True, False))",
            "_SEARCH_MODES = ((True, False),)",
        ),
        edit("preemption/search.py:_searches", "below_guarantee and (not guarantee_binds)", "False"),
    ),
    mutant(
        "nothing is protected",
        edit(
            "preemption/victims.py:is_protected",
            "now - started_at < policy.preemption.min_runtime_s * MS_PER_S or is_exhausted(policy, job, now)",
            "False and is_exhausted(policy, job, now)",
        ),
    ),
    mutant(
        "one pause more than K",
        edit(
            "preemption/victims.py:is_exhausted",
            "sum((begins < at for at in job.paused_at)) >= policy.preemption.max_pauses",
            "sum((begins < at for at in job.paused_at)) > policy.preemption.max_pauses",
        ),
    ),
    mutant(
        "a job pauses its equals",
        edit(
            "preemption/candidates.py:Candidates._own",
            "lambda one: one.priority < priority",
            "lambda one: one.priority <= priority",
        ),
    ),
    mutant(
        "moved work is not restored",
        edit("preemption/minimize.py:minimize_victims", "list(preemption.moves)", "()"),
    ),
    mutant(
        "an elastic job that stops as a whole is not restored",
        edit(
            "preemption/minimize.py:_running_victims",
            "[one for one in preemption.victims if not one.reserved and one.base not in preemption.victims]",
            "[one for one in preemption.victims if one.above is None and not one.reserved "
            "and one.base not in preemption.victims]",
        ),
    ),
    mutant(
        "elastic surplus counts for a quota",
        edit("preemption/rules.py:PreemptionRules._could_reclaim", "after - surplus + size", "after + size"),
    ),
    mutant(
        "a victim that a limit does not need is not restored",
        edit(
            "preemption/search.py:_Search.find",
            "self.is_limited and len(self.picked) > 1 and (not (self.siblings_first or self.moves))",
            "False and (not (self.siblings_first or self.moves))",
        ),
    ),
    mutant(
        "room that a limit kept from a claim restores no victim",
        edit("preemption/search.py:_Search.run", "self.pool.room_came_back |= self.is_limited", "pass"),
    ),
    mutant(
        "a reservation is taken over by the guarantee of the project alone",
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "loss.reserved or after + max(loss.largest_firm, loss.largest_borrowed) <= level.fair",
            "after + max(loss.largest_firm, loss.largest_borrowed) <= level.fair",
        ),
    ),
    mutant(
        "a slice counts its own project's elastic surplus twice",
        edit(
            "preemption/candidates.py:Candidates.before_defragmentation",
            "dict.fromkeys([*others, self.preemptor.project])",
            "[*others, self.preemptor.project]",
        ),
    ),
)
