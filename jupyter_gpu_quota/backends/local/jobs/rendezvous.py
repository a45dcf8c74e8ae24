"""Where the ranks of a gang meet: a port of this machine that nobody listened on when the attempt began."""

from __future__ import annotations

import socket

from ...rendering.variables import gang_ports
from ..host.record_files import read_record, write_record
from .paths import rendezvous_file


def meeting_port(state_dir: str, job: str, attempt: int) -> int:
    """The port of an attempt. Noted before the first rank is told, so that all are told the same after a restart too.

    Raises OSError where every port that a gang may use is taken.
    """
    path = rendezvous_file(state_dir, job, attempt)
    noted = (read_record(path) or {}).get("port")
    if isinstance(noted, int):
        return noted
    port = next(filter(_is_free, gang_ports(job, attempt)), None)
    if port is None:
        raise OSError(f"job {job} cannot start its ranks: every port where they could meet is taken")
    write_record(path, {"port": port})
    return port


def _is_free(port: int) -> bool:
    """Whether a process could listen there now, on whatever address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
