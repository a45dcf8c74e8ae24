"""The hub's idle culler beside us: the real hub, the real jupyterhub-idle-culler, the rule of our own page."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hub.real_hub import ADMIN_TOKEN, RealHub, real_hub
from tests.patience import until

pytestmark = [pytest.mark.hub, pytest.mark.timeout(1200)]

EIGHTH, CPU = {"gpu_project": "build", "gpu_size": "1/8"}, {"gpu_size": "cpu"}
PAGE = Path(__file__).parents[2] / "docs/how-to/culler.md"

OFTEN = """
c.Spawner.environment = {"JUPYTERHUB_ACTIVITY_INTERVAL": "1"}
c.Spawner.args = [*c.Spawner.args, "--GPUQuotaActivity.report_every_s=2"]
"""
WORK_S = 60
SILENT_WORK = f"""
import threading, time
until = time.monotonic() + {WORK_S}
def work():
    while time.monotonic() < until:
        sum(range(10_000))
threading.Thread(target=work).start()
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHub]:
    with real_hub(tmp_path_factory.mktemp("culled"), after=OFTEN) as made:
        yield made


@contextmanager
def culler(hub: RealHub, *words: str) -> Iterator[None]:
    """The culler as a program of its own, looking once a second."""
    command = [sys.executable, "-m", "jupyterhub_idle_culler", f"--url={hub.stage.hub_api}", "--cull-every=1", *words]
    with (hub.stage.folder / "culler.log").open("ab") as log:
        program = subprocess.Popen(
            command, env={**os.environ, "JUPYTERHUB_API_TOKEN": ADMIN_TOKEN}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield
        assert program.poll() is None, (hub.stage.folder / "culler.log").read_text()
    finally:
        program.terminate()
        program.wait(60)


@pytest.mark.slow
def test_silent_gpu_work_is_activity_and_its_end_is_none(hub: RealHub) -> None:
    ann = hub.person("ann")
    hub.start("ann", EIGHTH)
    hub.run_in_kernel(ann, SILENT_WORK)
    began = time.monotonic()
    hub.start("ann", CPU, "two")
    with culler(hub, "--timeout=25"):
        until(lambda: not hub.server("ann", "two"))
        until(lambda: not hub.server("ann"), WORK_S + 60)
    assert time.monotonic() - began > WORK_S, "the culler stopped a server whose GPU was in use"


def test_the_documented_culler_rule_does_not_stop_servers_with_a_share(hub: RealHub) -> None:
    rule = PAGE.read_text().partition("def unless_it_has_a_gpu")[2].partition("```")[0]
    config = hub.stage.folder / "idle_culler_config.py"
    config.write_text(f"def unless_it_has_a_gpu{rule}")
    hub.start("ben", EIGHTH)
    hub.start("cat", CPU)
    hub.start("dan", {})
    with culler(hub, "--timeout=3", f"--config={config}"):
        until(lambda: not hub.server("cat") and not hub.server("dan"))
        assert hub.server("ben").get("ready")
    with culler(hub, "--timeout=3"):
        until(lambda: not hub.server("ben"))
