"""A spawner mixin that gives each server a port of its own.

JupyterHub lets the kernel pick the port of a local server, and takes the first answer on that port for the server's.
This mixin reserves a port until the server listens on it, and looks up the process that listens. If that process does
not belong to the server, the server is started again on another port.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner

from ..backends.local.host.listeners import Listener, find_listener
from ..backends.local.host.processes import find_marked
from .ports import reserve_ports
from .refusal import start_failure

ATTEMPTS = 5
POLL_S = 0.1


class OwnPortMixin(LocalProcessSpawner):  # type: ignore[misc]
    """``start`` returns as soon as the server's own process listens; ``http_timeout`` limits that wait too."""

    port: int
    api_token: str

    async def start(self) -> Any:
        """Start the server on its configured port, or on a free one. Raises the failure of a server that ended."""
        configured, tried = self.port, set[int]()
        deadline = asyncio.get_running_loop().time() + self.http_timeout
        for _ in range(1 if configured else ATTEMPTS):
            if (address := await self._attempt(configured, tried, deadline)) is not None:
                return address
            tried.add(self.port)
            self.log.warning("%s: port %d was taken by another process", self._log_name, self.port)
            self.port = configured
        ports = ", ".join(map(str, sorted(tried)))
        advice = "change c.Spawner.port" if configured else "start it again"
        raise start_failure(
            f"{self.user.name}'s server was not started: another process listens on port {ports}; {advice}."
        )

    async def _attempt(self, configured: int, tried: set[int], deadline: float) -> Any:
        """Start the server on one port. Returns its address, None if another process took the port."""
        seed = f"{self.user.url}{self.name}"
        reserved = [] if configured else await asyncio.to_thread(reserve_ports, seed, taken=frozenset(tried))
        self.port = configured or reserved[0].port
        token = self.api_token
        try:
            address = await super().start()
            self.process_started()
            if not isinstance(address, tuple) or await self._listens(address, deadline):
                return address
            await super().stop(now=True)
        except BaseException:
            if self.pid:
                await super().stop(now=True)
            self.api_token = token  # the stop cleared it, and JupyterHub deletes the token that it finds here
            raise
        finally:
            for each in reserved:
                each.release()
        self.api_token = token
        return None

    def process_started(self) -> None:
        """Save the state of a process that does not listen yet: a hub that is killed now finds the server again."""
        if self.orm_spawner is not None and self.server is not None:
            self.server.ip, self.server.port = self.ip or "127.0.0.1", self.port
            self.orm_spawner.state = self.get_state()
            self.user.db.commit()

    async def _listens(self, address: tuple[str, int], deadline: float) -> bool:
        """Wait until the server listens. Returns False where another process does; raises the server's failure."""
        while True:
            status = self.proc.poll()
            match await asyncio.to_thread(find_listener, *address, self._processes):
                case Listener.FOREIGN:
                    return False
                case Listener.OWN | Listener.UNKNOWN:
                    return True
                case Listener.NONE if status is not None:
                    raise start_failure(
                        f"{self.user.name}'s server ended with status {status} before it answered; "
                        "the hub's log has the cause."
                    )
            if asyncio.get_running_loop().time() > deadline:
                raise start_failure(
                    f"{self.user.name}'s server did not listen on its port within {self.http_timeout} s "
                    "(c.Spawner.http_timeout); the hub's log has the cause."
                )
            await asyncio.sleep(POLL_S)

    def _processes(self) -> set[int]:
        """The processes of this server: its session, and those with its token in their variables."""
        return find_marked((f"JUPYTERHUB_API_TOKEN={self.api_token}",), session=self.pid)
