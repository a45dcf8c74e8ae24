"""The service supervisor: it listens at the address, restarts its children, and kills those without heartbeats."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from jupyter_gpu_quota.demo.temporary_hub import end_process
from jupyter_gpu_quota.deployment import child as child_process
from jupyter_gpu_quota.deployment import pid_file, supervisor
from jupyter_gpu_quota.deployment.child import ChildProcess
from jupyter_gpu_quota.deployment.heartbeat import MAX_TURN_S, Heartbeat
from jupyter_gpu_quota.hub.ports import free_ports
from jupyter_gpu_quota.settings import SETTINGS_VARIABLE, GPUQuota
from tests.backends.worlds import is_alive
from tests.patience import PATIENCE_S, Stopwatch, stays, until

QUOTA = """\
version: 1
pools: [{name: train, selector: {gpu_model: [Simulated 80G]}, uses: [training]}]
projects: [{name: red, members: {users: [ann]}, quota: {train: {training: 1}}}]
"""
TOKEN = "0" * 64
FROZEN_FOR_AT_MOST_S = child_process.HEARTBEAT_TIMEOUT_S + 6.0

BEATING = """
import os, sys, time, threading
heartbeat = int(sys.argv[sys.argv.index("--heartbeat") + 1])
def beat():
    while True:
        os.write(heartbeat, b".")
        time.sleep(0.05)
threading.Thread(target=beat, daemon=True).start()
"""
OBEDIENT = BEATING + "sys.stdin.read()"
IGNORING = BEATING + "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
ANSWERING = (
    BEATING
    + """
import socket
here = socket.socket(fileno=int(sys.argv[1]))
time.sleep(float(sys.argv[2]))
while True:
    there, _ = here.accept()
    there.sendall(str(os.getpid()).encode())
    there.close()
"""
)
SUPERVISOR = """
import logging, socket, sys
from pathlib import Path
from jupyter_gpu_quota.deployment import child, pid_file, supervisor
logging.basicConfig(level=logging.INFO)
child.HEARTBEAT_TIMEOUT_S, child.FIRST_HEARTBEAT_TIMEOUT_S = 0.5, 60.0
state, codes = Path(sys.argv[1]), sys.argv[2:]
sockets = supervisor.listening_sockets("http://127.0.0.1:0")
fds = [each.fileno() for each in sockets]
commands = [[sys.executable, "-c", code, str(fds[0]), "0.5"] for code in codes]
children = [child.ChildProcess(f"child {n}", command, fds) for n, command in enumerate(commands)]
pid_file.take_over(state)
print(sockets[0].getsockname()[1], flush=True)
supervisor.ServiceSupervisor(state, children, sockets).run()
pid_file.remove_pid_file(state)
"""


class Running:
    """A supervisor in its own process, and the children in its pid file."""

    def __init__(self, state: Path, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.state, self.process = state, process
        self.port = int(process.stdout.readline())

    def child(self, number: int = 0) -> pid_file.Process | None:
        """The present child, if it runs."""
        service = pid_file.read_pid_file(self.state)
        found = service.children.get(f"child {number}") if service else None
        return found if found is not None and found.is_running else None

    def pid(self, number: int = 0) -> int:
        until(lambda: self.child(number))
        found = self.child(number)
        assert found is not None
        return found.pid


@contextlib.contextmanager
def supervising(state: Path, *codes: str) -> Iterator[Running]:
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(state), *codes], stdout=subprocess.PIPE)
    try:
        yield Running(state, process)
    finally:
        end_process(process, PATIENCE_S)


def kill(pid: int) -> None:
    """Kill a process and wait for its end: connections that it accepted are lost, later ones are not."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))


