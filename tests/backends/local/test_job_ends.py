"""The evidence for the end of a rank: its supervisor reads it while the rank's cgroup exists."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.rank_facts import rank_fact
from jupyter_gpu_quota.backends.local.enforcement import cgroup
from jupyter_gpu_quota.backends.local.enforcement.cgroup import Cgroups, job_cgroup
from jupyter_gpu_quota.backends.local.enforcement.cgroup_entry import had_oom_kill, machine_oom_kills
from jupyter_gpu_quota.backends.local.jobs import supervisor
from jupyter_gpu_quota.backends.local.jobs.supervisor import Supervisor
from jupyter_gpu_quota.core.job_ends import EndCause
from tests.backends.worlds import LOOP, LocalWorld, passable_folder, shell

EVENTS = "low 0\nhigh 0\nmax 3\noom 1\noom_kill {}\noom_group_kill 0\n"


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with passable_folder() as folder:
        yield folder


@pytest.fixture
def cgroups(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroups:
    """A folder in place of cgroup v2, in which the test writes what the kernel would."""
    root = state_dir / "cgroup"
    root.mkdir()
    monkeypatch.setattr(cgroup, "mounted", lambda: root)
    monkeypatch.setattr(cgroup, "own_group", lambda: "/")
    return Cgroups(state_dir)


@pytest.fixture
def world(state_dir: Path, cgroups: Cgroups) -> Iterator[LocalWorld]:
    world = LocalWorld(state_dir)
    yield world
    world.close()


@pytest.mark.parametrize(
    ("killed", "status", "cause"),
    [
        pytest.param(1, 1, EndCause.OUT_OF_MEMORY, id="a process that it started was killed"),
        pytest.param(0, 1, None, id="it reached its memory limit, and nothing was killed"),
        pytest.param(None, 1, None, id="a cgroup without the memory controller"),
    ],
)
def test_an_oom_kill_in_the_cgroup_is_reported_with_the_end(
    world: LocalWorld, state_dir: Path, cgroups: Cgroups, killed: int | None, status: int, cause: EndCause | None
) -> None:
    world.executor.start(shell("J", f"while ! test -e {state_dir}/go; do sleep 0.01; done; exit {status}"))
    world.until(lambda fact: fact.handle is not None)
    folder = cgroups.path(job_cgroup("J", 1, 0))
    if killed is not None:
        (folder / "memory.events").write_text(EVENTS.format(killed))
    (state_dir / "go").touch()
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.cause) == (status, cause)
    (folder / "memory.events").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "text",
    [None, "", "oom_kill\n", "oom_kill many\n", "\0\xff", "oom_kill 0\n"],
    ids=["none", "empty", "no number", "a word", "binary", "0"],
)
def test_unreadable_events_are_no_evidence(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "memory.events").write_text(text, encoding="latin-1")
    assert not had_oom_kill(str(tmp_path))


@pytest.mark.parametrize(
    ("exit_status", "later", "cause"),
    [
        pytest.param(-signal.SIGKILL, 8, "oom_kill_on_node", id="it was killed, and so was some process"),
        pytest.param(128 + signal.SIGKILL, 8, "oom_kill_on_node", id="killed below a shell"),
        pytest.param(-signal.SIGKILL, 7, None, id="no process was killed for memory"),
        pytest.param(1, 8, None, id="it failed by itself"),
        pytest.param(None, 8, None, id="lost with its machine"),
    ],
)
def test_an_oom_kill_of_the_machine_is_evidence_only_for_a_killed_rank(
    monkeypatch: pytest.MonkeyPatch, exit_status: int | None, later: int, cause: str | None
) -> None:
    monkeypatch.setattr(supervisor, "machine_oom_kills", lambda: later)
    rank = Supervisor.__new__(Supervisor)
    rank.oom_kills, rank.is_over_limit, rank.order = 7, False, {"cgroup": None}  # type: ignore[typeddict-item]
    assert rank.cause(exit_status) == cause
    assert cause is None or cause in set(EndCause)


@pytest.mark.parametrize(
    ("text", "kills"), [("nr_free_pages 5\noom_kill 12\n", 12), ("nr_free_pages 5\n", 0), ("oom_kill x\n", 0), ("", 0)]
)
def test_the_kernel_counts_the_processes_that_it_killed(tmp_path: Path, text: str, kills: int) -> None:
    (tmp_path / "vmstat").write_text(text)
    assert machine_oom_kills(str(tmp_path / "vmstat")) == kills
    assert machine_oom_kills() >= 0


def test_the_memory_controller_is_enabled_for_the_cgroups_of_ranks(cgroups: Cgroups) -> None:
    parent = cgroups.path(job_cgroup("J", 1, 0)).parent
    parent.mkdir()
    for folder in (parent, parent.parent):
        (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    assert cgroups.make(job_cgroup("J", 1, 0)) == ""
    assert [(folder / "cgroup.subtree_control").read_text() for folder in (parent.parent, parent)] == ["+memory"] * 2


def test_a_killed_supervisor_is_the_cause_of_the_end(world: LocalWorld) -> None:
    world.executor.start(shell("J", LOOP))
    world.ready("J", "")
    os.kill(world.supervisor("J"), signal.SIGKILL)
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.cause) == (-signal.SIGKILL, EndCause.SUPERVISOR_LOST)


def test_a_supervisor_that_is_lost_after_the_command_does_not_hide_how_it_ended(
    world: LocalWorld, state_dir: Path
) -> None:
    world.executor.start(shell("J", f"setsid sh -c 'trap \"\" TERM; {LOOP}' & exit 7"))
    world.until(lambda fact: fact.ended_at is not None)
    with suppress(ProcessLookupError):  # it ends once what the command left behind is killed
        os.kill(world.supervisor("J"), signal.SIGKILL)
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.cause) == (7, None)


def test_a_cause_of_another_release_is_ignored(state_dir: Path) -> None:
    status = {"job": "J", "attempt": 1, "rank": 0, "ended_at": 1, "exit_status": 1, "cause": "from the future"}
    assert rank_fact(rank_paths(str(state_dir), "J", 1, 0), status).cause is None
