"""Jobs as real processes: they survive the service, all their processes are killed, and pauses are recorded."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.disk_use import Measured
from jupyter_gpu_quota.backends.job_files.paths import RankPaths, job_directory, rank_paths
from jupyter_gpu_quota.backends.job_files.record_files import file_lock
from jupyter_gpu_quota.backends.local.host.processes import process
from jupyter_gpu_quota.backends.local.jobs import executor as local
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from jupyter_gpu_quota.backends.local.jobs.supervisor import LEFTOVER_GRACE_S, OVER_LIMIT_GRACE_S, Supervisor
from jupyter_gpu_quota.core.facts import RankFact
from tests.backends.worlds import LOOP, LocalWorld, is_alive, order, passable_folder, pid_of, shell, stop
from tests.patience import PATIENCE_S, Stopwatch, until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with passable_folder() as folder:
        yield folder


@pytest.fixture
def world(state_dir: Path) -> Iterator[LocalWorld]:
    world = LocalWorld(state_dir)
    yield world
    world.close()


def number_in(path: Path) -> int:
    """Wait for the number that a job writes to a file."""
    return int(until(lambda: path.exists() and path.read_text().strip()))


def test_processes_are_listed_by_job_while_they_live(world: LocalWorld) -> None:
    for job in ("J", "K"):
        world.executor.start(order(job, "runs on"))
    first = {job: pid_of(world.ready(job, "runs on")) for job in ("J", "K")}
    found = world.executor.pids()
    assert {job: first[job] in found[job] for job in first} == {"J": True, "K": True}
    assert not found["J"] & found["K"]
    world.executor.stop(stop("J", grace_s=0))
    world.until(lambda fact: fact.job == "J" and fact.tree_gone)
    assert set(world.executor.pids()) == {"K"}


# --- without the service ------------------------------------------------------------------------------------------
STARTS_AND_DIES = """
import os, sys, time
from pathlib import Path
from jupyter_gpu_quota.backends.local.jobs.executor import LocalJobs
from tests.backends.worlds import KINDS, order
executor = LocalJobs(sys.argv[1], simulated_devices=KINDS)
executor.start(order("J", "", command=("sh", "-c", sys.argv[2])))
while not any(fact.handle for fact in executor.observe()):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def start_in_a_service_that_dies(state_dir: Path, script: str) -> None:
    command = [sys.executable, "-c", STARTS_AND_DIES, str(state_dir), script]
    done = subprocess.run(command, cwd=ROOT, timeout=60, start_new_session=True)
    assert done.returncode == -signal.SIGKILL


def test_an_exit_is_recorded_without_a_service(world: LocalWorld, state_dir: Path) -> None:
    start_in_a_service_that_dies(state_dir, f"while ! test -e {state_dir}/go; do sleep 0.01; done; exit 7")
    (state_dir / "go").touch()
    status = Path(rank_paths(str(state_dir), "J", 1, 0).status)
    until(lambda: json.loads(status.read_text()).get("tree_gone"))
    successor = LocalJobs(state_dir)
    assert [(fact.exit_status, fact.tree_gone) for fact in successor.observe()] == [(7, True)]


def test_a_new_service_observes_and_stops_running_jobs(world: LocalWorld, state_dir: Path) -> None:
    start_in_a_service_that_dies(state_dir, "exec sleep 1000")
    successor = LocalJobs(state_dir)
    (fact,) = successor.observe()
    assert is_alive(pid_of(fact)) and pid_of(fact) in successor.pids()["J"]
    successor.stop(stop("J"))
    assert until(lambda: [seen for seen in successor.observe() if seen.tree_gone])[0].exit_status == -15


def test_two_services_that_start_the_same_attempt_at_once_run_it_once(world: LocalWorld, state_dir: Path) -> None:
    services = [LocalJobs(state_dir) for _ in range(6)]
    for service in services:
        service.start(shell("J", f"echo began >> {state_dir}/begun; exec sleep 1000"))
    world.executor.start(shell("J", f"echo began >> {state_dir}/begun; exec sleep 1000"))
    for service in services:
        until(lambda service=service: not service._background._busy)  # type: ignore[misc]
    begun = state_dir / "begun"
    assert until(lambda: begun.exists() and begun.read_text()) == "began\n"


