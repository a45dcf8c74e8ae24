"""``submit``: queue a job; stdout has only its id."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

from ..client import Client
from ..client.arguments import split_command
from ..client.sending import OnProgress, missing_script_notes
from ..core.amounts import counted
from ..wire.jobs import NotifiedEvent
from .amounts import data_option, parse_cpu, parse_gpu, parse_memory, parse_time_limit
from .dry_runs import print_dry_run
from .prose import is_terminal
from .session import as_json, calls_service, print_stderr
from .tables import print_json
from .waiting import wait_for

MIB = 1 << 20

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


EVENTS = get_args(NotifiedEvent)


def parse_events(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:
    """Events, separated by commas; an empty list for "none"."""
    if text is None:
        return None
    found = [] if text == "none" else [event.strip() for event in text.split(",")]
    if unknown := [event for event in found if event not in EVENTS]:
        raise click.BadParameter(f"{unknown[0]!r:.40} is none of {', '.join(EVENTS)}; without messages, write none")
    return found


class Submission(click.Command):
    """Names the separator where a word or an option was taken for one of the job's command, or the reverse."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        if "--" in given:
            found, _, _ = self.make_parser(ctx).parse_args(given[: given.index("--")])
            words = found.get("command")
            if isinstance(words, tuple) and words:
                advice = "the job's command stands after it, and a value with a space in quotes"
                raise click.UsageError(f"{words[0]!r:.40} stands before --: {advice}.", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if "--" in given:
                raise
            advice = "write -- before the job's command, as in `submit --gpu 1 -- python train.py --epochs 3`"
            raise click.UsageError(f"{error.format_message()} For an option of the command, {advice}.", ctx) from None


@click.command(cls=Submission)
@click.option("--project", metavar="P", help="Default: this notebook's project, or your only one.")
@click.option(
    "--gpu", callback=parse_gpu, default="1", show_default=True, metavar="0.5|1/3|2|8GiB", help="GPU on each node."
)
@click.option("--nodes", type=click.IntRange(1), default=1, metavar="N", help="Nodes, each with --processes ranks.")
@click.option("--min-nodes", type=click.IntRange(1), metavar="M", help="Elastic job: it runs on M to N nodes.")
@click.option("--processes", type=click.IntRange(1), default=1, metavar="N", help="Processes (ranks) per node.")
@click.option("--pool", metavar="P", help="Default: the project's pool for training.")
@click.option("--gpu-model", metavar="M", help="Only devices of these models, such as H100 or H100,A100.")
@click.option(
    "--cpu",
    "cpu_milli",
    callback=parse_cpu,
    metavar="N",
    help="CPUs per node. Default: the node's CPUs in proportion to the GPUs.",
)
@click.option(
    "--memory",
    "memory_mib",
    callback=parse_memory,
    metavar="64GiB",
    help="Host memory per node. Default: the node's memory in proportion to the GPUs.",
)
@click.option("--name", metavar="N", help="Default: the command.")
@click.option("--priority", type=click.IntRange(0, 100), default=50, show_default=True, help="Above 50: leads only.")
@click.option("--non-preemptible", is_flag=True, help="Not preempted by other work; must fit the training quota.")
@click.option(
    "--env", "variables", multiple=True, metavar="K=V|K", help="A variable, or yours of that name; repeatable."
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="K",
    help="A secret variable, whose value comes from your environment or a prompt; repeatable.",
)
@click.option("--environment", metavar="E", help="A named environment of the quota file.")
@data_option("Data of the quota file that the job uses; repeatable. For no data: none. Default: all that you may use.")
@click.option("--dir", "directory", default=".", show_default=True, metavar="D", help="Folder to pack and send.")
@click.option("--live", is_flag=True, help="Run in the folder itself, in your home; nothing is packed.")
@click.option(
    "--time-limit", callback=parse_time_limit, metavar="T", help="Running time per attempt, such as 90m or 24h."
)
@click.option("--retries", type=click.IntRange(0, 100), default=0, metavar="N", help="New attempts after a failure.")
@click.option("--private", is_flag=True, help="Visible only to you, leads and admins.")
@click.option(
    "--notify",
    callback=parse_events,
    metavar="E,E|none",
    help="Events that send you a notification: ended, failed, paused; or none. Default: set by the hub.",
)
@click.option("--idempotency-key", metavar="K", help="The same key returns the same job.")
@click.option("--dry-run", is_flag=True, help="Show the outcome and store nothing.")
@click.option("--wait", is_flag=True, help="Wait for the job's end; exit code 0 if it succeeded, else 1.")
@as_json
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND ...", type=click.UNPROCESSED)
@calls_service
def submit(client: Client, *, directory: str, dry_run: bool, wait: bool, json_: bool, **options: Any) -> None:
    """Queue a job and print its id. COMMAND may be a notebook with parameters: train.ipynb -p epochs 3."""
    if options["min_nodes"] is not None and options["min_nodes"] > options["nodes"]:
        raise click.UsageError(f"--min-nodes {options['min_nodes']} is more than --nodes {options['nodes']}")
    options["preemptible"] = not options.pop("non_preemptible")
    options["variables"] = _variables(options["variables"])
    options["secrets"] = {name: secret_value(name) for name in options["secrets"]}
    key = options.pop("idempotency_key")
    command = options.pop("command")
    if len(command) == 1 and _is_quoted(command[0], directory):
        raise click.UsageError(f"{command[0]!r:.80} is one word, so a program of that name; write it without quotes")
    client.request(command, **options)  # checks the usage before anything is packed or sent
    if not directory or not Path(directory).is_dir():
        raise click.UsageError(f"--dir {directory[:200]!r} is not a folder")
    if dry_run:
        print_dry_run(client.dry_run(command, dir=directory, **options), json_=json_)
        for note in missing_script_notes(split_command(command), directory):
            print_stderr(note)
        return
    with _progress() as on_progress:
        job = client.submit(command, dir=directory, idempotency_key=key, on_progress=on_progress, **options)
    for note in job.notes:
        print_stderr(note)
    if json_:
        print_json(job.view.model_dump(mode="json"))
    else:
        click.echo(job.id)
    if wait:
        sys.stdout.flush()
        sys.exit(wait_for(client, job.id))


@contextlib.contextmanager
def _progress() -> Iterator[OnProgress | None]:
    """A line on a terminal that says how many files are packed, and how much of them is sent.

    A command of a notebook's cell has a terminal, too, but the cell would keep each state of the line in its output.
    """
    if not is_terminal(sys.stderr) or "JPY_PARENT_PID" in os.environ:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), console=Console(file=sys.stderr), transient=True
    ) as shown:
        task = shown.add_task("packing", total=None)

        def update(what: str, done: int, total: int | None) -> None:
            sent = f"{_bytes_text(done)} of {_bytes_text(total or 0)}"
            words = f"packing: {counted(done, 'file')}" if what == "packed" else f"sending: {sent}"
            shown.update(task, description=words, completed=done if total else None, total=total)

        yield update


