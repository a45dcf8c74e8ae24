"""What a front end asks this server: how its GPU is judged, and to keep it. The hub's token stays in the server."""

from __future__ import annotations

import json
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.httpclient import HTTPClientError

from .activity import GPUQuotaActivity
from .slice_requests import Waiting

AWAY = "The GPU service cannot be reached, so nothing was postponed. Try again; this server runs on."


class IdleState(APIHandler):
    """``GET gpu-quota/idle``: how the notebook is judged, null while nobody could tell; which kernels wait for it."""

    def initialize(self, activity: GPUQuotaActivity) -> None:
        self.activity = activity

    @web.authenticated
    async def get(self) -> None:
        idle = self.activity.idle
        left = None if self.activity.free_at is None else max(0, self.activity.free_at - self.activity.clock())
        judged = idle and {**idle.model_dump(mode="json"), "free_in_ms": left}
        self.finish(json.dumps({"idle": judged, "waiting": list(map(self._told, self.activity.asks.waiting.values()))}))

    def _told(self, wait: Waiting) -> dict[str, object]:
        waiting_ms = max(0, self.activity.asks.clock() - wait.since)
        return {"kernel": wait.kernel, "message": wait.message, "waiting_ms": waiting_ms}


class GiveUp(APIHandler):
    """``POST gpu-quota/give-up``: a kernel that waits for the GPU, or every one, is not started; which ones."""

    def initialize(self, activity: GPUQuotaActivity) -> None:
        self.activity = activity

    @web.authenticated
    async def post(self) -> None:
        kernel = (self.get_json_body() or {}).get("kernel")
        self.finish(json.dumps({"given_up": self.activity.asks.give_up(kernel)}))


class Keep(APIHandler):
    """``POST gpu-quota/keep``: postpone the warning; the service's own answer, or its reason for saying no."""

    def initialize(self, activity: GPUQuotaActivity) -> None:
        self.activity = activity

    @web.authenticated
    async def post(self) -> None:
        try:
            self.finish(await self.activity.keep())
        except HTTPClientError as error:
            told = error.response is not None and error.response.body
            self.set_status(error.code if told and 400 <= error.code < 500 else 503)
            self.finish(told if told and 400 <= error.code < 500 else _error(AWAY))
        except OSError:
            self.set_status(503)
            self.finish(_error(AWAY))


def _error(message: str) -> str:
    return json.dumps({"status": 503, "message": message, "reason": "service_away"})


def add_routes(server: Any, activity: GPUQuotaActivity) -> None:
    """Both paths, below this server's own."""
    base = server.web_app.settings["base_url"]
    paths = {"idle": IdleState, "keep": Keep, "give-up": GiveUp}
    routes = [(url_path_join(base, "gpu-quota", name), what, {"activity": activity}) for name, what in paths.items()]
    server.web_app.add_handlers(".*$", routes)
