"""A notebook as a job: real kernels below a real job supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from jupyter_gpu_quota import notebook_job
from jupyter_gpu_quota.backends.job_files.paths import job_directory
from jupyter_gpu_quota.core.facts import RankFact
from tests.backends.worlds import LocalWorld, order, stop
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
MODULE = (sys.executable, "-m", "jupyter_gpu_quota.notebook_job")

Cell = str | tuple[str, str]
"""The source of a cell, and its tag if it has one."""


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    with tempfile.TemporaryDirectory(prefix="gpu-quota-") as folder:
        world = LocalWorld(Path(folder))
        yield world
        world.close()


def notebook(folder: Path, *cells: Cell, kernel: str | None = "python3") -> Path:
    made = nbformat.v4.new_notebook()
    if kernel is not None:
        made.metadata.kernelspec = {"name": kernel, "display_name": kernel}
    for cell in cells:
        source, *tags = (cell,) if isinstance(cell, str) else cell
        made.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    nbformat.write(made, folder / "train.ipynb")
    return folder / "train.ipynb"


def start(world: LocalWorld, path: Path, *words: str, attempt: int = 1) -> None:
    variables = {"PYTHONPATH": str(ROOT)}
    world.executor.start(order("J", "", command=(*MODULE, str(path), *words), attempt=attempt, variables=variables))


def ended(world: LocalWorld, attempt: int = 1) -> RankFact:
    return world.until(lambda fact: fact.attempt == attempt and fact.tree_gone)


def ran(world: LocalWorld, path: Path, *words: str) -> RankFact:
    start(world, path, *words)
    return ended(world)


def last_line(world: LocalWorld, attempt: int = 1) -> str:
    return world.log("J", attempt).splitlines()[-1]


def executed(world: LocalWorld) -> NotebookNode:
    return nbformat.read(Path(job_directory(str(world.state_dir), "J"), "outputs", "train.ipynb"), as_version=4)


def texts(found: NotebookNode) -> list[str]:
    """What each cell wrote or returned."""
    return ["".join(out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)
            for cell in found.cells]  # fmt: skip


def states(found: NotebookNode) -> list[str | None]:
    return [cell.metadata.get("gpu_quota", {}).get("status") for cell in found.cells]


# --- to the end -------------------------------------------------------------------------------------------------------
def test_a_notebook_runs_with_its_parameters_and_reports_each_cell(world: LocalWorld, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("beside the notebook")
    path = notebook(
        tmp_path,
        ("epochs, rate = 1, 0.1", "parameters"),
        "print(epochs, rate, kind, layers)",
        "from jupyter_gpu_quota import job\njob.report_progress(4, 9, loss=0.5); job.complete()",
        "open('data.txt').read()",
    )
    given = ("-p", "epochs", "3", "-p", "rate", "1e-3", "-p", "kind", "resnet", "-p", "layers", "[8, 16]")
    fact = ran(world, path, *given)
    assert (fact.exit_status, fact.completed, fact.done, fact.total) == (0, True, 5, 5), world.log("J")
    assert fact.metrics == {"loss": 0.5, "cell_done": 4, "cell_total": 9}
    found = executed(world)
    assert texts(found) == ["", "", "3 0.001 resnet [8, 16]\n", "", "'beside the notebook'"]
    assert found.cells[1].metadata.tags == ["injected-parameters"]
    assert (states(found), found.metadata.gpu_quota.state) == (["ended"] * 5, "succeeded")
    log = world.log("J")
    assert "3 0.001 resnet [8, 16]\n" in log and "cell 5 of 5: open('data.txt').read()" in log
    assert "the cell tagged parameters does not set kind, layers" in log
    assert texts(nbformat.read(path, as_version=4)) == [""] * 4, "the notebook itself stays as it is"


def test_a_failing_cell_ends_the_job_and_its_notebook_is_kept(world: LocalWorld, tmp_path: Path) -> None:
    fact = ran(world, notebook(tmp_path, "print('before')", "1 / 0", "print('never')"))
    assert (fact.exit_status, fact.completed, fact.done, fact.total) == (1, False, 1, 3)
    assert last_line(world) == "[notebook] failed in cell 2 of 3: ZeroDivisionError: division by zero"
    found = executed(world)
    assert (states(found), found.metadata.gpu_quota.state) == (["ended", "failed", None], "failed")
    assert found.cells[1].outputs[0].ename == "ZeroDivisionError" and "\x1b" not in world.log("J")


def test_a_killed_kernel_is_named_and_its_signal_is_the_exit_status(world: LocalWorld, tmp_path: Path) -> None:
    fact = ran(world, notebook(tmp_path, "print('before')", "import os\nos.kill(os.getpid(), 9)"))
    assert fact.exit_status == 128 + signal.SIGKILL
    assert last_line(world) == (
        "[notebook] failed in cell 2 of 2: signal 9 killed the kernel, often because memory was exhausted"
    )
    assert texts(executed(world))[0] == "before\n"


@pytest.mark.parametrize(
    ("code", "status", "state"),
    [
        pytest.param("raise SystemExit(3)", 3, "failed", id="a status of its own"),
        pytest.param("raise SystemExit(75)", 75, "paused", id="a checkpoint that the cell saved itself"),
        pytest.param("raise SystemExit()", 0, "succeeded", id="an early end"),
        pytest.param("raise SystemExit('no data')", 1, "failed", id="a message"),
    ],
)
def test_system_exit_in_a_cell_is_the_jobs_exit_status(
    world: LocalWorld, tmp_path: Path, code: str, status: int, state: str
) -> None:
    fact = ran(world, notebook(tmp_path, code, "print('never')"))
    found = executed(world)
    assert (fact.exit_status, found.metadata.gpu_quota.state, texts(found)[1]) == (status, state, "")
    assert fact.completed == (status == 0)


def test_huge_output_is_cut_in_the_notebook(world: LocalWorld, tmp_path: Path) -> None:
    many = "from IPython.display import display\nfor n in range(60): display({'text/plain': 'y' * 200_000}, raw=True)"
    fact = ran(world, notebook(tmp_path, many, "print('after')"))
    assert fact.exit_status == 0
    found = executed(world)
    assert len(found.cells[0].outputs) == 42 and texts(found)[1] == "after\n"
    assert found.cells[0].outputs[-1].text == (
        "[notebook] more than 8 MiB of output: the rest is not kept in the notebook\n"
    )


# --- a pause ----------------------------------------------------------------------------------------------------------
WAIT = "import pathlib, time\nwhile not pathlib.Path({go!r}).exists(): time.sleep(0.01)"
LONG = "import time; print('runs'); time.sleep(600)"
HOOK = """\
from jupyter_gpu_quota.job import checkpoint_path, on_pause, saving
state = checkpoint_path("state.txt")
@on_pause
def save():
    with saving(state) as part:
        part.write_text(str(steps))
    print("saved", steps)
