"""Run a notebook as a job: ``python -m jupyter_gpu_quota.notebook_job train.ipynb -p epochs 3``.

nbclient executes the cells in a kernel of this environment. After each cell the executed notebook is written whole into
the outputs folder. The exit status is 0, 1 after a failure, 75 after a pause, 128 + N if signal N killed the kernel, or
that of a ``SystemExit`` that a cell raises.

A pause takes effect between cells; shortly before the grace ends, the running cell is interrupted. Functions
registered with :func:`jupyter_gpu_quota.job.on_pause` are called in the kernel before it ends. If they saved a
checkpoint, the next attempt does not execute cells that are tagged ``skip-on-resume`` and had ended. It executes all
others again, because the kernel's variables are lost.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import keyword
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import job

INSTALL = "install jupyter-gpu-quota with its extra notebook-job"
try:
    import nbformat
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
    from jupyter_client.manager import AsyncKernelManager
    from nbclient.client import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError
    from nbformat import NotebookNode
except ImportError as missing:
    raise SystemExit(f"A notebook needs {missing.name}, which {sys.executable} does not have: {INSTALL}") from None

FAILED = 1
KEY = "gpu_quota"
"""The key of the state of this run in the metadata of the notebook and of each cell."""

PARAMETERS, INJECTED, SKIPPED = "parameters", "injected-parameters", "skip-on-resume"
"""Tags of cells; the first two are those of papermill."""

PARAMETER_OPTIONS = ("-p", "--parameter")
MAX_OUTPUT_BYTES = 8 << 20
MESSAGE_BYTES = 200
"""Each message of a cell counts at least this much, so that the number of small messages is limited, too."""

POLL_S = 0.2
INTERRUPT_S = 5.0
INTERRUPT_SHARE = 4
"""A running cell is interrupted when a quarter of the grace is left, or INTERRUPT_S seconds if that is more."""

START_TIMEOUT_S = 120
MAX_SOCKET_FOLDER = 80
"""The longest path of a folder of sockets, in bytes: the path of a socket has at most 107."""

CALL_ON_PAUSE = """\
import sys
modules = [sys.modules.get(name) for name in ("jupyter_gpu_quota.job", "job")]
next((module.call_on_pause() for module in modules if hasattr(module, "call_on_pause")), 0)"""

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class CannotRun(Exception):
    """The notebook cannot be run; the message is a sentence."""


# --- the notebook -----------------------------------------------------------------------------------------------------
def read_notebook(path: Path) -> NotebookNode:
    """A notebook without outputs. Raises CannotRun."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRun(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}.") from None
    try:
        json.loads(text)  # nbformat's message has the whole file
        with warnings.catch_warnings(action="ignore"):  # missing ids are added
            notebook: NotebookNode = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise CannotRun(f"{path} is not a notebook: invalid JSON at {place} ({error.msg}).") from None
    except Exception as error:  # the errors of nbformat have no common class  # noqa: BLE001
        why = str(error).strip().partition("\n")[0][:200]
        raise CannotRun(f"{path} is not a notebook of a known format: {why or type(error).__name__}.") from None
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
        cell.metadata.pop(KEY, None)
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def has_tag(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def value_of(text: str) -> object:
    """The value of a parameter: a Python literal such as 3, 0.1, True or [1, 2]; otherwise the text itself.

    A number that is too large for a float, such as 1e999, is text: it cannot be written into a cell.
    """
    try:
        found = ast.literal_eval(text)
        ast.literal_eval(repr(found))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return found


def inject(notebook: NotebookNode, parameters: Mapping[str, object]) -> None:
    """Add a cell with the parameters after the cell tagged ``parameters``, otherwise at the top, as papermill does."""
    notebook.cells = [cell for cell in notebook.cells if not has_tag(cell, INJECTED)]
    if not parameters:
        return
    lines = ["# Parameters", *(f"{name} = {value!r}" for name, value in parameters.items())]
    cell = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": [INJECTED]})
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        del cell["id"]
    at = next((index for index, each in enumerate(notebook.cells, 1) if has_tag(each, PARAMETERS)), 0)
    if at and (unknown := sorted(parameters.keys() - names_set_by(notebook.cells[at - 1].source))):
        say(f"the cell tagged {PARAMETERS} does not set {', '.join(unknown)}")
    notebook.cells.insert(at, cell)


def names_set_by(source: str) -> set[str]:
    """The variables that a cell assigns. Lines with magics are left out, because they are not Python."""
    source = "\n".join(line for line in source.splitlines() if not line.startswith(("%", "!")))
    try:
        found = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return {node.id for node in found if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


# --- the log ----------------------------------------------------------------------------------------------------------
def say(sentence: str) -> None:
    print(f"[notebook] {sentence}", file=sys.stderr, flush=True)


def echo(kind: str, content: Mapping[str, Any]) -> None:
    """Write the output of a cell to the log; a rich display is written as its plain text."""
    match kind:
        case "stream":
            out = sys.stderr if content["name"] == "stderr" else sys.stdout
            print(content["text"], end="", file=out, flush=True)
        case "execute_result" | "display_data":
            print(content["data"].get("text/plain", ""), flush=True)
        case "error":
            print(COLOURS.sub("", "\n".join(content["traceback"])), file=sys.stderr, flush=True)


class CellExecutor(NotebookClient):
    """Executes cells. Their output is also written to the log, and a cell keeps at most MAX_OUTPUT_BYTES of it."""

    bytes_kept = 0

    def output(
        self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        kind, content = msg["msg_type"], msg["content"]
        echo(kind, content)
        was_full = self.bytes_kept > MAX_OUTPUT_BYTES
        self.bytes_kept += MESSAGE_BYTES + len(json.dumps(content, default=str))
        if self.bytes_kept <= MAX_OUTPUT_BYTES or kind == "error":
            return super().output(outs, msg, display_id, cell_index)
        if not was_full:
            why = f"more than {MAX_OUTPUT_BYTES >> 20} MiB of output: the rest is not kept in the notebook"
            say(why)
            outs.append(nbformat.v4.new_output("stream", name="stderr", text=f"[notebook] {why}\n"))
        return None

    def clear_output(self, outs: list[NotebookNode], msg: dict[str, Any], cell_index: int) -> None:
        self.bytes_kept = 0
        super().clear_output(outs, msg, cell_index)

    async def async_execute_cell(self, cell: NotebookNode, *args: Any, **more: Any) -> NotebookNode:
        self.bytes_kept = 0
        return await super().async_execute_cell(cell, *args, **more)


# --- the kernel -------------------------------------------------------------------------------------------------------
def kernel_spec(notebook: NotebookNode, asked: str | None) -> tuple[str, KernelSpec]:
    """The name and the specification of the kernel to start. Raises CannotRun."""
    name = asked or notebook.metadata.get("kernelspec", {}).get("name")
    if not name:
        say("the notebook names no kernel; it runs with python3")
        name = "python3"
    try:
        return name, KernelSpecManager().get_kernel_spec(name)
    except NoSuchKernel:
        known = ", ".join(sorted(KernelSpecManager().find_kernel_specs())) or f"none; {INSTALL}"
        advice = f"choose another with --kernel; the environment of {sys.executable} has: {known}"
        raise CannotRun(f"There is no kernel {name[:80]!r} for the notebook: {advice}.") from None


def manager_of(name: str, folder: str) -> AsyncKernelManager:
    """A kernel with sockets in a private folder, which need no free port; with TCP ports if that path is too long."""
    transport = "ipc" if len(folder.encode()) <= MAX_SOCKET_FOLDER else "tcp"
    return AsyncKernelManager(kernel_name=name, connection_file=f"{folder}/kernel.json", transport=transport)


# --- the run ----------------------------------------------------------------------------------------------------------
class Run:
    """One execution of a notebook.

    ``target`` is the file of the executed notebook. ``progress`` is the file in which cells report their progress.
    """

    def __init__(self, executor: CellExecutor, target: Path, progress: Path, *, is_python: bool) -> None:
        self.executor, self.target, self.progress, self.is_python = executor, target, progress, is_python
        self.cells = [(at, cell) for at, cell in enumerate(executor.nb.cells) if is_executed(cell)]
        self.ended = 0
        self.seen: object = None
        self.reserve_s = 0.0
        in_job = "GPU_QUOTA_CHECKPOINT_DIR" in os.environ
        self.checkpoint = job.checkpoint_path(f"paused-{target.name}") if in_job else None

    async def run(self) -> int:
        """Execute the cells; returns the exit status."""
        earlier = self.cells_before_pause()
        for number, (at, cell) in enumerate(self.cells, start=1):
            which = f"cell {number} of {len(self.cells)}"
            if job.pause_requested():
                return await self.pause(f"before {which}")
            if is_same_and_ended(cell, earlier.get(at)):
                say(f"{which} is skipped: it ended before the checkpoint was saved")
                cell.outputs, cell.metadata[KEY] = earlier[at].outputs, {"status": "skipped"}
            else:
                say(f"{which}: {cell.source.strip().splitlines()[0][:100]}")
                if (status := await self.execute(at, cell, which)) is not None:
                    return status
            self.ended = number
            self.save("running")
            self.report()
        return self.succeed()

    async def execute(self, at: int, cell: NotebookNode, which: str) -> int | None:
        """Execute one cell; None to continue with the next one, otherwise the exit status."""
        task = asyncio.ensure_future(self.executor.async_execute_cell(cell, at))
        is_interrupted = False
        while not task.done():
            await asyncio.wait({task}, timeout=POLL_S)
            self.report()
            if not is_interrupted and not task.done() and self.must_interrupt():
                say(f"{which} is interrupted: a pause was requested, and it did not end in time")
                is_interrupted = True
                self.save("running")
                await self.manager.interrupt_kernel()
        cell.metadata[KEY] = {"status": "interrupted" if is_interrupted else "ended"}
        try:
            await task
        except DeadKernelError:
            return await self.kernel_died(cell, which)
        except CellExecutionError as error:
            return await self.pause(f"in {which}") if is_interrupted else self.cell_failed(cell, which, error)
        return await self.pause(f"in {which}") if is_interrupted else None

    @property
    def manager(self) -> AsyncKernelManager:
        manager = self.executor.km
        assert isinstance(manager, AsyncKernelManager)
        return manager

    def must_interrupt(self) -> bool:
        """Whether a pause was requested, and the time that is left is only enough to save; at once if it is unknown.

        The time to save is computed once, from the grace that was left when the request was first seen.
        """
        left = job.pause_seconds_left()
        if not job.pause_requested() or left is None:
            return job.pause_requested()
        self.reserve_s = self.reserve_s or max(INTERRUPT_S, left / INTERRUPT_SHARE)
        return left <= self.reserve_s

    # --- ends ---------------------------------------------------------------------------------------------------------
    def succeed(self) -> int:
        self.save("succeeded")
        job.complete()
        say(f"succeeded; the executed notebook is {self.target}")
        return 0

    def cell_failed(self, cell: NotebookNode, which: str, error: CellExecutionError) -> int:
        """The exit status after an error in a cell; ``SystemExit`` has the same meaning as in a script."""
        status = status_of(str(error.evalue)) if error.ename == "SystemExit" else FAILED
        last = last_line(error)
        if status == 0:
            say(f"{which} ended the notebook")
            return self.succeed()
        if status == job.CHECKPOINTED:
            cell.metadata[KEY] = {"status": "interrupted"}
            self.save("paused", which)
            self.keep_checkpoint()
            say(f"{which} saved a checkpoint and ended the attempt")
        else:
            cell.metadata[KEY] = {"status": "failed"}
            self.save("failed", f"{which}: {last}")
            say(f"failed in {which}: {last}")
        return status

    async def kernel_died(self, cell: NotebookNode, which: str) -> int:
        """The exit status after the end of the kernel: 128 + N for signal N, as a shell has it."""
        found = await self.manager.provisioner.poll() if self.manager.provisioner else None
        why = f"the kernel ended with status {found}"
        if found is not None and found < 0:
            why = f"signal {-found} killed the kernel" + (", often because memory was exhausted" * (found == -9))
        cell.metadata[KEY] = {"status": "failed"}
        self.save("failed", f"{which}: {why}")
        say(f"failed in {which}: {why}")
        return 128 - found if found is not None and found < 0 else FAILED

    async def pause(self, where: str) -> int:
        """End the attempt so that the queue resumes it; before, the registered functions may save a checkpoint."""
        called = await self.call_functions() if self.is_python else 0
        self.save("paused", where)
        if called:
            self.keep_checkpoint()
        next_run = "runs again from its first cell, since the variables of its kernel are lost"
        if self.checkpoint is not None and self.checkpoint.exists():
            next_run = f"continues from the checkpoint: only cells tagged {SKIPPED} that had ended do not run again"
        say(f"stopped on request {where}; in the next attempt the notebook {next_run}")
        return job.CHECKPOINTED

    async def call_functions(self) -> int:
        """Call the functions registered with on_pause in the kernel. Returns their number, 0 if one of them failed."""
        cells = self.executor.nb.cells
        cell = nbformat.v4.new_code_cell(CALL_ON_PAUSE)
        cells.append(cell)
        try:
            await self.executor.async_execute_cell(cell, len(cells) - 1, store_history=False)
            return int(cell.outputs[-1].data["text/plain"])
        except CellExecutionError as error:
            say(f"no checkpoint: a function registered with on_pause failed: {last_line(error)}")
        except DeadKernelError:
            say("no checkpoint: the kernel ended before it could save one")
        except (IndexError, AttributeError, KeyError, ValueError):
            say("no checkpoint: the kernel did not answer the request to save one")
        finally:
            cells.pop()
        return 0

    def keep_checkpoint(self) -> None:
        """Store which cells ended before a checkpoint was saved, with their outputs, for the next attempt."""
        if self.checkpoint is not None:
            with job.saving(self.checkpoint) as part:
                nbformat.write(self.executor.nb, part)

    # --- files --------------------------------------------------------------------------------------------------------
    def cells_before_pause(self) -> dict[int, NotebookNode]:
        """The cells of the attempt that saved the newest checkpoint, by position; empty without one."""
        if self.checkpoint is None or not self.checkpoint.exists():
            if os.environ.get("GPU_QUOTA_ATTEMPT", "1") != "1":
                say("there is no checkpoint of an earlier attempt; the notebook runs again from the first cell")
            return {}
        try:
            found = nbformat.read(self.checkpoint, as_version=4)
            return dict(enumerate(found.cells))
        except Exception as error:  # the errors of nbformat have no common class  # noqa: BLE001
            say(f"the checkpoint of the notebook cannot be read ({type(error).__name__}); all cells run again")
            return {}

    def save(self, state: str, why: str = "") -> None:
        """Write the executed notebook whole."""
        attempt = os.environ.get("GPU_QUOTA_ATTEMPT", "1")
        self.executor.nb.metadata[KEY] = {"state": state, "attempt": attempt, **({"why": why} if why else {})}
        with job.saving(self.target) as part:
            nbformat.write(self.executor.nb, part)

    def report(self) -> None:
        """Report the cells that ended, with the metrics and the progress that the running cell reported."""
        metrics = reported_metrics(self.progress)
        if (now := (self.ended, metrics)) != self.seen:
            self.seen = now
            job.report_progress(self.ended, len(self.cells), **metrics)


def reported_metrics(path: Path) -> dict[str, float]:
    """The metrics that a cell reported, and its own progress as ``cell_done`` and ``cell_total``."""
    try:
        found = json.loads(path.read_text())
        named = {**found.get("metrics", {}), "cell_done": found.get("done"), "cell_total": found.get("total")}
        return {name: float(value) for name, value in named.items() if value is not None}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def is_executed(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def is_same_and_ended(cell: NotebookNode, before: NotebookNode | None) -> bool:
    """Whether a cell is skipped after a checkpoint: it is tagged, unchanged, and had ended before."""
    if before is None or not has_tag(cell, SKIPPED) or before.get("source") != cell.source:
        return False
    return before.metadata.get(KEY, {}).get("status") in ("ended", "skipped")


def last_line(error: CellExecutionError) -> str:
    """The name and the message of the error that a cell raised, as the last line of a traceback has them."""
    return f"{error.ename}: {error.evalue}".strip().splitlines()[-1][:1000]


def status_of(value: str) -> int:
    """The exit status of a ``SystemExit`` with this value, as in a script."""
    if value in ("", "None"):
        return 0
    return int(value) & 0xFF if re.fullmatch(r"-?\d+", value) else FAILED


# --- the program ------------------------------------------------------------------------------------------------------
async def run_notebook(source: Path, parameters: Mapping[str, object], asked: str | None) -> int:
    """Run a notebook in its own folder; returns the exit status. Raises CannotRun."""
    notebook = read_notebook(source)
    name, spec = kernel_spec(notebook, asked)
    is_python = spec.language.lower() == "python"
    if parameters and not is_python:
        raise CannotRun(f"Parameters need a Python kernel, but {name} runs {spec.language}; use variables instead.")
    inject(notebook, parameters)
    rank = f".rank-{job.rank()}" if job.rank() else ""
    target = job.output_path(f"{source.stem}{rank}.ipynb")
    with tempfile.TemporaryDirectory(prefix="gpu-quota-") as folder:
        executor = CellExecutor(notebook, km=manager_of(name, folder), timeout=None, store_widget_state=False)
        run = Run(executor, target, Path(folder, "progress.json"), is_python=is_python)
        status = FAILED
        try:
            await start(executor, source.parent, run.progress)
            status = await run.run()
        finally:
            await stop(executor, now=status == job.CHECKPOINTED)
        return status


async def start(executor: CellExecutor, folder: Path, progress: Path) -> None:
    """Start the kernel in the folder of the notebook. Raises CannotRun."""
    variables = {**os.environ, "GPU_QUOTA_PROGRESS_FILE": str(progress)}
    executor.startup_timeout = START_TIMEOUT_S
    try:
        await executor.async_start_new_kernel(cwd=str(folder), env=variables)
        await executor.async_start_new_kernel_client()
    except (RuntimeError, OSError) as error:
        raise CannotRun(f"The kernel did not start: {str(error).strip()[:300]}.") from None


async def stop(executor: CellExecutor, *, now: bool) -> None:
    if executor.kc is not None:
        executor.kc.stop_channels()
    if isinstance(executor.km, AsyncKernelManager) and executor.km.has_kernel:
        await executor.km.shutdown_kernel(now=now)


def parser_of_words() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jupyter_gpu_quota.notebook_job", description="Run a notebook as a job.", allow_abbrev=False
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument(*PARAMETER_OPTIONS, nargs=2, action="append", metavar=("NAME", "VALUE"))
    parser.add_argument("--kernel", metavar="NAME", help="The kernel to use. Default: the notebook's own.")
    return parser


def parameters_of(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The parameters and the other words. argparse would take a value such as ``-1e-3`` or ``-v`` for an option."""
    at = next((at for at, word in enumerate(words[:-2]) if word in PARAMETER_OPTIONS), None)
    if at is None:
        return [], list(words)
    found, others = parameters_of(words[at + 3 :])
    return [(words[at + 1], words[at + 2]), *found], [*words[:at], *others]


def options_of(words: Sequence[str]) -> argparse.Namespace:
    parser = parser_of_words()
    parameters, others = parameters_of(words)
    options = parser.parse_args(others, argparse.Namespace(parameter=parameters))
    for name, _ in options.parameter:
        if not name.isidentifier() or keyword.iskeyword(name):
            parser.error(f"-p {name[:80]!r}: the name of a parameter must be a valid name of a Python variable")
    return options


def main(words: Sequence[str]) -> int:
    """Run one notebook; returns the exit status."""
    job.pause_requested()  # from here on SIGTERM requests a pause and does not end this process
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)  # errors of nbclient, which are shown as sentences
    options = options_of(words)
    parameters = {name: value_of(value) for name, value in options.parameter}
    try:
        return asyncio.run(run_notebook(options.notebook.absolute(), parameters, options.kernel))
    except (CannotRun, OSError) as error:
        say(str(error))
        return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