def test_a_lost_supervisor_leaves_an_equal_job_of_another_service_alone(world: LocalWorld) -> None:
    with passable_folder() as folder:
        other = LocalWorld(folder)
        for each in (world, other):
            each.executor.start(shell("J", "exec sleep 1000"))
        handle = other.ready("J", "").handle
        world.ready("J", "")
        os.kill(world.supervisor("J"), signal.SIGKILL)
        world.until(lambda fact: fact.tree_gone)
        [fact] = other.executor.observe()
        assert (fact.handle, fact.tree_gone, fact.ended_at) == (handle, False, None)
        assert handle is not None and is_alive(int(handle))
        other.close()


def test_the_controller_is_woken_by_changes(state_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeup:
        wakeup.bind(str(state_dir / "wakeup"))
        wakeup.settimeout(PATIENCE_S)
        world = LocalWorld(state_dir, wake=state_dir / "wakeup")
        world.executor.start(order("J", "ends with 0"))
        while not any(fact.tree_gone for fact in world.executor.observe()):
            wakeup.recv(100)
        world.close()


def test_a_state_directory_with_a_very_long_path_works(state_dir: Path) -> None:
    long = state_dir / ("long-" * 30)
    long.mkdir(0o711)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeup:
        here = os.open(long, os.O_PATH)
        wakeup.bind(f"/proc/self/fd/{here}/wakeup")
        os.close(here)
        world = LocalWorld(long, wake=long / "wakeup")
        world.executor.start(order("J", "runs on"))
        world.ready("J", "runs on")
        world.executor.stop(stop("J"))
        world.until(lambda fact: fact.tree_gone)
        wakeup.settimeout(PATIENCE_S)
        assert wakeup.recv(100)
        world.close()


# --- the whole tree -----------------------------------------------------------------------------------------------
FORKS_AWAY = """
import os, sys, time
for step in range(2):
    if os.fork():
        time.sleep(1000) if step == 0 else os._exit(0)
    os.setsid()
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
os.execve("/bin/sleep", ["sleep", "1000"], {})
"""


def forking(job: str, note: Path, **more: Any) -> Any:
    """A job whose grandchild has a session of its own, no parent and no environment left."""
    return order(job, "", command=(sys.executable, "-c", FORKS_AWAY, str(note)), **more)


def test_a_detached_process_is_killed(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(forking("J", state_dir / "pid"))
    away = number_in(state_dir / "pid")
    with Stopwatch() as watch:
        world.executor.stop(stop("J", grace_s=1))
        fact = world.until(lambda fact: fact.tree_gone)
    assert not is_alive(away) and (fact.exit_status == -15 or watch.lost_s > 0.5)


def test_remaining_processes_of_an_ended_job_are_killed(world: LocalWorld, state_dir: Path) -> None:
    pid = state_dir / "pid"
    ignores = f"setsid sh -c 'trap \"\" TERM; echo $$ > {pid}; {LOOP}'"
    world.executor.start(shell("J", f"{ignores} & while [ ! -s {pid} ]; do sleep 0.01; done; exit 0"))
    left = number_in(pid)
    with Stopwatch() as watch:
        first = world.until(lambda fact: fact.ended_at is not None)
    assert first.exit_status == 0 and (not first.tree_gone or watch.lost_s > 1)
    world.until(lambda fact: fact.tree_gone)
    assert not is_alive(left)


def test_remaining_processes_have_the_rest_of_the_grace_after_a_pause_request(
    world: LocalWorld, state_dir: Path
) -> None:
    saves = f"trap 'sleep 2.5; echo saved > {state_dir}/saved; exit 75' TERM; echo ready; {LOOP}"
    world.executor.start(shell("J", f"sh -c '{saves.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}' & wait"))
    world.logged("ready")
    world.executor.stop(stop("J", grace_s=600))
    world.until(lambda fact: fact.tree_gone)
    assert (state_dir / "saved").exists(), "the shell died of SIGTERM at once, and its child needed longer"


def test_a_shorter_grace_applies_to_remaining_processes(world: LocalWorld) -> None:
    world.executor.start(shell("J", f"(trap '' TERM; echo ready; {LOOP}) & wait"))
    world.logged("ready")
    world.executor.stop(stop("J", grace_s=600))
    assert not world.until(lambda fact: fact.ended_at is not None).tree_gone
    world.executor.stop(stop("J", grace_s=0))
    world.until(lambda fact: fact.tree_gone)


def test_a_fork_bomb_is_killed(world: LocalWorld) -> None:
    bomb = "trap '' TERM; b() { sleep 0.05; b & b & wait; }; ulimit -u 400 2>/dev/null; b"
    world.executor.start(shell("J", f"({bomb}) 2>/dev/null; exit 0"))
    until(lambda: len(world.executor.pids().get("J", ())) > 20)
    world.executor.stop(stop("J", grace_s=0))
    world.until(lambda fact: fact.tree_gone)


def test_a_job_stopped_by_sigstop_is_paused(world: LocalWorld) -> None:
    world.executor.start(order("J", "saves and stops"))
    fact = world.ready("J", "saves and stops")
    os.kill(pid_of(fact), signal.SIGSTOP)
    world.executor.stop(stop("J", grace_s=600))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 75


# --- supervisors that die or freeze -------------------------------------------------------------------------------
def test_the_supervisors_death_kills_the_job_and_is_reported(world: LocalWorld, state_dir: Path) -> None:
    script = f"setsid sh -c 'trap \"\" TERM; {LOOP}' & echo $! > {state_dir}/pid; {LOOP}"
    world.executor.start(shell("J", script))
    left, fact = number_in(state_dir / "pid"), world.ready("J", "")
    os.kill(world.supervisor("J"), signal.SIGKILL)
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.pause_requested) == (-9, False) and fact.ended_at is not None
    assert not is_alive(pid_of(fact)) and not is_alive(left)


def test_unreadable_records_affect_no_other_job(world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in ("J", "K"):
        world.executor.start(shell(job, LOOP))
        world.ready(job, "")
    found = local.rank_fact

    def broken(paths: RankPaths, status: Mapping[str, Any]) -> RankFact:
        if status["job"] == "J":
            raise IsADirectoryError(paths.progress)
        return found(paths, status)

    with monkeypatch.context() as one_is_broken:
        one_is_broken.setattr(local, "rank_fact", broken)
        assert [fact.job for fact in world.executor.observe()] == ["K"]


def test_a_process_without_our_marks_is_found_by_its_session(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(shell("J", f"env -i sleep 1000 & echo $! > {state_dir}/pid; {LOOP}"))
    left = number_in(state_dir / "pid")
    until(lambda: Path(f"/proc/{left}/environ").read_bytes() == b"")
    os.kill(world.supervisor("J"), signal.SIGKILL)
    world.until(lambda fact: fact.tree_gone)
    assert not is_alive(left)


def test_a_late_supervisor_of_a_claimed_rank_starts_nothing(world: LocalWorld, state_dir: Path) -> None:
    late, paths = shell("J", f"echo began >> {state_dir}/begun"), rank_paths(str(state_dir), "J", 1, 0)
    world.executor.start(late)
    ended = world.until(lambda fact: fact.tree_gone)
    world.executor._preforked.start(world.executor._rank_order(late, 0, paths, None))
    until(lambda: lock_is_free(paths.lock))
    assert (state_dir / "begun").read_text() == "began\n" and list(world.executor.observe()) == [ended]


def lock_is_free(path: str) -> bool:
    with file_lock(path) as ours:
        return ours


def test_a_rank_that_was_not_started_ends_with_the_ranks_that_were(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on"))
    world.ready("J", "runs on")
    world.executor.stop(stop("J", ranks=2))
    assert world.until(lambda fact: fact.rank == 1 and fact.tree_gone).started_at is None
    assert world.until(lambda fact: fact.rank == 0 and fact.tree_gone).exit_status == -signal.SIGTERM


def test_a_rank_that_lost_its_supervisor_does_not_end_the_other_ranks(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on", ranks=2))
    ranks = [world.until(lambda fact, rank=rank: fact.rank == rank and fact.handle is not None) for rank in (0, 1)]  # type: ignore[misc]
    os.kill(world.status("J", rank=0)["supervisor"]["pid"], signal.SIGKILL)
    world.until(lambda fact: fact.rank == 0 and fact.tree_gone)
    assert is_alive(pid_of(ranks[1]))


def test_a_lost_supervisor_during_a_pause_is_reported_as_paused(world: LocalWorld) -> None:
    world.executor.start(order("J", "ignores SIGTERM"))
    world.ready("J", "ignores SIGTERM")
    world.executor.stop(stop("J", grace_s=600))
    world.until(lambda fact: fact.pause_requested)
    os.kill(world.supervisor("J"), signal.SIGKILL)
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.pause_requested) == (-9, True)


def test_a_frozen_supervisor_delays_no_other_job(world: LocalWorld) -> None:
    world.executor.start(order("F", "runs on"))
    world.executor.start(order("J", "runs on"))
    for job in ("F", "J"):
        world.until(lambda fact, job=job: fact.job == job and fact.handle is not None)  # type: ignore[misc]
    os.kill(world.supervisor("F"), signal.SIGSTOP)
    with Stopwatch() as watch:
        world.executor.stop(stop("F", grace_s=600))  # it must outlast the test: after it the frozen one is killed
        world.executor.stop(stop("J"))
        world.executor.observe()
    assert watch.seconds < 0.4
    world.until(lambda fact: fact.job == "J" and fact.tree_gone)
    assert world.until(lambda fact: fact.job == "F" and fact.tree_gone).pause_requested  # an observation thaws it


def test_after_a_reboot_nothing_is_killed_and_the_job_is_reported_as_lost(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(order("J", "ends with 0"))
    world.until(lambda fact: fact.tree_gone)
    status = world.status("J")
    me = process(os.getpid())
    assert me is not None
    bystander = {"pid": me.pid, "supervisor": {"pid": me.pid, "started": me.started, "boot": "another"}}
    for name in ("ended_at", "exit_status", "tree_gone"):
        del status[name]
    Path(rank_paths(str(state_dir), "J", 1, 0).status).write_text(json.dumps({**status, **bystander}))
    fact = world.until(lambda fact: fact.tree_gone)
    assert fact.exit_status is None and fact.ended_at is not None


@pytest.fixture
def reused(world: LocalWorld, state_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running process with the id of the command of job J, whose supervisor was killed during an outage."""
    world.executor.start(order("J", "ends with 0"))
    world.until(lambda fact: fact.tree_gone)
    status = world.status("J")
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as other:
        for name in ("ended_at", "exit_status", "tree_gone"):
            del status[name]
        supervisor = {**status["supervisor"], "pid": os.getpid()}
        status |= {"pid": other.pid, "supervisor": supervisor}
        Path(rank_paths(str(state_dir), "J", 1, 0).status).write_text(json.dumps(status))
        yield other
        other.kill()


def test_a_process_with_the_reused_id_of_a_command_is_not_killed(
    world: LocalWorld, reused: subprocess.Popen[bytes]
) -> None:
    world.until(lambda fact: fact.tree_gone)
    assert is_alive(reused.pid)


def test_a_process_below_the_reused_id_of_a_supervisor_is_not_of_the_job(
    world: LocalWorld, reused: subprocess.Popen[bytes]
) -> None:
    assert is_alive(reused.pid) and not world.executor.pids().get("J")


def test_a_supervisor_notified_of_a_shutdown_reports_the_job_as_lost(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on"))
    fact = world.ready("J", "runs on")
    os.kill(world.supervisor("J"), signal.SIGTERM)
    os.kill(pid_of(fact), signal.SIGTERM)
    assert world.until(lambda fact: fact.tree_gone).exit_status is None


def test_a_supervisor_whose_job_was_forgotten_ends(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(shell("J", f"while ! test -e {state_dir}/go; do sleep 0.01; done"))
    world.ready("J", "")
    supervisor = world.supervisor("J")
    Path(job_directory(str(state_dir), "J")).rename(state_dir / "elsewhere")
    (state_dir / "go").touch()
    until(lambda: not is_alive(supervisor))


def test_an_exit_before_the_stop_order_arrived_is_not_a_pause(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(shell("J", f"while ! test -e {state_dir}/go; do sleep 0.01; done; exit 0"))
    fact, supervisor = world.ready("J", ""), world.supervisor("J")
    os.kill(supervisor, signal.SIGSTOP)
    (state_dir / "go").touch()
    until(lambda: not is_alive(pid_of(fact)))
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(Path(rank_paths(str(state_dir), "J", 1, 0).control, "socket")))
        asking.sendall(json.dumps({"order": "leave", "fencing": 1, "grace_s": 600, "reason": "reclaimed"}).encode())
        os.kill(supervisor, signal.SIGCONT)
        ended = world.until(lambda fact: fact.tree_gone)
    assert (ended.exit_status, ended.pause_requested) == (0, False)


@pytest.mark.parametrize("sent", ["{}", "[]", "null", "x", '{"fencing": "1"}', '{"fencing": 1}'])
def test_a_malformed_order_changes_nothing(world: LocalWorld, state_dir: Path, sent: str) -> None:
    world.executor.start(shell("J", "exec sleep 1000"))
    world.ready("J", "")
    supervisor = world.supervisor("J")
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(Path(rank_paths(str(state_dir), "J", 1, 0).control, "socket")))
        asking.sendall(sent.encode())
        assert asking.recv(100) == b""
    world.executor.stop(stop("J"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == -15 and supervisor


def unbegun(state_dir: Path) -> Supervisor:
    paths = rank_paths(str(state_dir), "J", 1, 0)
    for folder in (paths.control, paths.run):
        Path(folder).mkdir(parents=True)
    return Supervisor(LocalJobs(state_dir)._rank_order(shell("J", ""), 0, paths, None), paths, None)


def test_a_later_order_never_extends_the_grace(state_dir: Path) -> None:
    supervisor = unbegun(state_dir)
    supervisor.kill_within(0.5)
    due = supervisor.kill_at
    for grace_s in (OVER_LIMIT_GRACE_S, LEFTOVER_GRACE_S):
        supervisor.kill_within(grace_s)
    assert supervisor.kill_at == due
    supervisor.kill_within(0.0)
    assert due is not None and supervisor.kill_at is not None and supervisor.kill_at < due


def test_an_end_that_could_not_be_recorded_is_recorded_later(state_dir: Path) -> None:
    supervisor = unbegun(state_dir)
    supervisor.kill_within(0.0)
    supervisor.status["tree_gone"] = True
    supervisor.save_again_at = time.monotonic() + 60
    assert supervisor.poll_timeout_s() > 30, "it does not poll for processes to kill"


def test_an_exit_before_the_pause_file_exists_is_not_a_pause(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    supervisor = unbegun(state_dir)
    supervisor.pid = os.spawnvp(os.P_NOWAIT, "true", ["true"])
    monkeypatch.setattr(
        supervisor, "make_pause_file", lambda reason: os.waitid(os.P_PID, supervisor.pid, os.WEXITED | os.WNOWAIT)
    )
    supervisor.request_pause("reclaimed")
    assert supervisor.status["pause_intended"] and "pause_requested" not in supervisor.status
    os.waitpid(supervisor.pid, 0)


def test_the_id_of_a_command_that_ended_gets_no_signal(state_dir: Path) -> None:
    supervisor, received, found = unbegun(state_dir), list[int](), Measured()
    found.size_bytes = 2
    supervisor.pid, supervisor.status["ended_at"] = os.getpid(), 1
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    supervisor.stop_if_over_limit("outputs", found, 1)
    signal.signal(signal.SIGTERM, before)
    assert supervisor.is_over_limit and not received


def test_a_file_that_is_in_work_and_checkpoint_is_within_a_limit_of_its_size(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    supervisor = unbegun(state_dir)
    monkeypatch.setattr(supervisor, "terminate", lambda: None)
    work, checkpoint = Path(supervisor.paths.work), Path(supervisor.paths.checkpoint)
    work.mkdir(parents=True)
    checkpoint.mkdir()
    (work / "file").write_bytes(os.urandom(1 << 20))
    (checkpoint / "file").hardlink_to(work / "file")
    supervisor.order["work_limit_bytes"] = 3 << 19
    list(supervisor.measure_all(time.monotonic()))
    assert not supervisor.is_over_limit


# --- pause files --------------------------------------------------------------------------------------------------
def test_the_pause_file_exists_before_sigterm(world: LocalWorld) -> None:
    script = f"trap 'test -e \"$GPU_QUOTA_PAUSE_FILE\" && exit 75; exit 1' TERM; echo ready; {LOOP}"
    world.executor.start(shell("J", script))
    world.logged("ready")
    world.executor.stop(stop("J"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 75


def test_each_attempt_has_its_own_pause_file_and_the_same_folders(world: LocalWorld, state_dir: Path) -> None:
    script = (
        'test -e "$GPU_QUOTA_PAUSE_FILE" && exit 1; echo x >> "$GPU_QUOTA_CHECKPOINT_DIR/kept"; echo x >> here; ' + LOOP
    )
    for attempt in (1, 2):
        world.executor.start(shell("J", script, attempt=attempt))
        kept = Path(job_directory(str(state_dir), "J"), "checkpoint", "kept")
        until(lambda: kept.exists() and kept.read_text() == "x\n" * attempt)  # noqa: B023
        world.executor.stop(stop("J", attempt=attempt))
        world.until(lambda fact: fact.attempt == attempt and fact.tree_gone)  # noqa: B023
    assert Path(job_directory(str(state_dir), "J"), "work", "here").read_text() == "x\n" * 2


def test_the_newest_checkpoint_is_reported(world: LocalWorld) -> None:
    world.executor.start(shell("J", 'mkdir -p "$GPU_QUOTA_CHECKPOINT_DIR/a"; echo x > "$GPU_QUOTA_CHECKPOINT_DIR/a/b"'))
    fact = world.until(lambda fact: fact.tree_gone)
    assert fact.saved_at is not None and fact.started_at is not None and abs(fact.saved_at - fact.started_at) < 600_000


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("ln -s /etc/passwd", id="a link"),
        pytest.param("mkfifo", id="a pipe without a writer"),
        pytest.param("sleep 0.2; mkdir", id="a folder"),
        pytest.param("echo '[1]' >", id="not an object"),
        pytest.param("head -c 100000 /dev/zero >", id="too large"),
        pytest.param('echo \'{"done": true, "total": -1, "metrics": [1]}\' >', id="wrong types"),
        pytest.param("python3 -c 'print(\"[\" * 60000)' >", id="deeply nested brackets"),
    ],
)
def test_an_invalid_progress_file_is_ignored(world: LocalWorld, written: str) -> None:
    world.executor.start(shell("J", f'{written} "$GPU_QUOTA_PROGRESS_FILE"'))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.done, fact.total, dict(fact.metrics), fact.completed) == (None, None, {}, False)


def test_metrics_that_are_not_numbers_are_ignored(world: LocalWorld) -> None:
    text = (
        '{"done": 1, "total": 4, "metrics": {"loss": 0.5, "bad": NaN, "worse": 1e999, "text": "x", "huge": 1'
        + "0" * 400
        + "}}"
    )
    world.executor.start(shell("J", f"echo '{text}' > \"$GPU_QUOTA_PROGRESS_FILE\""))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.done, fact.total, dict(fact.metrics)) == (1, 4, {"loss": 0.5})
