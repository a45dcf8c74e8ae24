"""The hub of the soak: two users with a training quota of one device each, and one with notebook quota."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jupyter_gpu_quota.demo.observer import ProcessObserver, belongs_to
from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub
from tests.soak.stream import TEAMS

QUOTA = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training]}
  - {name: build, selector: {gpu_model: [Simulated 16G]}, uses: [notebook]}
projects:
  - {name: red, members: {users: [ann]}, quota: {train: {training: 1}}, defaults: {pool: {training: train}}}
  - {name: blue, members: {users: [ben]}, quota: {train: {training: 1}}, defaults: {pool: {training: train}}}
  - {name: green, members: {users: [carol]}, quota: {build: {notebook: 0.5}}, defaults: {pool: {notebook: build}}}
policy:
  preemption: {min_runtime: 0s, grace: 1s, lent_grace: 1s, max_pauses: 50, per: 24h}
"""

CONFIG = """\
c.GPUQuota.quota_file = "{quota}"
c.GPUQuota.validate_state = True
c.GPUQuota.simulated_devices = [
    {{"model": "Simulated 80G", "memory_mib": 81920, "count": 2}},
    {{"model": "Simulated 16G", "memory_mib": 16384, "count": 1}},
]
# The hub restores the routes of an external proxy when it updates activity, every 5 min, and checks its services (here
# the supervisor) every 30 s, for which it has no setting. The soak shortens both.
c.JupyterHub.last_activity_interval = 2
from traitlets import Integer
from jupyterhub.services import service as _service
class _Watched(_service._ServiceSpawner):
    poll_interval = Integer(1)
_service._ServiceSpawner = _Watched
"""


@contextlib.contextmanager
def soak_hub(folder: Path) -> Iterator[TemporaryHub]:
    """Start the hub; stop it in the end."""
    quota = folder / "quota.yaml"
    quota.write_text(QUOTA)
    users = HubUsers(groups={}, users=(*TEAMS, "carol"))
    hub = TemporaryHub(folder / "hub", users=users, extra_config=CONFIG.format(quota=quota))
    try:
        hub.start()
        yield hub
    finally:
        hub.end()


@contextlib.contextmanager
def observed(hub: TemporaryHub) -> Iterator[ProcessObserver]:
    """An observer of this hub; stop it in the end."""
    observer = ProcessObserver(belongs_to(hub.folder, f"http://127.0.0.1:{hub.ports.hub}/"))
    observer.start()
    try:
        yield observer
    finally:
        observer.stop()
