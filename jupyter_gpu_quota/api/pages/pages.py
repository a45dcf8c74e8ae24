"""The HTML pages: rendered here, updated by small scripts that fetch them again after a change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from jupyterhub.services.auth import HubOAuthenticated
from tornado.web import HTTPError, RequestHandler

from ... import __version__
from ...hub_api import HubUnavailable
from ...store.records.calls import StoreUnavailable
from ..access.people import NotAllowed
from ..access.permissions import Person, Scope, may_change_work, may_enter, may_read_policy, refusal
from ..access.refusals import Refused
from ..handlers import audit, cluster, jobs, logs, notebooks, quota
from ..handlers.status import ready_view
from ..handlers.submission import may_train
from ..requests.call import Call
from ..requests.resource import DEFAULT_HEADERS, error_of
from . import text as page_text

if TYPE_CHECKING:
    from ..requests.services import Services

LOG_SHOWN = 65_536
JOBS_SHOWN = 50


Content = Callable[[Call], Awaitable[dict[str, Any]]]
"""The values of a page's template."""


class Page(HubOAuthenticated, RequestHandler):  # type: ignore[misc]
    """One page: a logged-in user, a template and its content."""

    def initialize(self, services: Services, template: str, title: str, content: Content) -> None:
        self.services, self.template, self.title, self.content = services, template, title, content
        self.hub_auth = services.people.auth
        self.person: Person | None = None
        self.seen_version = 0

    def set_default_headers(self) -> None:
        for name, value in DEFAULT_HEADERS.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        if not self.hub_auth.get_token(self):  # also the hub's health check at start: a redirect needs no database
            self.redirect(self.get_login_url())
            return
        await self.services.store_view.refresh_if_stale()
        person = await self.services.people.identify(self)
        if person is None or person.is_hub:
            self.redirect(self.get_login_url())
            return
        self.person = self.current_user = person
        if not may_enter(person, Scope.READ):
            raise Refused(403, "not_allowed", f"{person.name}'s login lacks the scope custom:gpu-quota:read.")

    async def get(self, **names: str) -> None:
        call = Call(services=self.services, resource=self, names=names, maybe_person=self.person)
        self.seen_version = self.services.store_view.mirror.version
        await self.services.decisions.latest()
        content = self._frame() | await self.content(call)
        self.finish(page_text.render(self.template, **content, ready=await ready_view(self.services)))

    def _frame(self) -> dict[str, Any]:
        prefix, quota = self.hub_auth.base_url, self.services.store_view.quota
        return {
            "prefix": prefix,
            "api": f"{prefix}api/v1/",
            "static": self.static_url,
            "seen_version": self.seen_version,
            "xsrf": self.xsrf_token.decode() if self.person else "",
            "person": self.person,
            "reads_policy": self.person is not None and may_read_policy(self.person),
            "hub_home": f"{self.hub_auth.hub_host}{self.hub_auth.hub_prefix}home",
            "colours": page_text.colours_of([p.name for p in quota.policy.projects] if quota else []),
            "one_account": not self.services.settings.accounts,
            "version": __version__,
            "here": self.template,
            "page_title": self.title,
        }

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, Refused | HTTPError | StoreUnavailable | HubUnavailable | NotAllowed):
            super().log_exception(typ, value, tb)

    def write_error(self, status_code: int, **details: Any) -> None:
        error = error_of(details.get("exc_info", (None, None, None))[1], status_code)
        self.set_status(error.status)
        frame = self._frame() | {"here": "", "page_title": f"{error.status}"}
        self.finish(page_text.render("error.html", **frame, error=error, ready=None))


async def overview(call: Call) -> dict[str, Any]:
    store_view, person = call.store_view, call.person
    by_pool: dict[str, list[Any]] = {}
    for device in cluster.device_views(call.services, person):
        by_pool.setdefault(device.pool or "", []).append(device)
    projects = await cluster.project_views(call.services, person)
    slices = (await notebooks.listing(call, stopped=True)).items
    return {
        "pools": cluster.pool_views(call.services),
        "devices": by_pool,
        "projects": projects,
        "departments": list({each.name: each for one in projects if (each := one.department)}.values()),
        "notebooks": slices,
        "keepable": {each.id for each in slices if may_change(person, each)},
        "explained": page_text.EXPLAINED_NOTEBOOK_REASONS,
        "counts": page_text.counts(store_view),
    }


