"""The hub of the soak: two people with a guarantee of one device each, and a third who has a notebook."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jupyter_gpu_quota.demo.observer import Witness, belongs_to
from jupyter_gpu_quota.demo.temporary_hub import Cast, Stage
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
c.GPUQuota.simulated_devices = [
    {{"model": "Simulated 80G", "memory_mib": 81920, "count": 2}},
    {{"model": "Simulated 16G", "memory_mib": 16384, "count": 1}},
]
# A hub tells a proxy of others its routes anew when it updates activity, every 5 min; and it looks every 30 s whether
# its services (here the keeper) live, which no setting changes. The soak has no time for that.
c.JupyterHub.last_activity_interval = 2
from traitlets import Integer
from jupyterhub.services import service as _service
class _Watched(_service._ServiceSpawner):
    poll_interval = Integer(1)
_service._ServiceSpawner = _Watched
"""


@contextlib.contextmanager
def burning_hub(folder: Path) -> Iterator[Stage]:
    """A hub that is up, and its end."""
    quota = folder / "quota.yaml"
    quota.write_text(QUOTA)
    cast = Cast(groups={}, users=(*TEAMS, "carol"))
    stage = Stage(folder / "hub", cast=cast, extra_config=CONFIG.format(quota=quota))
    try:
        stage.start()
        yield stage
    finally:
        stage.end()


@contextlib.contextmanager
def watched(stage: Stage) -> Iterator[Witness]:
    """A witness of this hub, and its end."""
    witness = Witness(belongs_to(stage.folder, f"http://127.0.0.1:{stage.ports.hub}/"))
    witness.start()
    try:
        yield witness
    finally:
        witness.leave()
