"""The slice's part of a notebook's start, timed inside the hub, and the whole start beside the plain spawner's.

For the first the hub runs the real mixin in front of a spawner that starts no process: what is left of ``start`` is
the asking and the rendering, of ``stop`` the giving back. For the second two hubs start a real server a few times.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from jupyter_gpu_quota.demo import temporary_hub as stages
from jupyter_gpu_quota.demo.temporary_hub import Cast, Stage
from tests.benchmarks.figures import Figure, spread
from tests.benchmarks.hubs import hub_with_quota
from tests.soak.doors import ask

RUNS, SPAWNS = 200, 5
WITHIN_S = 120.0

IN_THE_HUB = '''
import asyncio as _asyncio, json as _json, pathlib as _pathlib, urllib.request as _request
from jupyterhub.spawner import SimpleLocalProcessSpawner as _Simple

class _Instant(_Simple):
    """Starts nothing: what its start takes is the slice's part."""
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
    """Ask, render and give back of 200 starts."""
    begin, result = folder / "begin", folder / "times.json"
    with hub_with_quota(folder, IN_THE_HUB.format(begin=begin, result=result, runs=RUNS)) as stage:
        begin.touch()
        deadline = time.monotonic() + WITHIN_S
        while not result.exists():
            assert time.monotonic() < deadline, stage.last_words("hub")
            time.sleep(0.2)
        rows: list[dict[str, float]] = json.loads(result.read_text())
    whole = [sum(row.values()) * 1000 for row in rows]
    told = "ask until booked + render variables + give back, by the spawner's own clock in the hub"
    parts = [
        figure
        for part in ("ask", "render", "give_back")
        for figure in spread(
            f"slice: {part.replace('_', ' ')}", [row[part] * 1000 for row in rows], "ms", f"{part} alone"
        )
    ]
    return [*spread("slice part of a notebook start", whole, "ms", told, median_at_most=50), *parts]


def spawn_figures(folder: Path) -> list[Figure]:
    """Whole starts of a real server: with a slice, and by the plain spawner of a hub without us."""
    (folder / "with").mkdir()
    with hub_with_quota(folder / "with") as stage:
        with_slice = [_start_and_stop(stage, {"gpu_project": "blue", "gpu_size": "1/8"}) for _ in range(SPAWNS)]
    plain_hub = PlainStage(folder / "plain", cast=Cast(groups={}, users=("ben",)))
    try:
        plain_hub.start()
        plain = [_start_and_stop(plain_hub, {}) for _ in range(SPAWNS)]
    finally:
        plain_hub.end()
    told = "POST server until the hub says ready"
    return [
        *spread("notebook start with a slice of 1/8", with_slice, "s", told),
        *spread("notebook start, plain spawner, no gpu-quota", plain, "s", told),
    ]


class PlainStage(Stage):
    """A hub without us, for comparison."""

    def _config(self) -> str:
        return super()._config().replace("setup_gpu_quota(c)", "")

    def is_ready(self) -> bool:
        try:
            return bool(self.ask("GET", f"{self.hub_api}/", None))
        except (OSError, ValueError):
            return False


def _start_and_stop(stage: Stage, options: dict[str, str]) -> float:
    user = f"{stage.hub_api}/users/ben"
    token = stage.admin_token
    begun = time.monotonic()
    answer = ask("POST", f"{user}/server", token, options, WITHIN_S)
    assert answer.status in (201, 202), answer.text
    _until(stage, user, ready=True)
    took_s = time.monotonic() - begun
    ask("DELETE", f"{user}/server", token, timeout_s=WITHIN_S)
    _until(stage, user, ready=False)
    return took_s


def _until(stage: Stage, user: str, *, ready: bool) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        servers = ask("GET", f"{user}?include_stopped_servers=1", stage.admin_token).body["servers"]
        server = servers.get("", {})
        if bool(server.get("ready")) is ready and not server.get("pending"):
            return
        assert time.monotonic() < deadline, f"the server did not get there: {servers}"
        time.sleep(0.05)


assert stages.HUB_CONFIG.rstrip().endswith("setup_gpu_quota(c)")
