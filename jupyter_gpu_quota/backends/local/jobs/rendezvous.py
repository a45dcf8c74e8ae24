"""The rendezvous of the ranks of a gang: a port of this machine that was free when the attempt started."""

from __future__ import annotations

import socket

from ...job_files.paths import rendezvous_file
from ...job_files.record_files import read_record, write_record
from ...rendering.variables import gang_ports


def rendezvous_port(state_dir: str, job: str, attempt: int) -> int:
    """The port of an attempt. It is stored before the first rank starts, so all ranks get the same after a restart too.

    Raises OSError where every port that a gang may use is taken.
    """
    path = rendezvous_file(state_dir, job, attempt)
    stored = (read_record(path) or {}).get("port")
    if isinstance(stored, int):
        return stored
    port = next(filter(_is_free, gang_ports(job, attempt)), None)
    if port is None:
        raise OSError(f"job {job} cannot start its ranks: every port for their rendezvous is taken")
    write_record(path, {"port": port})
    return port


def _is_free(port: int) -> bool:
    """Whether a process could listen on this port of any address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
