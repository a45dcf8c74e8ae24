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
            "preemption/candidates.py:projects_above",
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
            "preemption/candidates.py:projects_above",
            "[one for one in projects if one.use > one.fair and one.use > one.guarantee and (one is not own)]",
            "[one for one in projects if one.use >= one.fair and one.use >= one.guarantee and (one is not own)]",
        ),
        edit(
            "preemption/rules.py:PreemptionRules.may_lose",
            "level.use > threshold(level, entitlement)",
            "level.use >= threshold(level, entitlement)",
        ),
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "above <= threshold(level, entitlement)",
            "above < threshold(level, entitlement)",
        ),
    ),
    mutant(
        "borrowers make other jobs of their project victims",
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "level.use - self._borrowed_by(level) - loss.firm",
            "level.use - loss.firm",
        ),
    ),
    mutant(
        "siblings on other devices do not entitle to other departments",
        edit("preemption/department_rules.py:is_department_full", "department is None", "True"),
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
            "queue/job_class.py:is_exhausted",
            "sum((begins < at for at in job.paused_at)) >= policy.preemption.max_pauses",
            "sum((begins < at for at in job.paused_at)) > policy.preemption.max_pauses",
        ),
    ),
    mutant(
        "a job pauses its equals",
        edit(
            "preemption/candidates.py:of_lower_priority",
            "lambda one: one.priority < priority",
            "lambda one: one.priority <= priority",
        ),
    ),
    mutant(
        "elastic surplus counts for a quota",
        edit("preemption/rules.py:PreemptionRules._could_reclaim", "after - surplus + size", "after + size"),
    ),
    mutant(
        "a reservation is taken over by the guarantee of the project alone",
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "loss.reserved or above <= threshold(level, entitlement)",
            "above <= threshold(level, entitlement)",
        ),
    ),
    mutant(
        "a slice counts its own project's elastic surplus twice",
        edit(
            "preemption/candidates.py:Candidates.without_pause",
            "dict.fromkeys([*others, self.preemptor.project])",
            "[*others, self.preemptor.project]",
        ),
    ),
    mutant(
        "a sibling whose loss entitles the preemptor is restored",
        edit(
            "preemption/minimize.py:_may_stay",
            "all((other.slack_milli >= size for other in _depending_on(project, preemptions[number:])))",
            "True",
        ),
    ),
    mutant(
        "no victim of the whole plan is restored",
        edit(
            "preemption/minimize.py:_restore_victims",
            "enumerate(preemptions)",
            "enumerate(())",
        ),
    ),
    mutant(
        "moved work is not restored",
        edit(
            "preemption/minimize.py:_restore_moves",
            "list(preemption.moves)",
            "()",
        ),
    ),
    mutant(
        "an elastic job that stops as a whole is not restored",
        edit(
            "preemption/minimize.py:_restorable",
            "[one for one in preemption.victims if one.base not in preemption.victims]",
            "[one for one in preemption.victims if one.above is None and one.base not in preemption.victims]",
        ),
    ),
    mutant(
        "what drains is left to a job above its fair share",
        edit(
            "preemption/minimize.py:_is_left_over",
            "entitlement is Entitlement.SURPLUS and (not preemption.victims) and (not preemption.moves)",
            "False",
        ),
    ),
    mutant(
        "the victims of jobs above their fair share are restored first",
        edit(
            "preemption/minimize.py:_restore_victims",
            "row[1].preemptor.entitlement is Entitlement.SURPLUS",
            "row[1].preemptor.entitlement is not Entitlement.SURPLUS",
        ),
    ),
    mutant(
        "a job keeps its fair share though a victim of its project continues",
        edit(
            "preemption/minimize.py:_is_left_over",
            "preemptor.project.entitlement(0)",
            "entitlement",
        ),
    ),
    mutant(
        "victims do not bring a limit within reach",
        edit(
            "preemption/search/attempt.py:Attempt._is_within",
            "after - left <= bound",
            "False",
        ),
    ),
    mutant(
        "at a limit a claim is placed on free devices",
        edit(
            "preemption/search/cheapest.py:CheapestSet._legal_sets",
            "self.is_within_bounds(leaving)",
            "True",
        ),
    ),
    mutant(
        "victims that free exactly what is short are not enough",
        edit(
            "preemption/search/cheapest.py:CheapestSet._legal_sets",
            "freed + self._freed_by(chosen) < self.short",
            "freed + self._freed_by(chosen) <= self.short",
        ),
    ),
    mutant(
        "a victim may end below its quota at once",
        edit(
            "preemption/search/find.py:_searches",
            "(0, 1, NO_LIMIT)",
            "(NO_LIMIT,)",
        ),
    ),
    mutant(
        "a second project may end below its quota at once",
        edit("preemption/search/find.py:_searches", "(0, 1, NO_LIMIT)", "(0, NO_LIMIT)"),
    ),
    mutant(
        "two protected jobs rather than one project below its quota",
        edit("preemption/search/find.py:_of_fewest_protected", "least <= 1", "True"),
    ),
    mutant(
        "borrowers of its project cost a claim its reservation",
        edit("preemption/candidates.py:Candidates._may_be_taken_over", "borrowed[one]", "0"),
    ),
    mutant(
        "a claim stays that only a withdrawn offer made legal",
        edit("preemption/withdrawal.py:_is_founded", "gone[level] and level is not own", "False"),
    ),
    mutant(
        "an offer that balanced a claim is withdrawn alone",
        edit("preemption/withdrawal.py:_is_balanced", "above * level.weight", "0"),
    ),
    mutant(
        "an offer that a claim on another department needed is withdrawn alone",
        edit("preemption/withdrawal.py:_is_founded", "victim.project.levels", "()"),
    ),
    mutant(
        "a job whose claim ended does not run on when the plan starts it",
        edit("preemption/accounting.py:subtract_use", "not victim.reserved", "True"),
    ),
    mutant(
        "a claim that ends gives no room under a ceiling for each user",
        edit(
            "scheduling/claims.py:Claims.return_to_queue",
            "self._reorder_user(preemptor.project, preemptor.user)",
            "None",
        ),
    ),
    mutant(
        "a job whose claim comes back keeps the backfill reservation that it got meanwhile",
        edit("scheduling/cycle.py:SchedulingCycle._minimize_victims", "self._drop_served_reservation()", "None"),
    ),
    mutant(
        "a claim inside a department keeps victims because of the department's use",
        edit(
            "preemption/minimize.py:_levels_that_gain",
            "project.levels if takes_from_outside else (project,)",
            "project.levels",
        ),
    ),
    mutant(
        "a job that has started on devices taken over may lose its entitlement",
        edit(
            "preemption/minimize.py:minimize_victims",
            "one not in left_over and (one.victims or not one.starts)",
            "one not in left_over and (not one.starts)",
        ),
    ),
    mutant(
        "what is left goes to the older job, whatever the job priority",
        edit(
            "preemption/minimize.py:minimize_victims",
            "_by_job_priority([one for one in preemptions if one in left_over])",
            "[one for one in preemptions if one in left_over]",
        ),
    ),
    mutant(
        "the reservation that moved still keeps a claim from devices",
        edit(
            "preemption/minimize.py:_still_kept_from",
            "preemption.kept_for == recorded == holder",
            "preemption.kept_for == holder",
        ),
    ),
    mutant(
        "work that moved may be paused, too",
        edit("preemption/victims.py:make_victims", "gone and victim.key in gone", "False"),
    ),
    mutant(
        "more pauses than needed are tried first",
        edit(
            "preemption/search/cheapest.py:CheapestSet.run",
            "range(self._fewest_pauses(), len(self.options.pauses) + 1)",
            "range(self._fewest_pauses() + 1, len(self.options.pauses) + 1)",
        ),
    ),
    mutant(
        "the lower bound of the pauses is one too high",
        edit(
            "preemption/search/cheapest.py:CheapestSet._fewest_pauses",
            "freed >= self.short",
            "freed > self.short",
        ),
    ),
    mutant(
        "no moves are tried",
        edit(
            "preemption/search/cheapest.py:CheapestSet._better",
            "not movable",
            "True",
        ),
    ),
    mutant(
        "one move more than needed is tried first",
        edit(
            "preemption/search/cheapest.py:CheapestSet._with_moves",
            "max(1, len(needed))",
            "max(2, len(needed))",
        ),
    ),
    mutant(
        "a shrink takes two ranks at least",
        edit(
            "preemption/operations.py:shrinks_of",
            "range(1, most + 1)",
            "range(min(2, most), most + 1)",
        ),
    ),
    mutant(
        "moves cost nothing",
        edit(
            "preemption/operations.py:cost_of",
            "kinds.count(Kind.MOVE)",
            "0",
        ),
    ),
    mutant(
        "a reservation is taken over for work that moves",
        edit(
            "preemption/search/cheapest.py:_takes_over_for_itself",
            "not found.moves",
            "True",
        ),
    ),
    mutant(
        "the bound of the search leaves a claim without devices",
        edit(
            "preemption/search/find.py:_Search.find",
            "not is_found and self._was_cut_short()",
            "False",
        ),
    ),
    mutant(
        "what the own project loses does not count in the balance",
        edit(
            "preemption/search/find.py:_Search._own_may_lose",
            "self.attempt.notebook",
            "True",
        ),
    ),
    mutant(
        "the ranks of a shrink are one victim",
        edit(
            "preemption/rules.py:Loss.add",
            "victim.total_size if victim.base is None else victim.request.gpu_milli",
            "victim.total_size",
        ),
    ),
    mutant(
        "room that a limit kept from a claim restores no victim",
        edit(
            "preemption/search/find.py:_Search.run",
            "self.pool.room_came_back |= self.attempt.is_limited",
            "pass",
        ),
    ),
    mutant(
        "the first candidate is paused though borrowers could leave",
        edit(
            "preemption/search/first_candidate.py:_is_simple",
            "pool.departments or pool.borrowers or pool.reserved or pool.has_elastic",
            "pool.departments",
        ),
    ),
    mutant(
        "the first candidate is paused though work leaves enough already",
        edit(
            "preemption/search/first_candidate.py:_is_simple",
            "pool.ledger.all_after(borrowed=preemptor.can_borrow) < request.gpu_milli",
            "True",
        ),
    ),
    mutant(
        "the first candidate leaves its project below its quota",
        edit(
            "preemption/rules.py:is_first_allowed",
            "after < project.guarantee or entitlement is SURPLUS",
            "entitlement is SURPLUS",
        ),
    ),
    mutant(
        "the first candidate may switch the imbalance",
        edit(
            "preemption/rules.py:is_first_allowed",
            "is_above and is_balanced(preemptor.project, project, gain=preemptor.request.size, after=after)",
            "is_above",
        ),
    ),
    mutant(
        "the first candidate may leave its project further above its fair share",
        edit(
            "preemption/search/first_candidate.py:_ends_within",
            "not preemptor.own_only or gained <= 0 or project.use + gained <= project.fair",
            "True",
        ),
    ),
    mutant(
        "a part of an elastic job that left for one rank leaves again for the next",
        edit("preemption/search/slot_sets.py:SlotSets.may_apply", "all(map(self._is_open, operations))", "True"),
    ),
    mutant(
        "a claim borrows notebook quota that it does not need",
        edit(
            "preemption/search/find.py:_Search.find",
            "self._borrows() and (not self._place_without_borrowing(mark))",
            "self._borrows()",
        ),
    ),
)
