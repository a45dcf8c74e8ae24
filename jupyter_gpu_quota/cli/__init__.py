"""``jupyter gpu-quota``: the commands; each is imported when it runs, so that help is fast.

Exit codes: 0 done, 1 refused or failed with a reason on stderr, 2 wrong usage, 3 the service cannot be reached, or
cannot answer for now.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

from .. import __version__
from .prose import wrapped

COMMANDS: dict[str, tuple[str, str]] = {
    "submit": ("submit", "Queue a job and print its id."),
    "jobs": ("jobs", "List the jobs of your projects."),
    "job": ("jobs", "Show one job."),
    "provenance": ("jobs", "Show the code, Python and data of a job."),
    "logs": ("jobs", "Print a job's log; -f follows it."),
    "wait": ("jobs", "Wait until jobs have ended."),
    "hold": ("jobs", "Hold a job until it is released."),
    "release": ("jobs", "Release a held job."),
    "cancel": ("jobs", "Cancel a job."),
    "clone": ("jobs", "Queue a job again, with changes."),
    "rerun": ("jobs", "Queue the same code and command again."),
    "outputs": ("jobs", "List, download or remove a job's outputs."),
    "explain": ("jobs", "Explain why a job waits, and which change would start it."),
    "me": ("listings", "Show your projects and what you can start."),
    "projects": ("listings", "List your projects with quota and use."),
    "environments": ("listings", "List the environments of your jobs."),
    "data": ("listings", "List the data that your jobs may use."),
    "notebooks": ("listings", "List running notebooks and their slices."),
    "keep": ("listings", "Postpone an idle warning of a notebook."),
    "devices": ("listings", "List devices and their allocations."),
    "nodes": ("listings", "List, cordon, uncordon, drain and remove nodes."),
    "pools": ("listings", "List pools."),
    "usage": ("listings", "Print allocated and used GPU hours."),
    "quota": ("quota", "Export, preview, apply and revert the quota file."),
    "audit": ("quota", "Print or verify the audit."),
    "backup": ("database.commands", "Write a copy of the database."),
    "restore": ("database.commands", "Put a backup in place of the database."),
    "recover": ("database.commands", "Continue after an older database was restored."),
    "simulate": ("simulate", "Replay a trace in virtual time under other quotas."),
    "decide": ("documents", "Print the plan for a saved snapshot."),
    "snapshot": ("documents", "Save the scheduler's present snapshot."),
    "schema": ("documents", "Print the JSON Schema of a document."),
    "doctor": ("doctor.command", "Check this machine and give advice."),
    "demo": ("service_commands", "Play the demo in a temporary hub."),
    "serve": ("service_commands", "Run the service (the hub does this)."),
    "api": ("service_commands", "Run the API (the service does this)."),
    "controller": ("service_commands", "Run the scheduler (the service does this)."),
    "node-agent": ("service_commands", "Send the samples of a Kubernetes node (a pod does this)."),
}
"""The module and the short help of every command, in the order of the help; its object has the command's name."""

ERROR = "Error: "
"""How click begins the sentence of a wrong usage."""
IMPOSSIBLE_NAMES = {errno.ENAMETOOLONG, errno.ELOOP}
"""Errors of a name itself, which calls such as ``Path.exists`` raise and do not answer."""
HIDDEN = {"serve", "api", "controller", "node-agent"}
OTHER_NAMES = {"queue": "jobs", "status": "jobs", "pause": "hold", "suspend": "hold", "resume": "release"}
"""Words that users of other queues type, with our command."""


class Commands(click.Group):
    """Finds a command in the table and imports only its module."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command. A full disk, a closed stdout or an impossible file name ends it with a sentence and 1."""
        if sys.stdout is None and not HIDDEN.intersection(sys.argv[1:2]):
            click.echo("the output cannot be written: stdout is closed", err=True)
            sys.exit(1)
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno in IMPOSSIBLE_NAMES:
                click.echo(wrapped(f"{_name_in(error)} is no usable file name: {error.strerror}"), err=True)
                sys.exit(1)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            with contextlib.suppress(
                OSError, ValueError
            ):  # the rest of stdout would fail again, with another exit code
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.echo(wrapped(f"{error.filename or 'the output'} cannot be written: {error.strerror}"), err=True)
            sys.exit(1)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _wrapped_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _wrapped_errors():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            where = "options follow the command, as in `jupyter gpu-quota jobs --url URL`"
            ctx.fail(f"{error.format_message()} Here no command is given yet; {where}.")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(f".{COMMANDS[cmd_name][0]}", __name__), cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items() if name not in HIDDEN])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = [OTHER_NAMES[args[0]]] if args[0] in OTHER_NAMES else []
            near = near or difflib.get_close_matches(args[0], COMMANDS.keys() - HIDDEN, n=1)
            advice = f"did you mean {near[0]}?" if near else "--help lists them"
            ctx.fail(f"there is no command {args[0][:40]!r}; {advice}")
        return super().resolve_command(ctx, args)


def _name_in(error: OSError) -> str:
    """The file name of an error in quotes, with its beginning alone where it is long."""
    name = str(error.filename or "")
    return f"{name[:60]!r}... (of {len(name)} characters)" if len(name) > 200 else repr(name)


@contextlib.contextmanager
def _wrapped_errors() -> Iterator[None]:
    """Wrap the sentence of a wrong usage, which click prints below the usage and after the word "Error"."""
    try:
        yield
    except click.UsageError as error:
        lines = wrapped(sentence := f"{ERROR}{error.format_message()}")
        if lines == sentence:
            raise
        raise click.UsageError(lines.removeprefix(ERROR), error.ctx) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jupyter-gpu-quota")
def main() -> None:
    """GPU quotas for notebooks and a queue for training, in a JupyterHub."""
