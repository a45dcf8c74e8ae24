"""Processes that leave a supervisor which was killed or stopped: they are found and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.record_files import read_record
from jupyter_gpu_quota.backends.local.host import processes as process_tree
from jupyter_gpu_quota.backends.local.host.processes import mark_of
from jupyter_gpu_quota.backends.local.jobs import executor as local
from tests.backends.worlds import LOOP, LocalWorld, is_alive, order, passable_folder, pid_of, shell, stop
from tests.patience import PATIENCE_S, Stopwatch, until

FORKS_AWAY = """
import os, resource, signal, sys
for step in range(2):
    if os.fork():
        signal.pause() if step == 0 else os._exit(0)
    os.setsid()
if "unmarked" in sys.argv:
    resource.setrlimit(10, (5, 5))
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
os.execve("/bin/sleep", ["sleep", "1000"], {})
"""
"""A session of its own, no parent, and no variable left."""


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with passable_folder() as folder:
        yield folder


@pytest.fixture
def world(state_dir: Path) -> Iterator[LocalWorld]:
    world = LocalWorld(state_dir)
    yield world
    world.close()


def stray_of(world: LocalWorld, *how: str) -> int:
    """Start a job with a grandchild that detaches itself; returns its id once it has no mark left."""
    note = world.state_dir / "pid"
    world.executor.start(order("J", "", command=(sys.executable, "-c", FORKS_AWAY, str(note), *how)))
    stray = int(until(lambda: note.exists() and note.read_text()))
    until(lambda: Path(f"/proc/{stray}/environ").read_bytes() == b"")
    world.ready("J", "")
    return stray


def watchers(world: LocalWorld, job: str = "J") -> tuple[int, int]:
    """The supervisor and its guard."""
    supervisor = world.status(job)["supervisor"]
    return supervisor["pid"], supervisor["guard"]["pid"]


# --- a supervisor that is killed ----------------------------------------------------------------------------------
# R57
@pytest.mark.parametrize(
    ("killed", "how"),
    [
        pytest.param((0,), (), id="its supervisor is killed"),
        pytest.param((0,), ("unmarked",), id="its supervisor is killed and the process removed its mark"),
        pytest.param((0, 1), (), id="its supervisor and the guard are killed"),
        pytest.param((1, 0), (), id="the guard is killed and then its supervisor"),
    ],
)
def test_the_next_attempt_starts_only_after_stray_processes_ended(
    world: LocalWorld, killed: tuple[int, ...], how: tuple[str, ...]
) -> None:
    stray = stray_of(world, *how)
    pids = watchers(world)
    for which in killed:
        os.kill(pids[which], signal.SIGKILL)
    fact = world.until(lambda fact: fact.tree_gone)
    assert not is_alive(stray), "its devices are given on, and it still uses them"
    assert fact.exit_status == -signal.SIGKILL


@pytest.mark.parametrize(
    ("marked", "user", "is_killed"),
    [
        pytest.param(True, None, False, id="the rank had a mark"),
        pytest.param(False, None, True, id="the rank had no mark and the process is of its account"),
        pytest.param(False, 12_345, False, id="the rank had no mark and the process is of another account"),
    ],
)
def test_a_process_in_a_session_with_the_number_of_the_rank(
    world: LocalWorld, marked: bool, user: int | None, is_killed: bool
) -> None:
    if user is not None and os.getuid() != 0:
        pytest.skip("only root can run as another user")
    daemon = ["sh", "-c", "sleep 600 >/dev/null & echo $!"]
    with subprocess.Popen(daemon, stdout=subprocess.PIPE, start_new_session=True, user=user) as leader:
        assert leader.stdout is not None
        pid = int(leader.stdout.readline())
    gone = {"boot": world.executor.boot, "pid": leader.pid, "started": 0}
    status = {"job": "J", "attempt": 1, "rank": 0, "supervisor": gone, "pid": leader.pid, "pid_started": 0, "mark": 1}
    Path(rank_paths(str(world.state_dir), "J", 1, 0).run).mkdir(parents=True)
    found = world.executor._leftover_processes({**status, "marked": marked})
    os.kill(pid, signal.SIGKILL)
    assert (pid in found) == is_killed


def test_detached_processes_are_killed_without_a_service(world: LocalWorld) -> None:
    stray = stray_of(world, "unmarked")
    supervisor, guard = watchers(world)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not is_alive(stray) and not is_alive(guard))


def test_a_rank_whose_command_did_not_start_leaves_no_guard(world: LocalWorld) -> None:
    world.executor.start(order("J", "", command=("no-such-command",)))
    world.until(lambda fact: fact.tree_gone)
    until(lambda: not any(map(is_alive, watchers(world))))


def test_an_ended_job_leaves_no_guard(world: LocalWorld) -> None:
    world.executor.start(order("J", "ends with 0"))
    world.until(lambda fact: fact.tree_gone)
    until(lambda: not any(map(is_alive, watchers(world))))


def test_a_guard_ignores_the_signals_of_a_shutdown(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on"))
    fact = world.ready("J", "runs on")
    supervisor, guard = watchers(world)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(guard, number)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not is_alive(pid_of(fact)) and not is_alive(guard))


def test_every_rank_has_its_own_mark(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on", ranks=2))
    ranks = [world.until(lambda fact, rank=rank: fact.rank == rank and fact.handle is not None) for rank in (0, 1)]  # type: ignore[misc]
    marks = [world.status("J", rank=rank)["mark"] for rank in (0, 1)]
    until(lambda: [mark_of(pid_of(fact)) for fact in ranks] == marks)  # a rank sets its mark after it was recorded
    assert len(set(marks)) == 2
    assert mark_of(os.getpid()) is None and mark_of(watchers(world)[0]) is None


# --- a supervisor that is stopped ---------------------------------------------------------------------------------
def test_a_job_that_stops_its_supervisor_still_receives_a_pause_request(world: LocalWorld) -> None:
    world.executor.start(shell("J", f"trap 'exit 75' TERM; kill -STOP $PPID; echo ready; {LOOP}"))
    world.until(lambda fact: fact.handle is not None)
    world.logged("ready")
    os.kill(watchers(world)[0], signal.SIGSTOP)
    world.executor.stop(stop("J", grace_s=600))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.pause_requested) == (75, True), "it was let save"


STOPS_BOTH = """
import os, pathlib, signal, sys
def is_stopped(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TXZ"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
supervisor = os.getppid()
guard = int(open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1])
if not os.fork():
    os.setsid()
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
while True:
    for pid in (guard, supervisor):
        os.kill(pid, signal.SIGSTOP)
    while is_stopped(guard) and is_stopped(supervisor):
        os.sched_yield()