def freeze(pid: int) -> None:
    """Stop a process and wait until it is stopped: until then it would still handle other signals."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


def pass_s(seconds: float) -> None:
    started = time.monotonic()
    until(lambda: time.monotonic() - started > seconds)


def ignores_sigterm(pid: int) -> bool:
    """Whether a process ignores SIGTERM now."""
    [ignored] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn")]
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def answer_of(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as here:
        return here.recv(100)


# --- restarts ----------------------------------------------------------------------------------------------------
def test_a_child_that_dies_is_restarted_and_the_other_is_not(tmp_path: Path) -> None:
    with supervising(tmp_path, OBEDIENT, OBEDIENT) as running:
        first, second = running.pid(0), running.pid(1)
        os.kill(first, signal.SIGKILL)
        until(lambda: (new := running.child(0)) and new.pid != first)
        assert running.pid(1) == second


def test_no_connection_is_lost_while_the_api_is_restarted(tmp_path: Path) -> None:
    with supervising(tmp_path, ANSWERING) as running:
        first = running.pid()
        assert answer_of(running.port) == str(first).encode()
        kill(first)
        assert answer_of(running.port) not in (b"", str(first).encode())


def test_a_frozen_child_is_killed_and_restarted(tmp_path: Path) -> None:
    with supervising(tmp_path, OBEDIENT, OBEDIENT) as running:
        first, second = running.pid(0), running.pid(1)
        freeze(first)
        until(lambda: (new := running.child(0)) and new.pid != first)
        assert running.pid(1) == second


def test_a_child_with_heartbeats_is_not_restarted(tmp_path: Path) -> None:
    with supervising(tmp_path, OBEDIENT) as running:
        first = running.pid()
        assert stays(lambda: running.pid() == first, 2.0)


def test_a_supervisor_that_was_stopped_kills_no_child(tmp_path: Path) -> None:
    with supervising(tmp_path, OBEDIENT) as running:
        first = running.pid()
        for pid in (running.process.pid, first):
            freeze(pid)
        pass_s(2.5)
        os.kill(running.process.pid, signal.SIGCONT)
        pass_s(0.2)
        os.kill(first, signal.SIGCONT)
        assert stays(lambda: running.pid() == first, 1.3)


@pytest.fixture
def starting(request: pytest.FixtureRequest) -> Iterator[ChildProcess]:
    """A child that was started at the instant 0 and sends no heartbeat."""
    child = ChildProcess("one", [sys.executable, "-c", request.param])
    child.update(0.0)
    assert child.process is not None
    yield child
    child.process.kill()
    child.process.wait()


IDLE, BUSY = "import time; time.sleep(600)", "while True: pass"


@pytest.mark.parametrize("starting", [IDLE], indirect=True)
def test_a_child_frozen_before_its_first_heartbeat_is_killed_within_20_s(starting: ChildProcess) -> None:
    assert starting.process is not None
    freeze(starting.process.pid)
    while starting.due_at() < 20.0:
        starting.update(starting.due_at())
    assert starting.process.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("starting", [BUSY], indirect=True)
def test_a_slow_but_active_start_may_last_two_minutes(starting: ChildProcess) -> None:
    assert starting.process is not None
    pid, now = starting.process.pid, 0.0
    while now < child_process.FIRST_HEARTBEAT_TIMEOUT_S:
        before, now = child_process.activity_of(pid), starting.due_at()
        until(lambda before=before: child_process.activity_of(pid) != before)
        assert starting.process.poll() is None
        starting.update(now)
    assert starting.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_the_pauses_between_restarts_grow() -> None:
    child, now, starts = ChildProcess("one", ["/bin/false"]), 0.0, []
    while len(starts) < 12:
        now = max(now, child.due_at()) if child.process is None else now
        if child.update(now):
            starts.append(now)
            assert child.process is not None
            child.process.wait()
    pauses = [round(later - earlier, 1) for earlier, later in pairwise(starts)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0]


# --- the pid file -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda record: record.unlink(), id="a missing file"),
        pytest.param(lambda record: record.write_text(""), id="an empty file"),
        pytest.param(lambda record: record.write_text('{"pid": 1, "sta'), id="a truncated file"),
        pytest.param(lambda record: record.write_text('{"pid": 1, "started": 1}'), id="a file of another process"),
    ],
)
def test_a_damaged_pid_file_of_a_running_service_is_written_again(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    with supervising(tmp_path, OBEDIENT, OBEDIENT) as running:
        pids = [running.pid(0), running.pid(1)]
        before = pid_file.read_pid_file(tmp_path)
        damage(tmp_path / pid_file.PID_FILE)
        until(lambda: pid_file.read_pid_file(tmp_path) == before)
        assert [running.pid(0), running.pid(1)] == pids


# --- the end ----------------------------------------------------------------------------------------------------------
def test_sigterm_stops_all_processes_within_five_seconds(tmp_path: Path) -> None:
    with supervising(tmp_path, OBEDIENT, IGNORING) as running:
        pids = [running.pid(0), running.pid(1)]
        with Stopwatch() as watch:
            running.process.terminate()
            assert running.process.wait(PATIENCE_S) == 0
        assert watch.seconds < 5.0
        assert not any(map(is_alive, pids))
        assert pid_file.read_pid_file(tmp_path) is None


def test_children_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with supervising(tmp_path, OBEDIENT, "import time; time.sleep(600)") as running:
        pids = [running.pid(0), running.pid(1)]
        running.process.kill()
        running.process.wait()
        until(lambda: not any(map(is_alive, pids)))


def test_a_successor_ends_the_children_of_a_killed_supervisor_even_a_frozen_one(tmp_path: Path) -> None:
    with supervising(tmp_path, OBEDIENT) as running:
        frozen = running.pid()
        freeze(frozen)
        running.process.kill()
        running.process.wait()
        assert is_alive(frozen)
        with supervising(tmp_path, OBEDIENT):
            assert not is_alive(frozen)


def test_a_successor_waits_less_than_6_s_for_a_frozen_service(tmp_path: Path) -> None:
    with supervising(tmp_path, OBEDIENT, IGNORING) as running:
        pids = [running.process.pid, running.pid(0), running.pid(1)]
        until(lambda: ignores_sigterm(pids[2]))
        for pid in pids:
            freeze(pid)
        with Stopwatch() as watch, supervising(tmp_path, OBEDIENT) as successor:
            assert watch.seconds < 6.0
            assert not any(map(is_alive, pids))
            assert successor.pid()


# --- the address ------------------------------------------------------------------------------------------------------
def environment(state: Path, port: int, **settings: object) -> dict[str, str]:
    return {
        **os.environ,
        SETTINGS_VARIABLE: json.dumps({"state_dir": str(state), **settings}),
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        "JUPYTERHUB_SERVICE_NAME": "gpu-quota",
        "JUPYTERHUB_SERVICE_PREFIX": "/services/gpu-quota/",
        "JUPYTERHUB_API_TOKEN": TOKEN,
        "JUPYTERHUB_API_URL": "http://127.0.0.1:1/hub/api",
        "JUPYTERHUB_CLIENT_ID": "service-gpu-quota",
    }


SERVE = [sys.executable, "-m", "jupyter_gpu_quota", "serve"]


def test_a_port_in_use_is_reported_with_advice(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with Stopwatch() as watch:
            done = subprocess.run(SERVE, env=environment(tmp_path, port), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"http://127.0.0.1:{port}" in done.stderr and "c.GPUQuota.service_url" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
    assert watch.seconds < 5.0
    assert not (tmp_path / pid_file.PID_FILE).exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        pytest.param("http://203.0.113.1:80", "Cannot assign requested address", id="an address of another machine"),
        pytest.param("http://127.0.0.1:99999", "Port out of range", id="an invalid port"),
    ],
)
def test_an_unavailable_address_is_explained(url: str, said: str) -> None:
    with pytest.raises(supervisor.CannotServe, match=said) as refused:
        supervisor.listening_sockets(url)
    assert "c.GPUQuota.service_url" in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "setting"), [("state", "c.GPUQuota.state_dir"), ("run", "c.GPUQuota.run_dir")], ids=["state", "run"]
)
def test_a_folder_that_cannot_be_made_is_named_with_its_setting(tmp_path: Path, wrong: str, setting: str) -> None:
    (tmp_path / wrong).touch()
    with pytest.raises(supervisor.CannotServe, match="cannot be made") as refused:
        supervisor.make_folders(tmp_path / "state", tmp_path / "run")
    said = str(refused.value)
    assert setting in said and str(tmp_path / wrong) in said and said.count("c.GPUQuota.") == 1


def test_the_supervisor_and_the_settings_have_the_same_names(tmp_path: Path) -> None:
    assert GPUQuota().state_dir == supervisor.DEFAULT_STATE_DIR
    assert supervisor.SETTINGS_VARIABLE == SETTINGS_VARIABLE
    assert supervisor.folders_of(environment(tmp_path, 1)) == (tmp_path, tmp_path)
    separate = environment(tmp_path, 1, run_dir="/run/gpu-quota")
    assert supervisor.folders_of(separate) == (tmp_path, Path("/run/gpu-quota"))


def test_the_supervisor_loads_no_library() -> None:
    code = "import sys; before = set(sys.modules); import jupyter_gpu_quota.deployment.supervisor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    heavy = {"click", "traitlets", "tornado", "asyncio", "jupyterhub", "sqlalchemy", "pydantic"}
    assert not heavy & set(done.stdout.split())


# --- heartbeats -------------------------------------------------------------------------------------------------------
def test_heartbeats_are_sent_while_the_main_loop_runs_and_stop_when_it_hangs(tmp_path: Path) -> None:
    now, file = 0.0, tmp_path / "heartbeat"
    listens, beats = os.pipe()
    heartbeat = Heartbeat(beats, clock=lambda: now, file=file)
    assert heartbeat.send() and file.exists()
    now = MAX_TURN_S + 1
    os.utime(file, (0, 0))
    assert not heartbeat.send() and file.stat().st_mtime == 0
    heartbeat.note_turn()
    assert heartbeat.send() and file.stat().st_mtime > 0
    os.close(listens)
    assert heartbeat.send()


# --- the real service -------------------------------------------------------------------------------------------------
def a_batch() -> bytes:
    """A batch of samples with a new sequence number."""
    return json.dumps({"node": "n", "sequence": time.time_ns(), "samples": []}).encode()


class Service:
    """The real command, without a hub: requests without a user work."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(str(folder))
        self.state, self.url = folder / "state", f"http://127.0.0.1:{self.port}/services/gpu-quota/api/v1"
        quota = folder / "quota.yaml"
        quota.write_text(QUOTA)
        devices = [{"model": "Simulated 80G", "memory_mib": 81920, "count": 1}]
        self.environment = environment(
            self.state, self.port, quota_file=str(quota), simulated_devices=devices, tick_ms=10
        )
        self.start()

    def start(self, ready: Callable[[], object] = lambda: None) -> None:
        self.process = subprocess.Popen(SERVE, env=self.environment, preexec_fn=ready)  # noqa: PLW1509 - one call of prctl

    def child(self, name: str) -> int:
        """The present child, or the next one while it is being restarted."""
        until(lambda: (service := pid_file.read_pid_file(self.state)) and name in service.children)
        service = pid_file.read_pid_file(self.state)
        assert service is not None
        return service.children[name].pid

    def ready(self) -> bool:
        return self.ask("ready") == 200

    def writes(self) -> int:
        """The status of a request that writes to the database."""
        return self.ask("samples", a_batch())

    def ask(self, path: str, body: bytes | None = None) -> int:
        return self.said(path, body)[0]

    def said(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    running = Service(tmp_path)
    try:
        until(lambda: pid_file.read_pid_file(running.state))
        until(running.ready)
        yield running
    finally:
        end_process(running.process, PATIENCE_S)


def test_an_api_alone_is_ready_when_controllers_elsewhere_have_the_lease(tmp_path: Path) -> None:
    both = Service(tmp_path)
    (port,) = free_ports(str(tmp_path / "api"))
    alone = environment(both.state, port, run_dir=str(tmp_path / "run"))
    api = subprocess.Popen([*SERVE, "--only", "api"], env=alone)
    try:
        until(both.ready)
        both.url = f"http://127.0.0.1:{port}/services/gpu-quota/api/v1"
        until(both.ready, what=lambda: both.said("ready"))
        found = pid_file.read_pid_file(tmp_path / "run")
        assert found is not None and set(found.children) == {"api"}
    finally:
        end_process(api, PATIENCE_S)
        end_process(both.process, PATIENCE_S)


def freeze_inside_a_transaction(pid: int, database: Path) -> None:
    """Stop a process inside a transaction: when the database was locked, and still is after the stop."""

    def caught(probe: sqlite3.Connection) -> bool:
        if not any(is_locked(probe) for _ in range(10_000)):
            return False
        os.kill(pid, signal.SIGSTOP)
        if stays(lambda: is_locked(probe), 0.05):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=0)) as probe:
        until(lambda: caught(probe), what="a moment inside a transaction")


