"""Real processes under the local executor: what outlives what, who is killed, what is bounded, what is hidden."""

from __future__ import annotations

import json
import logging
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

from jupyter_gpu_quota.core.facts import RankFact
from jupyter_gpu_quota.executors import local
from jupyter_gpu_quota.executors.layout import RankPaths, job_directory, rank_paths
from jupyter_gpu_quota.executors.local import LocalExecutor
from jupyter_gpu_quota.executors.outputs import OutputRefused, list_outputs, open_output
from jupyter_gpu_quota.executors.process_tree import process
from jupyter_gpu_quota.executors.rank_log import read_log
from jupyter_gpu_quota.executors.records import held_lock
from jupyter_gpu_quota.executors.supervisor import Supervisor
from tests.shell.executor_worlds import (
    LOOP,
    LocalWorld,
    alive,
    eventually,
    is_root,
    leave,
    order,
    passable_folder,
    shell,
)

ROOT = Path(__file__).resolve().parents[2]


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
    """The number that a job writes to a file, once it is there."""
    return int(eventually(lambda: path.exists() and path.read_text().strip()))


# --- outliving the service ----------------------------------------------------------------------------------------
STARTS_AND_DIES = """
import os, sys, time
from pathlib import Path
from jupyter_gpu_quota.executors.local import LocalExecutor
from tests.shell.executor_worlds import KINDS, order
executor = LocalExecutor(sys.argv[1], simulated_devices=KINDS)
executor.start(order("J", "", command=("sh", "-c", sys.argv[2])))
while not any(fact.pid for fact in executor.observe()):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def start_in_a_service_that_dies(state_dir: Path, script: str) -> None:
    command = [sys.executable, "-c", STARTS_AND_DIES, str(state_dir), script]
    done = subprocess.run(command, cwd=ROOT, timeout=30, start_new_session=True)
    assert done.returncode == -signal.SIGKILL


def test_an_exit_is_recorded_while_no_service_is_there(world: LocalWorld, state_dir: Path) -> None:
    start_in_a_service_that_dies(state_dir, f"while ! test -e {state_dir}/go; do sleep 0.01; done; exit 7")
    (state_dir / "go").touch()
    status = Path(rank_paths(str(state_dir), "J", 1, 0).status)
    eventually(lambda: json.loads(status.read_text()).get("tree_gone"))
    successor = LocalExecutor(state_dir)
    assert [(fact.exit_status, fact.tree_gone) for fact in successor.observe()] == [(7, True)]


def test_a_new_service_adopts_what_runs_and_can_make_it_leave(world: LocalWorld, state_dir: Path) -> None:
    start_in_a_service_that_dies(state_dir, "exec sleep 1000")
    successor = LocalExecutor(state_dir)
    (fact,) = successor.observe()
    assert fact.pid is not None and alive(fact.pid) and fact.pid in successor.pids()["J"]
    successor.leave(leave("J"))
    assert eventually(lambda: [seen for seen in successor.observe() if seen.tree_gone])[0].exit_status == -15


def test_two_services_that_start_the_same_attempt_at_once_run_it_once(world: LocalWorld, state_dir: Path) -> None:
    services = [LocalExecutor(state_dir) for _ in range(6)]
    for service in services:
        service.start(shell("J", f"echo began >> {state_dir}/begun; exec sleep 1000"))
    world.executor.start(shell("J", f"echo began >> {state_dir}/begun; exec sleep 1000"))
    for service in services:
        eventually(lambda service=service: not service._background._busy)  # type: ignore[misc]
    eventually((state_dir / "begun").exists)
    assert (state_dir / "begun").read_text() == "began\n"


def test_the_controller_is_woken_when_something_happens(state_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.bind(str(state_dir / "bell"))
        bell.settimeout(20)
        world = LocalWorld(state_dir, wake=state_dir / "bell")
        world.executor.start(order("J", "ends with 0"))
        while not any(fact.tree_gone for fact in world.executor.observe()):
            bell.recv(100)
        world.close()


def test_a_state_directory_with_a_very_long_path_works(state_dir: Path) -> None:
    long = state_dir / ("long-" * 30)
    long.mkdir(0o711)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        here = os.open(long, os.O_PATH)
        bell.bind(f"/proc/self/fd/{here}/bell")
        os.close(here)
        world = LocalWorld(long, wake=long / "bell")
        world.executor.start(order("J", "runs on"))
        world.ready("J", "runs on")
        world.executor.leave(leave("J"))
        world.until(lambda fact: fact.tree_gone)
        bell.settimeout(20)
        assert bell.recv(100)
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


def test_a_process_that_forked_away_is_killed_too(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(forking("J", state_dir / "pid"))
    away = number_in(state_dir / "pid")
    world.executor.leave(leave("J", grace_s=1))
    fact = world.until(lambda fact: fact.tree_gone)
    assert not alive(away) and fact.exit_status == -15


def test_what_a_job_leaves_behind_at_its_end_is_killed(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(shell("J", f"setsid sh -c 'trap \"\" TERM; {LOOP}' & echo $! > {state_dir}/pid; exit 0"))
    left = number_in(state_dir / "pid")
    first = world.until(lambda fact: fact.ended_at is not None)
    assert first.exit_status == 0 and not first.tree_gone
    world.until(lambda fact: fact.tree_gone)
    assert not alive(left)


def test_after_a_pause_request_what_is_left_has_the_rest_of_the_grace(world: LocalWorld, state_dir: Path) -> None:
    saves = f"trap 'sleep 2.5; echo saved > {state_dir}/saved; exit 75' TERM; echo ready; {LOOP}"
    world.executor.start(shell("J", f"sh -c '{saves.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}' & wait"))
    eventually(lambda: "ready" in world.log("J"))
    world.executor.leave(leave("J", grace_s=30))
    world.until(lambda fact: fact.tree_gone)
    assert (state_dir / "saved").exists(), "the shell died of SIGTERM at once, and its child needed longer"


def test_a_fork_bomb_is_killed(world: LocalWorld) -> None:
    bomb = "trap '' TERM; b() { sleep 0.05; b & b & wait; }; ulimit -u 400 2>/dev/null; b"
    world.executor.start(shell("J", f"({bomb}) 2>/dev/null; exit 0"))
    eventually(lambda: len(world.executor.pids().get("J", ())) > 20)
    world.executor.leave(leave("J", grace_s=0))
    world.until(lambda fact: fact.tree_gone)


def test_a_stopped_job_is_told_to_leave_all_the_same(world: LocalWorld) -> None:
    world.executor.start(order("J", "saves and leaves"))
    fact = world.ready("J", "saves and leaves")
    assert fact.pid is not None
    os.kill(fact.pid, signal.SIGSTOP)
    world.executor.leave(leave("J", grace_s=30))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 75


# --- supervisors that die or stand still --------------------------------------------------------------------------
def test_the_supervisors_death_kills_the_job_and_is_told_so(world: LocalWorld, state_dir: Path) -> None:
    script = f"setsid sh -c 'trap \"\" TERM; {LOOP}' & echo $! > {state_dir}/pid; {LOOP}"
    world.executor.start(shell("J", script))
    left, fact = number_in(state_dir / "pid"), world.ready("J", "")
    os.kill(world.supervisor("J"), signal.SIGKILL)
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.pause_requested) == (-9, False) and fact.ended_at is not None
    assert fact.pid and not alive(fact.pid) and not alive(left)


def test_records_that_cannot_be_read_stop_no_other_job(world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in ("J", "K"):
        world.executor.start(shell(job, LOOP))
        world.ready(job, "")
    told = local.rank_fact

    def broken(paths: RankPaths, status: Mapping[str, Any]) -> RankFact:
        if status["job"] == "J":
            raise IsADirectoryError(paths.progress)
        return told(paths, status)

    with monkeypatch.context() as one_is_broken:
        one_is_broken.setattr(local, "rank_fact", broken)
        assert [fact.job for fact in world.executor.observe()] == ["K"]


def test_a_process_without_our_marks_is_found_by_its_session(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(shell("J", f"env -i sleep 1000 & echo $! > {state_dir}/pid; {LOOP}"))
    left = number_in(state_dir / "pid")
    eventually(lambda: Path(f"/proc/{left}/environ").read_bytes() == b"")
    os.kill(world.supervisor("J"), signal.SIGKILL)
    world.until(lambda fact: fact.tree_gone)
    assert not alive(left)


def test_a_late_supervisor_of_what_was_begun_before_begins_nothing(world: LocalWorld, state_dir: Path) -> None:
    late, paths = shell("J", f"echo began >> {state_dir}/begun"), rank_paths(str(state_dir), "J", 1, 0)
    world.executor.start(late)
    ended = world.until(lambda fact: fact.tree_gone)
    world.executor._spare.begin(world.executor._rank_order(late, 0, paths, None))
    eventually(lambda: lock_is_free(paths.lock))
    assert (state_dir / "begun").read_text() == "began\n" and list(world.executor.observe()) == [ended]


def lock_is_free(path: str) -> bool:
    with held_lock(path) as ours:
        return ours


def test_a_rank_that_lost_its_supervisor_does_not_drag_the_other_ranks_down(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on", ranks=2))
    ranks = [world.until(lambda fact, rank=rank: fact.rank == rank and fact.pid is not None) for rank in (0, 1)]  # type: ignore[misc]
    os.kill(world.status("J", rank=0)["supervisor"]["pid"], signal.SIGKILL)
    world.until(lambda fact: fact.rank == 0 and fact.tree_gone)
    assert ranks[1].pid and alive(ranks[1].pid)


def test_a_lost_supervisor_during_a_pause_is_told_as_paused(world: LocalWorld) -> None:
    world.executor.start(order("J", "ignores SIGTERM"))
    world.ready("J", "ignores SIGTERM")
    world.executor.leave(leave("J", grace_s=600))
    world.until(lambda fact: fact.pause_requested)
    os.kill(world.supervisor("J"), signal.SIGKILL)
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.pause_requested) == (-9, True)


def test_a_frozen_supervisor_holds_nobody_up(world: LocalWorld) -> None:
    world.executor.start(order("F", "runs on"))
    world.executor.start(order("J", "runs on"))
    for job in ("F", "J"):
        world.until(lambda fact, job=job: fact.job == job and fact.pid is not None)  # type: ignore[misc]
    frozen = world.supervisor("F")
    os.kill(frozen, signal.SIGSTOP)
    began = time.monotonic()
    world.executor.leave(leave("F"))
    world.executor.leave(leave("J"))
    world.executor.observe()
    assert time.monotonic() - began < 0.4
    world.until(lambda fact: fact.job == "J" and fact.tree_gone)
    os.kill(frozen, signal.SIGCONT)
    assert world.until(lambda fact: fact.job == "F" and fact.tree_gone).pause_requested


def test_after_a_reboot_nothing_is_killed_and_the_job_is_told_as_lost(world: LocalWorld, state_dir: Path) -> None:
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


def test_a_supervisor_that_is_told_that_the_machine_stops_blames_nobody(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on"))
    fact = world.ready("J", "runs on")
    os.kill(world.supervisor("J"), signal.SIGTERM)
    assert fact.pid is not None
    os.kill(fact.pid, signal.SIGTERM)
    assert world.until(lambda fact: fact.tree_gone).exit_status is None


# --- pause files --------------------------------------------------------------------------------------------------
def test_the_pause_file_is_there_before_sigterm_comes(world: LocalWorld) -> None:
    script = f"trap 'test -e \"$GPU_QUOTA_PAUSE_FILE\" && exit 75; exit 1' TERM; echo ready; {LOOP}"
    world.executor.start(shell("J", script))
    eventually(lambda: "ready" in world.log("J"))
    world.executor.leave(leave("J"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 75


def test_each_attempt_has_its_own_pause_file_and_the_same_folders(world: LocalWorld, state_dir: Path) -> None:
    script = (
        'test -e "$GPU_QUOTA_PAUSE_FILE" && exit 1; echo x >> "$GPU_QUOTA_CHECKPOINT_DIR/kept"; echo x >> here; ' + LOOP
    )
    for attempt in (1, 2):
        world.executor.start(shell("J", script, attempt=attempt))
        kept = Path(job_directory(str(state_dir), "J"), "checkpoint", "kept")
        eventually(lambda: kept.exists() and kept.read_text() == "x\n" * attempt)  # noqa: B023
        world.executor.leave(leave("J", attempt=attempt))
        world.until(lambda fact: fact.attempt == attempt and fact.tree_gone)  # noqa: B023
    assert Path(job_directory(str(state_dir), "J"), "work", "here").read_text() == "x\n" * 2


def test_the_newest_save_is_told(world: LocalWorld) -> None:
    world.executor.start(shell("J", 'mkdir -p "$GPU_QUOTA_CHECKPOINT_DIR/a"; echo x > "$GPU_QUOTA_CHECKPOINT_DIR/a/b"'))
    fact = world.until(lambda fact: fact.tree_gone)
    assert fact.saved_at is not None and fact.started_at is not None and abs(fact.saved_at - fact.started_at) < 10_000


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("ln -s /etc/passwd", id="a link"),
        pytest.param("mkfifo", id="a pipe that nobody writes to"),
        pytest.param("sleep 0.2; mkdir", id="a folder"),
        pytest.param("echo '[1]' >", id="no object"),
        pytest.param("head -c 100000 /dev/zero >", id="too much"),
        pytest.param('echo \'{"done": true, "total": -1, "metrics": [1]}\' >', id="wrong types"),
        pytest.param("python3 -c 'print(\"[\" * 60000)' >", id="brackets without end"),
    ],
)
def test_a_bad_progress_file_is_no_progress(world: LocalWorld, written: str) -> None:
    world.executor.start(shell("J", f'{written} "$GPU_QUOTA_PROGRESS_FILE"'))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.done, fact.total, dict(fact.metrics), fact.completed) == (None, None, {}, False)


def test_metrics_that_are_no_numbers_are_left_out(world: LocalWorld) -> None:
    text = (
        '{"done": 1, "total": 4, "metrics": {"loss": 0.5, "bad": NaN, "worse": 1e999, "text": "x", "huge": 1'
        + "0" * 400
        + "}}"
    )
    world.executor.start(shell("J", f"echo '{text}' > \"$GPU_QUOTA_PROGRESS_FILE\""))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.done, fact.total, dict(fact.metrics)) == (1, 4, {"loss": 0.5})


# --- logs and limits ----------------------------------------------------------------------------------------------
def test_a_flood_of_log_is_bounded_and_its_end_is_kept(state_dir: Path) -> None:
    world = LocalWorld(state_dir, log_limit_mib=1)
    world.executor.start(shell("J", "yes 0123456789 | head -c 50000000; echo the end; exit 4"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 4
    kept = sum(path.stat().st_size for path in Path(rank_paths(str(state_dir), "J", 1, 0).log).iterdir())
    text = world.log("J")
    assert kept <= 1 << 20 and text.endswith("the end\n") and "bytes of this log were dropped" in text
    world.close()


def test_a_log_is_read_on_from_where_one_was(state_dir: Path) -> None:
    world = LocalWorld(state_dir, log_limit_mib=1)
    world.executor.start(shell("J", f"echo first; echo {'x' * 50}; yes 0123456789 | head -c 3000000; echo the end"))
    world.until(lambda fact: fact.tree_gone)
    first = read_log(str(state_dir), "J", 1, 0, 0, 1000)
    assert first.dropped_bytes > 0 and first.offset == first.dropped_bytes and len(first.data) == 1000
    second = read_log(str(state_dir), "J", 1, 0, first.next_offset, 1 << 30)
    assert second.dropped_bytes == 0 and second.data.endswith(b"the end\n")
    end = read_log(str(state_dir), "J", 1, 0, second.next_offset)
    assert (end.data, end.next_offset) == (b"", second.next_offset)
    assert read_log(str(state_dir), "J", 1, 0, -8).data == b"the end\n"
    world.close()


@pytest.mark.parametrize("job", ["../J", "J/..", "", "a" * 65, "J\0"])
def test_a_path_trick_is_no_job_id(state_dir: Path, job: str) -> None:
    with pytest.raises(ValueError, match="not a job id"):
        read_log(str(state_dir), job, 1, 0)
    with pytest.raises(ValueError, match="not a job id"):
        list_outputs(str(state_dir), job)


@pytest.mark.parametrize(
    ("script", "settings", "told"),
    [
        pytest.param(
            'head -c 5000000 /dev/zero > "$GPU_QUOTA_OUTPUT_DIR/x"', {"outputs_limit_mib": 1}, "outputs", id="outputs"
        ),
        pytest.param("head -c 5000000 /dev/zero > x", {"work_limit_mib": 1}, "work and checkpoint", id="work"),
        pytest.param(
            'cd "$GPU_QUOTA_OUTPUT_DIR"; i=0; while [ $i -lt 80 ]; do mkdir d; cd d; i=$((i+1)); done',
            {},
            "too deeply",
            id="deep",
        ),
    ],
)
def test_a_job_that_writes_more_than_its_limit_fails(
    state_dir: Path, script: str, settings: dict[str, int], told: str
) -> None:
    world = LocalWorld(state_dir, **settings)
    world.executor.start(shell("J", f"{script}; trap 'exit 75' TERM; {LOOP}"))
    fact = world.until(lambda fact: fact.tree_gone)
    assert fact.exit_status == -signal.SIGXFSZ and not fact.pause_requested
    assert "the job is stopped" in world.log("J") and told in world.log("J")
    world.close()


@pytest.mark.skipif(not is_root(), reason="mounting a small file system needs root")
def test_a_full_disk_stops_no_job_and_loses_no_exit(state_dir: Path) -> None:
    small = state_dir / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0711", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.decode()}")
    try:
        world = LocalWorld(small)
        world.executor.start(
            shell("J", f"echo begun; while ! test -e {state_dir}/go; do echo more; sleep 0.01; done; exit 6")
        )
        fact = world.ready("J", "")
        ballast = small / "ballast"
        with pytest.raises(OSError, match="No space"), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        (state_dir / "go").touch()
        eventually(lambda: not alive(fact.pid or 0))
        ballast.unlink()
        assert world.until(lambda fact: fact.tree_gone).exit_status == 6
        world.close()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


# --- what a job is told, and what it is not -----------------------------------------------------------------------
def test_a_job_sees_nothing_of_the_services_environment(
    monkeypatch: pytest.MonkeyPatch, world: LocalWorld, state_dir: Path
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "the-service-token")
    variables = {"MINE": "yes", "GPU_QUOTA_MILLI": "9999", "GPU_QUOTA_NEW": "x", "CUDA_VISIBLE_DEVICES": "all"}
    secrets = {"PASSWORD": "the-secret", "GPU_QUOTA_JOB_ID": "another"}
    world.executor.start(
        shell(
            "J",
            f"env; echo ${{#PASSWORD}} letters; cat /proc/$PPID/environ; {LOOP}",
            variables=variables,
            secrets=secrets,
        )
    )
    text = eventually(lambda: world.log("J") if "letters" in world.log("J") else "")
    lines = text.split("\n")
    assert "MINE=yes" in lines and "GPU_QUOTA_MILLI=250" in lines and "PASSWORD=***" in lines
    assert "10 letters" in lines, "the job itself has the secret"
    assert "CUDA_VISIBLE_DEVICES=SIM-0" in lines and "GPU_QUOTA_JOB_ID=J" in lines
    assert "the-service-token" not in text and "JUPYTERHUB" not in text and "GPU_QUOTA_NEW" not in text
    kept = [path for path in state_dir.rglob("*") if path.is_file()]
    assert [path for path in kept if b"the-secret" in path.read_bytes()] == []


def test_a_job_has_no_file_open_but_its_own(world: LocalWorld) -> None:
    world.executor.start(shell("J", "ls -l /proc/$$/fd"))
    world.until(lambda fact: fact.tree_gone)
    targets = [line.rpartition(" -> ")[2] for line in world.log("J").splitlines() if " -> " in line]
    assert targets[0] == "/dev/null" and all(target.startswith("pipe:") for target in targets[1:])
    assert len(targets) == 3


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        pytest.param(("no-such-program",), 127, "there is no command", id="a command that is not there"),
        pytest.param(("/etc/passwd",), 126, "Permission denied", id="a file that is no program"),
    ],
)
def test_a_command_that_cannot_run_says_why_in_the_log(
    world: LocalWorld, command: tuple[str, ...], status: int, told: str
) -> None:
    world.executor.start(order("J", "", command=command))
    assert world.until(lambda fact: fact.tree_gone).exit_status == status
    assert told in world.log("J")


def test_the_environments_interpreter_runs_a_python_command(world: LocalWorld) -> None:
    command = ("python", "-c", "import sys; print(sys.executable)")
    world.executor.start(order("J", "", command=command, python="/usr/bin/python3"))
    world.executor.start(order("K", "", command=("python3", *command[1:])))
    for job in ("J", "K"):
        world.until(lambda fact, job=job: fact.job == job and fact.tree_gone)  # type: ignore[misc]
    assert world.log("J") == "/usr/bin/python3\n"
    assert world.log("K") == f"{Path(sys.prefix, 'bin', 'python3')}\n"


def test_a_live_job_runs_in_its_owners_folder(world: LocalWorld, state_dir: Path) -> None:
    (state_dir / "home").mkdir()
    world.executor.start(shell("J", "pwd", live=True, directory=str(state_dir / "home")))
    world.until(lambda fact: fact.tree_gone)
    assert world.log("J").strip() == str(state_dir / "home")


# --- outputs ------------------------------------------------------------------------------------------------------
def test_outputs_are_listed_and_opened_and_nothing_else_is(world: LocalWorld, state_dir: Path) -> None:
    script = (
        'cd "$GPU_QUOTA_OUTPUT_DIR"; mkdir -p a/b; printf one > a/b/1; printf two > 2; '
        "ln -s /etc/passwd link; ln -s /etc folder; mkfifo pipe"
    )
    world.executor.start(shell("J", script))
    world.until(lambda fact: fact.tree_gone)
    assert [(output.path, output.size_bytes) for output in list_outputs(str(state_dir), "J")] == [
        ("2", 3),
        ("a/b/1", 3),
    ]
    with open_output(str(state_dir), "J", "a/b/1") as file:
        assert file.read() == b"one"
    tricks = [
        "link",
        "folder/passwd",
        "../work",
        "a/../2",
        "/etc/passwd",
        "",
        ".",
        "a",
        "pipe",
        "a//b",
        "nothing",
        "2\0",
    ]
    for path in tricks:
        with pytest.raises(OutputRefused):
            open_output(str(state_dir), "J", path)
    with pytest.raises(OutputRefused, match="at most 2"):
        open_output(str(state_dir), "J", "2", limit_bytes=2)


def test_everything_of_a_forgotten_job_is_removed(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(shell("J", 'cd "$GPU_QUOTA_OUTPUT_DIR"; mkdir -p closed/inside; chmod 000 closed'))
    world.until(lambda fact: fact.tree_gone)
    world.executor.settled("J", 1)
    world.executor.forget("J")
    eventually(lambda: not any((state_dir / "trash").iterdir()) and not any((state_dir / "jobs").iterdir()))
    assert not any((state_dir / "active").iterdir())


def test_a_supervisor_whose_job_is_forgotten_under_it_ends(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(shell("J", f"while ! test -e {state_dir}/go; do sleep 0.01; done"))
    world.ready("J", "")
    supervisor = world.supervisor("J")
    Path(job_directory(str(state_dir), "J")).rename(state_dir / "elsewhere")
    (state_dir / "go").touch()
    eventually(lambda: not alive(supervisor))


def test_an_exit_that_the_supervisor_has_not_noticed_yet_is_not_of_the_pause(
    world: LocalWorld, state_dir: Path
) -> None:
    world.executor.start(shell("J", f"while ! test -e {state_dir}/go; do sleep 0.01; done; exit 0"))
    fact, supervisor = world.ready("J", ""), world.supervisor("J")
    os.kill(supervisor, signal.SIGSTOP)
    (state_dir / "go").touch()
    eventually(lambda: not alive(fact.pid or 0))
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(Path(rank_paths(str(state_dir), "J", 1, 0).control, "socket")))
        asking.sendall(json.dumps({"order": "leave", "fencing": 1, "grace_s": 5, "reason": "reclaimed"}).encode())
        os.kill(supervisor, signal.SIGCONT)
        ended = world.until(lambda fact: fact.tree_gone)
    assert (ended.exit_status, ended.pause_requested) == (0, False)


@pytest.mark.parametrize("sent", ["{}", "[]", "null", "x", '{"fencing": "1"}', '{"fencing": 1}'])
def test_what_is_no_order_changes_nothing(world: LocalWorld, state_dir: Path, sent: str) -> None:
    world.executor.start(shell("J", "exec sleep 1000"))
    world.ready("J", "")
    supervisor = world.supervisor("J")
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(Path(rank_paths(str(state_dir), "J", 1, 0).control, "socket")))
        asking.sendall(sent.encode())
        assert asking.recv(100) == b""
    world.executor.leave(leave("J"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == -15 and supervisor


def test_an_exit_while_the_pause_file_is_being_made_is_not_of_the_pause(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    paths = rank_paths(str(state_dir), "J", 1, 0)
    for folder in (paths.control, paths.run):
        Path(folder).mkdir(parents=True)
    world_order = LocalExecutor(state_dir)._rank_order(shell("J", ""), 0, paths, None)
    supervisor = Supervisor(world_order, paths, None)
    supervisor.pid = os.spawnvp(os.P_NOWAIT, "true", ["true"])
    monkeypatch.setattr(
        supervisor, "make_pause_file", lambda reason: os.waitid(os.P_PID, supervisor.pid, os.WEXITED | os.WNOWAIT)
    )
    supervisor.request_pause("reclaimed")
    assert supervisor.status["pause_intended"] and "pause_requested" not in supervisor.status
    os.waitpid(supervisor.pid, 0)


# --- accounts -----------------------------------------------------------------------------------------------------
@pytest.fixture
def groups_of_the_service() -> Iterator[None]:
    """The service stands in more groups than its own; none of them is a job's."""
    before = os.getgroups()
    os.setgroups([0, 4])
    yield
    os.setgroups(before)


