"""A kernel of a demo's user that does not answer its server is replaced, on a real Jupyter server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from jupyter_gpu_quota.demo import users
from jupyter_gpu_quota.demo.users import Kernel, KernelNotReached, User
from tests.notebook.jupyter_world import SERVER_TOKEN, JupyterServer, free_port, jupyter_server

STARTER = """
import os, pathlib, signal, sys
starts = pathlib.Path(__file__).with_name("starts")
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if len(starts.read_text()) > int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "ipykernel_launcher", "-f", sys.argv[2]])
signal.sigwait({signal.SIGTERM, signal.SIGINT})
"""
"""The first kernels that it starts never answer."""


def with_silent_kernels(folder: Path, count: int) -> None:
    """A kernel specification ``silent`` of which so many kernels never answer."""
    spec = folder / "kernels" / "silent"
    spec.mkdir(parents=True)
    (spec / "starter.py").write_text(STARTER)
    argv = [sys.executable, str(spec / "starter.py"), str(count), "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "silent", "language": "python"}))


def started_on(server: JupyterServer) -> str:
    """What a cell prints in a kernel that was started as the demo does."""

    async def start() -> str:
        kernel = await Kernel.start(User(name="ann", token=SERVER_TOKEN, url=server.url), "silent")
        try:
            return await kernel.run("print(1 + 1)")
        finally:
            kernel.close()

    return asyncio.run(start())


@pytest.mark.parametrize("silent", [1, 2])
def test_a_kernel_that_does_not_answer_is_replaced_once(
    silent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(User, "server_url", property(lambda user: user.url))
    monkeypatch.setattr(users, "CALL_TIMEOUT_S", 8.0)
    with_silent_kernels(tmp_path, silent)
    with jupyter_server(tmp_path, free_port(), JUPYTER_PATH=str(tmp_path)) as server:
        if silent == 1:
            assert started_on(server).strip() == "2"
            assert len(server.kernels()) == 1
        else:
            with pytest.raises(KernelNotReached, match="the socket to a kernel of ann was not opened"):
                started_on(server)
            assert server.kernels() == set()
