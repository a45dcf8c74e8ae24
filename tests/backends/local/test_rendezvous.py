"""Where the ranks of a gang meet: a free port, and the same one for all of them whatever happens between."""

from __future__ import annotations

import socket
from itertools import islice
from pathlib import Path

from jupyter_gpu_quota.backends.local.jobs.executor import make_control, make_layout
from jupyter_gpu_quota.backends.local.jobs.paths import rank_paths
from jupyter_gpu_quota.backends.local.jobs.rendezvous import rendezvous_port
from jupyter_gpu_quota.backends.rendering.variables import gang_ports


def attempt(folder: Path, number: int = 1) -> str:
    """A state directory in which an attempt of job J is about to begin."""
    make_layout(str(folder))
    make_control(rank_paths(str(folder), "J", number, 0))
    return str(folder)


def test_a_port_on_which_somebody_listens_is_passed_over(tmp_path: Path) -> None:
    first, second = islice(gang_ports("J", 1), 2)
    with socket.create_server(("127.0.0.1", first)):
        assert rendezvous_port(attempt(tmp_path), "J", 1) == second


def test_the_port_stays_though_rank_0_listens_there_by_now(tmp_path: Path) -> None:
    state_dir = attempt(tmp_path)
    port = rendezvous_port(state_dir, "J", 1)
    with socket.create_server(("127.0.0.1", port)):
        assert rendezvous_port(state_dir, "J", 1) == port


def test_each_attempt_meets_elsewhere_below_the_ports_of_passing_connections(tmp_path: Path) -> None:
    ports = {rendezvous_port(attempt(tmp_path, number), "J", number) for number in (1, 2, 3)}
    assert len(ports) == 3 and all(20_000 <= port < 30_000 for port in ports)
    assert len(set(gang_ports("J", 1))) == 10_000
