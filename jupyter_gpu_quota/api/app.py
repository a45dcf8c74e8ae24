"""The tornado application: the REST door by its table, the pages, the login."""

from __future__ import annotations

from pathlib import Path

from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado.web import Application, RequestHandler

from .handlers.bundles import BundleUpload
from .pages.pages import page_handlers
from .requests.resource import NoSuchPath, Resource
from .requests.services import Door
from .routes import by_path, pattern_of

API_PREFIX = "api/v1/"
HERE = Path(__file__).parent / "pages"


def make_app(door: Door, *, cookie_secret: bytes) -> Application:
    """Everything below the service's prefix."""
    prefix = door.people.auth.base_url

    class LoggedIn(HubOAuthCallbackHandler):  # type: ignore[misc]
        """The end of the hub's login."""

        hub_auth = door.people.auth

    handlers: list[tuple[str, type[RequestHandler], dict[str, object]]] = [
        (f"{prefix}{API_PREFIX}{pattern_of(path)}", _resource_of(path), {"door": door, "routes": routes})
        for path, routes in by_path().items()
    ]
    handlers.append((f"{prefix}{API_PREFIX}.*", NoSuchPath, {"door": door}))
    handlers.append((f"{prefix}oauth_callback", LoggedIn, {}))
    handlers += page_handlers(door, prefix)
    return Application(
        handlers,
        cookie_secret=cookie_secret,
        static_path=str(HERE / "static"),
        static_url_prefix=f"{prefix}static/",
        log_function=_log,
        compress_response=False,
    )


def _resource_of(path: str) -> type[Resource]:
    return BundleUpload if path.startswith("bundles/") else Resource


def _log(handler: RequestHandler) -> None:
    """Requests are not logged one by one: a busy door would do nothing else, and queries may hold a login's token."""
