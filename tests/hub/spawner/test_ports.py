"""Ports that are still free when a server starts on them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from traitlets.config import Config

from jupyter_gpu_quota import setup_gpu_quota
from jupyter_gpu_quota.hub import ports
from jupyter_gpu_quota.hub.ports import free_ports

SEED = f"a deployment of process {os.getpid()}"


def test_a_port_is_below_the_range_of_outgoing_connections() -> None:
    first_ephemeral = int(ports.EPHEMERAL.read_text().split()[0])
    assert all(port < first_ephemeral for seed in "abcdefgh" for port in free_ports(seed, 5))


def test_a_seed_has_the_same_port_while_it_is_free() -> None:
    (port,) = free_ports(SEED)
    assert free_ports(SEED) == [port]
    with socket.create_server(("127.0.0.1", port)):
        assert free_ports(SEED) != [port]


def test_ports_in_use_by_the_configuration_are_skipped() -> None:
    first, second = free_ports(SEED, 2)
    assert free_ports(SEED, taken=frozenset({first})) == [second]


def test_the_service_does_not_get_a_port_of_the_configuration(tmp_path: Path) -> None:
    (wished,) = free_ports(str(tmp_path))
    c = Config()
    c.GPUQuota.state_dir = str(tmp_path)
    c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{wished}"
    setup_gpu_quota(c)
    assert c.GPUQuota.service_url != f"http://127.0.0.1:{wished}"
