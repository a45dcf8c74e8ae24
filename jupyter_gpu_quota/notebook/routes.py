"""Routes of this server for a front end: the idle state and its actions. The hub's token stays in the server."""

from __future__ import annotations

import json
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.httpclient import HTTPClientError

from .activity import GPUQuotaActivity

MESSAGE = "The GPU service cannot be reached, so nothing was postponed. Try again; this server continues to run."
NO_SLICE = json.dumps(
    {"status": 404, "message": "This server has no slice of a GPU, so there is nothing to keep.", "reason": "no_slice"}
)
AWAY = json.dumps({"status": 503, "message": MESSAGE, "reason": "service_unavailable"})


class ActivityHandler(APIHandler):
    """A handler with the server's activity. ``auth_resource`` is its name for the server's authorizer."""

    auth_resource = "gpu_quota"

    def initialize(self, activity: GPUQuotaActivity) -> None:
        self.activity = activity


class IdleHandler(ActivityHandler):
    """``GET gpu-quota/idle``: the notebook's idle state, null while unknown; kernels that wait or were shut down."""

    _track_activity = False  # a refresh of the sidebar is not activity of the user

    @web.authenticated
    @authorized
    async def get(self) -> None:
        idle = self.activity.idle
        left = None if self.activity.free_at is None else max(0, self.activity.free_at - self.activity.clock())
        state = idle and {**idle.model_dump(mode="json"), "free_in_ms": left}
        now = self.activity.requests.clock()
        waiting = [
            {"kernel": wait.kernel, "message": wait.message, "waiting_ms": max(0, now - wait.since)}
            for wait in self.activity.requests.waiting.values()
        ]
        shut_down = [
            {
                "kernel": kernel,
                "shut_down_ms": self.activity.clock() - one.at,
                "unused_ms": one.unused_ms,
                "message": one.message,
            }
            for kernel, one in self.activity.shutdowns.items()
        ]
        self.finish(json.dumps({"idle": state, "waiting": waiting, "shut_down": shut_down}))


class GiveUpHandler(ActivityHandler):
    """``POST gpu-quota/give-up``: do not start a waiting kernel, or any; returns their ids."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.get_json_body() or {}
        if not isinstance(body, dict) or not isinstance(body.get("kernel"), str | None):
            raise web.HTTPError(400, 'the body is an object such as {"kernel": "<id of a kernel>"}, or empty')
        self.finish(json.dumps({"given_up": self.activity.requests.give_up(body.get("kernel"))}))


class KeepHandler(ActivityHandler):
    """``POST gpu-quota/keep``: postpone the warning; returns the service's answer or refusal."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        if not self.activity.service.has_slice:
            self.set_status(404)
            self.finish(NO_SLICE)
            return
        try:
            self.finish(await self.activity.keep())
        except HTTPClientError as error:
            body = error.response.body if error.response is not None and 400 <= error.code < 500 else b""
            self.set_status(error.code if body else 503)
            self.finish(body or AWAY)
        except OSError:
            self.set_status(503)
            self.finish(AWAY)


def add_routes(server: Any, activity: GPUQuotaActivity) -> None:
    """Add the routes below this server's base URL."""
    base = server.web_app.settings["base_url"]
    paths = {"idle": IdleHandler, "keep": KeepHandler, "give-up": GiveUpHandler}
    routes = [(url_path_join(base, "gpu-quota", name), what, {"activity": activity}) for name, what in paths.items()]
    server.web_app.add_handlers(".*$", routes)