"""
"""Two processes: each stops the supervisor and its guard, and does it again as soon as one of them runs."""


def test_a_job_that_keeps_its_supervisor_stopped_is_killed_after_its_grace_and_paused(
    world: LocalWorld,
) -> None:
    note = world.state_dir / "pids"
    world.executor.start(order("J", "", command=(sys.executable, "-c", STOPS_BOTH, str(note))))
    pids = until(lambda: two_in(note))
    both = watchers(world)
    asked_at = world.now()
    with Stopwatch() as watch:
        world.executor.stop(stop("J", grace_s=1))
        fact = world.until(lambda fact: fact.tree_gone)
    assert fact.pause_requested and fact.exit_status in (-signal.SIGKILL, -signal.SIGTERM)
    assert not any(map(is_alive, pids)) and world.now() - asked_at >= 1000 and watch.seconds < PATIENCE_S / 2
    until(lambda: not any(map(is_alive, both)))


def two_in(note: Path) -> list[int]:
    """Wait for the two numbers in a file."""
    found = [int(word) for word in note.read_text().split()] if note.exists() else []
    return found if len(found) == 2 else []


def stopped(world: LocalWorld) -> int:
    """Start a job that ignores SIGTERM under an unresponsive supervisor; returns the supervisor."""
    world.executor.start(order("J", "ignores SIGTERM"))
    world.ready("J", "ignores SIGTERM")
    supervisor = watchers(world)[0]
    os.kill(supervisor, signal.SIGSTOP)
    return supervisor


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stopped supervisor can be woken, and the time-outs are short."""
    really_send = process_tree.send
    monkeypatch.setattr(local, "send", lambda pid, number: number == signal.SIGCONT or really_send(pid, number))
    monkeypatch.setattr(local, "FORCE_AFTER_S", 0.1)


