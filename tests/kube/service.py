"""The real service with its controllers on the Kubernetes backend, beside a fake hub that knows its users' tokens."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer

from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from jupyter_gpu_quota.client import Client
from tests.api.world import HUB_TOKEN, FakeAccount, FakeHub, serving, variables_of_service
from tests.kube.control_plane import free_port
from tests.patience import PATIENCE_S, until

QUOTA = """\
version: 1
pools:
  - {name: train, selector: {gpu_model: [NVIDIA H100]}, uses: [training, notebook]}
projects:
  - name: vision
    members: {users: [bob]}
    quota: {train: {training: 1, notebook: 1}}
environments:
  - {name: torch, image: "site/torch:2"}
  - {name: machine, python: /opt/torch/bin/python}
data:
  - {name: images, claim: datasets, sub_path: images, groups: [vision-team]}
  - {name: local, path: /srv/local, groups: [vision-team]}
"""


class KubernetesService:
    """``jupyter-gpu-quota serve`` with these settings, as the chart starts it; ``end`` stops what it started."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        only: str | None = None,
        port: int | None = None,
        quota: str = QUOTA,
    ) -> None:
        self.hub, self._thread = FakeHub(), LoopThread()
        self.hub.users["bob"] = FakeAccount(groups=["vision-team"])
        self._server, hub_port = self._thread.call(self._serve(), 10.0)
        (folder / "quota.yaml").write_text(quota)
        self.port = port or free_port()
        environment = variables_of_service(
            {"quota_file": str(folder / "quota.yaml"), "tick_ms": 50, "accounts": True, **settings}, hub_port, self.port
        )
        self.log_file = folder / "service.log"
        command = [sys.executable, "-m", "jupyter_gpu_quota", "serve", *(["--only", only] if only else [])]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    async def _serve(self) -> tuple[HTTPServer, int]:
        return serving(self.hub.application())

    def wait_until_ready(self) -> None:
        until(self.is_ready, what=self.log)

    def is_ready(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/services/gpu-quota/api/v1/ready"
        request = urllib.request.Request(url, headers={"Authorization": f"token {HUB_TOKEN}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status) == 200
        except (OSError, urllib.error.HTTPError):
            return False

    def log(self) -> str:
        return self.log_file.read_text()[-4000:]

    def client(self, user: str = "bob") -> Client:
        return Client(f"http://127.0.0.1:{self.port}", f"token-{user}", environment={})

    def stop(self) -> None:
        """Stop the service; jobs continue."""
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def end(self) -> None:
        self.stop()
        self._thread.call(self._close(), 10.0)
        self._thread.close()

    async def _close(self) -> None:
        self._server.stop()
        await self._server.close_all_connections()
