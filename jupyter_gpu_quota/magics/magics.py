"""The magics. An error of the service is shown as one sentence, without a traceback."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from ..client import Client, GPUQuotaError, Job
from ..client.job import Jobs
from ..wire import DryRunView
from .share import Share

SCRIPT = "gpu_submit_cell.py"
"""The cell's file in the folder of the job."""

OPTIONS = ("gpu", "project", "pool", "gpu_model", "name", "environment", "time_limit", "priority", "retries", "private")
"""Options of the magic that are options of ``Client.submit``."""

Method = TypeVar("Method", bound=Callable[..., Any])


def as_sentence(method: Method) -> Method:
    """Show an error of the client or the service as one sentence."""

    @functools.wraps(method)
    def call(*args: Any) -> Any:
        try:
            return method(*args)
        except GPUQuotaError as error:
            raise UsageError(error.message) from None

    return call  # type: ignore[return-value]


@magics_class
class GPUMagics(Magics):
    """``%gpu``, ``%gpu_jobs`` and ``%%gpu_submit``, with the rights of the notebook's token."""

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the notebook."""
        assert self.shell is not None
        found: dict[str, Any] = self.shell.user_ns
        return found

    @as_sentence
    @line_magic
    def gpu(self, line: str) -> Share:
        """Show my GPU slices, their use, and the quotas of my projects."""
        if line.strip():
            raise UsageError("%gpu takes no arguments; %gpu_jobs lists jobs, and %%gpu_submit submits a cell.")
        return Share.of(Client())

    @as_sentence
    @magic_arguments()
    @argument("--all", action="store_true", help="Ended jobs, too.")
    @argument("--mine", action="store_true", help="Only my jobs.")
    @argument("--project", help="Only jobs of this project.")
    @argument("--state", help="Only jobs in this state, such as running or failed.")
    @line_magic
    def gpu_jobs(self, line: str) -> Jobs:
        """List the jobs of my projects, newest first."""
        given = options_in(self.gpu_jobs, line)
        return Client().jobs(all=given.all, mine=given.mine, project=given.project, state=given.state)

    @as_sentence
    @magic_arguments()
    @argument("--gpu", default="1", help="GPUs, such as 0.5, 1/3, 2 or 8GiB. Default: 1.")
    @argument("--project", help="Default: this notebook's project, or your only one.")
    @argument("--pool", help="Default: the project's pool for training.")
    @argument("--gpu-model", help="Only devices of these models, such as H100.")
    @argument("--name", help="Default: the command.")
    @argument("--environment", help="A named environment. Default: the Python of this kernel; in pods, the project's.")
    @argument("--time-limit", help="Running time per attempt, such as 90m or 24h.")
    @argument("--priority", type=int, help="0 to 100. Default: 50.")
    @argument("--retries", type=int, help="New attempts after a failure.")
    @argument("--private", action="store_true", help="Visible only to you, leads and admins.")
    @argument("--env", action="append", default=[], metavar="K=V", help="A variable of the job; repeatable.")
    @argument("--dir", default=".", help="The folder to pack and send with the cell. Default: that of the notebook.")
    @argument("--dry-run", action="store_true", help="Show the outcome and store nothing.")
    @argument("--wait", action="store_true", help="Wait for the job's end, and show its progress.")
    @argument("--job", metavar="NAME", help="Store the job in this variable.")
    @cell_magic
    def gpu_submit(self, line: str, cell: str) -> Job | DryRunView | None:
        """Submit the cell as a job: its text is a script in the packed folder, without the variables of this kernel."""
        given = options_in(self.gpu_submit, line)
        check_script(cell)
        if given.job is not None and not given.job.isidentifier():
            raise UsageError(f"--job {given.job[:80]!r} is not the name of a variable.")
        client, options = Client(), options_of(given)
        command = [interpreter(client, given.environment), SCRIPT]
        client.request(command, **options)  # checks the arguments before anything is packed
        if given.dry_run:
            return client.dry_run(command, **options)
        notes = list[str]()
        bundle = client.put_bundle(given.dir, on_note=notes.append, extra={SCRIPT: cell.encode()})
        job = client.submit(command, dir=None, bundle=bundle, **options)
        job.notes = tuple(notes)
        for note in notes:
            print(note, file=sys.stderr)
        if given.job is not None:
            self.variables[given.job] = job
        if not given.wait:
            return job
        job.wait(progress=True)  # shows the job until it has ended
        return None


def check_script(cell: str) -> None:
    """Raises UsageError if the cell is empty, or not a Python script."""
    if not cell.strip():
        raise UsageError("%%gpu_submit: the cell is empty, and nothing was sent.")
    try:
        compile(cell, SCRIPT, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        where = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        advice = "magics, shell commands and top-level await do not run in a job. Nothing was sent."
        raise UsageError(f"%%gpu_submit: the cell is not a Python script: {why}{where}; {advice}") from None


def options_of(given: Namespace) -> dict[str, Any]:
    """The options of ``Client.submit``."""
    variables = {}
    for pair in given.env:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--env {pair[:80]!r} is not NAME=VALUE.")
        variables[name] = value
    return {**{name: getattr(given, name) for name in OPTIONS}, "variables": variables}


def options_in(magic: Any, line: str) -> Namespace:
    """The options of a magic, split as in a shell; IPython's own split leaves quotes in the values."""
    try:
        found: Namespace = magic.parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"The options cannot be read: {error}; quote a value that has spaces or quotes.") from None
    return found


def interpreter(client: Client, environment: str | None) -> str:
    """The Python of this kernel in a notebook of the hub on whose machine jobs run, unless an environment is named.

    Images of pods need not have it at its path.
    """
    in_notebook = "JUPYTER_GPU_QUOTA_URL" in os.environ and "JUPYTERHUB_SERVICE_PREFIX" in os.environ
    return sys.executable if environment is None and in_notebook and client.me().job_python else "python"
