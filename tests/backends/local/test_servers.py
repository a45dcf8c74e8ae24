"""The records of notebook servers: the hub writes them, and they are valid while the server runs."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.local.enforcement_backend import LocalEnforcement
from jupyter_gpu_quota.backends.local.host.processes import process, variables_of
from jupyter_gpu_quota.backends.local.host.servers import Servers, account_of
from jupyter_gpu_quota.backends.protocol import StopNotebookOrder
from jupyter_gpu_quota.hub.server_enforcement import ServerEnforcement, limiter_of
from tests.backends.worlds import is_alive
from tests.gpu.world import share_of
from tests.patience import PATIENCE_S, until

NAMESPACE = str(Path("/proc/self/ns/user").readlink())


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path / "state")


def test_a_server_is_recorded_with_its_start_and_account(
    servers: Servers, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert servers.record_start("N", child.pid) == ""
    found, seen = servers.of("N"), process(child.pid)
    assert found is not None and seen is not None
    assert (found.pid, found.started) == (child.pid, seen.started)
    assert (found.account.uid, found.account.namespace) == (os.geteuid(), NAMESPACE)
    assert stat.S_IMODE((tmp_path / "state" / "servers").stat().st_mode) == 0o700
    servers.forget("N")
    servers.forget("N")
    assert servers.of("N") is None


def test_a_server_without_a_cgroup_is_killed_with_all_below_it(servers: Servers, tmp_path: Path) -> None:
    enforcement = LocalEnforcement(tmp_path / "state", limits=lambda requests: [], cgroup="nowhere")
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        below = int(server.stdout.readline())
        servers.record_start("N", server.pid)
        enforcement.stop_notebook(StopNotebookOrder(notebook="N", fencing=1, reason="over_share"))
        assert server.wait(PATIENCE_S) == -signal.SIGKILL
        until(lambda: not is_alive(below))


def test_a_notebook_that_cannot_be_killed_is_logged(
    servers: Servers, child: subprocess.Popen[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    enforcement = LocalEnforcement(tmp_path / "state", limits=lambda requests: [], cgroup="nowhere")
    servers.record_start("N", child.pid)
    record = tmp_path / "state" / "servers" / "N.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "started": 1}))  # its id was used again
    enforcement.stop_notebook(StopNotebookOrder(notebook="N", fencing=1, reason="over_share"))
    assert "notebook N is not killed" in caplog.text and child.poll() is None


@pytest.mark.parametrize("notebook", ["../N", "", "a/b", "N.json/..", "x" * 200])
def test_an_invalid_notebook_id_is_never_a_path(
    servers: Servers, notebook: str, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert servers.record_start(notebook, child.pid) != ""
    assert servers.of(notebook) is None
    assert not (tmp_path / "state").exists()


def test_an_ended_process_is_not_recorded(servers: Servers, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait(PATIENCE_S)
    assert "is not there" in servers.record_start("N", child.pid)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"boot": "another"}, id="before a reboot"),
        pytest.param({"uid": None}, id="without a user"),
        pytest.param({"pid": "x"}, id="with a text as pid"),
    ],
)
def test_an_invalid_record_is_ignored(
    servers: Servers, child: subprocess.Popen[bytes], tmp_path: Path, change: dict[str, object]
) -> None:
    servers.record_start("N", child.pid)
    path = tmp_path / "state" / "servers" / "N.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert servers.of("N") is None


def test_records_of_ended_notebooks_without_a_server_are_removed(
    servers: Servers, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    for name in ("kept", "over"):
        servers.record_start(name, child.pid)
    servers.sweep(frozenset({"kept"}))
    assert servers.of("over") is not None, "its server still runs"
    child.kill()
    child.wait(PATIENCE_S)
    servers.sweep(frozenset({"kept"}))
    assert [path.name for path in (tmp_path / "state" / "servers").iterdir()] == ["kept.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes of other users")
def test_a_user_without_a_uid_in_this_namespace_is_unknown() -> None:
    with subprocess.Popen(["sleep", "600"], user=65_534) as nameless:
        assert account_of(nameless.pid) is None
        nameless.kill()


@pytest.mark.parametrize(("variables", "recorded"), [(share_of("N"), True), (share_of("M"), False), ({}, False)])
def test_a_server_that_is_older_than_the_hub_is_recorded_if_it_is_of_that_notebook(
    servers: Servers, tmp_path: Path, variables: dict[str, str], recorded: bool
) -> None:
    hold = ServerEnforcement(limiter_of(str(tmp_path / "state")), servers)
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **variables}) as server:
        until(lambda: variables_of(server.pid))  # the kernel lets the parent go on before they can be read
        hold.record_running("N", server.pid)
        server.kill()
        assert (servers.of("N") is not None) == recorded
