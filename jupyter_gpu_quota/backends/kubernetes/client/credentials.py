"""The credentials for an API server: of a kubeconfig, or of the service account of this pod.

kubernetes_asyncio reads them too, and imports the models of all objects, which take 65 MiB in each process and on each
node. It is imported only for a user whose token comes from a command or from a provider.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

log = logging.getLogger(__name__)

Json = dict[str, Any]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
TOKEN_AGAIN_S = 60.0
"""A token in a file is replaced before it expires, and read again after this time."""
RENEW_TIMEOUT_S = 10.0
"""How long a request waits for a new token; the present one is valid for some minutes yet."""
COMMAND_TIMEOUT_S = 300.0
"""A command that has not ended by then is not waited for any more, and is run again."""


class CredentialsMissing(Exception):
    """There are no credentials for an API server; the message says where they were looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An API server, and how to connect to it. ``authorization`` returns the present value of that header."""

    host: str
    tls: ssl.SSLContext
    authorization: Callable[[], Awaitable[str | None]]
    proxy: str | None = None
    server_hostname: str | None = None


async def read_credentials(kubeconfig: str | None, context: str | None) -> Credentials:
    """The credentials in a kubeconfig; None: those of this pod. Raises CredentialsMissing."""
    try:
        if kubeconfig is None:
            return of_this_pod()
        return await _of_kubeconfig(Path(kubeconfig), context)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        place = kubeconfig or "the service account of this pod"
        raise CredentialsMissing(f"No credentials for a cluster in {place}: {error}") from error


def of_this_pod(folder: Path = SERVICE_ACCOUNT) -> Credentials:
    """The service account that Kubernetes mounts. Raises OSError and ValueError."""
    host, port = os.environ.get(HOST), os.environ.get(PORT)
    if not host or not port:
        raise ValueError(f"{HOST} and {PORT} are not set")
    token = _TokenFile(folder / "token")
    token.read()
    name = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    return Credentials(host=f"https://{name}:{port}", tls=tls, authorization=token.authorization)


async def _of_kubeconfig(path: Path, context: str | None) -> Credentials:
    found = yaml.safe_load(path.read_text())
    chosen = _named(found, "context", context or found.get("current-context"))
    cluster, user = _named(found, "cluster", chosen.get("cluster")), Json()
    if chosen.get("user"):
        user = _named(found, "user", chosen["user"])
    if {"exec", "auth-provider"} & user.keys():
        return await _of_provider(path, context)
    return Credentials(
        host=str(cluster["server"]).rstrip("/"), tls=_tls(cluster, user, path.parent), proxy=cluster.get("proxy-url"),
        authorization=_authorization(user, path.parent), server_hostname=cluster.get("tls-server-name"),
    )  # fmt: skip


def _named(kubeconfig: Json, kind: str, name: str | None) -> Json:
    """The cluster, the user or the context of a name. Raises ValueError."""
    entries: Iterable[Json] = kubeconfig.get(f"{kind}s") or ()
    for each in entries:
        if each["name"] == name:
            entry: Json = each.get(kind) or {}
            return entry
    raise ValueError(f"it has no {kind} {name}")


def _tls(cluster: Json, user: Json, folder: Path) -> ssl.SSLContext:
    authorities = _content(cluster, "certificate-authority", folder)
    made = ssl.create_default_context(cadata=authorities.decode() if authorities is not None else None)
    if cluster.get("insecure-skip-tls-verify"):
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    certificate, key = (_content(user, name, folder) for name in ("client-certificate", "client-key"))
    if certificate is not None:
        with tempfile.NamedTemporaryFile() as file:  # OpenSSL reads them from a file alone
            file.write(certificate + b"\n" + (key or b""))
            file.flush()
            made.load_cert_chain(file.name)
    return made


def _content(entry: Json, name: str, folder: Path) -> bytes | None:
    """The data of a field, or the content of the file that another one names. Raises OSError and ValueError."""
    if data := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(data, validate=False)
        except binascii.Error as error:
            raise ValueError(f"{name}-data is not base64: {error}") from error
    return (folder / entry[name]).read_bytes() if entry.get(name) else None


def _authorization(user: Json, folder: Path) -> Callable[[], Awaitable[str | None]]:
    if user.get("token"):
        return _always(f"Bearer {user['token']}")
    if user.get("tokenFile"):
        token = _TokenFile(folder / user["tokenFile"])
        token.read()
        return token.authorization
    if user.get("username") and user.get("password"):
        return _always("Basic " + base64.b64encode(f"{user['username']}:{user['password']}".encode()).decode())
    return _always(None)


def _always(value: str | None) -> Callable[[], Awaitable[str | None]]:
    async def authorization() -> str | None:
        return value

    return authorization


class _TokenFile:
    """A token in a small file, which is replaced while this process runs."""

    def __init__(self, path: Path) -> None:
        self._path, self._token, self._read_at = path, "", 0.0

    def read(self) -> None:
        """Read the token. Raises OSError and ValueError."""
        if not (token := self._path.read_text().strip()):
            raise ValueError(f"{self._path} is empty")
        self._token, self._read_at = token, time.monotonic()

    async def authorization(self) -> str:
        if time.monotonic() - self._read_at >= TOKEN_AGAIN_S:
            self.read()
        return f"Bearer {self._token}"


async def _of_provider(path: Path, context: str | None) -> Credentials:
    """The credentials of a user whose token a command or a provider gives, which may expire."""
    from kubernetes_asyncio.client.configuration import Configuration
    from kubernetes_asyncio.config.config_exception import ConfigException
    from kubernetes_asyncio.config.kube_config import load_kube_config

    known = Configuration()
    try:
        loader = await load_kube_config(str(path), context, client_configuration=known)
    except ConfigException as error:
        raise ValueError(str(error)) from error
    tls = ssl.create_default_context(cafile=known.ssl_ca_cert)
    if not known.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if known.cert_file:
        tls.load_cert_chain(known.cert_file, keyfile=known.key_file)

    async def renew() -> None:
        try:
            await asyncio.wait_for(loader.load_and_set(known), COMMAND_TIMEOUT_S)
        except (ConfigException, OSError, ValueError, LookupError, RuntimeError, TimeoutError) as error:
            log.warning("the token for %s is not renewed: %s", known.host, error or "no answer")

    has_token = await known.get_api_key_with_prefix("BearerToken") is not None
    return Credentials(
        host=known.host or "", tls=tls, proxy=known.proxy,
        authorization=_ProvidedToken(known, renew).authorization if has_token else _always(None),
        server_hostname=known.tls_server_name,
    )  # fmt: skip


class _ProvidedToken:
    """A token of a command or a provider. ``renew`` asks for another one where the present one is about to expire.

    kubernetes_asyncio does that only when it is called again. It does not end a command that hangs, so one runs at a
    time, and requests have the present token meanwhile. Client certificates are not renewed.
    """

    def __init__(self, known: Any, renew: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._known, self._renew, self._renewed_at = known, renew, time.monotonic()
        self._renewal: asyncio.Task[None] | None = None

    async def authorization(self) -> str | None:
        is_free = self._renewal is None or self._renewal.done()
        if is_free and time.monotonic() - self._renewed_at >= TOKEN_AGAIN_S:
            self._renewed_at, self._renewal = time.monotonic(), asyncio.create_task(self._renew())
            _, hanging = await asyncio.wait([self._renewal], timeout=RENEW_TIMEOUT_S)
            if hanging:
                log.warning("the token for %s is not renewed within %g s", self._known.host, RENEW_TIMEOUT_S)
        value: str | None = await self._known.get_api_key_with_prefix("BearerToken")
        return value
