"""The tornado application: the routes of the table, the pages, the login."""

from __future__ import annotations

from pathlib import Path

from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado.web import Application, RequestHandler

from .handlers.bundles import BundleUpload
from .pages.pages import page_handlers
from .requests.resource import NoSuchPath, Resource
from .requests.services import Services
from .routes import by_path, pattern_of

API_PREFIX = "api/v1/"
HERE = Path(__file__).parent / "pages"


def make_app(services: Services, *, cookie_secret: bytes) -> Application:
    """Everything below the service's prefix."""
    prefix = services.people.auth.base_url

    class OAuthCallback(HubOAuthCallbackHandler):  # type: ignore[misc]
        """The OAuth redirect from the hub."""

        hub_auth = services.people.auth

    handlers: list[tuple[str, type[RequestHandler], dict[str, object]]] = []
    for path, routes in by_path().items():
        resource = BundleUpload if path.startswith("bundles/") else Resource
        pattern = f"{prefix}{API_PREFIX}{pattern_of(path)}"
        handlers.append((pattern, resource, {"services": services, "routes": routes}))
    handlers.append((f"{prefix}{API_PREFIX}.*", NoSuchPath, {"services": services}))
    handlers.append((f"{prefix}oauth_callback", OAuthCallback, {}))
    handlers += page_handlers(services, prefix)
    return Application(
        handlers,
        cookie_secret=cookie_secret,
        static_path=str(HERE / "static"),
        static_url_prefix=f"{prefix}static/",
        log_function=_log,
        compress_response=False,
    )


def _log(handler: RequestHandler) -> None:
    """Log no requests: clients poll, and a query may have a token. Handlers log unexpected errors."""
