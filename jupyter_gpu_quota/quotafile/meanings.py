"""The meaning of each key of the quota file, with an example: for its JSON Schema and the reference page."""

from __future__ import annotations

from collections.abc import Mapping

POLICY: Mapping[str, Mapping[str, str]] = {
    "PolicySection": {
        "idle": "When a notebook is idle, and what happens then.",
        "preemption": "How often, how soon and with how much notice jobs are paused.",
        "enforcement": "The weakest enforcement of a share that is accepted.",
        "history": "How past use above quota counts.",
        "within_project": "The order of jobs of a project: first that of the user with the least use, or the oldest.",
        "patience": "A job that has waited so long and never started is not overtaken by younger jobs of its project.",
        "tick_max": "The longest time between two decisions of the scheduler, from 10ms to 1s.",
        "drain_by": "From this instant on, non-preemptible jobs above the quota of their project or department are "
        "stopped and queued again: `2027-01-31T18:00:00Z`. Without it they run to their end.",
    },
    "PreemptionSection": {
        "min_runtime": "No job is paused before it has run for so long, except for a claim within a training quota "
        "that nothing else can satisfy.",
        "grace": "The time that a job has to save between the request to pause and its end.",
        "lent_grace": "The same for a borrower of notebook quota (unbooked or lent).",
        "max_pauses": "After this number of pauses within `per` a job is paused only for a claim within a training "
        "quota that nothing else can satisfy.",
        "per": "The period in which pauses are counted.",
    },
    "EnforcementSection": {
        "memory": "For the memory of a part of a device. With `policed` work above its share is stopped.",
        "compute": "For the compute time of a part of a device.",
    },
    "History": {
        "k": "How strongly past use lowers the fair share; with 0 it only orders the queue.",
        "half_life": "After so long, past use counts half.",
        "window": "Older use does not count.",
    },
    "Idle": {
        "mode": "`report` shows what would be freed; `reclaim` frees it, after a warning.",
        "gpu_idle_after": "The GPU is unused when no process of the notebook used it for so long.",
        "kernel_idle_after": "A kernel is idle when it had no message for so long.",
        "when_nobody_waits": "While no work waits for the GPU, replaces each of both that is shorter.",
        "warn_for": "The countdown between the warning and the end of the kernels.",
        "keep_at_most": "How often *Keep* postpones the warning until the GPU is used again.",
        "release_after": "The freed slice stays booked, and is lent, for so long; then the kernel requests a new one.",
        "stop_server_after": "A server without any activity is stopped after so long.",
        "busy_notify_after": "The user of a kernel that is busy for so long without using the GPU is notified: `4h`.",
        "suspend": "Experimental: kernels are suspended with their variables, not shut down, where their server can.",
        "maximum_lease": "The longest time that a notebook may have its slice.",
    },
}