"""


def paused(world: LocalWorld, *, grace_s: int = 600) -> None:
    """Request a pause; it has arrived. Each observation sends the order again while the supervisor does not answer."""
    world.executor.stop(stop("J", grace_s=grace_s))
    world.until(lambda fact: fact.pause_requested)


def in_cell(world: LocalWorld, number: int, attempt: int = 1) -> None:
    world.logged(f"cell {number} of", attempt=attempt)


def test_a_pause_takes_effect_between_cells_and_the_next_attempt_runs_all_again(
    world: LocalWorld, tmp_path: Path
) -> None:
    path = notebook(tmp_path, "print('first')", WAIT.format(go=str(tmp_path / "go")), "print('third')")
    start(world, path)
    in_cell(world, 2)
    paused(world)
    (tmp_path / "go").touch()
    fact = ended(world)
    assert (fact.exit_status, fact.completed, fact.done) == (75, False, 2)
    assert last_line(world) == (
        "[notebook] stopped on request before cell 3 of 3; in the next attempt the notebook runs again from its first "
        "cell, since the variables of its kernel are lost"
    )
    found = executed(world)
    assert (states(found), found.metadata.gpu_quota.state) == (["ended", "ended", None], "paused")
    start(world, path, attempt=2)
    fact = ended(world, 2)
    assert (fact.exit_status, fact.completed) == (0, True)
    assert "there is no checkpoint of an earlier attempt; the notebook runs again" in world.log("J", 2)
    assert texts(executed(world)) == ["first\n", "", "third\n"]


def test_a_long_cell_is_interrupted_before_the_grace_ends_and_a_function_saves(
    world: LocalWorld, tmp_path: Path
) -> None:
    """The grace is 5 s, the least that is reserved: the interrupt comes at once, and the test does not wait."""
    path = notebook(
        tmp_path,
        ("print('prepared')", "skip-on-resume"),
        HOOK,
        "import time\nsteps = int(state.read_text()) if state.exists() else 0\nprint('from', steps)",
        ("print('tagged, but interrupted')\nsteps = 7\nwhile steps < 8: time.sleep(0.01)", "skip-on-resume"),
    )
    start(world, path)
    in_cell(world, 4)
    world.logged("tagged, but")
    paused(world, grace_s=5)
    fact = ended(world)
    assert (fact.exit_status, fact.completed, fact.done) == (75, False, 3), world.log("J")
    log = world.log("J")
    assert "cell 4 of 4 is interrupted" in log and "saved 7\n" in log and "KeyboardInterrupt" in log
    assert "in cell 4 of 4; in the next attempt the notebook continues from the checkpoint" in last_line(world)
    assert fact.saved_at is not None
    found = executed(world)
    assert states(found) == ["ended", "ended", "ended", "interrupted"] and len(found.cells) == 4

    edited = nbformat.read(path, as_version=4)
    edited.cells[3].source = "print('runs again')"
    nbformat.write(edited, path)
    start(world, path, attempt=2)
    assert ended(world, 2).exit_status == 0, world.log("J", 2)
    found = executed(world)
    assert states(found) == ["skipped", "ended", "ended", "ended"]
    assert texts(found) == ["prepared\n", "", "from 7\n", "runs again\n"]
    assert "cell 1 of 4 is skipped" in world.log("J", 2) and "prepared" not in world.log("J", 2)


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(f"try:\n    {LONG}\nexcept KeyboardInterrupt:\n    print('stopped')", id="handles the interrupt"),
        pytest.param((LONG, "raises-exception"), id="may raise"),
    ],
)
def test_an_interrupted_last_cell_did_not_end_the_notebook(world: LocalWorld, tmp_path: Path, last: Cell) -> None:
    start(world, notebook(tmp_path, last))
    in_cell(world, 1)
    world.logged("runs")
    paused(world, grace_s=5)
    fact = ended(world)
    assert (fact.exit_status, fact.completed, fact.done) == (75, False, 0), world.log("J")
    assert states(executed(world)) == ["interrupted"]


def test_a_function_that_fails_saves_no_checkpoint(world: LocalWorld, tmp_path: Path) -> None:
    hook = "from jupyter_gpu_quota.job import on_pause\n@on_pause\ndef save(): raise OSError('the disk is full')"
    path = notebook(tmp_path, (hook, "skip-on-resume"), WAIT.format(go=str(tmp_path / "go")), "print('third')")
    start(world, path)
    in_cell(world, 2)
    paused(world)
    (tmp_path / "go").touch()
    assert ended(world).exit_status == 75
    assert "no checkpoint: a function registered with on_pause failed: OSError: the disk is full" in world.log("J")
    start(world, path, attempt=2)
    assert ended(world, 2).exit_status == 0
    assert states(executed(world)) == ["ended"] * 3, "a tagged cell runs again without a checkpoint"


def test_a_cell_that_saves_itself_ends_the_attempt_and_tagged_cells_are_skipped(
    world: LocalWorld, tmp_path: Path
) -> None:
    loop = (
        "from jupyter_gpu_quota import job\nsaved = job.checkpoint_path('n')\n"
        "if not saved.exists():\n    saved.touch(); raise SystemExit(job.CHECKPOINTED)"
    )
    path = notebook(tmp_path, ("print('prepared')", "skip-on-resume"), loop, "print('evaluated')")
    assert ran(world, path).exit_status == 75
    start(world, path, attempt=2)
    assert ended(world, 2).exit_status == 0, world.log("J", 2)
    found = executed(world)
    assert (states(found), texts(found)) == (["skipped", "ended", "ended"], ["prepared\n", "", "evaluated\n"])


@pytest.mark.parametrize(
    ("tag", "state", "source", "is_skipped"),
    [
        pytest.param("skip-on-resume", "ended", "1", True, id="a tagged cell that ended"),
        pytest.param("skip-on-resume", "skipped", "1", True, id="a tagged cell that was skipped before"),
        pytest.param("skip-on-resume", "interrupted", "1", False, id="a tagged cell that was interrupted"),
        pytest.param("skip-on-resume", "ended", "2", False, id="a tagged cell that was edited"),
        pytest.param("other", "ended", "1", False, id="a cell without the tag"),
    ],
)
def test_a_finished_tagged_cell_is_skipped_after_a_checkpoint(
    tag: str, state: str, source: str, is_skipped: bool
) -> None:
    before = nbformat.v4.new_code_cell("1", metadata={"gpu_quota": {"status": state}})
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": [tag]})
    assert notebook_job.is_same_and_ended(cell, before) == is_skipped
    assert not notebook_job.is_same_and_ended(cell, None)


def test_a_pause_in_the_last_cell_that_ends_in_time_is_a_success(world: LocalWorld, tmp_path: Path) -> None:
    start(world, notebook(tmp_path, WAIT.format(go=str(tmp_path / "go"))))
    in_cell(world, 1)
    paused(world)
    (tmp_path / "go").touch()
    fact = ended(world)
    assert (fact.exit_status, fact.completed) == (0, True)


# --- what cannot be run -----------------------------------------------------------------------------------------------
def run_here(folder: Path, *words: str, python: Sequence[str] = MODULE) -> subprocess.CompletedProcess[str]:
    """Outside a job."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*python, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )


