"""The HTML pages: the frame is rendered here, the content by scripts that read the REST API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from jupyterhub.services.auth import HubOAuthenticated
from tornado.web import HTTPError, RequestHandler

from ... import __version__
from ...hub_api import HubUnavailable
from ...store.records.calls import StoreUnavailable
from ..access.people import NotAllowed
from ..access.permissions import Person, Scope, may_enter, may_read_policy, refusal
from ..access.refusals import Refused
from ..handlers.jobs import seen_job
from ..requests.call import Call, checked_names
from ..requests.resource import DEFAULT_HEADERS, error_of
from ..state.event_ids import EventId

if TYPE_CHECKING:
    from ..requests.services import Services

BUNDLE = Path(__file__).parent / "static" / "built" / "pages.js"
"""Built from labextension/packages/pages."""

NAVIGATION = (
    ("overview", "", "Overview"),
    ("jobs", "jobs", "Jobs"),
    ("my-quota", "my-quota", "My quota"),
    ("usage", "usage", "Usage"),
    ("quota", "quota", "Quotas"),
    ("audit", "audit", "Audit"),
)
"""(page, address, label); the pages of POLICY are for leads, admins and auditors."""

POLICY = ("quota", "audit")

Check = Callable[[Call], Awaitable[dict[str, str]]]
"""Refuses a page that its reader may not see, and returns more values of its frame."""


class Page(HubOAuthenticated, RequestHandler):  # type: ignore[misc]
    """One page: a logged-in user, and the frame that its script fills."""

    def initialize(self, services: Services, page: str, title: str, check: Check) -> None:
        self.services, self.page, self.title, self.check = services, page, title, check
        self.hub_auth = services.people.auth
        self.person: Person | None = None

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
        call = Call(services=self.services, resource=self, names=checked_names(names), person_or_none=self.person)
        mirror = self.services.store_view.mirror
        seen = str(EventId.of(mirror.version, mirror.position, call.person))
        content: dict[str, Any] = {"page": self.page, "job": "", "seen_event": seen}
        content |= {"built": BUNDLE.is_file(), "xsrf": self.xsrf_token.decode()}
        checked = await self.check(call)
        self.finish(_render("app.html", **self._frame() | content | checked))

    def _frame(self) -> dict[str, Any]:
        reads_policy = self.person is not None and may_read_policy(self.person)
        return {
            "prefix": self.hub_auth.base_url,
            "static": self.static_url,
            "person": self.person,
            "navigation": [entry for entry in NAVIGATION if reads_policy or entry[0] not in POLICY],
            "hub_home": f"{self.hub_auth.hub_host}{self.hub_auth.hub_prefix}home",
            "one_account": not self.services.settings.accounts,
            "version": __version__,
            "here": "jobs" if self.page == "job" else self.page,
            "page_title": self.title,
        }

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, Refused | HTTPError | StoreUnavailable | HubUnavailable | NotAllowed):
            super().log_exception(typ, value, tb)

    def write_error(self, status_code: int, **details: Any) -> None:
        fault = details.get("exc_info", (None, None, None))[1]
        error = error_of(fault, status_code, f"{self.request.method} {self.request.path[:200]}")
        self.set_status(error.status)
        frame = self._frame() | {"here": "", "page_title": f"{error.status}", "address": self.request.uri}
        self.finish(_render("error.html", **frame, error=error))


def _render(template: str, **content: Any) -> str:
    return _environment().get_template(template).render(**content)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("jupyter_gpu_quota.api.pages", "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


async def for_everybody(call: Call) -> dict[str, str]:
    return {}


async def of_job(call: Call) -> dict[str, str]:
    record = await seen_job(call)
    return {"page_title": record.spec.name, "job": record.job.id}


async def of_policy(call: Call) -> dict[str, str]:
    if not may_read_policy(call.person):
        sentence = f"{call.person.name} is not a lead, admin or auditor; only these may read the quota file."
        raise Refused(403, "not_allowed", sentence)
    return {}


async def of_audit(call: Call) -> dict[str, str]:
    if not may_enter(call.person, Scope.AUDIT):
        raise Refused(403, "not_allowed", refusal(call.person, Scope.AUDIT, "read the audit"))
    return {}


async def not_found(call: Call) -> dict[str, str]:
    raise Refused(404, "not_found", "There is no such page here.")


class LogOut(HubOAuthenticated, RequestHandler):  # type: ignore[misc]
    """Log out here, then at the hub."""

    def initialize(self, services: Services) -> None:
        self.hub_auth = services.people.auth

    async def get(self) -> None:
        self.hub_auth.clear_cookie(self)
        self.redirect(f"{self.hub_auth.hub_host}{self.hub_auth.hub_prefix}logout")


def page_handlers(services: Services, prefix: str) -> list[tuple[str, type[RequestHandler], dict[str, object]]]:
    """(pattern, handler, arguments) of every page; the last one answers all other paths with 404."""
    pages: list[tuple[str, str, str, Check]] = [
        ("", "overview", "Overview", for_everybody),
        ("jobs/?", "jobs", "Jobs", for_everybody),
        (r"jobs/(?P<id>[^/]+)", "job", "Job", of_job),
        ("my-quota", "my-quota", "My quota", for_everybody),
        ("usage", "usage", "Usage", for_everybody),
        ("quota", "quota", "Quotas", of_policy),
        ("audit", "audit", "Audit", of_audit),
        (r"(?!static/).*", "", "Not found", not_found),
    ]
    log_out: tuple[str, type[RequestHandler], dict[str, object]] = (f"{prefix}logout", LogOut, {"services": services})
    return [log_out] + [
        (prefix + pattern, Page, {"services": services, "page": page, "title": title, "check": check})
        for pattern, page, title, check in pages
    ]
