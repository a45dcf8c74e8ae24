"""The code of each reason (:mod:`.reasons` has the records), and sets of codes."""

from __future__ import annotations

from enum import StrEnum


class ReasonCode(StrEnum):
    """The code of a reason; the same in REST, pages, events, logs and audit."""

    WITHIN_GUARANTEE = "within_guarantee"
    WITHIN_FAIR_SHARE = "within_fair_share"
    IDLE_SURPLUS = "idle_surplus"
    NON_PREEMPTIBLE_WITHIN_QUOTA = "non_preemptible_within_quota"
    BORROWS_NOTEBOOK_QUOTA = "borrows_notebook_quota"
    BORROWS_RESERVED_DEVICES = "borrows_reserved_devices"
    WITHIN_NOTEBOOK_QUOTA = "within_notebook_quota"
    RECLAIMED = "reclaimed"
    FAIR_SHARE_RECLAIMED = "fair_share_reclaimed"
    PREEMPTED_IN_PROJECT = "preempted_in_project"
    BORROWER_RETURNS = "borrower_returns"
    RESERVATION_BEGINS = "reservation_begins"
    MOVED = "moved"
    SHRUNK = "shrunk"
    GROWN = "grown"
    TIME_LIMIT = "time_limit"
    RANK_FAILED = "rank_failed"
    COMMAND_FAILED = "command_failed"
    COMMAND_KILLED = "command_killed"
    OUT_OF_MEMORY = "out_of_memory"
    STORAGE_LIMIT = "storage_limit"
    SUPERVISOR_LOST = "supervisor_lost"
    COMMAND_NOT_STARTED = "command_not_started"
    HELD_BY_USER = "held_by_user"
    CANCELLED_BY_USER = "cancelled_by_user"
    OVER_SHARE = "over_share"
    ENFORCEMENT_TOO_WEAK = "enforcement_too_weak"
    ENFORCEMENT_UNAVAILABLE = "enforcement_unavailable"
    DATA_UNAVAILABLE = "data_unavailable"
    CODE_UNAVAILABLE = "code_unavailable"
    STOPPED_OVER_SHARE = "stopped_over_share"
    STOPPED_TOO_WEAK = "stopped_too_weak"
    STOPPED_IDLE = "stopped_idle"
    DEVICE_UNHEALTHY = "device_unhealthy"
    NODE_DRAINED = "node_drained"
    DRAIN_DEADLINE = "drain_deadline"
    PROJECT_GONE = "project_gone"
    POOL_GONE = "pool_gone"
    LENT_WHILE_IDLE = "lent_while_idle"
    SLICE_RELEASED = "slice_released"
    NO_FREE_GPU = "no_free_gpu"
    WAITS_FOR_DRAIN = "waits_for_drain"
    BEHIND_OTHERS = "behind_others"
    BEHIND_HIGHER_PRIORITY = "behind_higher_priority"
    BEHIND_OVERDUE_JOB = "behind_overdue_job"
    BACKFILL_RESERVED = "backfill_reserved"
    ABOVE_FAIR_SHARE = "above_fair_share"
    ABOVE_LIMIT = "above_limit"
    ABOVE_TRAINING_QUOTA = "above_training_quota"
    ABOVE_NOTEBOOK_QUOTA = "above_notebook_quota"
    ABOVE_USER_CEILING = "above_user_ceiling"
    VICTIMS_PROTECTED = "victims_protected"
    PAUSES_USED_UP = "pauses_used_up"
    DEVICE_QUARANTINED = "device_quarantined"
    DEVICE_UNAVAILABLE = "device_unavailable"
    NEVER_FITS = "never_fits"
    NO_SUCH_PROJECT = "no_such_project"
    NO_SUCH_POOL = "no_such_pool"
    NO_DEVICE = "no_device"
    CLAIM_ENDED = "claim_ended"
    RESERVED_DEVICE_LOST = "reserved_device_lost"
    DRAIN_TAKEN_OVER = "drain_taken_over"


HELD_BY_ENFORCEMENT = frozenset(
    {ReasonCode.OVER_SHARE, ReasonCode.ENFORCEMENT_TOO_WEAK, ReasonCode.ENFORCEMENT_UNAVAILABLE}
)
"""Reasons for which memory enforcement puts a job on hold."""

KEPT_WHILE_STOPPING = HELD_BY_ENFORCEMENT | {ReasonCode.CODE_UNAVAILABLE}
"""Reasons for which a controller puts a job on hold; the job keeps the reason while it stops."""

SERVER_STOPPED = frozenset({ReasonCode.STOPPED_OVER_SHARE, ReasonCode.STOPPED_TOO_WEAK, ReasonCode.STOPPED_IDLE})
"""Reasons for which the service stops a notebook's server; the notebook keeps the reason afterwards."""
