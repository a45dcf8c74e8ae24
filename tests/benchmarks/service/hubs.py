"""Hubs for the benchmarks: the temporary hub of the demo with its own quota file, and one without the product."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub

QUOTA = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training]}
  - {name: build, selector: {gpu_model: [Simulated 16G]}, uses: [notebook]}
projects:
  - {name: red, members: {users: [ann]}, quota: {train: {training: 1}}, defaults: {pool: {training: train}}}
  - name: blue
    members: {users: [ben]}
    quota: {train: {training: 1}, build: {notebook: 1}}
    defaults: {pool: {training: train, notebook: build}}
policy:
  preemption: {min_runtime: 0s, grace: 5s, lent_grace: 5s, max_pauses: 10000, per: 24h}
"""

CONFIG = """\
c.GPUQuota.quota_file = "{quota}"
c.GPUQuota.simulated_devices = [
    {{"model": "Simulated 80G", "memory_mib": 81920, "count": 2}},
    {{"model": "Simulated 16G", "memory_mib": 16384, "count": 1}},
]
"""


@contextlib.contextmanager
def hub_with_quota(folder: Path, extra_config: str = "") -> Iterator[TemporaryHub]:
    """A hub with two training devices, one for each of two users as training quota, and one device for slices."""
    quota = folder / "quota.yaml"
    quota.write_text(QUOTA)
    config = CONFIG.format(quota=quota) + extra_config
    hub = TemporaryHub(folder / "hub", users=HubUsers(groups={}, users=("ann", "ben")), extra_config=config)
    try:
        hub.start()
        yield hub
    finally:
        hub.end()
