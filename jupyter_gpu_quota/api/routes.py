"""The table of the REST door: every method and path, who may use it, what it takes and gives.

The router, openapi.json and the access test all read this table, and nothing else.
"""

from __future__ import annotations

import re

from ..wire import (
    AuditView,
    BundleView,
    ChangedView,
    CloneRequest,
    DeviceView,
    ExplainView,
    IdleView,
    JobDetail,
    JobRequest,
    JobView,
    NodeChangeView,
    NodeEdit,
    NodeView,
    NotebookRequest,
    NotebookView,
    OutputView,
    PoolView,
    ProjectView,
    UsageView,
    VerifiedView,
)
from ..wire.activity import ActivityAnswer, ActivityReport, WakeAnswer, WakeRequest
from ..wire.quota import PreviewView, QuotaEdit, QuotaView
from ..wire.samples import IngestedView, SampleBatch, SampleView
from ..wire.status import HealthView, MeView, ReadyView, VersionView
from . import events
from .access.permissions import Scope
from .handlers import audit as audits
from .handlers import bundles, jobs, logs, nodes, notebooks, status, usage
from .handlers import cluster as places
from .handlers import kernel_requests as waking
from .handlers import notebook_reports as activity
from .handlers import quota as quotas
from .requests.openapi import openapi
from .requests.resource import Answer, Call, Route

S = Scope
PAGED = ("offset", "limit")
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"


async def _openapi(call: Call) -> Answer:
    return Answer(body=openapi(ROUTES, call.door.people.auth.base_url))