def is_locked(probe: sqlite3.Connection) -> bool:
    try:
        probe.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    probe.execute("ROLLBACK")
    return False


def test_a_controller_frozen_inside_a_transaction_is_replaced_in_bounded_time(service: Service) -> None:
    frozen = service.child("controller")
    freeze_inside_a_transaction(frozen, service.state / "gpu-quota.sqlite")
    assert service.writes() == 503
    with Stopwatch() as watch:
        until(lambda: service.writes() == 200)
    assert watch.seconds < FROZEN_FOR_AT_MOST_S
    until(lambda: service.child("controller") != frozen)
    until(service.ready)


def test_requests_wait_for_a_killed_api_and_are_answered(service: Service) -> None:
    api = service.child("api")
    kill(api)
    assert service.ask("health") == 200
    assert service.child("api") != api
    until(service.ready)


def test_a_service_writes_a_lost_pid_file_again(service: Service) -> None:
    (service.state / pid_file.PID_FILE).unlink()
    until(service.ready, 10)
    assert pid_file.read_pid_file(service.state) is not None


def no_right_to_override() -> None:
    """Root without CAP_DAC_OVERRIDE: the modes of files count for it too."""
    if os.geteuid() == 0:
        pr_capbset_drop, cap_dac_override = 24, 1
        assert ctypes.CDLL(None).prctl(pr_capbset_drop, cap_dac_override, 0, 0, 0) == 0


