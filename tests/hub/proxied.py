"""Reads of one user through the hub's real proxy, while requests of others are refused."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle

from jupyter_gpu_quota.demo.proxy import find_or_install_proxy
from tests.api.world import PREFIX, ServiceWorld
from tests.patience import PATIENCE_S, until

BOB = {"Authorization": "token token-bob"}
REFUSED = (
    ("GET", "jobs", {}, None),
    ("POST", "jobs", {}, b"x" * 2_000),
    ("PUT", "bundles/" + "b" * 64, {}, b"x" * 70_000),
    ("PUT", "quota", BOB, b"{}"),
    ("DELETE", "me", BOB, None),
    ("GET", "nothing", BOB, None),
    ("POST", "jobs", BOB, b"{"),
    ("GET", "jobs?nonsense=1", BOB, None),
)
"""Method, path, headers and body of requests that are refused, each for another reason."""

TOO_LARGE = ("POST", "jobs", {}, b"x" * (17 << 20))
"""Its connection is closed before the body is read."""

EVERY_S = 0.005
"""200 refused requests a second."""


@contextmanager
def proxy(world: ServiceWorld) -> Iterator[int]:
    """The proxy before the service, without a hub; returns its port."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [each.getsockname()[1] for each in (first, second)]
    options = f"--ip 127.0.0.1 --port {ports[0]} --api-ip 127.0.0.1 --api-port {ports[1]} --log-level error"
    target = f"--default-target http://127.0.0.1:{world.port}"
    command = [*find_or_install_proxy(), *options.split(), *target.split()]
    with subprocess.Popen(command, env={**os.environ, "CONFIGPROXY_AUTH_TOKEN": "t" * 32}) as running:
        try:
            until(lambda: _answers(ports[0]), what="the proxy")
            yield ports[0]
        finally:
            running.terminate()


def _answers(port: int) -> bool:
    with suppress(OSError):
        return status_of(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S), "GET", "me", BOB) == 200
    return False


def status_of(
    connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> int:
    connection.request(method, f"{PREFIX}api/v1/{path}", body=body, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def reads_beside_refusals(port: int, reads: int) -> tuple[Counter[int], int]:
    """The statuses of so many reads, one after the other, and the number of requests refused meanwhile."""
    ended, refused = threading.Event(), Counter[int]()

    def be_refused() -> None:
        for method, path, headers, body in cycle([*REFUSED * 20, TOO_LARGE]):
            if ended.wait(EVERY_S):
                return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            with suppress(OSError, http.client.HTTPException):  # one that is closed early
                refused[status_of(connection, method, path, headers, body)] += 1
            connection.close()

    thread = threading.Thread(target=be_refused)
    thread.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        found = Counter(status_of(connection, "GET", "me", BOB) for _ in range(reads))
    finally:
        ended.set()
        thread.join(PATIENCE_S)
    return found, refused.total()
