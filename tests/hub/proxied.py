"""Reads of one user through the hub's real proxy, while requests of others are refused."""

from __future__ import annotations

import http.client
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, cycle
from typing import NamedTuple

from jupyter_gpu_quota.demo.proxy import find_or_install_proxy
from jupyter_gpu_quota.hub.ports import reserve_ports
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

RATE, SENDERS = 220, 4
"""Refused requests a second, a tenth more than the promise, from so many threads."""
TOO_LARGE_STATUS, CLOSED = 413, 0
"""Stand for each outcome of TOO_LARGE, which is 503 from the proxy or no answer, and for no answer to another one."""


class Load(NamedTuple):
    """The statuses of the reads and of the refused requests, and how long the reads took."""

    read: Counter[int]
    refused: Counter[int]
    seconds: float


@contextmanager
def proxy(world: ServiceWorld) -> Iterator[int]:
    """The proxy before the service, without a hub; returns its port."""
    reserved = reserve_ports(f"the proxy of process {os.getpid()}", 2)
    ports = [each.port for each in reserved]
    options = f"--ip 127.0.0.1 --port {ports[0]} --api-ip 127.0.0.1 --api-port {ports[1]} --log-level error"
    target = f"--default-target http://127.0.0.1:{world.port}"
    command = [*find_or_install_proxy(), *options.split(), *target.split()]
    with subprocess.Popen(command, env={**os.environ, "CONFIGPROXY_AUTH_TOKEN": "t" * 32}) as running:
        try:
            until(lambda: _answers(ports[0]), what="the proxy")
            yield ports[0]
        finally:
            running.terminate()
            for each in reserved:
                each.release()


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


def reads_beside_refusals(port: int, reads: int) -> Load:
    """So many reads, one after the other, beside refused requests at the rate of ``RATE``.

    The rate is kept over the whole time: a sender that was late sends its next requests at once.
    """
    ended, refused, began = threading.Event(), Counter[int](), time.monotonic()
    due = zip(count(), cycle([*REFUSED * 20, TOO_LARGE]))
    turn = threading.Lock()

    def be_refused() -> None:
        while True:
            with turn:
                number, request = next(due)
            if ended.wait(max(0.0, began + number / RATE - time.monotonic())):
                return
            status = _refusal(port, *request)
            with turn:
                refused[TOO_LARGE_STATUS if request is TOO_LARGE else status] += 1

    senders = [threading.Thread(target=be_refused) for _ in range(SENDERS)]
    for sender in senders:
        sender.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        found = Counter(status_of(connection, "GET", "me", BOB) for _ in range(reads))
        return Load(found, refused.copy(), time.monotonic() - began)
    finally:
        ended.set()
        for sender in senders:
            sender.join(PATIENCE_S)


def _refusal(port: int, method: str, path: str, headers: dict[str, str], body: bytes | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        return status_of(connection, method, path, headers, body)
    except (OSError, http.client.HTTPException):
        return CLOSED
    finally:
        connection.close()
