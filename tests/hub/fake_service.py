"""A fake of the service's notebook routes: one device of 1000 milli, one project, no hub asked.

It serves what the spawner uses (me, notebooks, ready) and lets a test hold decisions back. ``python fake_service.py``
runs it as a hub-managed service; ``served()`` runs it inside a test's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from jupyter_gpu_quota.core.amounts import AmountRefusal, gpu_amount, memory_share_mib
from jupyter_gpu_quota.wire import (
    AllocationView,
    ChoiceView,
    NotebookRequest,
    NotebookView,
    PodDevicesView,
    ReasonView,
    RequestedSliceView,
)
from jupyter_gpu_quota.wire.status import MeView

QUOTA_MILLI = 250
MODEL = "Fake 80G"
MEMORY_MIB = 81_920
HELD_BACK = ReasonView(
    code="making_room", figures={"position": 1}, message="bob's job is pausing to make room; 1st in line."
)


class Books:
    """What was asked for and booked.

    ``hold`` keeps requests waiting; ``deaf`` hears nothing; ``mute`` books and does not say so. ``error``: the status
    of an answer that fails after its request was carried out; ``errors`` counts them.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self.notebooks: dict[str, NotebookView] = {}
        self.hold = False
        self.deaf = False
        self.mute = False
        self.error = self.errors = 0
        self.hub = "local"
        self.pod_devices: PodDevicesView | None = None
        self.reason = HELD_BACK
        self.changed = asyncio.Event()
        self._ids = itertools.count(1)

    @property
    def live(self) -> list[NotebookView]:
        return [view for view in self.notebooks.values() if view.state in ("requested", "booked")]

    def used_milli(self) -> int:
        return sum(view.gpu_milli for view in self.live)

    def ask(self, request: NotebookRequest) -> NotebookView | tuple[int, str, str]:
        milli = gpu_amount(request.gpu, ())
        if isinstance(milli, AmountRefusal):
            return 400, milli.code, milli.message
        if request.project != "build":
            return 403, "not_a_member", f"{request.user} is no member of a project {request.project}."
        if self.used_milli() + milli > QUOTA_MILLI:
            used = f"{self.used_milli() / 1000:.3f} of {QUOTA_MILLI / 1000:.3f} GPU is in use"
            return 409, "over_quota", f"build has used its notebook quota: {used}. Stop a notebook or choose less."
        view = self._view(request, milli)
        self.put(view if self.hold else self.booked(view))
        return self.notebooks[view.id]

    def _view(self, request: NotebookRequest, milli: int) -> NotebookView:
        return NotebookView(
            id=f"nb-{next(self._ids)}", user=request.user, server=request.server, project="build", pool="build",
            gpu_milli=milli, state="requested", reason=self.reason, requested_at=datetime.now(UTC), booked_at=None,
            ended_at=None, allocations=[], activity="unknown", enforcement=None, simulated=True, cluster="local",
            hub=self.hub,
        )  # fmt: skip

    def booked(self, view: NotebookView) -> NotebookView:
        part = AllocationView(
            rank=0, device="local:0", device_uuid="GPU-fake-0", gpu_milli=view.gpu_milli,
            memory_mib=memory_share_mib(MEMORY_MIB, view.gpu_milli),
        )  # fmt: skip
        return view.model_copy(update={"state": "booked", "reason": None, "allocations": [part]})

    def put(self, view: NotebookView) -> None:
        self.notebooks[view.id] = view
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def decide(self) -> None:
        """Let go of what was held back."""
        self.hold = False
        for view in self.live:
            self.put(self.booked(view))


class Route(web.RequestHandler):
    def initialize(self, books: Books) -> None:
        self.books = books

    async def prepare(self) -> None:
        if self.books.deaf:
            await asyncio.sleep(3600)
        if self.request.headers.get("Authorization") != f"token {self.books.token}":
            self.refuse(403, "forbidden", "Only the hub may ask.")

    def refuse(self, status: int, reason: str, message: str) -> None:
        self.set_status(status)
        self.finish({"status": status, "reason": reason, "message": message})

    def say(self, view: Any, status: int = 200) -> None:
        if self.books.error:
            self.books.errors += 1
            return self.refuse(self.books.error, "store_unavailable", "The database cannot be read.")
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        return self.finish(view.model_dump_json())


class Me(Route):
    def get(self) -> None:
        choice = ChoiceView(
            project="build", pool="build", quota_milli=QUOTA_MILLI, used_milli=self.books.used_milli(),
            device_model=MODEL, device_memory_mib=MEMORY_MIB,
        )  # fmt: skip
        user = self.get_query_argument("user")
        choices = [] if user == "outsider" else [choice]
        self.say(MeView(name=user, admin=False, scopes=[], projects={"build": "member"}, notebook_choices=choices))


class Notebooks(Route):
    def get(self) -> None:
        items = [json.loads(view.model_dump_json()) for view in self.books.notebooks.values()]
        self.finish({"items": items, "_pagination": {"offset": 0, "limit": 1000, "total": len(items)}})

    async def post(self) -> None:
        answer = self.books.ask(NotebookRequest.model_validate_json(self.request.body))
        if self.books.mute:
            await asyncio.sleep(3600)
        if isinstance(answer, NotebookView):
            given = {"secret": f"secret-of-{answer.id}", "pod_devices": self.books.pod_devices}
            self.say(RequestedSliceView(**dict(answer), **given), 201)
        else:
            self.refuse(*answer)


class Notebook(Route):
    async def get(self, notebook: str) -> None:
        if notebook not in self.books.notebooks:
            return self.refuse(404, "not_found", "There is no such notebook.")
        seen = (self.get_query_argument("seen_state", ""), self.get_query_argument("seen_reason", ""))
        deadline = asyncio.get_running_loop().time() + float(self.get_query_argument("wait_s", "0"))
        while self._now(notebook) == seen and (left := deadline - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.books.changed.wait(), left)
        return self.say(self.books.notebooks[notebook])

    def _now(self, notebook: str) -> tuple[str, str]:
        view = self.books.notebooks[notebook]
        return view.state, view.reason.code if view.reason else ""

    def delete(self, notebook: str) -> None:
        if notebook in self.books.notebooks:
            self.books.put(self.books.notebooks[notebook].model_copy(update={"state": "returned"}))
        self.set_status(204)


class Ready(web.RequestHandler):
    def get(self) -> None:
        self.finish({"ready": True})


def application(books: Books, prefix: str) -> web.Application:
    api = rf"{prefix}api/v1"
    given = {"books": books}
    return web.Application(
        [
            (rf"{api}/ready", Ready),
            (rf"{api}/me", Me, given),
            (rf"{api}/notebooks", Notebooks, given),
            (rf"{api}/notebooks/([^/]+)", Notebook, given),
        ]
    )


@contextlib.asynccontextmanager
async def served(token: str) -> AsyncIterator[tuple[str, Books]]:
    """The fake in this event loop; yields its address and its books."""
    books = Books(token)
    server = HTTPServer(application(books, "/services/gpu-quota/"))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}", books
    finally:
        server.stop()
        await server.close_all_connections()


async def main() -> None:
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    books = Books(os.environ["JUPYTERHUB_API_TOKEN"])
    application(books, os.environ["JUPYTERHUB_SERVICE_PREFIX"]).listen(where.port, "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