as_nobody = pytest.mark.skipif(not is_root(), reason="dropping to another account needs root")


@as_nobody
def test_a_job_runs_as_its_submitter_and_reads_nothing_of_others(
    world: LocalWorld, state_dir: Path, groups_of_the_service: None
) -> None:
    world.executor.start(shell("MINE", "echo own > note; exec sleep 1000"))
    world.ready("MINE", "")
    (state_dir / "database").write_text("all of it")
    (state_dir / "database").chmod(0o600)
    mine = rank_paths(str(state_dir), "MINE", 1, 0)
    hidden = [
        mine.control, f"{mine.work}/note", mine.checkpoint, mine.outputs, mine.run, str(state_dir / "database"),
        f"/proc/{os.getpid()}/environ", str(state_dir / "jobs"), "/root",
    ]  # fmt: skip
    tries = "; ".join(f"ls {path} >/dev/null 2>&1 && cat {path} >/dev/null 2>&1 && echo LEAK {path}" for path in hidden)
    own = 'echo x > here && echo x > "$GPU_QUOTA_OUTPUT_DIR/o" && echo x > "$GPU_QUOTA_CHECKPOINT_DIR/c" && echo OWN'
    world.executor.start(
        shell(
            "J", f"id -un; id -Gn; echo $HOME $USER; {tries}; {own}; kill -9 $PPID; echo still here", account="nobody"
        )
    )
    fact = world.until(lambda fact: fact.job == "J" and fact.tree_gone)
    log = world.log("J")
    assert log.splitlines()[:3] == ["nobody", "nogroup", "/nonexistent nobody"], log
    assert "LEAK" not in log and "OWN" in log and "still here" in log and fact.exit_status == 0


