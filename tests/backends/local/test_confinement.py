"""Jobs as real processes: limits, the variables and files that they can read, and their accounts."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.backends.job_files.outputs import JobOutputs
from jupyter_gpu_quota.backends.job_files.paths import rank_paths
from jupyter_gpu_quota.backends.job_files.pause_file import make_pause_file
from jupyter_gpu_quota.backends.job_files.rank_log import RotatingLog
from jupyter_gpu_quota.backends.local.jobs.executor import make_control, make_layout
from jupyter_gpu_quota.backends.local.jobs.rank_process import account_of, prepare_directories
from jupyter_gpu_quota.backends.protocol import OutputRefused
from jupyter_gpu_quota.core.job_ends import EndCause
from tests.backends.worlds import LOOP, LocalWorld, is_alive, is_root, order, passable_folder, pid_of, shell, stop
from tests.patience import until

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


# --- logs and limits ----------------------------------------------------------------------------------------------
def test_a_large_log_is_bounded_and_keeps_its_end(state_dir: Path) -> None:
    world = LocalWorld(state_dir, log_limit_mib=1)
    world.executor.start(shell("J", "yes 0123456789 | head -c 50000000; echo the end; exit 4"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 4
    kept = sum(path.stat().st_size for path in Path(rank_paths(str(state_dir), "J", 1, 0).log).iterdir())
    text = world.log("J")
    assert 1 << 20 <= kept <= 17 << 16 and text.endswith("the end\n") and "bytes of this log were dropped" in text
    world.close()


@pytest.mark.parametrize("lines", [1, 900, 1100, 5000], ids=lambda lines: f"{lines} KiB")
def test_a_log_keeps_all_of_its_limit(tmp_path: Path, lines: int) -> None:
    log, limit = RotatingLog(str(tmp_path), 1 << 20), 1 << 20
    written = b"".join(f"{number:01023}\n".encode() for number in range(lines))
    for offset in range(0, len(written), 1024):
        log.write(written[offset : offset + 1024])
    kept = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    own = [line for line in kept.splitlines(keepends=True) if line.startswith(b"[jupyter-gpu-quota]")]
    assert len(kept) <= limit + limit // 16
    text, end = kept.replace(b"".join(own), b""), written[-limit + sum(map(len, own)) + 1 :]
    assert text.replace(b"\n", b"").endswith(end.replace(b"\n", b""))  # the report may be within a line
    assert len(own) == (lines > 1024 + 64), "dropped bytes are reported once in what is kept"


def test_a_segment_that_cannot_be_removed_does_not_end_the_log(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path), 1 << 16)
    log.write(b"x" * 4096)
    (oldest,) = tmp_path.iterdir()
    oldest.unlink()
    oldest.mkdir()
    for _ in range(40):
        log.write(b"y" * 4096)
    assert (log.end, log.lost_bytes) == (41 * 4096, 0)


def test_a_log_is_read_from_the_next_offset(state_dir: Path) -> None:
    world = LocalWorld(state_dir, log_limit_mib=1)
    world.executor.start(shell("J", f"echo first; echo {'x' * 50}; yes 0123456789 | head -c 3000000; echo the end"))
    world.until(lambda fact: fact.tree_gone)
    first = JobOutputs(state_dir).log("J", 1, 0, 0, 1000)
    assert first.dropped_bytes > 0 and first.offset == first.dropped_bytes and len(first.data) == 1000
    second = JobOutputs(state_dir).log("J", 1, 0, first.next_offset, 1 << 30)
    assert second.dropped_bytes == 0 and second.data.endswith(b"the end\n")
    end = JobOutputs(state_dir).log("J", 1, 0, second.next_offset)
    assert (end.data, end.next_offset) == (b"", second.next_offset)
    assert JobOutputs(state_dir).log("J", 1, 0, -8).data == b"the end\n"
    world.close()


@pytest.mark.parametrize("job", ["../J", "J/..", "", "a" * 65, "J\0"])
def test_a_path_is_not_a_job_id(state_dir: Path, job: str) -> None:
    with pytest.raises(ValueError, match="not a job id"):
        JobOutputs(state_dir).log(job, 1, 0)
    with pytest.raises(ValueError, match="not a job id"):
        JobOutputs(state_dir).outputs(job)


@pytest.mark.parametrize(
    ("script", "settings", "expected"),
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
    state_dir: Path, script: str, settings: dict[str, int], expected: str
) -> None:
    world = LocalWorld(state_dir, **settings)
    world.executor.start(shell("J", f"{script}; trap 'exit 75' TERM; {LOOP}"))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.cause) == (-signal.SIGXFSZ, EndCause.STORAGE_LIMIT) and not fact.pause_requested
    assert "the job is stopped" in world.log("J") and expected in world.log("J")
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
        until(lambda: not is_alive(pid_of(fact)))
        ballast.unlink()
        assert world.until(lambda fact: fact.tree_gone).exit_status == 6
        world.close()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


# --- the variables of a job ----------------------------------------------------------------------------------
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
    text = until(lambda: world.log("J") if "letters" in world.log("J") else "")
    lines = text.split("\n")
    assert "MINE=yes" in lines and "GPU_QUOTA_MILLI=250" in lines and "PASSWORD=***" in lines
    assert "10 letters" in lines, "the job itself has the secret"
    assert "CUDA_VISIBLE_DEVICES=SIM-0" in lines and "GPU_QUOTA_JOB_ID=J" in lines
    assert "the-service-token" not in text and "JUPYTERHUB" not in text and "GPU_QUOTA_NEW" not in text
    kept = [path for path in state_dir.rglob("*") if path.is_file()]
    assert [path for path in kept if b"the-secret" in path.read_bytes()] == []


def test_a_job_inherits_no_open_file(world: LocalWorld) -> None:
    world.executor.start(shell("J", "ls -l /proc/$$/fd"))
    world.until(lambda fact: fact.tree_gone)
    targets = [line.rpartition(" -> ")[2] for line in world.log("J").splitlines() if " -> " in line]
    assert targets[0] == "/dev/null" and all(target.startswith("pipe:") for target in targets[1:])
    assert len(targets) == 3


@pytest.mark.parametrize(
    ("command", "status", "expected"),
    [
        pytest.param(("no-such-program",), 127, "there is no command", id="a missing command"),
        pytest.param(("true | true",), 127, "without quotes around them, or run `sh -c`", id="a line as one word"),
        pytest.param(("/etc/passwd",), 126, "Permission denied", id="a file that is not executable"),
    ],
)
def test_the_log_has_the_reason_of_a_command_that_cannot_run(
    world: LocalWorld, command: tuple[str, ...], status: int, expected: str
) -> None:
    world.executor.start(order("J", "", command=command))
    assert world.until(lambda fact: fact.tree_gone).exit_status == status
    assert expected in world.log("J")


def test_a_python_command_runs_with_the_interpreter_of_the_service(world: LocalWorld) -> None:
    world.executor.start(order("K", "", command=("python3", "-c", "import sys; print(sys.executable)")))
    world.until(lambda fact: fact.tree_gone)
    assert world.log("K") == f"{Path(sys.prefix, 'bin', 'python3')}\n"


def test_a_live_job_runs_in_its_users_folder(world: LocalWorld, state_dir: Path) -> None:
    (state_dir / "home").mkdir()
    world.executor.start(shell("J", "pwd", live=True, directory=str(state_dir / "home")))
    world.until(lambda fact: fact.tree_gone)
    assert world.log("J").strip() == str(state_dir / "home")


# --- outputs ------------------------------------------------------------------------------------------------------
def test_only_regular_files_are_outputs(world: LocalWorld, state_dir: Path) -> None:
    script = (
        'cd "$GPU_QUOTA_OUTPUT_DIR"; mkdir -p a/b; printf one > a/b/1; printf two > 2; '
        "ln -s /etc/passwd link; ln -s /etc folder; mkfifo pipe"
    )
    world.executor.start(shell("J", script))
    world.until(lambda fact: fact.tree_gone)
    assert [(output.path, output.size_bytes) for output in JobOutputs(state_dir).outputs("J").files] == [
        ("2", 3),
        ("a/b/1", 3),
    ]
    with JobOutputs(state_dir).open_output("J", "a/b/1") as file:
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
            JobOutputs(state_dir).open_output("J", path)


def test_everything_of_a_forgotten_job_is_removed(world: LocalWorld, state_dir: Path) -> None:
    world.executor.start(shell("J", 'cd "$GPU_QUOTA_OUTPUT_DIR"; mkdir -p closed/inside; chmod 000 closed'))
    world.until(lambda fact: fact.tree_gone)
    world.executor.settled("J", 1)
    world.executor.forget("J")
    until(lambda: not any((state_dir / "trash").iterdir()) and not any((state_dir / "jobs").iterdir()))
    assert not any((state_dir / "active").iterdir())


# --- accounts -----------------------------------------------------------------------------------------------------
@pytest.fixture
def groups_of_the_service() -> Iterator[None]:
    """The service has supplementary groups; a job has none of them."""
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
        shell("J", f"id -un; id -Gn; echo $HOME $USER; {tries}; {own}; kill -9 $PPID; echo still here", run_as="nobody")
    )
    fact = world.until(lambda fact: fact.job == "J" and fact.tree_gone)
    log = world.log("J")
    assert log.splitlines()[:3] == ["nobody", "nogroup", "/nonexistent nobody"], log
    assert "LEAK" not in log and "OWN" in log and "still here" in log and fact.exit_status == 0


@as_nobody
def test_a_folder_that_a_killed_supervisor_did_not_hand_over_becomes_the_submitters(state_dir: Path) -> None:
    paths, nobody = rank_paths(str(state_dir), "J", 1, 0), account_of("nobody")
    for folder in (paths.work, paths.outputs):
        Path(folder).mkdir(parents=True)
    prepare_directories(paths, nobody)
    folders = (paths.run, paths.work, paths.checkpoint, paths.outputs)
    assert [Path(folder).stat().st_uid for folder in folders] == [nobody.uid] * 4


@as_nobody
def test_a_job_of_another_account_dies_with_its_supervisor(world: LocalWorld) -> None:
    world.executor.start(order("J", "runs on", run_as="nobody"))
    fact = world.ready("J", "runs on")
    until(lambda: b"sleep" in Path(f"/proc/{pid_of(fact)}/cmdline").read_bytes())
    os.kill(world.supervisor("J"), signal.SIGKILL)
    until(lambda: not is_alive(pid_of(fact)))


@as_nobody
def test_the_pause_file_reaches_a_job_of_another_account(world: LocalWorld) -> None:
    script = f"trap 'cat \"$GPU_QUOTA_PAUSE_FILE\"; exit 75' TERM; echo ready; {LOOP}"
    world.executor.start(shell("J", script, run_as="nobody"))
    world.logged("ready")
    world.executor.stop(stop("J"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 75
    assert "reclaimed" in world.log("J")


@pytest.fixture
def closed_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("closed_umask")
def test_a_pause_file_is_complete_and_readable_as_soon_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, link = rank_paths(str(tmp_path), "J", 1, 0), os.link
    pause, linked = Path(paths.pause), list[str]()
    pause.parent.mkdir(parents=True)

    def seen(source: str, target: str, **options: Any) -> None:
        linked.append("" if pause.exists() else pause.with_name(source).read_text())
        link(source, target, **options)

    monkeypatch.setattr(os, "link", seen)
    make_pause_file(paths, "reclaimed\n1\n")
    assert (linked, pause.read_text(), pause.stat().st_mode & 0o777) == (["reclaimed\n1\n"], "reclaimed\n1\n", 0o644)
    with pytest.raises(FileExistsError):
        make_pause_file(paths, "again")
    assert [each.name for each in pause.parent.iterdir()] == ["pause"]


@pytest.mark.usefixtures("closed_umask")
def test_a_pause_file_is_made_without_hard_links_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    paths = rank_paths(str(tmp_path), "J", 1, 0)
    Path(paths.run).mkdir(parents=True)
    monkeypatch.setattr(os, "link", refused)
    make_pause_file(paths, "reclaimed\n")
    assert (Path(paths.pause).read_text(), Path(paths.pause).stat().st_mode & 0o777) == ("reclaimed\n", 0o644)


@pytest.mark.usefixtures("closed_umask")
def test_other_accounts_pass_through_the_folders_of_a_service_with_a_closed_umask(tmp_path: Path) -> None:
    state_dir = tmp_path / "above" / "state"
    paths = rank_paths(str(state_dir), "J", 1, 0)
    make_layout(str(state_dir))
    home = Path(paths.work).parent
    (home / "run" / "1").mkdir(parents=True)  # as a kill before the change of their modes leaves them
    make_control(paths)
    prepare_directories(paths, account_of(None))
    for folder in (state_dir.parent, state_dir, state_dir / "jobs", home, home / "run", home / "run" / "1"):
        assert folder.stat().st_mode & 0o777 == 0o711, folder
    assert Path(paths.work).stat().st_mode & 0o777 == Path(paths.control).stat().st_mode & 0o777 == 0o700


def test_a_state_folder_that_an_admin_made_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(0o700)
    make_layout(str(tmp_path / "state"))
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@as_nobody
def test_a_submitter_cannot_make_the_service_write_elsewhere(world: LocalWorld, state_dir: Path) -> None:
    (state_dir / "target").mkdir(0o755)
    script = (
        f'cd "$(dirname "$GPU_QUOTA_PAUSE_FILE")"; ln -s {state_dir}/target/pause pause; '
        f"trap 'exit 75' TERM; echo ready; {LOOP}"
    )
    world.executor.start(shell("J", script, run_as="nobody"))
    world.logged("ready")
    world.executor.stop(stop("J"))
    assert world.until(lambda fact: fact.tree_gone).pause_requested
    assert not any((state_dir / "target").iterdir())


@as_nobody
def test_a_state_directory_below_a_closed_home_is_named_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o700)
    world = LocalWorld(tmp_path / "closed" / "state")
    world.executor.start(order("J", "ends with 0", run_as="nobody"))
    assert world.until(lambda fact: fact.tree_gone).exit_status == 126
    assert "cannot be entered by nobody" in world.log("J") and "move state_dir" in world.log("J")
    world.close()


def test_a_refused_order_is_logged(world: LocalWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.executor.start(order("J", "runs on"))
    world.ready("J", "runs on")
    world.executor.fence(9)
    with caplog.at_level(logging.WARNING):
        world.executor.stop(stop("J", fencing=1))
        until(lambda: "leader 9 is newer" in caplog.text)
