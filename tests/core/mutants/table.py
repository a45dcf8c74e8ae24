"""The rules that ``make mutants`` breaks, one mutant each."""

from __future__ import annotations

from tests.core.mutants.edits import edit, mutant
from tests.core.mutants.preemption import PREEMPTION_MUTANTS

MUTANTS = (
    *PREEMPTION_MUTANTS,
    mutant(
        "the entry check is dropped",
        edit("queue/quota_state.py:QuotaState.entitlement", "FAIR if total <= self.fair else SURPLUS", "FAIR"),
    ),
    mutant(
        "a user's ceiling in a department lowers its projects' quotas",
        edit("queue/division.py:divide_pool", "max(one.fair, one.guarantee)", "one.fair"),
    ),
    mutant(
        "what elastic jobs use above their minimum counts in no guarantee",
        edit("quota/fair_share.py:_guarantees", "row.wanted_milli + row.above_minimum_milli", "row.wanted_milli"),
    ),
    mutant(
        "departments are ignored in the division",
        edit("queue/division.py:divide_pool", "not pool.departments", "True"),
    ),
    mutant(
        "a department's limit is ignored",
        edit("queue/quota_state.py:QuotaState.at_limit", "level.limit != NO_LIMIT", "level is self"),
    ),
    mutant(
        "a department's quota is ignored for non-preemptible work",
        edit(
            "queue/quota_state.py:QuotaState.fits_non_preemptible",
            "all((level.non_preemptible_use + size <= level.quota for level in self.levels))",
            "self.non_preemptible_use + size <= self.quota",
        ),
    ),
    mutant(
        "exactly at the training quota is refused",
        edit(
            "queue/quota_state.py:QuotaState.fits_non_preemptible",
            "level.non_preemptible_use + size <= level.quota",
            "level.non_preemptible_use + size < level.quota",
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
            "scheduling/plan_builder.py:PlanBuilder._preemption_actions",
            "[*actions, Reserve(workload=preemptor.id, placements=where, reason=reason)]",
            "actions",
        ),
    ),
    mutant(
        "no backfill reservation is made",
        edit("backfill/state.py:BackfillState._replace", "self.plan(project, queue, queue.first())", "None"),
    ),
    mutant(
        "any job overtakes a backfill reservation",
        edit(
            "backfill/reservation.py:BackfillReservation.longest_time_limit_s",
            "longest_time_limit_s(pool, self.starts_at)",
            "1 << 40",
        ),
    ),
    mutant(
        "a borrower of a backfill reservation stays at the planned start",
        edit(
            "backfill/state.py:BackfillState._stop_borrowers",
            "reservation.starts_at - grace_ms(self.pool) > self.pool.now",
            "True",
        ),
    ),
    mutant(
        "a claim that borrows too late is started, and paused at once",
        edit(
            "backfill/state.py:BackfillState._stop_borrowers",
            "(one for one in self.pool.reserved if one.borrower)",
            "()",
        ),
    ),
    mutant(
        "the devices that a moved backfill reservation leaves wait for the next plan",
        edit("scheduling/cycle.py:SchedulingCycle._verify_backfill", "self._serve_freed()", "pass"),
    ),
    mutant(
        "between victims the quota of the project decides before that of its department",
        edit(
            "preemption/minimize.py:_restore_order",
            "(department.use >= department.guarantee, project.use >= project.guarantee)",
            "(project.use >= project.guarantee, department.use >= department.guarantee)",
        ),
    ),
    mutant(
        "a victim of a department or project below its quota is restored like any other",
        edit("preemption/minimize.py:_restorable", "_restore_order(one.project)", "0"),
        edit("preemption/minimize.py:_restorable", "one.borrower", "0"),
    ),
    mutant(
        "a backfill reservation is not recorded",
        edit(
            "scheduling/plan_builder.py:PlanBuilder._backfill_actions",
            "not same or (recorded is not None and recorded.placements != where)",
            "False",
        ),
    ),
    mutant(
        "a recorded planned start is not kept",
        edit(
            "backfill/state.py:BackfillState._verified",
            "not is_sound or (planned is not None and planned.starts_at < reservation.starts_at)",
            "True",
        ),
    ),
    mutant(
        "work that a plan moves or resizes is not verified",
        edit("scheduling/cycle.py:SchedulingCycle.run", "self._verify_backfill()", "pass"),
    ),
    mutant(
        "a backfill reservation does not count the guarantees of others",
        edit(
            "backfill/reservation.py:waits_for_devices_or_own_limit",
            "fits_beside_guarantees(pool, project, job_class.request)",
            "True",
        ),
    ),
    mutant(
        "a backfill reservation passes while devices are idle for it",
        edit("backfill/state.py:BackfillState.pass_on", "self._has_idle_devices(reservation)", "False"),
    ),
    mutant(
        "a backfill reservation passes to no one",
        edit("backfill/state.py:BackfillState.pass_on", "self._precedes(*first, reservation)", "False"),
    ),
    mutant(
        "a backfill reservation passes to a job of a weaker entitlement",
        edit("backfill/reservation.py:BackfillReservation.gives_way_to", "is_no_worse", "True"),
    ),
    mutant(
        "a job of the reservation's own project has the better right",
        edit("backfill/reservation.py:BackfillReservation.has_better_right", "project is self.project", "False"),
    ),
    mutant(
        "a claim without a checked shape has the better right",
        edit(
            "backfill/reservation.py:BackfillReservation.has_better_right",
            "has_checked_shape(pool, project, queue.job_class.request)",
            "True",
        ),
    ),
    mutant(
        "an overdue job is overtaken",
        edit("scheduling/job_service.py:JobService.serve", "self._waits_for_overdue_job(one)", "False"),
    ),
    mutant(
        "what a claim frees beyond its need is not offered again",
        edit("scheduling/cycle.py:SchedulingCycle._serve_in_order", "self.claims.offers_again", "False"),
    ),
    mutant(
        "work that is stopping is not counted under the ceilings for users",
        edit("queue/quota_state.py:QuotaState.user_total", "self.leaving_by.get(user, 0)", "0"),
    ),
    mutant(
        "non-preemptible work starts on the tightest device",
        edit(
            "scheduling/job_service.py:JobService._start_free", "self._beside_whole_nodes(queue.job_class, fit)", "fit"
        ),
    ),
    mutant(
        "above the fair share past use has no part in the order",
        edit("queue/order.py:_key", "past if entitlement is SURPLUS else 0", "0"),
    ),
    mutant(
        "a notebook without reports is classified as idle",
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
        edit("queue/job_queue.py:WaitingJobs._sort_in", "job.submitted_at", "0"),
        edit("queue/job_queue.py:WaitingJobs.drop", "job.submitted_at", "0"),
    ),
    mutant(
        "a paused job pauses its preemptor",
        edit(
            "preemption/rules.py:preemptor_of",
            "None if entitlement is GUARANTEE else job.paused_for",
            "None",
        ),
    ),
    mutant(
        "a backfill reservation blocks its own job",
        edit("scheduling/job_service.py:JobService._search", "not self.backfill.holds(one.queue)", "True"),
    ),
    mutant(
        "other claims count as use where a claim starts",
        edit("scheduling/cycle.py:SchedulingCycle._waits_for_limit", "one is not victim", "False"),
    ),
    mutant(
        "the newest claim starts first",
        edit(
            "scheduling/cycle.py:SchedulingCycle._start_reserved",
            "(one.started_at, one.id)",
            "(-one.started_at, one.id)",
        ),
    ),
    mutant(
        "a move and the reservation that requires it are restored apart",
        edit("preemption/minimize.py:_restored_with_move", "[(), *((one,) for one in taken_over)]", "[()]"),
    ),
    mutant(
        "a project is guaranteed more than its department",
        edit(
            "queue/division.py:divide_pool",
            "_divide(pool, inside, wants, max(one.fair, one.guarantee), one.guarantee)",
            "_divide(pool, inside, wants, max(one.fair, one.guarantee), max(one.fair, one.guarantee))",
        ),
    ),
    mutant(
        "of equal jobs the order of the input decides which ends first",
        edit("backfill/planning.py:_in_order", "sorted(ordered[at:to])", "ordered[at:to]"),
    ),
    mutant(
        "weight 0 reclaims surplus",
        edit(
            "preemption/victims.py:victim_scope",
            "project.weight == 0 or not queue.job_class.preemptible",
            "not queue.job_class.preemptible",
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
            "divide(owners, amount, firm_milli=firm, history_milli=pool.policy.history.k_milli)",
            "divide(owners, amount, firm_milli=firm, history_milli=0)",
        ),
    ),
    mutant(
        "foreign use is not subtracted",
        edit("placement/ledger.py:Ledger.__init__", "max(0, WHOLE_DEVICE - device.foreign_milli)", "WHOLE_DEVICE"),
    ),
    mutant(
        "devices of cordoned nodes are allocated",
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
        edit(
            "eviction/unavailable_devices.py:_eviction_reason",
            "job.preemptible or is_past_deadline",
            "is_past_deadline",
        ),
    ),
    mutant(
        "a drain evicts non-preemptible work",
        edit("eviction/unavailable_devices.py:_eviction_reason", "job.preemptible or is_past_deadline", "True"),
    ),
    mutant(
        "draining work is divided",
        edit(
            "quota/fair_share.py:Owner.above_quota_milli", "max(0, self.non_preemptible_milli - self.quota_milli)", "0"
        ),
    ),
    mutant(
        "reduced guarantees count on non-preemptible work",
        edit("quota/fair_share.py:_reduced", "min(ceilings[row.name], row.non_preemptible_milli)", "0"),
    ),
    mutant(
        "what an owner gets below its floor costs the others",
        edit("quota/fair_share.py:_poured_in_steps", "bounds[part.name] > part.floor << EXACT", "True"),
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
        "the order is not renewed when a sibling's user is at the ceiling",
        edit(
            "queue/order.py:_is_obsolete",
            "department is not None and department.user_ceiling != NO_LIMIT and (best_in_project(row.project) != row)",
            "False",
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
        "memory on the device is ignored",
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
        "a lent slice returns to any device",
        edit("scheduling/notebook_placement.py:NotebookPlacement._place", "self._return_lent(notebook)", "False"),
    ),
    mutant(
        "guarantees count lent slices",
        edit(
            "scheduling/cycle.py:SchedulingCycle._divide",
            "sum((notebook.gpu_milli for notebook in notebooks.lent))",
            "0",
        ),
    ),
    mutant(
        "no room is reserved for lent slices",
        edit(
            "scheduling/notebook_slices.py:reserve_lent", "pool.ledger.unused_quota[at] += notebook.gpu_milli", "pass"
        ),
    ),
    mutant(
        "a new slice uses the room of lent slices",
        edit("scheduling/notebook_slices.py:_unbooked", "max(0, unused - lent)", "unused"),
    ),
    mutant(
        "a new slice claims the room of lent slices",
        edit("placement/ledger.py:Ledger.slice_after", "max(self.lent[at], borrowed)", "borrowed"),
    ),
    mutant(
        "a claim forgets the work that it moves",
        edit(
            "scheduling/claims.py:Claims.preempt_or_start",
            "stops or preemption.moves or project.at_limit(0)",
            "stops or project.at_limit(0)",
        ),
    ),
    mutant(
        "a served job keeps its backfill reservation",
        edit(
            "scheduling/cycle.py:SchedulingCycle._drop_served_reservation",
            "reservation is not None and not reservation.queue.has(self.pool.waiting[reservation.job])",
            "False",
        ),
    ),
    mutant(
        "a restart counts twice",
        edit(
            "scheduling/reservations.py:_ReservationReader._reserve_returning",
            "min(job.held_milli, size)",
            "0 * min(job.held_milli, size)",
        ),
    ),
    mutant(
        "of two drained nodes the first name decides the deadline",
        edit(
            "eviction/unavailable_devices.py:_drained_by_workload",
            "sorted((one for one in snapshot.devices if one.node in nodes), key=lambda one: (by[one.node], one.id))",
            "sorted((one for one in snapshot.devices if one.node in nodes), key=lambda one: one.id)",
        ),
    ),
    mutant(
        "non-preemptible work is wanted with its minimum",
        edit(
            "scheduling/read_pool.py:_count_use",
            "job.gpu_milli * job.least_ranks if preemptible else size",
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
        "unhealthy devices are allocated",
        edit(
            "placement/ledger.py:Ledger.__init__",
            "(d for d in devices if d.health is Health.HEALTHY and d.node not in closed)",
            "(d for d in devices if d.node not in closed)",
        ),
    ),
)