def lacks(service: Service) -> set[str]:
    """The parts that the service reports as not ready."""
    shown = json.loads(service.said("ready")[1])
    return {name for name, holds in shown.items() if holds is False and name != "held"}


def test_a_read_only_database_is_read_and_reported(service: Service) -> None:
    end_process(service.process, PATIENCE_S)
    database = service.state / "gpu-quota.sqlite"
    database.chmod(0o444)
    service.start(no_right_to_override)
    until(lambda: '"store":true' in service.said("ready")[1])
    status, said = service.said("samples", a_batch())
    assert (status, "it is read-only; give the service's account write permission" in said) == (503, True)
    until(lambda: lacks(service) == {"ready", "lease"})
    assert service.ask("me") == 200
    for file in service.state.glob("gpu-quota.sqlite*"):  # SQLite gives -wal and -shm the modes of the database
        file.chmod(0o600)
    until(lambda: service.writes() == 200)
    until(service.ready)


@pytest.fixture
def file_system(tmp_path: Path) -> Iterator[Path]:
    """A separate file system for the state folder of the service."""
    place = tmp_path / "state"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_read_only_disk_is_reported(file_system: Path, service: Service) -> None:
    """As after an error of the disk, and a restart of the hub."""
    end_process(service.process, PATIENCE_S)
    subprocess.run(["mount", "-o", "remount,ro", str(file_system)], check=True)
    service.start()
    until(lambda: service.ask("health") == 200)
    until(lambda: "cannot be opened" in service.said("samples", a_batch())[1])
    assert service.writes() == service.ask("me") == 503
    subprocess.run(["mount", "-o", "remount,rw", str(file_system)], check=True)
    until(service.ready)
    assert service.writes() == 200