@pytest.mark.usefixtures("deaf")
def test_an_unresponsive_supervisor_is_killed_with_its_rank(world: LocalWorld) -> None:
    supervisor = stopped(world)
    world.executor.stop(stop("J", grace_s=1))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.pause_requested) == (-9, True)
    assert not is_alive(supervisor) and not is_alive(pid_of(fact))


@pytest.mark.usefixtures("deaf")
def test_a_supervisor_that_becomes_unresponsive_is_killed_after_the_grace(world: LocalWorld) -> None:
    world.executor.start(order("J", "ignores SIGTERM"))
    world.ready("J", "ignores SIGTERM")
    world.executor.stop(stop("J"))
    world.until(lambda fact: fact.pause_requested)
    until(lambda: world.executor._stopping["J", 1].is_received)
    os.kill(watchers(world)[0], signal.SIGSTOP)
    world.executor._stopping["J", 1].kill_at = time.monotonic()  # the grace, and what is granted after it, is over
    assert world.until(lambda fact: fact.tree_gone).exit_status == -9


@pytest.mark.usefixtures("deaf")
def test_an_older_leader_kills_nothing(world: LocalWorld) -> None:
    supervisor = stopped(world)
    world.executor.fence(7)
    world.executor.stop(stop("J", fencing=3, grace_s=0))
    until_ms = world.now() + 2500
    until(lambda: world.executor.observe() and world.now() > until_ms)
    assert is_alive(supervisor) and read_record(rank_paths(str(world.state_dir), "J", 1, 0).forced) is None
    world.executor.stop(stop("J", fencing=7, grace_s=0))
    world.until(lambda fact: fact.tree_gone)


@pytest.mark.usefixtures("deaf")
def test_an_interrupted_kill_is_completed_by_the_next_service(world: LocalWorld) -> None:
    supervisor = stopped(world)
    Path(rank_paths(str(world.state_dir), "J", 1, 0).forced).write_text('{"fencing": 1}')
    os.kill(supervisor, signal.SIGKILL)
    successor = LocalWorld(world.state_dir)
    assert successor.until(lambda fact: fact.tree_gone).pause_requested
    successor.executor.close()


# --- the supervisor that waits for an order -----------------------------------------------------------------------
def spare_of(world: LocalWorld) -> int:
    """Wait for the preforked supervisor."""
    waiting = until(lambda: world.executor._preforked._waiting)
    assert waiting is not None
    return int(waiting.pid)


def test_the_next_job_starts_on_the_preforked_supervisor(world: LocalWorld) -> None:
    world.executor.start(order("J", "ends with 3"))
    first = spare_of(world)
    world.executor.start(order("K", "ends with 3"))
    assert world.until(lambda fact: fact.job == "K" and fact.tree_gone).exit_status == 3
    until(lambda: spare_of(world) != first and not is_alive(first))


def test_a_dead_preforked_supervisor_delays_no_job(world: LocalWorld) -> None:
    world.executor.start(order("J", "ends with 0"))
    os.kill(spare_of(world), signal.SIGKILL)
    world.executor.start(order("K", "ends with 3"))
    assert world.until(lambda fact: fact.job == "K" and fact.tree_gone).exit_status == 3


def test_a_preforked_supervisor_ends_with_the_service(world: LocalWorld) -> None:
    script = (
        "import os, sys, time; from jupyter_gpu_quota.backends.local.jobs.prefork import PreforkedSupervisor;"
        "preforked = PreforkedSupervisor(); preforked.refill();"
        "print(preforked._waiting.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    until(lambda: not is_alive(int(done.stdout)))


def test_a_closed_executor_starts_no_preforked_supervisor(world: LocalWorld) -> None:
    world.executor.start(order("J", "ends with 0"))
    waiting = spare_of(world)
    world.executor.close()
    world.executor._preforked.refill()
    assert not is_alive(waiting) and world.executor._preforked._waiting is None
