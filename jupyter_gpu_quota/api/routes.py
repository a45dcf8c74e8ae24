"""The table of the REST API: every method and path, its scope, its handler, and its wire models.

The router, openapi.json and the access test all read this table, and nothing else.
"""

from __future__ import annotations

import re

from .. import wire
from ..wire import activity, samples
from ..wire import quota as policy
from ..wire import status as service
from . import events
from .access.permissions import Scope
from .handlers import (
    audit,
    bundles,
    cluster,
    jobs,
    kernel_requests,
    logs,
    nodes,
    notebooks,
    quota,
    status,
    usage,
)
from .handlers.reports import notebook_reports, samples_of_nodes
from .requests import etags
from .requests.call import PAGED, Answer, Call, Route
from .requests.openapi import openapi

S = Scope
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"


async def _openapi(call: Call) -> Answer:
    return Answer(body=openapi(ROUTES, call.services.people.auth.base_url))


ROUTES: tuple[Route, ...] = (
    # --- the service itself
    Route("GET", "health", S.OPEN, status.health, "The API is alive.", gives=service.HealthView),
    Route("GET", "ready", S.OPEN, status.ready, "The service is ready for work.", gives=service.ReadyView),
    Route("GET", "version", S.OPEN, status.version, "Release and API.", gives=service.VersionView),
    Route("GET", "openapi.json", S.OPEN, _openapi, "This table as OpenAPI 3.1."),
    Route("GET", "recovery", S.ADMIN, status.recovery, "The hold after an older database was restored.",
          gives=service.RecoveryView, operation="read the recovery"),
    Route("POST", "recovery/actions/accept", S.APPLY, status.accept_recovery,
          "End the hold: set the jobs to the state that their supervisors recorded.", takes=service.RecoveryEdit,
          gives=service.RecoveryView, operation="end the hold of decisions"),
    # --- people
    Route("GET", "me", S.READ_OR_HUB, cluster.me, "The sender of the request.", gives=service.MeView, query=("user",),
          etag=etags.of_me),
    # --- jobs
    Route("GET", "jobs", S.READ, jobs.listing,
          "Jobs of your projects, newest first; search: in name, command and id; sort: a column, - for descending.",
          gives=wire.JobView,
          query=("project", "mine", "user", "state", "live", "since", "search", "sort", *PAGED), etag=etags.of_jobs),
    Route("POST", "jobs", S.SUBMIT, jobs.submit, "Queue a job; with dry_run say what would happen (200, DryRunView).",
          takes=wire.JobRequest, gives=wire.JobView, status=201, rate_limited=True),
    Route("GET", "jobs/{id}", S.READ, jobs.show, "One job with its ranks.", gives=wire.JobDetail),
    Route("POST", "jobs/{id}/actions/{change:hold|release|cancel}", S.SUBMIT, jobs.change,
          "Hold, release or cancel; repeating changes nothing.", gives=wire.JobView, rate_limited=True),
    Route("POST", "jobs/{id}/actions/{repeat:clone|rerun}", S.SUBMIT, jobs.repeat, "A new job from an old one's spec.",
          takes=wire.CloneRequest, gives=wire.JobView, status=201, rate_limited=True),
    Route("GET", "jobs/{id}/logs", S.READ, logs.show, "A rank's log; follow=1 gives events.",
          query=("attempt", "rank", "offset", "limit", "follow"), media_type="text/plain"),
    Route("GET", "jobs/{id}/metrics", S.READ, jobs.metrics, "A job's metrics and device use over time.",
          gives=wire.MetricsView),
    Route("GET", "jobs/{id}/provenance", S.READ, jobs.provenance,
          "The code, Python, distributions and data of an attempt.", gives=wire.ProvenanceView, query=("attempt",)),
    Route("GET", "jobs/{id}/outputs", S.READ, logs.outputs,
          "The files in a job's outputs folder; archive=1: all of them as one tar.gz.", gives=wire.OutputView,
          query=("archive", *PAGED)),
    Route("DELETE", "jobs/{id}/outputs", S.SUBMIT, logs.remove_outputs,
          "Remove the outputs of a job that has ended; repeating changes nothing.", status=204, rate_limited=True),
    Route("GET", "jobs/{id}/outputs/{path...}", S.READ, logs.output, "One file of that folder.", media_type=BYTES),
    Route("PUT", "bundles/{digest}", S.SUBMIT, bundles.put, "Keep a code bundle by its SHA-256.",
          gives=wire.BundleView, status=201, rate_limited=True),
    Route("HEAD", "bundles/{digest}", S.SUBMIT, bundles.is_kept, "Whether your own bundle is kept.",
          media_type="application/gzip"),
    # --- notebooks
    Route("GET", "notebooks", S.READ_OR_HUB, notebooks.listing,
          "Live slices of your projects; stopped=1: also recently stopped ones.", gives=wire.NotebookView,
          query=("stopped", *PAGED), etag=etags.of_notebooks),
    Route("POST", "notebooks", S.HUB, notebooks.request, "Request a slice; only for the hub's spawner.",
          takes=wire.NotebookRequest, gives=wire.RequestedSliceView, status=201, operation="request a slice"),
    Route("GET", "notebooks/{id}", S.READ_OR_HUB, notebooks.show, "One slice; wait_s waits for a change.",
          gives=wire.NotebookView, query=("wait_s", "seen_state", "seen_reason")),
    Route("DELETE", "notebooks/{id}", S.HUB, notebooks.return_slice, "Return a slice; repeating changes nothing.",
          status=204, operation="return a slice"),
    Route("POST", "notebooks/{id}/activity", S.SUBMIT, notebook_reports.report,
          "A report of the notebook's server; answers its idle classification.", takes=activity.ActivityReport,
          gives=activity.ActivityAnswer, by_secret=True),
    Route("POST", "notebooks/{id}/actions/keep", S.SUBMIT, notebook_reports.keep, "Postpone an idle warning.",
          gives=wire.IdleView, rate_limited=True, by_secret=True),
    Route("POST", "notebooks/{id}/actions/wake", S.SUBMIT, kernel_requests.wake,
          "A starting kernel requests the slice; wait_s waits for it.", takes=activity.WakeRequest,
          gives=activity.WakeAnswer, by_secret=True),
    # --- what there is
    Route("GET", "projects", S.READ, cluster.projects, "Your projects: quota, use, fair share.",
          gives=wire.ProjectView, query=PAGED, etag=etags.of_projects),
    Route("GET", "environments", S.READ, quota.environments, "The environments that your jobs may name.",
          gives=wire.EnvironmentView, query=PAGED),
    Route("GET", "data", S.READ, quota.data, "The data that one's jobs may use.", gives=wire.DataView, query=PAGED),
    Route("GET", "pools", S.READ, cluster.pools, "The pools.", gives=wire.PoolView, query=PAGED),
    Route("GET", "nodes", S.READ, cluster.nodes, "The nodes.", gives=wire.NodeView, query=PAGED),
    Route("POST", "nodes/{id}/actions/{change:cordon|uncordon|drain}", S.APPLY, nodes.change,
          "Keep new work from a node, or empty it; dry_run: only the effects.", takes=wire.NodeEdit,
          gives=wire.NodeChangeView, operation="{change} nodes"),
    Route("POST", "nodes/{id}/actions/remove", S.APPLY, nodes.remove_node,
          "Remove a node that is gone, with its devices.", gives=wire.RemovedView, operation="remove nodes"),
    Route("POST", "devices/{id}/actions/remove", S.APPLY, nodes.remove_device, "Remove a device that is gone.",
          gives=wire.RemovedView, operation="remove devices"),
    Route("GET", "devices", S.READ, cluster.devices, "The devices with their allocations and their utilisation.",
          gives=wire.DeviceView, query=PAGED),
    Route("GET", "samples", S.READ_OR_HUB, cluster.samples,
          "The newest reading of each device; with device, all of it.",
          gives=samples.SampleView, query=("device", "from", "to", *PAGED)),
    Route("POST", "samples", S.APPLY_HUB_OR_NODE, samples_of_nodes.ingest,
          "Ingest one node's readings; 409 unknown_device if one is not recorded: keep the batch and send it again.",
          takes=samples.SampleBatch, gives=samples.IngestedView, operation="send readings of devices"),
    Route("GET", "usage", S.READ, usage.show,
          "Allocated and used GPU hours, and waits, by one key, in the hours that begin in a period; csv=1: as a file.",
          gives=wire.UsageView, query=("from", "to", "by", "csv", *PAGED)),
    # --- policy
    Route("GET", "quota", S.READ, quota.current, "The quota file in force; leads, admins and auditors.",
          gives=policy.QuotaView),
    Route("PUT", "quota", S.APPLY, quota.apply,
          "Put a quota file in force; If-Match or its revision: names the revision that it changes.",
          takes=policy.QuotaEdit, gives=policy.QuotaView, operation="put quota files in force"),
    Route("POST", "quota/preview", S.ADMIN, quota.preview,
          "The effects of a quota file, and the reasons for which PUT quota would refuse it.", takes=policy.QuotaEdit,
          gives=policy.PreviewView, operation="preview quota files"),
    Route("GET", "quota/revisions", S.READ, quota.revisions, "Every revision, newest first.", gives=policy.QuotaView,
          query=PAGED),
    Route("GET", "quota/revisions/{revision}", S.READ, quota.revision, "One revision.", gives=policy.QuotaView),
    Route("POST", "quota/revisions/{revision}/actions/revert", S.APPLY, quota.revert,
          "Put an earlier revision in force again.", gives=policy.QuotaView, query=("accept_removal", "accept_stops"),
          operation="put quota files in force"),
    # --- why, and what was done
    Route("GET", "explain/{id}", S.READ, audit.explain, "Why a job or notebook has its present state.",
          gives=wire.ExplainView),
    Route("GET", "audit", S.AUDIT, audit.rows,
          "Decisions and edits, newest first; actor: a user or a part of the service; action: its kind, or words.",
          gives=wire.AuditView, query=("since", "until", "actor", "action", "project", *PAGED),
          operation="read the audit"),
    Route("GET", "audit/actions", S.AUDIT, audit.actions, "The kinds of the audit's rows, with their words.",
          gives=wire.AuditActionView, query=PAGED, operation="read the audit"),
    Route("GET", "audit/verify", S.AUDIT, audit.verify, "Whether the audit's hash chain is unbroken.",
          gives=wire.VerifiedView, operation="verify the audit"),
    Route("GET", "snapshot", S.ADMIN, audit.snapshot, "The snapshot that `decide` would get now.",
          operation="save snapshots"),
    Route("GET", "events", S.READ, events.follow, "Server-sent events `changed`, limited to visible work.",
          gives=wire.ChangedView, query=("since", "without_devices"), media_type=EVENTS),
)  # fmt: skip

PART = re.compile(r"\{(?P<name>\w+)(?P<rest>\.\.\.)?(?::(?P<words>[\w|]+))?\}")


def pattern_of(path: str) -> str:
    """The regular expression of a path: {id} is one part, {path...} the rest, {x:a|b} one of the words."""
    found = PART.split(path)
    pattern = re.escape(found[0])
    for name, rest, words, plain in zip(*(found[n::4] for n in range(1, 5)), strict=True):
        pattern += f"(?P<{name}>{words or ('.+' if rest else '[^/]+')}){re.escape(plain)}"
    return pattern


def by_path() -> dict[str, dict[str, Route]]:
    """The routes of each path, by method."""
    paths: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = route
    return paths
