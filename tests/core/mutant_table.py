"""The rules that ``make mutants`` breaks, one mutant each."""

from __future__ import annotations

from tests.core.mutations import edit, mutant

MUTANTS = (
    mutant(
        "the entry check is dropped",
        edit("queue/quota_state.py:QuotaState.entitlement", "FAIR if total <= self.fair else SURPLUS", "FAIR"),
    ),
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
        "siblings on other devices let nobody out",
        edit("preemption/department_rules.py:is_department_full", "department is None", "True"),
    ),
    mutant(
        "a sibling that lets a claim out is put back",
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
        "nobody is put back on the whole plan",
        edit("preemption/minimize.py:minimize_victims", "enumerate(preemptions)", "enumerate(())"),
    ),
    mutant(
        "nobody is put back on a spot",
        edit(
            "preemption/search.py:_Search._in_order",
            "self._suffices(slot, without) and self.rules.is_allowed(without)",
            "False",
        ),
    ),
    mutant(
        "a user's ceiling in a department takes its projects' quotas",
        edit("queue/division.py:divide_pool", "max(one.fair, min(one.guarantee, sums[one.name]))", "one.fair"),
    ),
    mutant(
        "departments are ignored in the division",
        edit("queue/division.py:divide_pool", "not pool.departments", "True"),
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
        "a department's limit is ignored",
        edit("queue/quota_state.py:QuotaState.at_limit", "level.limit != NO_LIMIT", "level is self"),
    ),
    mutant(
        "a department's quota is ignored for fixed work",
        edit(
            "queue/quota_state.py:QuotaState.fixed_fits",
            "all((level.fixed_use + size <= level.quota for level in self.levels))",
            "self.fixed_use + size <= self.quota",
        ),
    ),
    mutant(
        "exactly at the training quota is refused",
        edit(
            "queue/quota_state.py:QuotaState.fixed_fits",
            "level.fixed_use + size <= level.quota",
            "level.fixed_use + size < level.quota",
        ),
    ),
    mutant(
        "exactly at the notebook quota is refused",
        edit(
            "scheduling/notebook_slices.py:_why_refused",
            "level.booked + notebook.gpu_milli > level.notebook_quota",
            "level.booked + notebook.gpu_milli >= level.notebook_quota",
        ),
    ),
    mutant(
        "the ceiling for one user is ignored",
        edit("queue/quota_state.py:QuotaState.ceiling_test", "not self.has_user_ceiling", "True"),
    ),
    mutant(
        "a claim reserves nothing",
        edit(
            "scheduling/plan_builder.py:PlanBuilder._claim",
            "[*actions, Reserve(workload=preemptor.id, placements=where, reason=reason)]",
            "actions",
        ),
    ),
    mutant(
        "no place is kept for the first that cannot start",
        edit(
            "scheduling/cycle.py:SchedulingCycle._reserve_backfill",
            "blocked is None or not self.backfill_tries_left or (not may_reserve_backfill(*blocked))",
            "True",
        ),
    ),
    mutant(
        "any job overtakes a backfill reservation",
        edit(
            "scheduling/backfill.py:BackfillReservation.may_be_overtaken",
            "pool.now + time_limit_s * SECOND <= self.starts_at",
            "True",
        ),
    ),
    mutant(
        "who is not heard of is judged idle",
        edit(
            "idle/classification.py",
            "(_clock_moved, _gpu_in_use, _kernel_busy, _no_report, _kernel_unknown, _start, _no_reading, "
            "_holder_unknown, _recent_message, _postponed, _gpu_requested, _recent_start, _recent_gpu_use, "
            "_few_readings, _few_reports)",
            "(_clock_moved, _gpu_in_use, _kernel_busy, _start, _no_reading, _holder_unknown, _recent_message, "
            "_postponed, _gpu_requested, _recent_start, _recent_gpu_use, _few_readings, _few_reports)",
        ),
    ),
    mutant(
        "first submit times are forgotten",
        edit("queue/job_queue.py:WaitingJobs.users", "job.submitted_at", "0"),
        edit("queue/job_queue.py:WaitingJobs.drop", "job.submitted_at", "0"),
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
        "claim-back is ignored",
        edit(
            "preemption/rules.py:PreemptionRules._is_level_loss_allowed",
            "after < level.guarantee and self._could_reclaim(level, after, chosen)",
            "False",
        ),
    ),
    mutant(
        "who was paused pauses back",
        edit(
            "scheduling/claims.py:preemptor_of",
            "None if entitlement is Entitlement.GUARANTEE else job.paused_for",
            "None",
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
        "at a limit a claim is placed on what is free",
        edit(
            "preemption/search.py:_Search.find",
            "self._wants_more() and self._is_under_limits() and self._place_without_victims()",
            "self._wants_more() and self._place_without_victims()",
        ),
    ),
    mutant(
        "for a gang a victim ends below its quota at once",
        edit(
            "preemption/search.py:_searches",
            "thorough and (not at_limit) and (not (floor_matters and preemptor.request.ranks > 1))",
            "thorough",
        ),
    ),
    mutant(
        "a backfill reservation blocks its own job",
        edit(
            "scheduling/cycle.py:SchedulingCycle._comes_before_backfill",
            "entitlement is Entitlement.GUARANTEE or queue is self.backfill.queue",
            "entitlement is Entitlement.GUARANTEE",
        ),
    ),
    mutant(
        "at a limit only who makes room leaves",
        edit(
            "preemption/search.py:_searches",
            "thorough and (not at_limit) and (not (floor_matters and preemptor.request.ranks > 1))",
            "thorough and (not (floor_matters and preemptor.request.ranks > 1))",
        ),
    ),
    mutant(
        "a project is guaranteed more than its department",
        edit("queue/division.py:divide_pool", "min(child.guarantee, one.guarantee)", "child.guarantee"),
    ),
    mutant(
        "what is on devices that are out needs room to be put back",
        edit(
            "preemption/minimize.py:_may_fit",
            "[piece.gpu_milli for victim in victims for piece in victim.pieces]",
            "[victim.size for victim in victims]",
        ),
    ),
    mutant(
        "of equal jobs the order of the input says which ends first",
        edit(
            "scheduling/backfill.py:_plan",
            "sorted(pool.running, key=lambda one: (one.ends_at(pool.now), one.pieces, one.project.name))",
            "sorted(pool.running, key=lambda one: (one.ends_at(pool.now), one.pieces))",
        ),
    ),
    mutant(
        "what runs on surplus keeps a job out of its quota",
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
            "_WIDENING = ((False, False), (False, True), (True, False))",
            "_WIDENING = ((True, False),)",
        ),
        edit("preemption/search.py:_searches", "below_guarantee and (not floor_matters)", "False"),
    ),
    mutant(
        "nothing is protected",
        edit(
            "preemption/victims.py:is_protected",
            "now - started_at < policy.preemption.min_runtime_s * SECOND or is_exhausted(policy, job, now)",
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
        "weight 0 reclaims surplus",
        edit(
            "scheduling/claims.py:victim_scope",
            "project.weight == 0 or not queue.job_class.preemptible",
            "not queue.job_class.preemptible",
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
        "windows are ignored",
        edit("scheduling/cache/decision_cache.py:DecisionCache.follow", "in_force(policy, snapshot.now)", "policy"),
    ),
    mutant(
        "a window is open when it ends",
        edit(
            "quota/in_force.py:open_windows",
            "[window for window in policy.windows if window.begins_at <= now < window.ends_at]",
            "[window for window in policy.windows if window.begins_at <= now <= window.ends_at]",
        ),
    ),
    mutant(
        "past use is ignored",
        edit(
            "queue/division.py:_divide",
            "divide(claims, amount, firm_milli=firm, history_milli=pool.policy.history.k_milli)",
            "divide(claims, amount, firm_milli=firm, history_milli=0)",
        ),
    ),
    mutant(
        "foreign work is not subtracted",
        edit("placement/ledger.py:Ledger.__init__", "max(0, WHOLE_DEVICE - device.foreign_milli)", "WHOLE_DEVICE"),
    ),
    mutant(
        "cordoned nodes are given out",
        edit(
            "placement/ledger.py:Ledger.__init__",
            "(d for d in devices if d.health is Health.HEALTHY and d.node not in closed)",
            "(d for d in devices if d.health is Health.HEALTHY)",
        ),
    ),
    mutant(
        "cordoned nodes are open",
        edit("model.py:Node.is_open", "self.schedulable and self.upkeep is Upkeep.NONE", "self.schedulable"),
    ),
    mutant(
        "a drained node keeps its work",
        edit("eviction/unavailable_devices.py:_eviction_reason", "job.preemptible or overdue", "overdue"),
    ),
    mutant(
        "a drain spares nobody",
        edit("eviction/unavailable_devices.py:_eviction_reason", "job.preemptible or overdue", "True"),
    ),
    mutant(
        "what drains is divided",
        edit("quota/fair_share.py:Claim.drains_milli", "max(0, self.fixed_milli - self.quota_milli)", "0"),
    ),
    mutant(
        "reduced guarantees count on what may not be preempted",
        edit("quota/fair_share.py:_reduced", "min(row.quota_milli, row.wanted_milli, row.fixed_milli)", "0"),
    ),
    mutant(
        "a drain deadline comes early",
        edit(
            "eviction/deadline.py:past_deadline",
            "policy.drain_by_at is None or snapshot.now < policy.drain_by_at",
            "policy.drain_by_at is None",
        ),
    ),
    mutant(
        "a drain deadline takes too many",
        edit("eviction/deadline.py:_fewest", "chosen.remove(job)", "pass"),
    ),
    mutant(
        "a department's ceiling for one user is ignored",
        edit(
            "queue/quota_state.py:QuotaState.ceiling_test",
            "[level for level in self.levels if level.user_ceiling != NO_LIMIT]",
            "[level for level in (self,) if level.user_ceiling != NO_LIMIT]",
        ),
    ),
    mutant(
        "an offer is not looked at again when a sibling's user is at the ceiling",
        edit(
            "queue/order.py:QueueOrder.first",
            "project.parent is None or project.parent.user_ceiling == NO_LIMIT",
            "True",
        ),
    ),
    mutant(
        "unknown is idle",
        edit(
            "scheduling/lending.py:_is_idle_and_empty",
            "notebook.activity is Activity.IDLE",
            "notebook.activity is not Activity.BUSY",
        ),
    ),
    mutant(
        "what is on the device is not looked at",
        edit(
            "scheduling/lending.py:_is_idle_and_empty",
            "policy.lending.enabled and notebook.activity is Activity.IDLE and notebook.seen_empty",
            "policy.lending.enabled and notebook.activity is Activity.IDLE",
        ),
    ),
    mutant(
        "slices are released at once",
        edit(
            "scheduling/lending.py:lend_and_release",
            "ends_at is not None and now >= ends_at and (not is_waking(notebook, policy))",
            "ends_at is not None and (not is_waking(notebook, policy))",
        ),
    ),
    mutant(
        "who wakes comes back anywhere",
        edit("scheduling/cycle.py:SchedulingCycle._place_slice", "self._return_lent_slice(notebook)", "False"),
    ),
    mutant(
        "guarantees stand on what is lent",
        edit("scheduling/cycle.py:SchedulingCycle._divide", "sum((notebook.gpu_milli for notebook in self.lent))", "0"),
    ),
    mutant(
        "no room is held for who wakes",
        edit("scheduling/notebook_slices.py:reserve_lent", "pool.ledger.unbooked[at] += notebook.gpu_milli", "pass"),
    ),
    mutant(
        "who is moved is not put back",
        edit("preemption/minimize.py:minimize_victims", "list(preemption.moves)", "()"),
    ),
    mutant(
        "an elastic job that leaves whole is not put back",
        edit(
            "preemption/minimize.py:_running_victims",
            "[one for one in preemption.victims if not one.reserved and one.base not in preemption.victims]",
            "[one for one in preemption.victims if one.above is None and not one.reserved "
            "and one.base not in preemption.victims]",
        ),
    ),
    mutant(
        "a claim forgets whom it moves",
        edit(
            "scheduling/cycle.py:SchedulingCycle._preempt_or_start",
            "bool(preemption.moves) or not all((victim.reserved for victim in preemption.victims))",
            "not all((victim.reserved for victim in preemption.victims))",
        ),
    ),
    mutant(
        "who was served keeps another place",
        edit(
            "scheduling/cycle.py:SchedulingCycle._serve_in_order",
            """while (found := order.first(weakest)) is not None:
    self._serve(*found)
    if self.backfill is not None and self.builder.serves(self.backfill.job):
        self._drop_backfill()
    order.renew()""",
            """while (found := order.first(weakest)) is not None:
    self._serve(*found)
    order.renew()""",
        ),
    ),
    mutant(
        "a restart counts twice",
        edit(
            "scheduling/reservations.py:_Reading._reserve_returning",
            "min(job.held_milli, size)",
            "0 * min(job.held_milli, size)",
        ),
    ),
    mutant(
        "a quota is kept with elastic surplus",
        edit("preemption/rules.py:PreemptionRules._could_reclaim", "after - surplus + size", "after + size"),
    ),
    mutant(
        "who was let out of its department is not placed on what is free",
        edit(
            "preemption/search.py:_Search._place_without_victims",
            "request.ranks > 1 or self.thorough or self.siblings_first",
            "request.ranks > 1 or self.thorough",
        ),
    ),
    mutant(
        "who leaves a place that a limit does not need stays gone",
        edit(
            "preemption/search.py:_Search.find",
            "self.is_limited and len(self.picked) > 1 and (not (self.siblings_first or self.moves))",
            "False and (not (self.siblings_first or self.moves))",
        ),
    ),
    mutant(
        "what a limit kept a claim from is no room for who was to leave",
        edit("preemption/search.py:_Search.run", "self.pool.room_came_back |= self.is_limited", "pass"),
    ),
    mutant(
        "a place is taken over by right of the project alone",
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
    mutant(
        "a place that is given up spares nobody more",
        edit(
            "scheduling/cycle.py:SchedulingCycle._minimize_victims",
            """if self.backfill_dropped:
    minimize_victims(self.pool, preemptions)
    self._reserve_backfill(first_blocked(self.pool))""",
            """if self.backfill_dropped:
    self._reserve_backfill(first_blocked(self.pool))""",
        ),
    ),
    mutant(
        "of two drained nodes the first name says when",
        edit(
            "eviction/unavailable_devices.py:_drained_by_workload",
            "sorted((one for one in snapshot.devices if one.node in nodes), key=lambda one: (by[one.node], one.id))",
            "sorted((one for one in snapshot.devices if one.node in nodes), key=lambda one: one.id)",
        ),
    ),
    mutant(
        "fixed work is wanted with its minimum",
        edit(
            "scheduling/read_pool.py:_read_running",
            "size if not job.preemptible else job.gpu_milli * job.least_ranks",
            "job.gpu_milli * job.least_ranks",
        ),
    ),
    mutant(
        "an elastic job is as large as its minimum",
        edit(
            "queue/quota_state.py:Victim.total_size",
            "self.size if self.above is None else self.size + self.above.size",
            "self.size",
        ),
    ),
    mutant(
        "broken devices are given out",
        edit(
            "placement/ledger.py:Ledger.__init__",
            "(d for d in devices if d.health is Health.HEALTHY and d.node not in closed)",
            "(d for d in devices if d.node not in closed)",
        ),
    ),
)