def _bytes_text(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size / 1024:.1f} KiB"


def _is_quoted(word: str, directory: str) -> bool:
    """Whether a command of one word has several, and is no notebook, no absolute path and no program of the folder."""
    if len(word.split()) < 2 or word.endswith(".ipynb") or word.startswith("/"):
        return False
    with contextlib.suppress(OSError):  # of a word that is longer than a file name
        return not Path(directory, word).exists()
    return True


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not VARIABLE.fullmatch(name):
            raise click.UsageError(f"--env {each[:40]!r} is not NAME=VALUE or NAME")
        if not equals and name not in os.environ:
            raise click.UsageError(f"--env {name}: there is no variable {name} here; write {name}=VALUE")
        pairs[name] = value if equals else os.environ[name]
    return pairs


def secret_value(name: str) -> str:
    """A secret's value, from the environment or a prompt; other users can read the command line."""
    if not VARIABLE.fullmatch(name):
        raise click.UsageError(
            "--secret takes the name of a variable; its value comes from your environment or a prompt"
        )
    if name in os.environ:
        return os.environ[name]
    if not is_terminal(sys.stdin):
        raise click.UsageError(f"--secret {name}: there is no variable {name}, and no terminal for a prompt")
    value: str = click.prompt(f"Value of {name}", hide_input=True, err=True)
    return value
