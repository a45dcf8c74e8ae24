"""The pages that people see: rendered here, kept live by small scripts that fetch them again when something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jupyterhub.services.auth import HubOAuthenticated
from tornado.web import HTTPError, RequestHandler

from ... import __version__
from ...hub_api import HubAway
from ...store.records.protocol import StoreUnavailable
from ...wire import JobDetail
from ..access.people import NotAllowed
from ..access.permissions import Person, Scope, changes_work, may_enter, reads_policy, refusal
from ..access.refusals import Refused
from ..handlers import audit as audits
from ..handlers import cluster as places
from ..handlers import jobs, logs, notebooks
from ..handlers import quota as quotas
from ..handlers.status import ready_view
from ..handlers.submission import may_train
from ..requests.resource import SECURITY_HEADERS, Answer, Call, error_of
from . import text as page_text

if TYPE_CHECKING:
    from ..requests.services import Door

LOG_SHOWN = 65_536
JOBS_SHOWN = 50
ROWS_SHOWN = 100


class Page(HubOAuthenticated, RequestHandler):  # type: ignore[misc]
    """One page: a logged-in person, a template, and what it shows."""

    template: ClassVar[str]
    title: ClassVar[str]

    def initialize(self, door: Door) -> None:
        self.door = door
        self.hub_auth = door.people.auth
        self.person: Person | None = None
        self.seen_version = 0

    def set_default_headers(self) -> None:
        for name, value in SECURITY_HEADERS.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        if not self.hub_auth.get_token(self):  # the hub itself, when it starts: no database is needed to send it away
            self.redirect(self.get_login_url())
            return
        await self.door.world.fresh()
        person = await self.door.people.identify(self)
        if person is None or person.is_hub:
            self.redirect(self.get_login_url())
            return
        self.person = self.current_user = person
        if not may_enter(person, Scope.READ):
            raise Refused(403, "not_allowed", f"{person.name}'s login does not hold the scope custom:gpu-quota:read.")

    async def get(self, **names: str) -> None:
        call = Call(door=self.door, resource=self, names=names, maybe_person=self.person)
        self.seen_version = self.door.world.mirror.version
        await self.door.foresight.think()
        await self.show(self.template, **await self.content(call))

    async def content(self, call: Call) -> dict[str, Any]:
        raise NotImplementedError

    async def show(self, template: str, **content: Any) -> None:
        """Write a template with what every page has."""
        self.finish(page_text.render(template, **{**self._frame(), **content}, ready=await ready_view(self.door)))

    def _frame(self) -> dict[str, Any]:
        prefix, quota = self.hub_auth.base_url, self.door.world.quota
        return {
            "prefix": prefix,
            "api": f"{prefix}api/v1/",
            "static": self.static_url,
            "seen_version": self.seen_version,
            "xsrf": self.xsrf_token.decode() if self.person else "",
            "person": self.person,
            "reads_policy": self.person is not None and reads_policy(self.person),
            "hub_home": f"{self.hub_auth.hub_host}{self.hub_auth.hub_prefix}home",
            "colours": page_text.colours_of([p.name for p in quota.policy.projects] if quota else []),
            "one_account": not self.door.settings.accounts,
            "version": __version__,
            "here": self.template,
            "page_title": self.title,
        }

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, Refused | HTTPError | StoreUnavailable | HubAway | NotAllowed):
            super().log_exception(typ, value, tb)

    def write_error(self, status_code: int, **details: Any) -> None:
        error = error_of(details.get("exc_info", (None, None, None))[1], status_code)
        self.set_status(error.status)
        frame = self._frame() | {"here": "", "page_title": f"{error.status}"}
        self.finish(page_text.render("error.html", **frame, error=error, ready=None))


class Overview(Page):
    template, title = "overview.html", "Overview"

    async def content(self, call: Call) -> dict[str, Any]:
        world, person = self.door.world, call.person
        await world.sampled()
        by_pool: dict[str, list[Any]] = {}
        for device in places.device_views(self.door, person):
            by_pool.setdefault(device.pool or "", []).append(device)
        projects = await places.project_views(self.door, person)
        slices = _items(await notebooks.listing(call, stopped=True))
        return {
            "pools": places.pool_views(self.door),
            "devices": by_pool,
            "projects": projects,
            "departments": list({each.name: each for one in projects if (each := one.department)}.values()),
            "notebooks": slices,
            "keepable": {each.id for each in slices if changeable(person, each)},
            "told": page_text.TOLD_OF_NOTEBOOKS,
            "counts": page_text.counts(world),
        }


class Jobs(Page):
    template, title = "jobs.html", "Jobs"

    async def content(self, call: Call) -> dict[str, Any]:
        answer = await jobs.listing(call, limit=JOBS_SHOWN)
        shown = [page_text.JobRow(job, changeable(call.person, job)) for job in _items(answer)]
        trains = may_train(call.person, self.door.world.quota_file)
        return {
            "rows": shown,
            "trains": trains,
            "filters": page_text.job_filters(call),
            **page_text.pager(answer, call),
        }


class Job(Page):
    template, title = "job.html", "Job"

    async def content(self, call: Call) -> dict[str, Any]:
        record = await jobs.seen_job(call)
        detail = (await jobs.show(call)).body
        assert isinstance(detail, JobDetail)
        parts = page_text.log_choices(detail)
        shown = log_shown(call, parts)
        tail = await logs.part_of(call, record, shown.attempt, shown.rank, -LOG_SHOWN, LOG_SHOWN)
        outputs = await logs.outputs(call)
        return {
            "page_title": record.spec.name,
            "job": detail,
            "actions": page_text.actions_of(detail) if changeable(call.person, detail) else (),
            "first_start": page_text.first_start(detail),
            "explanation": (await audits.explain(call)).body,
            "log": tail,
            "log_parts": parts,
            "log_shown": shown,
            "outputs": _items(outputs),
            "outputs_cut": page_text.cut_of(outputs),
        }


class Quota(Page):
    template, title = "quota.html", "Quotas"

    async def content(self, call: Call) -> dict[str, Any]:
        history = _items(await quotas.revisions(call))
        current = (await quotas.current(call)).body if self.door.world.quota else None
        in_force, may_apply = await quotas.in_words(call), may_enter(call.person, Scope.APPLY)
        return {"current": current, "in_force": in_force, "history": history, "may_apply": may_apply}


class Audit(Page):
    template, title = "audit.html", "Audit"

    async def content(self, call: Call) -> dict[str, Any]:
        if not may_enter(call.person, Scope.AUDIT):
            raise Refused(403, "not_allowed", refusal(call.person, Scope.AUDIT, "read the audit"))
        answer = await audits.rows(call)
        return {"rows": _items(answer), "verifies": call.person.auditor, **page_text.pager(answer, call)}


class LogOut(Page):
    """Forget this login here, then at the hub."""

    template, title = "error.html", "Log out"

    async def prepare(self) -> None:
        return None

    async def get(self, **names: str) -> None:
        self.hub_auth.clear_cookie(self)
        self.redirect(f"{self.hub_auth.hub_host}{self.hub_auth.hub_prefix}logout")


class NoSuchPage(Page):
    template, title = "error.html", "Not found"

    async def get(self, **names: str) -> None:
        raise Refused(404, "not_found", "There is no such page here.")


def log_shown(call: Call, parts: Sequence[page_text.LogChoice]) -> page_text.LogChoice:
    """The log that was asked for; where there is none such, the newest attempt's first rank."""
    asked = {part.value: part for part in parts}.get(call.text("log") or "")
    return asked or (parts[0] if parts else page_text.LogChoice(0, 0, ""))


def changeable(person: Person, job: Any) -> bool:
    """Whether somebody may hold, release or cancel a job of this view; the REST door checks again."""
    return changes_work(person, project=job.project, owner=person.id if job.user == person.name else "")


def _items(answer: Answer) -> list[Any]:
    assert isinstance(answer.body, Mapping)
    return list(answer.body["items"])


def page_handlers(door: Door, prefix: str) -> list[tuple[str, type[RequestHandler], dict[str, object]]]:
    """(pattern, handler, arguments) of every page; what has none of these is a page that says so."""
    pages: list[tuple[str, type[RequestHandler]]] = [
        ("", Overview),
        ("jobs/?", Jobs),
        (r"jobs/(?P<id>[^/]+)", Job),
        ("quota", Quota),
        ("audit", Audit),
        ("logout", LogOut),
        (r"(?!static/).*", NoSuchPage),
    ]
    return [(f"{prefix}{pattern}", page, {"door": door}) for pattern, page in pages]
