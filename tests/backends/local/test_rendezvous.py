"""The rendezvous of a gang: a free port, the same for all ranks, also after a restart."""

from __future__ import annotations

import socket
from itertools import islice
from pathlib import Path

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.local.jobs.executor import make_control, make_layout
from jupyter_gpu_quota.backends.local.jobs.rendezvous import rendezvous_port
from jupyter_gpu_quota.backends.rendering.variables import gang_ports


def attempt(folder: Path, number: int = 1) -> str:
    """A state directory in which an attempt of job J is about to start."""
    make_layout(str(folder))
    make_control(rank_paths(str(folder), "J", number, 0))
    return str(folder)


def test_a_port_in_use_is_skipped(tmp_path: Path) -> None:
    first, second = islice(gang_ports("J", 1), 2)
    with socket.create_server(("127.0.0.1", first)):
        assert rendezvous_port(attempt(tmp_path), "J", 1) == second


def test_the_port_of_an_attempt_does_not_change_when_rank_0_listens(tmp_path: Path) -> None:
    state_dir = attempt(tmp_path)
    port = rendezvous_port(state_dir, "J", 1)
    with socket.create_server(("127.0.0.1", port)):
        assert rendezvous_port(state_dir, "J", 1) == port


def test_each_attempt_has_another_port_below_the_ephemeral_ports(tmp_path: Path) -> None:
    ports = {rendezvous_port(attempt(tmp_path, number), "J", number) for number in (1, 2, 3)}
    assert len(ports) == 3 and all(20_000 <= port < 30_000 for port in ports)
    assert len(set(gang_ports("J", 1))) == 10_000
