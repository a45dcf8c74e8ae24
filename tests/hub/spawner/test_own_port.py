"""The port of a server is its own: real processes, some of which take a port in between."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub import orm, roles
from jupyterhub.spawner import SimpleLocalProcessSpawner
from jupyterhub.user import User
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tornado.web import HTTPError
from traitlets.config import Config

from jupyter_gpu_quota.backends.local.host.listeners import Listener, find_listener
from jupyter_gpu_quota.backends.local.host.processes import find_marked
from jupyter_gpu_quota.hub import own_port, ports
from jupyter_gpu_quota.hub.own_port import OwnPortMixin

SMALL_SERVER = Path(__file__).parents[1] / "small_server.py"
START_TIMEOUT_S = 120
SEED = f"the tests in process {os.getpid()}"
TAKE = """\
import signal, socket, sys
taken = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
signal.pause()
"""


class Server(OwnPortMixin, SimpleLocalProcessSpawner):  # type: ignore[misc]
    """A server whose ports another process takes, ``to_take`` times, between their choice and its start."""

    to_take = 0
    before_listening: Callable[[int], None] = staticmethod(lambda port: None)

    def make_preexec_fn(self, name: str) -> Any:
        if self.to_take:
            self.to_take -= 1
            self.before_listening(self.port)
        return super().make_preexec_fn(name)


@pytest.fixture
def take() -> Iterator[Callable[[int], None]]:
    """Starts a process that listens on a port."""
    started: list[subprocess.Popen[str]] = []

    def listen(port: int) -> None:
        process = subprocess.Popen([sys.executable, "-c", TAKE, str(port)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "listens\n"

    yield listen
    for process in started:
        process.kill()
        process.communicate()


Make = Callable[..., Server]


@pytest.fixture
async def make(tmp_path: Path, take: Callable[[int], None]) -> Any:
    """Makes spawners as the hub does, and ends their servers."""
    made: list[Server] = []

    def spawner(name: str = "ann", token: str = "", **settings: Any) -> Server:
        user = SimpleNamespace(
            name=name, escaped_name=name, url=f"/user/{name}/", settings={"proxy": None}, spawners={}, db=None
        )
        hub = SimpleNamespace(base_url="/hub/", api_url="http://127.0.0.1:8081/hub/api", public_host="")
        own = {"home_dir_template": f"{tmp_path}/{{username}}", "http_timeout": START_TIMEOUT_S, **settings}
        config = Config({"SimpleLocalProcessSpawner": own})
        server = Server(user=user, hub=hub, config=config, oauth_client_id="client", environment={})
        server.cmd, server.args = [sys.executable, str(SMALL_SERVER)], []
        server.public_url = server.public_hub_url = ""
        server.server = None
        server.api_token = token or f"token-of-{name}-{os.getpid()}"
        server.before_listening = take
        made.append(server)
        return server

    yield spawner
    for each in made:
        await each.stop(now=True)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """A user in the database of a hub."""
    engine = create_engine("sqlite://")
    orm.Base.metadata.create_all(engine)
    hub = SimpleNamespace(base_url="/hub/", api_url="http://127.0.0.1:8081/hub/api", public_host="")
    config = Config({"SimpleLocalProcessSpawner": {"home_dir_template": f"{tmp_path}/{{username}}"}})
    with Session(engine, expire_on_commit=False) as db:
        for role in roles.get_default_roles():
            roles.create_role(db, role)
        person = orm.User(name="ann")
        db.add_all([orm.OAuthClient(identifier="jupyterhub"), person])
        roles.assign_default_roles(db, person)
        yield User(person, {"spawner_class": Server, "config": config, "hub": hub})
    engine.dispose()


async def test_a_hundred_servers_that_start_together_have_a_hundred_ports() -> None:
    reserved = await asyncio.gather(*(asyncio.to_thread(ports.reserve_ports, "one seed") for _ in range(100)))
    found = [each.port for (each,) in reserved]
    for (each,) in reserved:
        each.release()
    assert len(set(found)) == 100


def test_a_port_is_reserved_from_other_processes_until_its_own_ends() -> None:
    code = (
        "import sys; from jupyter_gpu_quota.hub.ports import reserve_ports\n"
        "one, = reserve_ports(sys.argv[1]); print(one.port, flush=True); input()"
    )
    command = [sys.executable, "-c", code, SEED]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    theirs = int(other.stdout.readline())
    assert ports.free_ports(SEED) != [theirs]
    other.kill()
    other.communicate()
    assert ports.free_ports(SEED) == [theirs]


def test_a_range_of_outgoing_connections_that_leaves_no_port_is_not_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
    assert len(set(ports.free_ports("seed", 3))) == 3


async def test_servers_that_start_together_listen_on_their_own_ports(make: Make) -> None:
    servers = [make(name) for name in ("ann", "ben", "cat", "dan")]
    addresses = await asyncio.gather(*(server.start() for server in servers))
    assert len(set(addresses)) == len(servers)
    for server, (ip, port) in zip(servers, addresses, strict=True):
        assert find_listener(ip, port, lambda server=server: {server.pid}) == Listener.OWN  # type: ignore[misc]


async def test_a_port_that_another_process_takes_in_between_is_noticed(make: Make) -> None:
    server = make()
    server.to_take = 2
    ip, port = await server.start()
    assert find_listener(ip, port, lambda: {server.pid}) == Listener.OWN
    assert server.api_token, "a second attempt starts with the same token"
    marks = (f"JUPYTERHUB_API_TOKEN={server.api_token}",)
    assert find_marked(marks) == {server.pid}, "the earlier attempts left processes behind"


async def test_a_server_that_never_gets_a_port_is_refused(make: Make) -> None:
    server = make()
    server.to_take = 99
    with pytest.raises(HTTPError) as caught:
        await server.start()
    said = str(getattr(caught.value, "jupyterhub_message", ""))
    assert said.startswith("ann's server was not started: another process listens on port ")
    assert 99 - server.to_take == own_port.ATTEMPTS
    assert find_marked((f"JUPYTERHUB_API_TOKEN=token-of-ann-{os.getpid()}",)) == set()


async def test_a_configured_port_is_kept_and_its_owner_is_looked_up(make: Make, take: Callable[[int], None]) -> None:
    (port,) = ports.free_ports(f"{SEED}, configured")
    server = make(port=port)
    assert await server.start() == ("127.0.0.1", port)
    await server.stop(now=True)
    take(port)
    with pytest.raises(HTTPError) as caught:
        await server.start()
    assert f"listens on port {port}; change c.Spawner.port." in str(getattr(caught.value, "jupyterhub_message", ""))


async def test_a_server_that_ends_at_once_is_refused_with_its_status(make: Make) -> None:
    server = make()
    server.cmd = [sys.executable, "-c", "raise SystemExit(3)"]
    with pytest.raises(HTTPError) as caught:
        await server.start()
    message = "ann's server ended with status 3 before it answered; the hub's log has the cause."
    assert str(getattr(caught.value, "jupyterhub_message", "")) == message


async def test_failed_starts_leave_no_token_in_the_hubs_database(user: User) -> None:
    user.settings["config"].SimpleLocalProcessSpawner.cmd = ["false"]
    for _ in range(2):
        with pytest.raises(HTTPError, match="ended with status 1"):
            await user.spawn()
    assert user.db.query(orm.APIToken).all() == []


async def test_a_server_that_never_listens_is_stopped(make: Make) -> None:
    server = make(http_timeout=1)
    server.cmd = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(HTTPError) as caught:
        await server.start()
    assert "did not listen on its port within 1 s" in str(getattr(caught.value, "jupyterhub_message", ""))
    assert server.pid == 0


async def test_a_cancelled_start_leaves_no_process_behind(make: Make, tmp_path: Path) -> None:
    server = make()
    server.cmd = [sys.executable, "-c", "import signal; signal.pause()"]
    starting = asyncio.ensure_future(server.start())
    while not server.pid:
        await asyncio.sleep(0)
    pid = server.pid
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not Path(f"/proc/{pid}").exists()


async def test_a_server_below_a_shell_that_left_its_session_is_its_own(make: Make) -> None:
    server = make()
    server.cmd = ["sh", "-c", f"setsid {shlex.join([sys.executable, str(SMALL_SERVER)])}"]
    ip, port = await server.start()
    marks = (f"JUPYTERHUB_API_TOKEN={server.api_token}",)
    assert find_listener(ip, port, lambda: find_marked(marks) - {server.pid}) == Listener.OWN
    for pid in find_marked(marks):
        os.kill(pid, 9)


@pytest.mark.parametrize("at", ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::"])
def test_a_listener_is_found_at_every_address_that_conflicts(at: str) -> None:
    family = socket.AF_INET6 if ":" in at else socket.AF_INET
    with socket.socket(family) as listening:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind((at, 0))
        port = listening.getsockname()[1]
        assert find_listener("127.0.0.1", port, lambda: {os.getpid()}) == Listener.NONE, "it does not listen yet"
        listening.listen()
        assert find_listener("127.0.0.1", port, lambda: {os.getpid()}) == Listener.OWN
        assert find_listener("127.0.0.1", port, set) == Listener.FOREIGN
        assert find_listener("127.0.0.2", port, set) == (Listener.NONE if "127" in at else Listener.FOREIGN)