async def job_list(call: Call) -> dict[str, Any]:
    answer = await jobs.listing(call, limit=JOBS_SHOWN)
    shown = [page_text.JobRow(job, may_change(call.person, job)) for job in answer.items]
    trains = may_train(call.person, call.store_view.quota_file)
    return {
        "rows": shown,
        "trains": trains,
        "filters": page_text.job_filters(call),
        **page_text.pager(answer, call),
    }


async def job(call: Call) -> dict[str, Any]:
    record = await jobs.seen_job(call)
    detail = await jobs.show(call)
    parts = page_text.log_choices(detail)
    shown = log_shown(call, parts)
    tail = await logs.part_of(call, record, shown.attempt, shown.rank, -LOG_SHOWN, LOG_SHOWN)
    outputs = await logs.listed_outputs(call, record)
    return {
        "page_title": record.spec.name,
        "job": detail,
        "actions": page_text.actions_of(detail) if may_change(call.person, detail) else (),
        "first_start": page_text.first_start(detail),
        "explanation": await audit.explain(call),
        "log": tail,
        "log_parts": parts,
        "log_shown": shown,
        "outputs": outputs.items,
        "outputs_cut": page_text.cut_of(outputs),
    }


async def quota_history(call: Call) -> dict[str, Any]:
    history = (await quota.revisions(call)).items
    current = (await quota.current(call)).body if call.store_view.quota else None
    in_force, may_apply = await quota.amounts_now(call), may_enter(call.person, Scope.APPLY)
    return {"current": current, "in_force": in_force, "history": history, "may_apply": may_apply}


async def audit_rows(call: Call) -> dict[str, Any]:
    if not may_enter(call.person, Scope.AUDIT):
        raise Refused(403, "not_allowed", refusal(call.person, Scope.AUDIT, "read the audit"))
    answer = await audit.rows(call)
    return {"rows": answer.items, "verifies": call.person.auditor, **page_text.pager(answer, call)}


async def not_found(call: Call) -> dict[str, Any]:
    raise Refused(404, "not_found", "There is no such page here.")


class LogOut(HubOAuthenticated, RequestHandler):  # type: ignore[misc]
    """Log out here, then at the hub."""

    def initialize(self, services: Services) -> None:
        self.hub_auth = services.people.auth

    async def get(self) -> None:
        self.hub_auth.clear_cookie(self)
        self.redirect(f"{self.hub_auth.hub_host}{self.hub_auth.hub_prefix}logout")


def log_shown(call: Call, parts: Sequence[page_text.LogChoice]) -> page_text.LogChoice:
    """The requested log; by default that of the newest attempt's first rank."""
    asked = {part.value: part for part in parts}.get(call.text("log") or "")
    return asked or (parts[0] if parts else page_text.LogChoice(0, 0, ""))


def may_change(person: Person, job: Any) -> bool:
    """Whether a user may hold, release or cancel a job of this view; the REST API checks again."""
    return may_change_work(person, project=job.project, owner=person.id if job.user == person.name else "")


def page_handlers(services: Services, prefix: str) -> list[tuple[str, type[RequestHandler], dict[str, object]]]:
    """(pattern, handler, arguments) of every page; the last one answers all other paths with 404."""
    pages: list[tuple[str, str, str, Content]] = [
        ("", "overview.html", "Overview", overview),
        ("jobs/?", "jobs.html", "Jobs", job_list),
        (r"jobs/(?P<id>[^/]+)", "job.html", "Job", job),
        ("quota", "quota.html", "Quotas", quota_history),
        ("audit", "audit.html", "Audit", audit_rows),
        (r"(?!static/).*", "error.html", "Not found", not_found),
    ]
    log_out: tuple[str, type[RequestHandler], dict[str, object]] = (f"{prefix}logout", LogOut, {"services": services})
    return [log_out] + [
        (prefix + pattern, Page, {"services": services, "template": template, "title": title, "content": content})
        for pattern, template, title, content in pages
    ]
