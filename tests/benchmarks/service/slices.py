"""The slice's part of a notebook's start, timed inside the hub, and the whole start beside the plain spawner's.

For the first the hub runs the real mixin in front of a spawner that starts no process: ``start`` only requests the
slice and renders variables, ``stop`` only returns it. For the second two hubs start a real server a few times.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from jupyter_gpu_quota.demo import temporary_hub as stages
from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub
from tests.benchmarks.figures import Figure, spread
from tests.benchmarks.service.hubs import hub_with_quota
from tests.soak.rest_calls import ask

RUNS, SPAWNS = 200, 5
WITHIN_S = 120.0

IN_THE_HUB = '''
import asyncio as _asyncio, json as _json, pathlib as _pathlib, urllib.request as _request
from jupyterhub.spawner import SimpleLocalProcessSpawner as _Simple

class _Instant(_Simple):
    """Starts no process: the time of its start is the slice's part."""
    async def start(self):
        self.get_env()
        return "http://127.0.0.1:9"
    async def stop(self, now=False):
        pass
    async def poll(self):
        return 0

c.JupyterHub.spawner_class = _Instant

async def _measure():
    from jupyterhub.app import JupyterHub
    while not _pathlib.Path("{begin}").exists():
        await _asyncio.sleep(0.2)
    app = JupyterHub.instance()
    user = next(app.users[one.id] for one in app.db.query(__import__("jupyterhub.orm").orm.User) if one.name == "ben")
    spawner, rows = user.spawners[""], []
    for _ in range({runs}):
        spawner.user_options = {{"gpu_project": "blue", "gpu_size": "1/8"}}
        await spawner.start()
        await spawner.stop()
        rows.append(dict(spawner.slice_times_s))
    _pathlib.Path("{result}.part").write_text(_json.dumps(rows))
    _pathlib.Path("{result}.part").rename("{result}")

_asyncio.get_event_loop().call_soon(lambda: _asyncio.ensure_future(_measure()))
'''


def slice_figures(folder: Path) -> list[Figure]:
    """Request, render and return of 200 starts."""
    begin, result = folder / "begin", folder / "times.json"
    with hub_with_quota(folder, IN_THE_HUB.format(begin=begin, result=result, runs=RUNS)) as hub:
        begin.touch()
        deadline = time.monotonic() + WITHIN_S
        while not result.exists():
            assert time.monotonic() < deadline, hub.log_tail("hub")
            time.sleep(0.2)
        rows: list[dict[str, float]] = json.loads(result.read_text())
    whole = [sum(row.values()) * 1000 for row in rows]
    timed = "ask until booked + render variables + give back, by the spawner's own clock in the hub"
    parts = [
        figure
        for part in ("ask", "render", "give_back")
        for figure in spread(
            f"slice: {part.replace('_', ' ')}", [row[part] * 1000 for row in rows], "ms", f"{part} alone"
        )
    ]
    return [*spread("slice part of a notebook start", whole, "ms", timed, median_at_most=50), *parts]


def spawn_figures(folder: Path) -> list[Figure]:
    """Whole starts of a real server: with a slice, and by the plain spawner of a hub without the product."""
    (folder / "with").mkdir()
    with hub_with_quota(folder / "with") as hub:
        with_slice = [_start_and_stop(hub, {"gpu_project": "blue", "gpu_size": "1/8"}) for _ in range(SPAWNS)]
    plain_hub = PlainHub(folder / "plain", users=HubUsers(groups={}, users=("ben",)))
    try:
        plain_hub.start()
        plain = [_start_and_stop(plain_hub, {}) for _ in range(SPAWNS)]
    finally:
        plain_hub.end()
    timed = "POST server until the hub reports it as ready"
    return [
        *spread("notebook start with a slice of 1/8", with_slice, "s", timed),
        *spread("notebook start, plain spawner, no gpu-quota", plain, "s", timed),
    ]


class PlainHub(TemporaryHub):
    """A hub without the product, for comparison."""

    def _config(self) -> str:
        return super()._config().replace("setup_gpu_quota(c)", "")

    def is_ready(self) -> bool:
        try:
            return bool(self.ask("GET", f"{self.hub_api}/", None))
        except (OSError, ValueError):
            return False


def _start_and_stop(hub: TemporaryHub, options: dict[str, str]) -> float:
    user = f"{hub.hub_api}/users/ben"
    token = hub.admin_token
    begun = time.monotonic()
    answer = ask("POST", f"{user}/server", token, options, WITHIN_S)
    assert answer.status in (201, 202), answer.text
    _until(hub, user, ready=True)
    took_s = time.monotonic() - begun
    ask("DELETE", f"{user}/server", token, timeout_s=WITHIN_S)
    _until(hub, user, ready=False)
    return took_s


def _until(hub: TemporaryHub, user: str, *, ready: bool) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        servers = ask("GET", f"{user}?include_stopped_servers=1", hub.admin_token).body["servers"]
        server = servers.get("", {})
        if bool(server.get("ready")) is ready and not server.get("pending"):
            return
        assert time.monotonic() < deadline, f"the server did not reach that state: {servers}"
        time.sleep(0.05)


assert stages.HUB_CONFIG.rstrip().endswith("setup_gpu_quota(c)")