@as_nobody
def test_a_job_of_another_account_dies_with_its_supervisor(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on", account="nobody"))
    fact = world.ready("J", "runs on")
    assert fact.pid is not None
    eventually(lambda: b"sleep" in Path(f"/proc/{fact.pid}/cmdline").read_bytes())
    os.kill(world.supervisor("J"), signal.SIGKILL)
    eventually(lambda: not alive(fact.pid or 0))


@as_nobody
def test_the_pause_file_reaches_a_job_of_another_account(world: LocalWorld) -> None:
    script = f"trap 'cat \"$GPU_QUOTA_PAUSE_FILE\"; exit 75' TERM; echo ready; {LOOP}"
    world.executor.start(shell("J", script, account="nobody"))
    eventually(lambda: "ready" in world.log("J"))
    world.executor.leave(leave("J"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 75
    assert "reclaimed" in world.log("J")


@as_nobody
def test_a_submitter_cannot_make_the_service_write_elsewhere(world: LocalWorld, state_dir: Path) -> None:
    (state_dir / "target").mkdir(0o755)
    script = (
        f'cd "$(dirname "$GPU_QUOTA_PAUSE_FILE")"; ln -s {state_dir}/target/pause pause; '
        f"trap 'exit 75' TERM; echo ready; {LOOP}"
    )
    world.executor.start(shell("J", script, account="nobody"))
    eventually(lambda: "ready" in world.log("J"))
    world.executor.leave(leave("J"))
    assert world.until(lambda fact: fact.tree_gone).pause_requested
    assert not any((state_dir / "target").iterdir())


@as_nobody
def test_an_account_that_is_not_there_is_refused_with_a_sentence(world: LocalWorld) -> None:
    world.executor.start(order("J", "ends with 0", account="no-such-account"))
    fact = world.until(lambda fact: fact.tree_gone)
    assert fact.pid is None and fact.exit_status == 126
    assert fact.refused and "no account 'no-such-account'" in fact.refused and fact.refused in world.log("J")


@as_nobody
def test_a_state_directory_below_a_closed_home_is_named_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o700)
    world = LocalWorld(tmp_path / "closed" / "state")
    world.executor.start(order("J", "ends with 0", account="nobody"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 126
    assert "cannot be entered by nobody" in world.log("J") and "move state_dir" in world.log("J")
    world.close()


def test_a_refused_order_is_told_to_the_operator(world: LocalWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.executor.start(order("J", "runs on"))
    world.ready("J", "runs on")
    world.executor.fence(9)
    with caplog.at_level(logging.WARNING):
        world.executor.leave(leave("J", fencing=1))
        eventually(lambda: "leader 9 rules now" in caplog.text)
