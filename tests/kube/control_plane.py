"""A real Kubernetes control plane on the loopback, as children of this process."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import secrets
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.kube.build import find
from tests.patience import until

Json = dict[str, Any]

NAMESPACE_ACCOUNT = "system:serviceaccount:{0}:gpu-quota-controllers"
USERS = {
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kwok": ("kwok", "system:masters"),
}
NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
"""The names of real nodes, which are the addresses of their kubelets."""
ADDITIONAL = 1000
"""Tokens for the service accounts of namespaces that tests make."""

START_WITHIN_S = 120.0
PORTS = range(20_000, 32_000)


class ControlPlane:
    """etcd, kube-apiserver and kube-scheduler; ``programs`` may name kube-controller-manager too.

    ``stop`` ends the processes that ``start`` made, and no others.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens: dict[str, str] = {}
        self._etcd_url = ""
        self._namespaces = 0

    def start(self, programs: Sequence[str] = ("kube-scheduler",)) -> None:
        """Start, and wait until requests are answered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_credentials()
        self._start_etcd()
        self._start_api_server()
        until(self._is_ready, START_WITHIN_S, what=self._errors)
        for program in programs:
            self.start_program(program)

    def stop(self) -> None:
        """End all processes."""
        for name in reversed(list(self._processes)):
            self.end(name)

    def end(self, name: str) -> None:
        """End one process."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(10)

    def start_again(self) -> None:
        """Start the API server again, on the same port and data."""
        self._start_api_server()
        until(self._is_ready, START_WITHIN_S, what=self._errors)

    # --- clients --------------------------------------------------------------------------------------------------
    def kubeconfig(self, user: str) -> str:
        """The path of the credentials of a user."""
        return self.kubeconfig_of_token(user, self._tokens[user])

    def kubeconfig_of_token(self, name: str, token: str) -> str:
        """The path of credentials with a token."""
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "certificates" / "apiserver.crt")}
        named = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        path.write_text(json.dumps(named))
        return str(path)

    def request(
        self, method: str, path: str, body: Json | None = None, *, user: str = "admin",
        content_type: str = "application/json",
    ) -> tuple[int, Json]:  # fmt: skip
        """One request; returns the status and the object."""
        context = ssl.create_default_context(cafile=str(self.folder / "certificates" / "apiserver.crt"))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=20)
        headers = {"Authorization": f"Bearer {self._tokens[user]}", "Content-Type": content_type}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        try:
            found = json.loads(data)
        except ValueError:
            found = {"message": data.decode(errors="replace")}
        return answer.status, found

    def make(self, path: str, body: Json, *, user: str = "admin") -> Json:
        """Create an object; anything but success fails the test."""
        status, found = self.request("POST", path, body, user=user)
        assert status < 300, found
        return found

    def get(self, path: str) -> Json:
        status, found = self.request("GET", path)
        assert status < 300, found
        return found

    def patch(self, path: str, body: Json, *, user: str = "admin") -> Json:
        status, found = self.request("PATCH", path, body, user=user, content_type="application/merge-patch+json")
        assert status < 300, found
        return found

    @property
    def has_scheduler(self) -> bool:
        return "kube-scheduler" in self._processes

    @property
    def has_controller_manager(self) -> bool:
        return "kube-controller-manager" in self._processes

    def new_namespace(self) -> str:
        """A new namespace with its default service account; the controllers' account of it has a token."""
        self._namespaces += 1
        name = f"test-{self._namespaces}"
        self.make("/api/v1/namespaces", {"metadata": {"name": name}})
        if not self.has_controller_manager:
            self.make(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until(lambda: self.request("GET", account)[0] == 200, what="the namespace has its service account")
        return name

    # --- processes ------------------------------------------------------------------------------------------------
    def spawn(self, name: str, *options: str) -> None:
        """Start a program of the control plane."""
        program = find(name)
        assert program is not None, f"{name} is not built: make kube"
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [program, *options], stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True
            )

    def start_program(self, name: str, *more: str) -> None:
        """Start kube-scheduler or kube-controller-manager, with more options."""
        kubeconfig = self.kubeconfig(name)
        options = [
            f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}", "--kube-api-qps=1000", "--kube-api-burst=2000", *more,
        ]  # fmt: skip
        if name == "kube-controller-manager":
            options += [
                f"--service-account-private-key-file={self.folder}/accounts.key",
                f"--root-ca-file={self.folder}/certificates/apiserver.crt", "--use-service-account-credentials=true",
            ]  # fmt: skip
        self.spawn(name, *options)

    def _write_credentials(self) -> None:
        names = USERS | {node: (f"system:node:{node}", "system:nodes") for node in NODES}
        for number in range(1, ADDITIONAL):
            names[f"test-{number}"] = (NAMESPACE_ACCOUNT.format(f"test-{number}"), "")
        self._tokens = {name: secrets.token_hex(16) for name in names}
        lines = [f'{self._tokens[name]},{user},{user},"{groups}"\n' for name, (user, groups) in names.items()]
        (self.folder / "tokens.csv").write_text("".join(lines))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        form = serialization.PrivateFormat.TraditionalOpenSSL
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (self.folder / "accounts.key").write_bytes(pem)

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._etcd_url = client
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        self.spawn(
            "etcd", "--name=test", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=test={peer}", "--unsafe-no-fsync", "--log-level=error",
        )  # fmt: skip

    def _start_api_server(self) -> None:
        folder = self.folder
        self.spawn(
            "kube-apiserver", f"--etcd-servers={self._etcd_url}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--profiling=false",
            f"--cert-dir={folder}/certificates", f"--token-auth-file={folder}/tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/accounts.key",
            f"--service-account-signing-key-file={folder}/accounts.key",
        )  # fmt: skip

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def _errors(self) -> str:
        return "".join((self.folder / f"{name}.log").read_text()[-2000:] for name in self._processes)


def free_port() -> int:
    """A port that is free, and below those that outgoing connections of the other programs take meanwhile."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def measure(start: Callable[[], None]) -> float:
    """The seconds that a call takes."""
    began = time.monotonic()
    start()
    return time.monotonic() - began
