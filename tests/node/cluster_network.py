"""A stand-in for kube-proxy and for the DNS of a cluster: addresses and names of Services, for pods of real nodes.

Each address is one of this machine's loopback link while the network is up; a connection to it is passed on to a
port of this machine, or to a ready pod. No packet is filtered or rewritten, so nothing but addresses is to be removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from jupyter_gpu_quota.backends.kubernetes.client.loop_thread import LoopThread
from tests.kube.control_plane import ControlPlane

API_ADDRESS, DNS_ADDRESS, DOMAIN = "10.96.0.1", "10.96.0.10", "svc.cluster.local"
"""The first is the address that kube-apiserver gives to the Service ``kubernetes``, and has in its certificate."""

Target = Callable[[], tuple[str, int]]
TYPE_A, NO_ERROR, NO_NAME = 1, 0, 3


class ClusterNetwork:
    """``serve`` makes one Service reachable; ``stop`` removes everything."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._thread = plane, LoopThread()
        self._addresses, self._names = list[str](), dict[str, str]()
        self._open = list[asyncio.Server | asyncio.DatagramTransport]()
        self._tasks = set[asyncio.Task[None]]()

    def start(self) -> None:
        """The API server, and the name server."""
        self._listen(API_ADDRESS, 443, lambda: ("127.0.0.1", self._plane.port))
        self._add(DNS_ADDRESS)
        self._thread.call(self._answer_names(), 10.0)

    def serve(self, namespace: str, name: str, port: int, target: Target) -> str:
        """Let a Service lead to a target; returns its address."""
        found = self._plane.get(f"/api/v1/namespaces/{namespace}/services/{name}")
        address: str = found["spec"]["clusterIP"]
        self._names[f"{name}.{namespace}.{DOMAIN}"] = address
        self._listen(address, port, target)
        return address

    def pod_of(self, namespace: str, service: str) -> Target:
        """A ready pod of a Service, as kube-controller-manager has it."""
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        path = f"{slices}?labelSelector=kubernetes.io/service-name={service}"

        def find() -> tuple[str, int]:
            for each in self._plane.get(path)["items"]:
                for endpoint in each.get("endpoints") or ():
                    if endpoint["conditions"].get("ready"):
                        return endpoint["addresses"][0], each["ports"][0]["port"]
            raise OSError(f"{service} has no ready pod")

        return find

    def stop(self) -> None:
        self._thread.close(self._close())
        for address in self._addresses:
            _ip("del", address)

    # --- connections ----------------------------------------------------------------------------------------------
    def _add(self, address: str) -> None:
        _ip("add", address)
        self._addresses.append(address)

    def _listen(self, address: str, port: int, target: Target) -> None:
        self._add(address)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (task := asyncio.current_task()) is not None:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            with contextlib.suppress(OSError):
                host, found = await asyncio.to_thread(target)
                there, back = await asyncio.open_connection(host, found)
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
            writer.close()

        async def listen() -> None:
            self._open.append(await asyncio.start_server(connected, address, port))

        self._thread.call(listen(), 10.0)

    async def _answer_names(self) -> None:
        loop, names = asyncio.get_running_loop(), self._names
        transport, _ = await loop.create_datagram_endpoint(lambda: _NameServer(names), (DNS_ADDRESS, 53))
        self._open.append(transport)

    async def _close(self) -> None:
        for each in self._open:
            each.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


class _NameServer(asyncio.DatagramProtocol):
    """Answers questions for the addresses of Services; every other name does not exist."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: Any) -> None:
        self._transport.sendto(answer(data, self._names), sender)


def answer(question: bytes, names: dict[str, str]) -> bytes:
    """The answer to one question (RFC 1035)."""
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode())
        at += 1 + length
    asked, kind = question[12 : at + 5], int.from_bytes(question[at + 1 : at + 3], "big")
    address = names.get(".".join(labels).lower())
    found = b""
    if address is not None and kind == TYPE_A:
        found = b"\xc0\x0c" + bytes([0, TYPE_A, 0, 1, 0, 0, 0, 1, 0, 4]) + bytes(map(int, address.split(".")))
    flags = bytes([0x84 | question[2] & 1, 0x80 | (NO_ERROR if address else NO_NAME)])
    return question[:2] + flags + bytes([0, 1, 0, bool(found), 0, 0, 0, 0]) + asked + found


def why_no_network() -> str:
    return "" if shutil.which("ip") else "this machine has no ip (iproute2), which gives Services their addresses"


def _ip(verb: str, address: str) -> None:
    subprocess.run(["ip", "address", verb, f"{address}/32", "dev", "lo"], check=True, capture_output=True, timeout=20)