ROUTES: tuple[Route, ...] = (
    # --- the service itself
    Route(method="GET", path="health", scope=S.OPEN, act=status.health, gives=HealthView, says="The door is alive."),
    Route(method="GET", path="ready", scope=S.OPEN, act=status.ready, gives=ReadyView, says="It does its work."),
    Route(method="GET", path="version", scope=S.OPEN, act=status.version, gives=VersionView, says="Release and API."),
    Route(method="GET", path="openapi.json", scope=S.OPEN, act=_openapi, says="This table as OpenAPI 3.1."),
    # --- people
    Route(method="GET", path="me", scope=S.READ_OR_HUB, act=places.me, gives=MeView, query=("user",), says="Who asks."),
    # --- jobs
    Route(method="GET", path="jobs", scope=S.READ, act=jobs.listing, gives=JobView, listing=True,
          query=("project", "mine", "state", "live", *PAGED), says="Jobs of one's projects, newest first."),
    Route(method="POST", path="jobs", scope=S.SUBMIT, act=jobs.submit, takes=JobRequest, gives=JobView, status=201,
          paced=True, says="Queue a job; with dry_run say what would happen (200, DryRunView)."),
    Route(method="GET", path="jobs/{id}", scope=S.READ, act=jobs.show, gives=JobDetail, says="One job with its ranks."),
    Route(method="POST", path="jobs/{id}/actions/{change:hold|release|cancel}", scope=S.SUBMIT, act=jobs.change,
          gives=JobView, paced=True, says="Hold, release or cancel; repeating changes nothing."),
    Route(method="POST", path="jobs/{id}/actions/{again:clone|rerun}", scope=S.SUBMIT, act=jobs.again,
          takes=CloneRequest, gives=JobView, status=201, paced=True, says="A new job from an old one's spec."),
    Route(method="GET", path="jobs/{id}/logs", scope=S.READ, act=logs.show, media_type="text/plain",
          query=("attempt", "rank", "offset", "limit", "follow"), says="A rank's log; follow=1 gives events."),
    Route(method="GET", path="jobs/{id}/outputs", scope=S.READ, act=logs.outputs, gives=OutputView, listing=True,
          query=PAGED, says="The files a job left."),
    Route(method="GET", path="jobs/{id}/outputs/{path...}", scope=S.READ, act=logs.output, media_type=BYTES,
          says="One of them."),
    Route(method="PUT", path="bundles/{digest}", scope=S.SUBMIT, act=bundles.put, gives=BundleView, status=201,
          says="Keep a code bundle by its SHA-256."),
    Route(method="HEAD", path="bundles/{digest}", scope=S.SUBMIT, act=bundles.look, media_type="application/gzip",
          says="Whether one's own bundle is kept."),
    # --- notebooks
    Route(method="GET", path="notebooks", scope=S.READ_OR_HUB, act=notebooks.listing, gives=NotebookView, listing=True,
          query=("stopped", *PAGED), says="Live slices of one's projects; stopped=1: and those stopped of late."),
    Route(method="POST", path="notebooks", scope=S.HUB, act=notebooks.request, takes=NotebookRequest,
          deed="ask for a slice",
          gives=NotebookView, status=201, says="Ask for a slice; the hub's spawner alone."),
    Route(method="GET", path="notebooks/{id}", scope=S.READ_OR_HUB, act=notebooks.show, gives=NotebookView,
          query=("wait_s", "seen_state", "seen_reason"), says="One slice; wait_s waits for a change."),
    Route(method="DELETE", path="notebooks/{id}", scope=S.HUB, act=notebooks.give_back, status=204,
          deed="give a slice back",
          says="Give a slice back; repeating changes nothing."),
    Route(method="POST", path="notebooks/{id}/activity", scope=S.SUBMIT, act=activity.report, takes=ActivityReport,
          gives=ActivityAnswer, says="What its own server says of its kernels; answers how it is judged."),
    Route(method="POST", path="notebooks/{id}/actions/keep", scope=S.SUBMIT, act=activity.keep, gives=IdleView,
          paced=True, says="Postpone an idle warning."),
    Route(method="POST", path="notebooks/{id}/actions/wake", scope=S.SUBMIT, act=waking.wake, takes=WakeRequest,
          gives=WakeAnswer, says="A kernel is about to start and asks for the slice; wait_s waits for it."),
    # --- what there is
    Route(method="GET", path="projects", scope=S.READ, act=places.projects, gives=ProjectView, listing=True,
          query=PAGED, says="One's projects: quota, use, fair share."),
    Route(method="GET", path="pools", scope=S.READ, act=places.pools, gives=PoolView, listing=True, query=PAGED,
          says="The pools."),
    Route(method="GET", path="nodes", scope=S.READ, act=places.nodes, gives=NodeView, listing=True, query=PAGED,
          says="The machines."),
    Route(method="POST", path="nodes/{id}/actions/{change:cordon|uncordon|drain}", scope=S.APPLY, act=nodes.change,
          deed="{change} nodes",
          takes=NodeEdit, gives=NodeChangeView, says="Keep new work from a node, or empty it; dry_run only says whom."),
    Route(method="GET", path="devices", scope=S.READ, act=places.devices, gives=DeviceView, listing=True, query=PAGED,
          says="The devices, who holds them, whether they are used."),
    Route(method="GET", path="samples", scope=S.READ, act=places.samples, gives=SampleView, listing=True, query=PAGED,
          says="The newest reading of each device."),
    Route(method="POST", path="samples", scope=S.ADMIN_OR_HUB, act=places.ingest, takes=SampleBatch, gives=IngestedView,
          deed="send readings of devices",
          says="Ingest one node's readings."),
    Route(method="GET", path="usage", scope=S.READ, act=usage.show, gives=UsageView, listing=True,
          query=("since", "until", "by", *PAGED), says="GPU hours had and used, by project or another key."),
    # --- policy
    Route(method="GET", path="quota", scope=S.READ, act=quotas.current, gives=QuotaView,
          says="The quota file in force; leads, admins and auditors."),
    Route(method="PUT", path="quota", scope=S.APPLY, act=quotas.apply, takes=QuotaEdit, gives=QuotaView,
          deed="put quota files in force",
          says="Put a quota file in force; If-Match or its revision: names what it rests on."),
    Route(method="POST", path="quota/preview", scope=S.ADMIN, act=quotas.look_ahead, takes=QuotaEdit, gives=PreviewView,
          deed="preview quota files",
          says="What a quota file would do, and what PUT quota would refuse it for."),
    Route(method="GET", path="quota/revisions", scope=S.READ, act=quotas.revisions, gives=QuotaView, listing=True,
          query=PAGED, says="Every revision, newest first."),
    Route(method="GET", path="quota/revisions/{revision}", scope=S.READ, act=quotas.revision, gives=QuotaView,
          says="One revision."),
    Route(method="POST", path="quota/revisions/{revision}/actions/revert", scope=S.APPLY, act=quotas.revert,
          deed="put quota files in force",
          gives=QuotaView, query=("accept_removal", "accept_stops"), says="Put an earlier revision in force again."),
    # --- why, and what was done
    Route(method="GET", path="explain/{id}", scope=S.READ, act=audits.explain, gives=ExplainView,
          says="Why a job or notebook is where it is."),
    Route(method="GET", path="audit", scope=S.AUDIT, act=audits.rows, gives=AuditView, listing=True,
          deed="read the audit",
          query=("since", *PAGED), says="Decisions and edits, newest first."),
    Route(method="GET", path="audit/verify", scope=S.AUDIT, act=audits.verify, gives=VerifiedView,
          deed="verify the audit",
          says="Whether the audit is whole."),
    Route(method="GET", path="snapshot", scope=S.ADMIN, act=audits.snapshot, deed="save snapshots",
          says="What `decide` would see now."),
    Route(method="GET", path="events", scope=S.READ, act=events.follow, gives=ChangedView, media_type=EVENTS,
          query=("since",), says="Server-sent events `changed`, filtered to what one may see."),
)  # fmt: skip

PART = re.compile(r"\{(?P<name>\w+)(?P<rest>\.\.\.)?(?::(?P<words>[\w|]+))?\}")


def pattern_of(path: str) -> str:
    """The regular expression of a path of the table: {id} is one part, {path...} the rest, {x:a|b} one of the words."""

    def part(found: re.Match[str]) -> str:
        inside = found["words"] or (".+" if found["rest"] else "[^/]+")
        return f"(?P<{found['name']}>{inside})"

    return "".join(part(found) if found else re.escape(plain) for plain, found in _pieces(path))


def _pieces(path: str) -> list[tuple[str, re.Match[str] | None]]:
    pieces: list[tuple[str, re.Match[str] | None]] = []
    at = 0
    for found in PART.finditer(path):
        pieces += [(path[at : found.start()], None), ("", found)]
        at = found.end()
    return [*pieces, (path[at:], None)]


def by_path() -> dict[str, dict[str, Route]]:
    """The routes of each path, by method."""
    paths: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = route
    return paths
