"""A PostgreSQL server for the tests: one for each test process, on a Unix socket in a temporary folder.

It is stopped when the process ends, and each test has a database of its own, copied from a migrated one.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text

from jupyter_gpu_quota.store.database.schema import metadata
from jupyter_gpu_quota.store.database.tables import TABLES
from jupyter_gpu_quota.store.open import open_store
from tests.patience import PATIENCE_S

SETTINGS = ("listen_addresses=", "max_connections=200", "fsync=off", "max_wal_size=256MB", "shared_buffers=32MB")
_numbers = itertools.count(1)


@functools.cache
def binaries() -> Path | None:
    """The folder of the newest installed server's programs."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    return max(found, key=lambda path: int(path.parent.name), default=Path(on_path).parent if on_path else None)


def why_missing() -> str | None:
    """Why there is no server to test with; None where there is one."""
    if importlib.util.find_spec("psycopg") is None:
        return "PostgreSQL is not tested: psycopg is not installed (the extra postgresql)"
    if binaries() is None:
        return "PostgreSQL is not tested: no server is installed (Debian's package postgresql)"
    return None


def _account() -> list[str]:
    """The server refuses to run as root: then it runs as postgres or nobody."""
    if os.geteuid() != 0:
        return []
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


class Server:
    """A running server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        if os.geteuid() == 0:
            uid, gid = (int(word.partition("=")[2]) for word in _account()[1:3])
            os.chown(self.folder, uid, gid)
        self.data = self.folder / "data"
        programs = binaries()
        assert programs is not None
        self._programs = programs
        initialise = [programs / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*_account(), *initialise, "--no-sync"], check=True, capture_output=True, cwd="/", timeout=120)
        self.start()
        atexit.register(self.remove)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [
            word for setting in (*SETTINGS, f"unix_socket_directories={self.folder}") for word in ("-c", setting)
        ]
        death = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
        with (self.folder / "log").open("ab") as log:
            command = [*_account(), *death, self._programs / "postgres", "-D", self.data, *settings]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        ready = [self._programs / "pg_isready", "-q", "-h", self.folder, "-t", "1"]
        for _ in range(int(PATIENCE_S)):
            if subprocess.run(ready, cwd="/").returncode == 0:
                return
            if self._process.poll() is not None:
                break
        raise AssertionError((self.folder / "log").read_text())

    def stop(self) -> None:
        """End all connections and the server."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def remove(self) -> None:
        if self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def run(self, *statements: str) -> None:
        """Run statements as the server's administrator, each by itself."""
        engine = create_engine(self.url("postgres").replace("://", "+psycopg://"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()


@functools.cache
def server() -> Server:
    """The server of this process, with a migrated database ``migrated``."""
    made = Server()
    made.run("CREATE DATABASE migrated")
    open_store(made.url("migrated")).close()
    return made


@contextmanager
def database(template: str = "migrated") -> Iterator[str]:
    """The URL of a new database, dropped afterwards; ``template1`` gives an empty one."""
    name = f"test_{next(_numbers)}"
    server().run(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server().url(name)
    finally:
        server().run(f"DROP DATABASE {name} WITH (FORCE)")


@functools.cache
def _reused() -> str:
    server().run("CREATE DATABASE reused TEMPLATE migrated")
    return server().url("reused")


def emptied_database() -> str:
    """The URL of one database that tests use in turn, without rows: copying one takes ten times as long."""
    url = _reused()
    engine = create_engine(url.replace("://", "+psycopg://"))
    with engine.begin() as connection:
        head = connection.execute(text("SELECT * FROM head")).mappings().one()
        for table in reversed(TABLES):
            connection.execute(text(f'DELETE FROM "{table.name}"'))
        fresh = {name: 0 if isinstance(value, int) and name != "id" else value for name, value in head.items()}
        fresh |= {"id": 1, "audit_hash": "", "holder": None}
        connection.execute(metadata.tables["head"].insert(), fresh)
    engine.dispose()
    return url
