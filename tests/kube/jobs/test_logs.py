"""A kubelet that does not send a log: the end of the job is stored all the same, and its log says why it is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from jupyter_gpu_quota.backends.kubernetes.client import api_server
from jupyter_gpu_quota.backends.kubernetes.jobs import end_logs
from tests.backends.contract import Controller
from tests.kube.control_plane import ControlPlane
from tests.kube.fake_kubelet import FakeKubelet
from tests.kube.world import KubernetesWorld


@pytest.mark.parametrize("first_bytes", [b"", b"one\n"], ids=["that sends nothing", "that stops after a line"])
def test_an_end_is_stored_without_the_log_of_a_kubelet(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_bytes: bytes
) -> None:
    over = asyncio.Event()

    async def hung(kubelet: FakeKubelet, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        if first_bytes:
            await answer.prepare(request)
            await answer.write(first_bytes)
        await over.wait()
        return answer

    monkeypatch.setattr(api_server, "REQUEST_TIMEOUT_S", 2.0)
    monkeypatch.setattr(end_logs, "LOG_PATIENCE_S", 3.0)
    monkeypatch.setattr(FakeKubelet, "_log", hung)
    world = KubernetesWorld(control_plane, tmp_path)
    try:
        controller = Controller(world)
        controller.start("J", "ends with 3")
        assert controller.gone("J").exit_status == 3
        log = world.backend.outputs.log("J", 1, 0).data.decode()
        assert log == "[jupyter-gpu-quota] the log was lost: its kubelet did not send it within 2 s\n"
    finally:
        world.kubelet._thread._loop.call_soon_threadsafe(over.set)
        world.close()
