"""Credentials of kubeconfigs and of service accounts."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.kubernetes.client import credentials
from jupyter_gpu_quota.backends.kubernetes.client.credentials import (
    CredentialsMissing,
    of_this_pod,
    read_credentials,
)
from tests.notifications.receivers import certificate
from tests.patience import until_in_loop

EXEC = {
    "apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "interactiveMode": "Never",
    "args": ["-c", "print('" + json.dumps({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "made"},
    }) + "')"],
}  # fmt: skip


def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> str:
    """The path of a kubeconfig; ``cluster`` has the names of its fields with underscores."""
    fields = {name.replace("_", "-"): value for name, value in cluster.items()}
    found = {
        "current-context": "a", "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/", **fields}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "a", "context": {"cluster": "c", "user": "u"}}, {"name": "b", "context": {"cluster": "d"}},
        ],
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(found))
    return str(folder / "config")


@pytest.mark.parametrize(
    ("user", "header"),
    [
        pytest.param({"token": "t"}, "Bearer t", id="a token"),
        pytest.param({"tokenFile": "token"}, "Bearer of a file", id="a file beside the kubeconfig"),
        pytest.param({"username": "ann", "password": "p"}, "Basic YW5uOnA=", id="a password"),
        pytest.param({}, None, id="nothing"),
        pytest.param({"exec": EXEC}, "Bearer made", id="a command"),
    ],
)
async def test_a_user_of_a_kubeconfig(tmp_path: Path, user: dict[str, Any], header: str | None) -> None:
    (tmp_path / "token").write_text("of a file\n")
    found = await read_credentials(kubeconfig(tmp_path, user), None)
    assert (found.host, await found.authorization()) == ("https://api:6443", header)


COUNT = """
import json, pathlib, sys
counter = pathlib.Path(sys.argv[1])
count = len(counter.read_text()) + 1
counter.write_text("x" * count)
status = {"token": str(count), "expirationTimestamp": "2026-01-01T00:00:00Z"}
assert count != 3, "it fails once"
print(json.dumps({"apiVersion": sys.argv[2], "kind": "ExecCredential", "status": status}))
"""

HANGS = "import os, sys\nif os.path.getsize(sys.argv[1]) == 1: open(sys.argv[3]).read()\n"


async def test_the_token_of_a_command_is_renewed_and_stays_while_the_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counter").write_text("")
    command = {**EXEC, "args": ["-c", COUNT, str(tmp_path / "counter"), EXEC["apiVersion"]]}
    found = await read_credentials(kubeconfig(tmp_path, {"exec": command}), None)
    assert await found.authorization() == "Bearer 1", "the command is not run for each request"
    monkeypatch.setattr(credentials, "TOKEN_AGAIN_S", 0.0)
    assert [await found.authorization() for _ in range(3)] == ["Bearer 2", "Bearer 2", "Bearer 4"]


async def test_a_command_that_hangs_delays_one_request_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counter").write_text("")
    os.mkfifo(gate := tmp_path / "gate")
    command = {**EXEC, "args": ["-c", HANGS + COUNT, str(tmp_path / "counter"), EXEC["apiVersion"], str(gate)]}
    found = await read_credentials(kubeconfig(tmp_path, {"exec": command}), None)
    monkeypatch.setattr(credentials, "TOKEN_AGAIN_S", 0.0)
    monkeypatch.setattr(credentials, "RENEW_TIMEOUT_S", 0.05)
    assert await found.authorization() == "Bearer 1"
    monkeypatch.setattr(credentials, "RENEW_TIMEOUT_S", 60.0)
    assert await found.authorization() == "Bearer 1", "the command still runs, and no second one"
    await asyncio.to_thread(gate.write_text, "")
    await until_in_loop(lambda: (tmp_path / "counter").read_text() == "xx")
    async with asyncio.timeout(60):
        while (token := await found.authorization()) == "Bearer 1":
            await asyncio.sleep(0)
    assert token == "Bearer 2"


async def test_the_certificates_of_a_kubeconfig(tmp_path: Path) -> None:
    public, private = (path.read_bytes() for path in certificate(tmp_path))
    user = {"client-certificate": "certificate.pem", "client-key-data": base64.b64encode(private).decode()}
    found = await read_credentials(kubeconfig(tmp_path, user, certificate_authority="certificate.pem"), None)
    assert len(found.tls.get_ca_certs()) == 1 and found.tls.verify_mode == ssl.CERT_REQUIRED
    path = kubeconfig(tmp_path, {}, certificate_authority_data=base64.b64encode(public).decode())
    assert len((await read_credentials(path, None)).tls.get_ca_certs()) == 1
    with pytest.raises(CredentialsMissing):
        await read_credentials(kubeconfig(tmp_path, {"client-certificate": "certificate.pem"}), None)


async def test_the_fields_of_a_cluster(tmp_path: Path) -> None:
    fields = {"insecure_skip_tls_verify": True, "tls_server_name": "other", "proxy_url": "http://proxy:3128"}
    found = await read_credentials(kubeconfig(tmp_path, {}, **fields), None)
    assert (found.tls.verify_mode, found.server_hostname, found.proxy) == (ssl.CERT_NONE, "other", "http://proxy:3128")


@pytest.mark.parametrize(
    ("text", "context", "message"),
    [
        pytest.param(None, None, "No such file", id="no file"),
        pytest.param("{", None, "while parsing", id="no YAML"),
        pytest.param("[]", None, "", id="no kubeconfig"),
        pytest.param("{}", None, "has no context None", id="an empty one"),
        pytest.param("", "elsewhere", "has no context elsewhere", id="another context"),
        pytest.param("", "b", "has no cluster d", id="a context without its cluster"),
    ],
)
async def test_credentials_that_cannot_be_used(
    tmp_path: Path, text: str | None, context: str | None, message: str
) -> None:
    path = kubeconfig(tmp_path, {})
    if text is None:
        Path(path).unlink()
    elif text:
        Path(path).write_text(text)
    with pytest.raises(CredentialsMissing, match=f"(?s)No credentials for a cluster in {path}: .*{message}"):
        await read_credentials(path, context)


async def test_a_token_that_is_replaced_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    certificate(tmp_path)[0].rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("old")
    found = of_this_pod(tmp_path)
    (tmp_path / "token").write_text("new")
    assert (found.host, await found.authorization()) == ("https://[fd00::1]:443", "Bearer old")
    monkeypatch.setattr(credentials, "TOKEN_AGAIN_S", 0.0)
    assert await found.authorization() == "Bearer new"


async def test_a_pod_without_a_service_account_has_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CredentialsMissing, match="the service account of this pod: KUBERNETES_SERVICE_HOST and"):
        await read_credentials(None, None)


def test_the_backend_imports_no_models_of_kubernetes() -> None:
    """They take 65 MiB in each process, and the agents run on every node."""
    names = "jupyter_gpu_quota.backends.kubernetes.backend, jupyter_gpu_quota.backends.kubernetes.agent.main"
    code = f"import {names}, sys; print([name for name in sys.modules if name.startswith('kubernetes_asyncio')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
