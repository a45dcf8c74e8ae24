"""``jupyter gpu-quota``: the commands, each imported when it is called, so that help comes at once.

Exit codes: 0 done, 1 refused or failed with a reason on stderr, 2 wrong usage, 3 the service cannot be reached.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from .. import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a command is, and what it says of itself in the list."""

    module: str
    says: str
    hidden: bool = False


COMMANDS: dict[str, Entry] = {
    "submit": Entry(module="submit", says="Queue a job and print its id."),
    "jobs": Entry(module="jobs", says="List the jobs of your projects."),
    "job": Entry(module="jobs", says="Show one job."),
    "logs": Entry(module="jobs", says="Print a job's log; -f follows it."),
    "hold": Entry(module="jobs", says="Hold a job until it is released."),
    "release": Entry(module="jobs", says="Release a held job."),
    "cancel": Entry(module="jobs", says="Cancel a job."),
    "clone": Entry(module="jobs", says="Queue a job again, with differences."),
    "rerun": Entry(module="jobs", says="Queue the same code and command again."),
    "outputs": Entry(module="jobs", says="List or download what a job left behind."),
    "explain": Entry(module="jobs", says="Say why a job waits, and what would change it."),
    "notebooks": Entry(module="listings", says="List running notebooks and their slices."),
    "keep": Entry(module="listings", says="Postpone an idle warning of a notebook."),
    "devices": Entry(module="listings", says="List devices and who holds them."),
    "nodes": Entry(module="listings", says="List, cordon, uncordon and drain nodes."),
    "pools": Entry(module="listings", says="List pools."),
    "usage": Entry(module="listings", says="Print the GPU hours that were had and used."),
    "quota": Entry(module="quota", says="Export, preview, apply and revert the quota file."),
    "audit": Entry(module="quota", says="Print or verify the audit."),
    "simulate": Entry(module="simulate", says="Play a trace in virtual time under other quotas."),
    "decide": Entry(module="documents", says="Print the plan for a saved snapshot."),
    "snapshot": Entry(module="documents", says="Save what the scheduler sees now."),
    "schema": Entry(module="documents", says="Print the JSON Schema of a document."),
    "doctor": Entry(module="doctor.command", says="Check this machine and say what to do."),
    "demo": Entry(module="processes", says="Play the whole story in a real hub."),
    "serve": Entry(module="processes", says="Run the service (the hub does this).", hidden=True),
    "door": Entry(module="processes", says="Run the web door (the service does this).", hidden=True),
    "controller": Entry(module="processes", says="Run the scheduler (the service does this).", hidden=True),
}
"""Every command, in the order of the list; its object has the command's name in its module."""


class Commands(click.Group):
    """Finds a command in the table and imports only its module."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run, and end with a sentence where there is no room for what is printed or written."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            _print_no_more()
            click.echo(f"{error.filename or 'the output'} cannot be written: {error.strerror}", err=True)
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        found = getattr(import_module(f".{entry.module}", __name__), cmd_name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.says) for name, entry in COMMANDS.items() if not entry.hidden])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(_unknown(args[0]))
        return super().resolve_command(ctx, args)


def _print_no_more() -> None:
    """What is left to print goes nowhere: it would fail once more at the end, with another exit code."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unknown(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, [n for n, e in COMMANDS.items() if not e.hidden], n=1)
    return f"there is no command {name[:40]!r}" + (f"; did you mean {near[0]}?" if near else "; --help lists them")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jupyter-gpu-quota")
def main() -> None:
    """GPU quotas for notebooks and a queue for training, in a JupyterHub."""