BAD: dict[str, Any] = {"cells": [{"cell_type": "code"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param('{"cells": [,]}', "is not a notebook: invalid JSON at line 1, column 12", id="broken JSON"),
        pytest.param('{"a": 1}', "is not a notebook of a known format", id="another document"),
        pytest.param("[" * 100_000, "is not a notebook of a known format", id="very deep JSON"),
        pytest.param(json.dumps(BAD), "is not a notebook of a known format", id="a cell without a source"),
        pytest.param(None, "cannot be read: No such file", id="no file"),
    ],
)
def test_a_file_that_is_not_a_notebook_is_refused_with_a_sentence(
    tmp_path: Path, text: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.ipynb"
    if text is not None:
        path.write_text(text)
    assert notebook_job.main([str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("[notebook] ") and says in said and "Traceback" not in said and len(said) < 600


def test_a_notebook_that_names_no_kernel_runs_outside_a_job(tmp_path: Path) -> None:
    done = run_here(tmp_path, str(notebook(tmp_path, "6 * 7", kernel=None)))
    assert done.returncode == 0 and "the notebook names no kernel; it runs with python3" in done.stderr, done.stderr
    assert done.stdout == "42\n" and [path.name for path in (tmp_path / "outputs").iterdir()] == ["train.ipynb"]
    assert not (tmp_path / "checkpoint").exists()


def test_a_temporary_folder_with_a_long_path_does_not_prevent_the_start(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    path = notebook(tmp_path, "6 * 7")
    done = subprocess.run(
        [*MODULE, str(path)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(long)},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_an_unknown_kernel_is_refused_with_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = notebook(tmp_path, "1", kernel="my-conda")
    assert notebook_job.main([str(path)]) == 1
    said = capsys.readouterr().err
    assert "There is no kernel 'my-conda' for the notebook" in said and "has: python3" in said


@pytest.mark.parametrize("value", ["-0.1", "-1e-3", "-1.", "-v", "--kernel", "-p", ""])
def test_a_parameter_may_have_any_value(value: str) -> None:
    options = notebook_job.options_of(["-p", "rate", value, "train.ipynb", "--parameter", "x", value, "--kernel", "k"])
    assert (str(options.notebook), options.kernel) == ("train.ipynb", "k")
    assert options.parameter == [("rate", value), ("x", value)]


def test_a_parameter_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        notebook_job.options_of(["train.ipynb", "-p", "rate"])
    assert "argument -p/--parameter: expected 2 arguments" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["1st", "class", "a b", "x;import os"])
def test_a_parameter_has_the_name_of_a_variable(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        notebook_job.main(["train.ipynb", "-p", name, "1"])
    assert refused.value.code == 2 and "must be a valid name of a Python variable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1e-3", 0.001), ("True", True), ("None", None), ("[1, 2]", [1, 2]), ("resnet", "resnet"),
        ("007", "007"), ("{{}}", "{{}}"), ("1e999", "1e999"), ("[1e999]", "[1e999]"),
        ("__import__('os').system('x')", "__import__('os').system('x')"), ("'''", "'''"),
    ],
)  # fmt: skip
def test_the_value_of_a_parameter_is_a_literal_or_text(text: str, value: object) -> None:
    assert notebook_job.value_of(text) == value


def test_parameters_replace_those_of_an_earlier_run(tmp_path: Path) -> None:
    path = notebook(tmp_path, "x = 0", ("x = 1", "injected-parameters"), "print(x)")
    found = notebook_job.read_notebook(path)
    notebook_job.inject(found, {"x": "a'; import os"})
    assert [cell.source for cell in found.cells] == ['# Parameters\nx = "a\'; import os"', "x = 0", "print(x)"]


def test_a_missing_library_is_a_sentence_with_the_command_that_installs_it(tmp_path: Path) -> None:
    code = "import sys, runpy; sys.modules['nbclient'] = None; runpy.run_module('jupyter_gpu_quota.notebook_job')"
    done = run_here(tmp_path, python=[sys.executable, "-c", code])
    assert done.returncode == 1
    assert (
        done.stderr.startswith("A notebook needs nbclient")
        and "install jupyter-gpu-quota with its extra notebook-job" in done.stderr
    )
