"""A fake of the API: a tornado server on its own thread, with the real wire models.

It keeps jobs in a dict, answers with the real wire models, and can simulate failures of a real network: ``breaks``
connections before a request is taken, ``lost`` answers after it was, answers of a proxy while the service is ``away``,
refusals of one that is ``unready``, log streams ``cut`` in the middle.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from tests.client.fakes.cluster import Events, Places, Words
from tests.client.fakes.jobs import Action, Bundles, Jobs, Logs, OneJob, Outputs, Provenance
from tests.client.fakes.policy import Audit, Quota, Recovery
from tests.client.fakes.world import AT, PREFIX, QUOTA_TEXT, TOKEN, World, device_view, job_view, reason
from tests.patience import PATIENCE_S

__all__ = ["AT", "QUOTA_TEXT", "TOKEN", "World", "device_view", "job_view", "reason", "served"]


def application(world: World) -> web.Application:
    rows = [
        ("jobs", Jobs),
        ("jobs/([^/]+)", OneJob),
        ("jobs/([^/]+)/actions/(hold|release|cancel|clone|rerun)", Action),
        ("jobs/([^/]+)/logs", Logs),
        ("jobs/([^/]+)/provenance", Provenance),
        ("jobs/([^/]+)/outputs", Outputs),
        ("jobs/([^/]+)/outputs/(.+)", Outputs),
        ("bundles/([0-9a-f]{64})", Bundles),
        ("quota", Quota),
        ("quota/preview", Quota),
        ("quota/revisions", Quota),
        ("quota/revisions/([0-9]+)/actions/revert", Quota),
        ("(notebooks|devices|nodes|pools|projects|environments|data)", Places),
        ("audit(?:/verify)?", Audit),
        ("(me|version|ready|snapshot)", Words),
        ("(explain)/(.+)", Words),
        ("recovery(?:/actions/accept)?", Recovery),
        ("events", Events),
    ]
    return web.Application([(PREFIX + path, resource, {"world": world}) for path, resource in rows])


@contextmanager
def served(world: World | None = None) -> Iterator[World]:
    """The fake on a free port of the loopback, in a thread of its own."""
    world = world or World()
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        sockets = bind_sockets(0, "127.0.0.1")
        server = HTTPServer(application(world))
        server.add_sockets(sockets)
        world.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        started.set()
        await stopped.wait()
        server.stop()
        await server.close_all_connections()

    stopped = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield world
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(PATIENCE_S)
        loop.close()
