"""The sentences of the reasons, by code: one with all figures, and a short one."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.reason_codes import ReasonCode as R
from .job_ends import JOB_END_SENTENCES
from .planned_start import PLANNED

_POSITION = (
    "{project} uses {used_milli:gpu} GPU of its training quota ({guarantee_milli:gpu} in force) and its fair share of "
    "{fair_milli:gpu}"
)

NOTEBOOK_WITHOUT_ROOM = (
    "{project} asked for a notebook of {asked_milli:gpu} GPU; its notebook quota is {notebook_milli:gpu}. No device "
    "has that much free beside other slices and other work, and no running work may be paused for it. It starts when "
    "enough is freed."
)
"""The sentence of a notebook for which no GPU is free: its training quota does not matter."""

BACKFILL = " Until then only jobs that end before, borrow the devices or have precedence start there."
"""The sentence after the planned start of a job with reserved devices."""

SENTENCES: Mapping[R, tuple[str, str]] = {
    R.WITHIN_GUARANTEE: (
        "{project} asked for {asked_milli:gpu} GPU and used {used_milli:gpu} of its training quota "
        "({guarantee_milli:gpu} in force), so it {starts}.",
        "It {starts}, within its project's training quota.",
    ),
    R.WITHIN_FAIR_SHARE: (
        "{project} asked for {asked_milli:gpu} GPU and used {used_milli:gpu}; its training quota in force {is} "
        "{guarantee_milli:gpu} and its fair share {fair_milli:gpu}, so it {starts} over quota. It may be paused when "
        "another project reclaims its training quota.",
        "It {starts}, over quota and within its project's fair share.",
    ),
    R.IDLE_SURPLUS: (
        "{project} asked for {asked_milli:gpu} GPU and used {used_milli:gpu}, above its fair share of "
        "{fair_milli:gpu}; the GPU would be idle, so it {starts}. It may be paused when a project below its fair share "
        "asks for GPUs.",
        "It {starts} on GPUs that would be idle.",
    ),
    R.NON_PREEMPTIBLE_WITHIN_QUOTA: (
        "{project} asked for {asked_milli:gpu} GPU that may not be preempted. Its other jobs of this kind use "
        "{non_preemptible_milli:gpu} of its training quota of {quota_milli:gpu}, so it {starts}, and is not preempted, "
        "though the project is over quota: with its preemptible jobs it used {used_milli:gpu}.",
        "It {starts}, and is not preempted: its project's non-preemptible jobs are within the training quota.",
    ),
    R.BORROWS_NOTEBOOK_QUOTA: (
        "{project} asked for {asked_milli:gpu} GPU; no GPUs that fit {are} free but those of notebook quota without a "
        "notebook, so it {starts} on them. It is paused when a notebook needs that quota.",
        "It {starts} on notebook quota that no notebook uses now. It is paused when a notebook needs that quota.",
    ),
    R.BORROWS_RESERVED_DEVICES: (
        "{project} asked for {asked_milli:gpu} GPU; what is free is reserved for another job from its planned start "
        "on, so it {starts} there and is paused before that.",
        "It {starts} on devices that are reserved for another job, and is paused before that job's planned start.",
    ),
    R.WITHIN_NOTEBOOK_QUOTA: (
        "{project} asked for a notebook of {asked_milli:gpu} GPU and used {used_milli:gpu} of its notebook quota of "
        "{quota_milli:gpu}, so it {starts}.",
        "It {starts}, within its project's notebook quota.",
    ),
    R.RECLAIMED: (
        "{preemptor_project} asked for {asked_milli:gpu} GPU for {preemptor}, within its training quota "
        "({preemptor_guarantee_milli:gpu} in force); {project} used {used_milli:gpu}, above its own "
        "({guarantee_milli:gpu} in force). The job saves within {grace_s:time} and is queued again at its old "
        "position.",
        "Another project reclaimed its training quota; the job is queued again at its old position.",
    ),
    R.FAIR_SHARE_RECLAIMED: (
        "{preemptor_project} asked for {asked_milli:gpu} GPU for {preemptor}, within its fair share of "
        "{preemptor_fair_milli:gpu}; {project} used {used_milli:gpu}, above its fair share of {fair_milli:gpu}. "
        "The job saves within {grace_s:time} and is queued again at its old position.",
        "Another project reclaimed its fair share; the job is queued again at its old position.",
    ),
    R.PREEMPTED_IN_PROJECT: (
        "{preemptor} of the same project {project} has job priority {preemptor_priority}, this job {priority}, and no "
        "other GPUs that fit were free. The job saves within {grace_s:time} and is queued again at its old position.",
        "A job of higher priority in the same project needs the GPU; this one is queued again at its old position.",
    ),
    R.BORROWER_RETURNS: (
        "{preemptor_project} asked for a notebook of {asked_milli:gpu} GPU within its notebook quota; the job borrowed "
        "notebook quota that was not booked, or that an idle notebook had lent. It saves within {grace_s:time} and is "
        "queued again at its old position.",
        "A notebook needs the quota that the job borrowed; the job is queued again at its old position.",
    ),
    R.RESERVATION_BEGINS: (
        "The job borrowed devices that are reserved for {preemptor} of {preemptor_project}, which asked for "
        "{asked_milli:gpu} GPU; the planned start of that job is near. This one saves within {grace_s:time} and is "
        "queued again at its old position.",
        "The devices are reserved for another job, whose planned start is near; this one is queued again at its old "
        "position.",
    ),
    R.MOVED: (
        "{preemptor_project} asked for {asked_milli:gpu} GPU for {preemptor}; enough is free, but spread over several "
        "devices. This job of {project} saves within {grace_s:time} and starts again at once on other devices.",
        "The free GPUs were spread over several devices; the job starts again at once on other devices.",
    ),
    R.SHRUNK: (
        "{preemptor_project} asked for {asked_milli:gpu} GPU for {preemptor}; this elastic job of {project} gives up "
        "{given_milli:gpu} GPU above its minimum. It saves within {grace_s:time} and starts again at once with "
        "{kept_milli:gpu}.",
        "Another workload needs what the elastic job has above its minimum; it starts again at once, smaller.",
    ),
    R.GROWN: (
        "{given_milli:gpu} GPU would be idle, so this elastic job of {project} saves within {grace_s:time} and starts "
        "again at once with {kept_milli:gpu} GPU.",
        "GPUs would be idle, so the elastic job starts again at once, larger.",
    ),
    R.TIME_LIMIT: (
        "The job ran for {ran_s:time} and its time limit is {time_limit_s:time}. It has {grace_s:time} to save, then "
        "it ends as failed; submit it again with a longer limit.",
        "The job reached its time limit.",
    ),
    R.RANK_FAILED: (
        "A rank of {user}'s job failed, and the other ranks cannot finish without it. They have {grace_s:time} to end; "
        "then the job is tried again if it has retries left.",
        "A rank of the job failed, so the other ranks were stopped.",
    ),
    **JOB_END_SENTENCES,
    R.DATA_UNAVAILABLE: (
        "The job was submitted with the data {data}, and {last_day} was the last day on which a job may start with it. "
        "The job is held before it starts. Ask an admin to change the day in the quota file and release the job, or "
        "clone it with other data (--data).",
        "The job was submitted with data of the quota file that its user may not use any more, so it was held before "
        "it started. Ask an admin to add the data again and release the job, or clone it with other data (--data).",
    ),
    R.CODE_UNAVAILABLE: (
        "The job's code bundle is no longer in the state folder, so the job was held before it started. Ask an admin "
        "to restore the folder bundles and release the job, or submit it again.",
        "The job's code bundle is no longer in the state folder, so the job was held before it started.",
    ),
    R.HELD_BY_USER: (
        "A user held {user}'s job. It has {grace_s:time} to save, and waits until it is released.",
        "A user held the job. It waits until it is released.",
    ),
    R.CANCELLED_BY_USER: (
        "A user cancelled {user}'s job. It has {grace_s:time} to end.",
        "A user cancelled the job.",
    ),
    R.OVER_SHARE: (
        "The job used {used_mib} MiB of device {device}, and its share is {share_mib} MiB. Its owner was warned for "
        "{warned_s:time}; now the job saves, and is held. Ask for a larger share, or make it use less, and release it "
        "or submit it again.",
        "The job used more memory of its device than its share, and was held.",
    ),
    R.ENFORCEMENT_TOO_WEAK: (
        "The job's share of device {device} was enforced at memory {memory}, compute {compute}; the quota file "
        "requires at least memory {least_memory}, compute {least_compute}. The job saves, and is held. Submit it again "
        "for a whole device, which needs no enforcement, or ask an admin to fix the device or change "
        "policy.enforcement and to release it.",
        "The enforcement of the job's share was weaker than the quota file requires, and the job was held.",
    ),
    R.ENFORCEMENT_UNAVAILABLE: (
        "The job waits for a part of a device, and no device of its pool can enforce one as the quota file requires: "
        "at least memory {least_memory}, compute {least_compute}. The best device, {device}, offers memory {memory}, "
        "compute {compute}. The job is held before it starts. Submit it again for a whole device, which needs no "
        "enforcement, or ask an admin to fix the devices or change policy.enforcement and to release it.",
        "No device of the pool can enforce the job's share as the quota file requires, so the job was held before it "
        "started.",
    ),
    R.STOPPED_OVER_SHARE: (
        "The service stopped this notebook's server: its processes used {used_mib} MiB of device {device}, and its "
        "share is {share_mib} MiB. Its owner was warned for {warned_s:time}. Files are kept, the variables of its "
        "kernels are lost. Start it again with a larger share, or make it use less.",
        "The service stopped the server: its processes used more memory of the device than its share.",
    ),
    R.STOPPED_TOO_WEAK: (
        "The service stopped this notebook's server: its share of device {device} was enforced at memory {memory}, "
        "compute {compute}, and the quota file requires at least memory {least_memory}, compute {least_compute}. Files "
        "are kept, the variables of its kernels are lost. Start it again with a whole device, which needs no "
        "enforcement, or without a GPU.",
        "The service stopped the server: the enforcement of its share was weaker than the quota file requires.",
    ),
    R.STOPPED_IDLE: (
        "The service stopped this notebook's server: its GPU was freed as unused {freed_s:time} before, and the server "
        "was not used since. Files are kept, the variables of its kernels are lost. It can be started again.",
        "The service stopped the server: it was not used for as long as the quota file's stop_server_after.",
    ),
    R.DEVICE_UNHEALTHY: (
        "Device {device} of pool {pool} on node {node} is unhealthy or gone ({trouble}), and this {kind} uses it. "
        "Preemptible jobs save and are queued again at their old position; this does not count as a pause or a "
        "retry. Notebooks and non-preemptible jobs stay until they are stopped.",
        "A device that it uses is unhealthy.",
    ),
    R.NODE_DRAINED: (
        "An admin drains node {node}, and this {kind} uses its device {device} of pool {pool}. Preemptible jobs save "
        "and are queued again at their old position; this does not count as a pause. Notebooks and non-preemptible "
        "jobs stay until they are stopped.",
        "An admin drains a node that it runs on.",
    ),
    R.DRAIN_DEADLINE: (
        "The drain deadline of the quota file has passed: {project} uses {used_milli:gpu} GPU for non-preemptible "
        "work in pool {pool}, and its training quota there is {quota_milli:gpu}. The job saves within "
        "{grace_s:time} and is queued again at its old position.",
        "The project's quota was lowered, and the drain deadline of the quota file has passed.",
    ),
    R.LENT_WHILE_IDLE: (
        "The notebook is idle and none of its processes is on the GPU, so its slice of {gpu_milli:gpu} GPU in pool "
        "{pool} is offered to preemptible jobs. It stays booked for {release_after_s:time}: when the notebook is used "
        "again, those jobs end or are paused within {lent_grace_s:time} and the notebook gets its slice back.",
        "The notebook is idle, so its slice is offered to jobs; the notebook gets it back when it is used again.",
    ),
    R.SLICE_RELEASED: (
        "The notebook was idle for {release_after_s:time} after its slice of {gpu_milli:gpu} GPU was lent, so the "
        "slice returned to the notebook quota of {project} in pool {pool}. The notebook continues, and requests a "
        "slice again when it needs a GPU.",
        "The notebook stayed idle, so its slice returned to its project's notebook quota.",
    ),
    R.NO_FREE_GPU: (
        "{project} asked for {asked_milli:gpu} GPU; no devices are free for it, and no running work may be paused for "
        "it. " + _POSITION + ". It starts when enough is freed.",
        "No GPU that fits is free. It starts when one is freed.",
    ),
    R.WAITS_FOR_DRAIN: (
        "{asked_milli:gpu} GPU is reserved for it; it starts as soon as the work that still runs there has ended.",
        "Devices are reserved for it; it starts as soon as the work that still runs there has ended.",
    ),
    R.BEHIND_OTHERS: (
        "{project} asked for {asked_milli:gpu} GPU, and other work of the same kind comes first. "
        + _POSITION
        + ". It starts when that work has started.",
        "Other work comes first.",
    ),
    R.BEHIND_HIGHER_PRIORITY: (
        "{project} asked for {asked_milli:gpu} GPU. Jobs of the same project with a higher job priority wait for GPUs, "
        "too, and come first: {ahead:job}, at the head {workloads}. "
        + _POSITION
        + ". It starts when enough is freed for them and for it, or earlier on GPUs that do not fit them.",
        "Jobs of its project with a higher priority come first.",
    ),
    R.BEHIND_OVERDUE_JOB: (
        "{project} asked for {asked_milli:gpu} GPU. Job {workload} of the same project has waited for {waited_s:time} "
        "without ever starting, longer than policy.patience of the quota file; based on the time limits of the "
        "running work, it starts in about {planned_s:time}. Younger jobs start only if they end before, so this one "
        "waits until that job has started.",
        "An older job of its project has waited longer than policy.patience, and comes first.",
    ),
    R.BACKFILL_RESERVED: (
        "{project} asked for {asked_milli:gpu} GPU and no devices that fit are free; some are reserved for it. "
        + PLANNED
        + BACKFILL,
        "Devices are reserved for it; it starts when the work there has ended.",
    ),
    R.ABOVE_FAIR_SHARE: (
        "{project} asked for {asked_milli:gpu} GPU; it uses {used_milli:gpu} and its fair share is {fair_milli:gpu}, "
        "so no other work is paused for it. It starts when devices that fit are idle and no job comes before it.",
        "Its project would be above its fair share, so it starts only on idle GPUs.",
    ),
    R.ABOVE_LIMIT: (
        "{project} asked for {asked_milli:gpu} GPU; its limit is {limit_milli:gpu}, of which {notebook_milli:gpu} is "
        "kept for notebooks, and {used_milli:gpu} is in use. It starts when enough of that is freed or the limit is "
        "raised.",
        "Its project, or the department of its project, is at its limit.",
    ),
    R.ABOVE_TRAINING_QUOTA: (
        "{project} requested {asked_milli:gpu} GPU for a non-preemptible job; its training quota is {quota_milli:gpu}, "
        "and such jobs use {used_milli:gpu} of it. The job starts when it fits inside that quota beside them; a "
        "preemptible job may start on any idle GPU.",
        "A non-preemptible job must fit inside the training quota.",
    ),
    R.ABOVE_NOTEBOOK_QUOTA: (
        "{project} asked for a notebook of {asked_milli:gpu} GPU; its notebook quota in pool {pool} is "
        "{quota_milli:gpu} and {used_milli:gpu} is in use.",
        "The notebook quota of its project is used up. Choose a smaller slice or stop a notebook.",
    ),
    R.ABOVE_USER_CEILING: (
        "{user} asked for {asked_milli:gpu} GPU and uses {used_milli:gpu}; the ceiling for each user of {project} is "
        "{ceiling_milli:gpu}. It starts when enough of what {user} uses is freed.",
        "Its user is at the ceiling that the project has for each user.",
    ),
    R.VICTIMS_PROTECTED: (
        "{project} asked for {asked_milli:gpu} GPU within its fair share of {fair_milli:gpu}; the work that could be "
        "paused for it is still protected by its minimum run time or its limit of pauses. It starts when that "
        "protection ends or a GPU is freed.",
        "The work that could be paused for it is still protected.",
    ),
    R.PAUSES_USED_UP: (
        "The limit is {max_pauses:pause} within {per_s:time}, and the job has reached it. It starts when "
        "{asked_milli:gpu} GPU is free within the training quota of {project} ({guarantee_milli:gpu} in force), since "
        "no other project can reclaim that, or when its oldest pause is no longer counted.",
        "The job reached its limit of pauses, and waits for GPUs that no other work can reclaim.",
    ),
    R.DEVICE_QUARANTINED: (
        "{project} asked for {asked_milli:gpu} GPU; device {device} of pool {pool}, which it needs, is quarantined: "
        "processes of {workload}, attempt {attempt}, were killed but still exist. It starts when they are gone.",
        "A device that it needs is quarantined, because processes on it that were killed still exist.",
    ),
    R.DEVICE_UNAVAILABLE: (
        "{project} asked for {asked_milli:gpu} GPU; pool {pool} has that only together with {devices:device} that "
        "cannot be allocated now: device {device} is {trouble}. It starts when enough of them are available again.",
        "Devices that it needs cannot be allocated now. It starts when they are available again.",
    ),
    R.NEVER_FITS: (
        "{project} asked for {asked_milli:gpu} GPU in {ranks:rank}; pool {pool} has {capacity_milli:gpu} GPU and room "
        "for {possible_ranks:such rank} without other jobs and notebooks. It cannot start there: ask for less or "
        "choose another pool.",
        "It cannot start: it does not fit the pool, even without other jobs and notebooks.",
    ),
    R.PROJECT_GONE: (
        "Project {project} is no longer in the quota file. This {kind} keeps its GPUs until {until}; nothing else "
        "starts on them before.",
        "Its project is no longer in the quota file; it keeps its GPUs until it ends.",
    ),
    R.POOL_GONE: (
        "Pool {pool} is no longer in the quota file. This {kind} keeps its GPUs until {until}; nothing else starts on "
        "them before.",
        "Its pool is no longer in the quota file; it keeps its GPUs until it ends.",
    ),
    R.NO_SUCH_PROJECT: (
        "Project {project} is no longer in the quota file, so this never starts. Ask an admin to put the project back, "
        "or cancel it and submit it to another project.",
        "Its project is no longer in the quota file. Ask an admin to put it back, or cancel it.",
    ),
    R.NO_SUCH_POOL: (
        "Pool {pool} is no longer in the quota file, so this never starts. Ask an admin to put the pool back, or "
        "cancel it and choose a pool from `jupyter gpu-quota pools`.",
        "Its pool is no longer in the quota file. Ask an admin to put it back, or cancel it.",
    ),
    R.NO_DEVICE: (
        "{project} asked for a notebook of {asked_milli:gpu} GPU; pool {pool} has no device, so nothing starts there. "
        "Choose another pool, or no GPU.",
        "Its pool has no device. Choose another pool, or no GPU.",
    ),
    R.CLAIM_ENDED: (
        "The workload that these devices were reserved for no longer waits for them.",
        "The workload that these devices were reserved for no longer waits for them.",
    ),
    R.RESERVED_DEVICE_LOST: (
        "A reserved device can no longer be allocated; other devices are chosen.",
        "A reserved device can no longer be allocated; other devices are chosen.",
    ),
    R.DRAIN_TAKEN_OVER: (
        "{preemptor_project} took over this reservation for {preemptor}, within its training quota; the workload that "
        "had it keeps its position in the queue.",
        "A claim within a training quota took over this reservation.",
    ),
}
"""By code: the sentence with all figures, and a short one that needs none of them."""
