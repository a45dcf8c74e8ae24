"""The module for training scripts, and the example that uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota import job
from jupyter_gpu_quota.backends.job_files.paths import job_directory
from tests.backends.worlds import LocalWorld, order, stop
from tests.patience import PATIENCE_S, Stopwatch

JOB_FILE = Path(job.__file__)


def script(code: str, folder: Path, *, inside: bool) -> subprocess.Popen[str]:
    """A script that imports a copy of the one file, on the bare standard library."""
    (folder / "job.py").write_text(JOB_FILE.read_text())
    inner = {
        "GPU_QUOTA_PAUSE_FILE": str(folder / "pause"),
        "GPU_QUOTA_PROGRESS_FILE": str(folder / "progress.json"),
        "GPU_QUOTA_CHECKPOINT_DIR": str(folder / "kept"),
        "GPU_QUOTA_OUTPUT_DIR": str(folder / "left"),
    }
    command = [sys.executable, "-S", "-c", f"import job\n{code}"]
    return subprocess.Popen(
        command, cwd=folder, env=inner if inside else {}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def said(running: subprocess.Popen[str]) -> str:
    out, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, out
    return out.strip()


def test_every_function_works_outside_a_job(tmp_path: Path) -> None:
    code = (
        "job.report_progress(1, 2, loss=0.5); job.complete(); "
        "print(job.pause_requested(), job.checkpoint_path('x'), job.output_path(), job.signal.getsignal(15).name)"
    )
    assert said(script(code, tmp_path, inside=False)) == "False checkpoint/x outputs SIG_DFL"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["__pycache__", "checkpoint", "job.py", "outputs"]


def test_progress_and_completion_are_reported(tmp_path: Path) -> None:
    said(script("job.report_progress(3, 10, loss=0.25, bad=float('nan'))", tmp_path, inside=True))
    assert json.loads((tmp_path / "progress.json").read_text()) == {"done": 3, "total": 10, "metrics": {"loss": 0.25}}
    said(script("job.report_progress(3, 10, **{'total': 0.5}); job.complete()", tmp_path, inside=True))
    progress = {"done": 3, "total": 10, "metrics": {"total": 0.5}, "completed": True}
    assert json.loads((tmp_path / "progress.json").read_text()) == progress
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


def test_a_pause_is_requested_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "pause").touch()
    assert said(script("print(job.pause_requested())", tmp_path, inside=True)) == "True"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param(None, "None", id="no request"),
        pytest.param("", "None", id="an empty file"),
        pytest.param("reclaimed", "None", id="a reason alone, of an older service"),
        pytest.param("reclaimed\n1000\n", "0.0", id="a grace that is over"),
        pytest.param("reclaimed\n32503680000000\n", "True", id="a grace that lasts"),
    ],
)
def test_the_rest_of_the_grace_is_in_the_pause_file(tmp_path: Path, text: str | None, left: str) -> None:
    if text is not None:
        (tmp_path / "pause").write_text(text)
    code = "left = job.pause_seconds_left(); print(left > 1e9 if left else left)"
    assert said(script(code, tmp_path, inside=True)) == left


def test_functions_for_a_pause_are_called_in_order_and_each_name_once(tmp_path: Path) -> None:
    code = (
        "def define(text):\n"
        "    @job.on_pause\n    def save(): print(text)\n"
        "define('old'); job.on_pause(lambda: print('second')); define('new'); print(job.call_on_pause())"
    )
    assert said(script(code, tmp_path, inside=False)).split() == ["new", "second", "2"]


def test_a_pause_is_requested_by_sigterm_which_no_longer_ends_the_script(tmp_path: Path) -> None:
    code = "job.pause_requested()\nprint('asks', flush=True)\nwhile not job.pause_requested(): pass\nprint('saved')"
    running = script(code, tmp_path, inside=True)
    assert running.stdout is not None and running.stdout.readline() == "asks\n"
    running.send_signal(signal.SIGTERM)
    assert said(running) == "saved"


def test_after_a_known_pause_sigterm_does_not_kill_the_exiting_interpreter(tmp_path: Path) -> None:
    (tmp_path / "pause").touch()
    code = "job.pause_requested()\nprint(job.signal.getsignal(15).name)"
    assert said(script(code, tmp_path, inside=True)) == "SIG_IGN"


def test_a_scripts_own_sigterm_handler_is_kept(tmp_path: Path) -> None:
    code = "job.signal.signal(15, job.signal.SIG_IGN)\njob.pause_requested()\nprint(job.signal.getsignal(15).name)"
    assert said(script(code, tmp_path, inside=True)) == "SIG_IGN"


def test_folders_are_those_that_the_job_was_given(tmp_path: Path) -> None:
    assert said(script("print(job.checkpoint_path('a'), job.output_path('b'))", tmp_path, inside=True)) == (
        f"{tmp_path}/kept/a {tmp_path}/left/b"
    )


SAVE = "path = job.checkpoint_path('model.pt')\nwith job.saving(path) as part: part.write_text({text!r})\n"


def test_a_checkpoint_is_saved_atomically_with_its_suffix(tmp_path: Path) -> None:
    found = "print(part.suffix, path.read_text(), [each.name for each in path.parent.iterdir()])"
    code = SAVE.format(text="new") + found
    assert said(script(code, tmp_path, inside=True)) == ".pt new ['model.pt']"


def test_a_failed_save_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    failing = "try:\n with job.saving(path) as part: part.write_text('half'); raise OSError\nexcept OSError: pass\n"
    code = SAVE.format(text="old") + failing + "print(path.read_text(), [each.name for each in path.parent.iterdir()])"
    assert said(script(code, tmp_path, inside=True)) == "old ['model.pt']"


def test_two_ranks_that_save_at_once_write_separate_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "model.pt"
    monkeypatch.setenv("RANK", "0")
    with job.saving(saved) as first:
        first.write_text("rank 0")
        monkeypatch.setenv("RANK", "1")
        with job.saving(saved) as second:
            second.write_text("rank 1")
        assert (first.read_text(), saved.read_text()) == ("rank 0", "rank 1")
    assert saved.read_text() == "rank 0" and list(tmp_path.iterdir()) == [saved]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param({}, (0, 1), id="a script outside a job, and a job of one process, is rank 0 of 1"),
        pytest.param({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4), id="a rank of a job of several knows which it is"),
    ],
)
def test_a_script_gets_its_rank(words: dict[str, str], expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    assert (job.rank(), job.ranks()) == expected


# --- the example --------------------------------------------------------------------------------------------------
EPOCHS = 24


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    with tempfile.TemporaryDirectory(prefix="gpu-quota-") as folder:
        world = LocalWorld(Path(folder))
        yield world
        world.close()


def digits(job_id: str, step_ms: int, attempt: int = 1, *more: str) -> Any:
    options = ("--epochs", str(EPOCHS), "--width", "48", "--step-ms", str(step_ms), *more)
    command = (sys.executable, "-m", "jupyter_gpu_quota.examples.digits", *options)
    return order(job_id, "", command=command, attempt=attempt)


def result(world: LocalWorld, job_id: str) -> dict[str, Any]:
    path = Path(job_directory(str(world.state_dir), job_id), "outputs", "result.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_example_trains_reports_and_completes(world: LocalWorld) -> None:
    world.executor.start(digits("J", 0))
    fact = world.until(lambda fact: fact.tree_gone)
    assert (fact.exit_status, fact.completed, fact.done, fact.total) == (0, True, EPOCHS, EPOCHS), world.log("J")
    losses = [float(line.split()[3]) for line in world.log("J").splitlines() if line.startswith("epoch ")]
    assert (
        len(losses) == EPOCHS
        and losses[-1] < losses[0] / 10
        and fact.metrics["loss"] == pytest.approx(losses[-1], abs=1e-4)
    )
    assert result(world, "J")["accuracy"] > 0.88 and fact.saved_at is not None


def test_the_example_paused_three_times_ends_with_the_same_bits(world: LocalWorld) -> None:
    world.executor.start(digits("WHOLE", 0))
    world.until(lambda fact: fact.job == "WHOLE" and fact.tree_gone)
    for attempt in (1, 2, 3):
        world.executor.start(digits("CUT", 100, attempt))
        world.until(lambda fact: fact.job == "CUT" and fact.attempt == attempt and (fact.done or 0) >= 5 * attempt)  # noqa: B023
        world.executor.stop(stop("CUT", attempt=attempt, grace_s=20))
        fact = world.until(lambda fact: fact.job == "CUT" and fact.attempt == attempt and fact.tree_gone)  # noqa: B023
        assert (fact.exit_status, fact.completed) == (75, False), world.log("CUT", attempt)
        assert fact.done is not None and fact.done < EPOCHS
    world.executor.start(digits("CUT", 0, 4))
    world.until(lambda fact: fact.attempt == 4 and fact.tree_gone)
    assert "resumed at epoch" in world.log("CUT", 4)
    assert result(world, "CUT") == result(world, "WHOLE")


def test_the_example_killed_without_warning_resumes_to_the_same_bits(world: LocalWorld) -> None:
    world.executor.start(digits("WHOLE", 0))
    world.until(lambda fact: fact.job == "WHOLE" and fact.tree_gone)
    world.executor.start(digits("CUT", 50, 1, "--save-every", "2"))
    fact = world.until(lambda fact: fact.job == "CUT" and (fact.done or 0) >= 7)
    assert fact.handle is not None
    os.kill(int(fact.handle), signal.SIGKILL)
    assert world.until(lambda fact: fact.job == "CUT" and fact.tree_gone).exit_status == -9
    world.executor.start(digits("CUT", 0, 2))
    world.until(lambda fact: fact.attempt == 2 and fact.tree_gone)
    assert result(world, "CUT") == result(world, "WHOLE")


def test_the_example_answers_a_pause_quickly(world: LocalWorld) -> None:
    world.executor.start(digits("J", 5000))
    world.logged("epoch 1 ")
    with Stopwatch() as watch:
        world.executor.stop(stop("J", grace_s=600))
        world.until(lambda fact: fact.tree_gone)
    assert watch.seconds < 2, "it saves within a tenth of a second; the rest is for a busy machine"