CALENDAR: Mapping[str, Mapping[str, str]] = {
    "CalendarSection": {
        "name": "The name of the window in messages: `nights`.",
        "when": "When it is open.",
        "projects": "The amounts of projects meanwhile: `{fraud: {big: {training: 6}}}`.",
        "departments": "The amounts of departments meanwhile, in the same form.",
    },
    "WhenSection": {
        "from": "The time at which it opens.",
        "to": "The time at which it closes, on the next day where that is earlier than `from`.",
        "days": "The days of the week on which it opens: `[mon, tue]`.",
        "dates": "The dates on which it opens.",
        "timezone": "The time zone of days and times.",
        "holidays": "It opens on public holidays only.",
        "except_holidays": "It does not open on public holidays.",
    },
    "AmountsChange": {
        "notebook": "The quota for notebooks: `2`.",
        "training": "The guaranteed quota for jobs: `6`.",
        "limit": "The most that notebooks and jobs together may use: `8`.",
        "weight": "The weight in dividing the surplus: `2`.",
        "per_user": "The ceilings for each user.",
    },
    "ChangedPerUser": {
        "notebook": "The most for the notebooks of one user: `0.25`.",
        "jobs": "The most for the running jobs of one user: `4`.",
    },
}

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "QuotaFile": {
        "version": "The version of this format.",
        "revision": "The revision that `quota export` read; `quota apply` refuses the file when there is a newer one.",
        "pools": "Named sets of devices; each device is in the first one whose selector takes it.",
        "departments": "Groups of projects with a quota together.",
        "projects": "The owners of quotas, and their members.",
        "environments": "Interpreters that jobs may name.",
        "data": "Folders of data that jobs of some groups may use.",
        "calendar": "Windows of time with other amounts.",
        "policy": "Rules for all pools and projects.",
    },
    "PoolSection": {
        "name": "Its name in requests and messages: `big`.",
        "selector": "Its devices. Without one it has all that no earlier pool took.",
        "uses": "The kinds of work that it is for. `inference` has no effect yet.",
        "maximum": "The most that a job may request in it.",
        "cost_per_gpu_hour": "The price of an allocated GPU for an hour, for `usage`.",
    },
    "CostSection": {
        "amount": "The price of one GPU for an hour: `0.4`.",
        "currency": "The code of the currency: `EUR`.",
    },
    "Selector": {
        "gpu_model": "Models by words of their names: `[H100, A100]`.",
        "node": "Machines by their names: `[gpu-1, gpu-2]`.",
        "cluster": "A cluster of `c.GPUQuota.kubernetes_clusters`: `west`. Without it, the hub's own.",
    },
    "DepartmentSection": {
        "name": "Its name: `risk`.",
        "priority": "From 0 to 100. The surplus goes to departments of a higher priority first.",
        "quota": "Its amounts in each pool: `{big: {training: 8}}`.",
    },
    "ProjectSection": {
        "name": "Its name in requests and messages: `fraud`.",
        "department": "The department that it belongs to.",
        "priority": "From 0 to 100. The surplus goes to projects of a higher priority first.",
        "members": "The users who may submit to it, and its leads.",
        "quota": "Its amounts in each pool: `{big: {training: 2, limit: 6}}`.",
        "defaults": "Values for requests that name none.",
        "maximum": "The most that a job of it may request.",
        "storage": "The space for the outputs of its ended jobs, and how long they are kept.",
    },
    "StorageSection": {
        "outputs": "The space for the outputs of its ended jobs together: `50GiB`. While it is used up, no job can be "
        "submitted. One job may write no more than this either.",
        "keep": "How long the outputs of a job are kept after its end: `30d`. Without it, as long as the job is listed."
        " A job is listed at least as long as the longest of these.",
    },
    "Members": {
        "groups": "Groups of the hub: `[fraud-ds]`.",
        "users": "Users of the hub: `[ann]`.",
        "leads": "Users who see and change every job of the project: `[bob]`.",
    },
    "AmountsSection": {
        "notebook": "The quota for notebooks, which is always available to them: `0.5`.",
        "training": "The guaranteed quota for jobs: `2`.",
        "limit": "The most that notebooks and jobs together may use, surplus included: `6`. Without it, the pool.",
        "weight": "The part of the surplus, beside the weights of others of the same priority: `2`. With 0: only what "
        "no other project wants.",
        "per_user": "Ceilings for each user.",
    },
    "PerUser": {
        "notebook": "The most for the notebooks of one user: `0.25`. Without it, the whole quota.",
        "jobs": "The most for the running jobs of one user: `4`. Without it, no ceiling.",
    },
    "Defaults": {
        "environment": "The environment of jobs that name none: `torch-2`.",
        "pool": "The pool of work that names none.",
        "time_limit": "The time limit of one attempt of a job that names none.",
    },
    "Maximum": {"time_limit": "The longest time limit of one attempt: `7d`. Without it, ten years."},
    "KindPools": {
        "notebook": "Of notebooks: `small`.",
        "training": "Of jobs: `big`.",
        "inference": "Of inference endpoints: `small`. It has no effect yet.",
    },
    "EnvironmentSection": {
        "name": "Its name in `--environment`: `torch-2`.",
        "image": "The image of pods: `registry/torch:2`. On one machine it is not used.",
        "python": "The interpreter on this machine, or in the image: `/opt/torch-2/bin/python`. Without it, the first "
        "`python` of the image.",
        "projects": "The projects that may name it: `[fraud]`. Without it, all.",
    },
    "DataSection": {
        "name": "Its name in `--data`, and in the variable that has its path: `transactions`.",
        "path": "The folder on one machine: `/data/transactions`. Its file permissions decide who can read it.",
        "claim": "The PersistentVolumeClaim that pods mount, in the namespace of jobs: `transactions`.",
        "sub_path": "The folder of the claim's volume: `2026/q4`. Without it, the whole volume.",
        "mount": "The path inside pods: `/data/transactions`. Without it, `path`, or else `/data/` and the name.",
        "read_only": "Pods get it read-only. On one machine file permissions decide, and `doctor` checks them.",
        "groups": "Groups of the hub whose members may use it: `[fraud-ds]`.",
        "until": "The last day on which a job may start with it, in UTC: `2027-01-31`. Without it, no last day.",
    },
    **CALENDAR,
    **POLICY,
}
"""By class and key."""
